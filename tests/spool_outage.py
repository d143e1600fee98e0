"""An hour's outage behind a spool: the broker vanishes, 3.6 million persistent messages of 1 KiB are published with confirms, which is
an hour at 1,000 a second, and the broker comes back while others go on publishing. All must arrive in order.

    make spool-outage                                           # needs about 11 GB of disk
    make spool-outage ARGS="--messages 200000"                  # a trial
    make spool-outage ARGS="--upstream rabbitmq4 --latency 100"

The messages are published as fast as they are confirmed, not in an hour. The upstream is Leveret's broker unless --upstream names a
RabbitMQ release, which may be slower than the spool. Memory is the peak resident set of the spool's process (VmHWM). Directories are
temporary; TMPDIR selects another disk. The exit code is 1 if memory or the forwarding rate misses its limit.
"""

import argparse
import shutil
import sys
import tempfile
import threading
import time

import pika

from harness.benchmark import RELEASES, Servers, per_second, table
from harness.child import peak_resident_bytes
from harness.link import Link
from harness.metrics import metric, wait_until
from harness.numbered import Consumer, Publisher
from harness.process import reset_peak_memory

SIZE = 1024
QUEUE = "outage"
MEBIBYTE = 1 << 20
# Bytes of disk space per byte of a message: for the spool, the broker and their journals together.
DISK_FACTOR = 2.5
# Published while the spool drains: messages per batch, and seconds between batches.
BATCH, PAUSE = 50, 0.05


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as directory, Servers(directory) as servers:
        needed = int(options.messages * SIZE * DISK_FACTOR) + (2 << 30)
        if shutil.disk_usage(directory).free < needed:
            sys.exit(f"{directory}: needs {needed // MEBIBYTE} MiB of free disk; TMPDIR names another one")
        outage = Outage(servers, options)
        outage.play()
    outage.print()
    slow = outage.forwarded < options.at_least
    large = max(outage.peaks) > options.memory_limit * MEBIBYTE
    sys.exit(slow or large)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=3_600_000)
    parser.add_argument("--upstream", choices=["leveret", *RELEASES], default="leveret")
    parser.add_argument("--latency", type=float, default=0, help="milliseconds of a round trip to the upstream")
    parser.add_argument("--memory-limit", type=int, default=400, help="MiB that the spool's process may have")
    parser.add_argument("--at-least", type=float, default=50_000, help="messages a second that must be forwarded afterwards")
    return parser.parse_args()


class Outage:
    """A spool, the link behind it and the broker at the end. Measurements are set once they are known."""

    def __init__(self, servers, options):
        self.options, self.servers = options, servers
        if options.upstream == "leveret":
            self.upstream = servers.leveret("upstream", "--data-dir", str(servers.directory / "upstream-data"))
        else:
            self.upstream = servers.rabbitmq(options.upstream)
        self.link = Link(servers.directory / "link.log", self.upstream.port)
        servers.callback(self.link.stop)
        self.link.order(f"latency {options.latency}")
        flags = ["--spool", '{exchange = ".*"}', "--spool-max-bytes", "64GiB", "--data-dir", str(servers.directory / "data")]
        self.spool = servers.pool("spool", int(self.link.address.rpartition(":")[2]), *flags)
        self.peaks, self.meanwhile = [], 0

    def play(self):
        properties = self.declare()
        # Like a pulled cable: open connections stop, and nobody answers.
        self.link.order("stall")
        self.link.order("cut")
        reset_peak_memory(self.spool)
        began = time.monotonic()
        with self.publisher(0) as publisher:
            publisher.publish(self.options.messages)
            publisher.finish()
            self.accepted = self.options.messages / (time.monotonic() - began)
            self.peaks.append(peak_resident_bytes(self.spool.pid))
            assert metric(self.spool, "leveret_spool_messages") == self.options.messages
            reset_peak_memory(self.spool)
            with Consumer(self.upstream, QUEUE, SIZE, property_bytes=properties) as consumer:
                self.link.order("flow")
                self.drain(publisher, consumer)
                consumer.finish()
        wait_until(lambda: metric(self.spool, "leveret_spool_messages") == 0)
        self.peaks.append(peak_resident_bytes(self.spool.pid))

    def declare(self):
        """Declares the queue upstream and spools a first message, from which the spool learns the login; returns the size of
        each message's properties upstream."""
        with pika.BlockingConnection(pika.URLParameters(self.upstream.uri)) as direct:
            channel = direct.channel()
            channel.queue_declare(QUEUE, durable=True)
            with self.publisher(0) as publisher:
                publisher.publish(1)
                publisher.finish()
            wait_until(lambda: metric(self.spool, "leveret_spool_forwarded_messages_total") == 1)
            _, properties, _ = channel.basic_get(QUEUE, auto_ack=True)
            # Without the two bytes of flags.
            return len(b"".join(properties.encode())) - 2

    def publisher(self, first):
        return Publisher(self.spool, QUEUE, SIZE, first)

    def drain(self, publisher, consumer):
        """Consumes the messages of the outage and those published meanwhile; asserts their order."""
        returned, first, due, end = time.monotonic(), None, 0, self.options.messages
        drained = threading.Event()
        others = threading.Thread(target=self.publish_meanwhile, args=(publisher, drained), daemon=True)
        others.start()
        for number, _ in consumer.consume(sys.maxsize):
            assert number == due, f"{number} comes instead of {due}"
            first, due = first or time.monotonic(), due + 1
            if due == end and not drained.is_set():
                self.forwarded, self.away = end / (time.monotonic() - first), first - returned
                drained.set()
                others.join()
                end += self.meanwhile
            if due == end:
                break

    def publish_meanwhile(self, publisher, drained):
        while not drained.wait(PAUSE):
            publisher.publish(BATCH)
            publisher.finish()
            self.meanwhile += BATCH

    def print(self):
        options = self.options
        title = self.servers.title(options.upstream)
        print(f"\n{options.messages:,} persistent messages of {SIZE} bytes; behind the spool {title}, {options.latency:g} ms away\n")
        rows = [
            ["published and confirmed during the outage", per_second(self.accepted), self.memory(0)],
            [f"forwarded in order afterwards, beside {self.meanwhile:,} new messages", per_second(self.forwarded), self.memory(1)],
        ]
        print(table(["", "messages/s", "peak memory"], rows))
        print(f"\nthe first came {self.away:.1f} s after the broker was back")

    def memory(self, phase):
        return f"{self.peaks[phase] // MEBIBYTE} MiB"


if __name__ == "__main__":
    main()
