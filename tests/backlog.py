"""A queue far longer than memory: publishes messages with confirms to one durable queue that nobody consumes, publishes and
consumes at once, stops the broker and starts it again, kills it while it is published to and starts it again, and consumes
everything, in order and each once. Prints rates, memory, startup times and what the disk had to write.

    make backlog                                            # ten million messages of 1 KiB: needs about 12 GB of disk
    make backlog ARGS="--messages 500000"                   # a trial
    make backlog ARGS="--transient"                         # messages that are not persistent: none survive a start

Memory is the peak resident set of the broker's process (VmHWM), program pages included, page cache excluded. The data
directory is temporary; TMPDIR selects another disk. The exit code is 1 if memory or a start exceeds its limit.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from harness.amqp import connect
from harness.child import peak_resident_bytes
from harness.leveret import Leveret
from harness.metrics import metric
from harness.numbered import PERSISTENT, TRANSIENT, Consumer, Publisher
from harness.process import bytes_written, reset_peak_memory

SIZE = 1024
QUEUE = "backlog"
# Maximum size, with the segments it keeps for reuse.
JOURNAL = 1 << 30


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as directory:
        needed = options.messages * SIZE * 6 // 5 + JOURNAL
        if shutil.disk_usage(directory).free < needed:
            sys.exit(f"{directory}: needs {needed >> 20} MiB of free disk; TMPDIR names another one")
        run = Run(Path(directory), options)
        try:
            run.play()
        finally:
            run.broker.child.kill()
    run.print()
    over = [row for row in run.rows if row.peak > options.memory_limit << 20]
    slow = [row for row in run.rows if row.name.startswith("start") and row.seconds > options.start_limit]
    sys.exit(bool(over or slow))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--transient", action="store_true", help="neither persistent nor kept by a start")
    parser.add_argument("--confirms", type=int, default=5000, help="unconfirmed messages of the publisher")
    parser.add_argument("--watermark", default="128MiB", help="memory_paging_watermark of the broker")
    parser.add_argument("--memory-limit", type=int, default=512, help="MiB that the process may have")
    parser.add_argument("--start-limit", type=float, default=10, help="seconds that a start may take")
    return parser.parse_args()


class Row:
    """The results of a phase."""

    def __init__(self, name, seconds, peak, messages=None):
        self.name, self.seconds, self.peak, self.messages = name, seconds, peak, messages


class Run:
    """Runs the phases one after the other. The queue holds the numbers from `first` (inclusive) to `next` (exclusive)."""

    def __init__(self, directory, options):
        self.directory, self.options = directory, options
        self.rows = []
        self.first = self.next = self.unconfirmed = 0
        self.mode = TRANSIENT if options.transient else PERSISTENT
        self.broker = self.launch()
        with connect(self.broker) as connection:
            connection.channel().queue_declare(QUEUE, durable=True)

    def play(self):
        self.phase("publish", self.publish, self.options.messages)
        self.on_disk = metric(self.broker, "leveret_broker_paged_messages")
        self.written = bytes_written(self.broker) / (self.options.messages * SIZE)
        self.phase("publish and consume at once", self.publish_and_consume, self.options.messages // 5)
        if not self.options.transient:
            self.broker.stop()
            self.start("start after a stop")
            self.publish_until_killed(self.options.messages // 20)
            self.start("start after kill -9")
        self.phase("consume", self.consume, ready(self.broker))
        assert ready(self.broker) == 0
        self.broker.stop()

    def phase(self, name, act, messages):
        reset_peak_memory(self.broker)
        before = time.monotonic()
        act(messages)
        self.rows.append(Row(name, time.monotonic() - before, peak_resident_bytes(self.broker.pid), messages))
        print(f"{name}: done", file=sys.stderr)

    def publish(self, count):
        with self.publisher() as publisher:
            publisher.publish(count)
            publisher.finish()
        self.next += count

    def consume(self, count):
        with Consumer(self.broker, QUEUE) as consumer:
            for number, _ in consumer.consume(count):
                assert number == self.first, f"{number} comes instead of {self.first}"
                self.first += 1
            consumer.finish()

    def publish_and_consume(self, messages):
        publishing = Watched(lambda: self.publish(messages // 2))
        self.consume(messages // 2)
        publishing.join()

    def publish_until_killed(self, count):
        """Every confirmed message must survive the kill; unconfirmed ones may."""
        with self.publisher() as publisher:
            publisher.publish(count)
            os.kill(self.broker.pid, signal.SIGKILL)
            self.broker.child.wait()
        self.next += publisher.confirmed
        self.unconfirmed = publisher.published - publisher.confirmed

    def start(self, name):
        before = time.monotonic()
        self.broker = self.launch()
        found = ready(self.broker)
        self.rows.append(Row(name, time.monotonic() - before, peak_resident_bytes(self.broker.pid), found))
        expected = self.next - self.first
        assert expected <= found <= expected + self.unconfirmed, f"{found} messages are back"

    def launch(self):
        flags = ["--data-dir", str(self.directory / "data"), "--memory-paging-watermark", self.options.watermark]
        return Leveret(self.directory / f"run{len(self.rows)}", *flags, "--log", "warn")

    def publisher(self):
        return Publisher(self.broker, QUEUE, SIZE, self.next, self.mode, self.options.confirms)

    def print(self):
        kind = "transient" if self.options.transient else "persistent"
        print(f"\n{self.options.messages:,} {kind} messages of {SIZE} bytes, {int(self.on_disk):,} of them on disk only\n")
        print("| | messages | seconds | messages/s | peak memory |\n|---|---|---|---|---|")
        for row in self.rows:
            rate = "" if row.name.startswith("start") else f"{row.messages / row.seconds:,.0f}"
            print(f"| {row.name} | {row.messages:,} | {row.seconds:.2f} | {rate} | {row.peak >> 20} MiB |")
        print(f"\nbytes written to the disk for each byte published, before anything was consumed: {self.written:.2f}")


class Watched(threading.Thread):
    """A thread that raises its exception in join()."""

    def __init__(self, act):
        super().__init__(daemon=True)
        self.act, self.failure = act, None
        self.start()

    def run(self):
        try:
            self.act()
        except BaseException as failure:
            self.failure = failure

    def join(self):
        super().join()
        if self.failure:
            raise self.failure


def ready(broker):
    with connect(broker) as connection:
        return connection.channel().queue_declare(QUEUE, passive=True).method.message_count


if __name__ == "__main__":
    main()
