"""A queue far longer than memory: publishes persistent messages with confirms to one queue that nobody consumes, kills the
broker, starts it again, and consumes everything. Prints rates, memory, start-up time and what the disk had to write.

    make backlog                                # ten million messages of 1 KiB: needs about 12 GB of disk
    make backlog ARGS="--messages 500000"       # a trial

Memory is that of the broker's process, sampled five times a second; the page cache is not its own. The data folder is a
temporary one: TMPDIR names another disk. The exit code is 1 when memory or the start-up time is over its limit.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pika

from harness.leveret import Leveret, binary
from harness.metrics import metric

SIZE = 1024
PAGE = os.sysconf("SC_PAGE_SIZE")


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        broker = start(Path(folder), options)
        declare(broker)
        rows = [Phase("publish", broker, options.messages).run(publish(broker, options))]
        publishing = written(broker) / (options.messages * SIZE)
        on_disk = metric(broker, "leveret_broker_paged_messages")
        os.kill(broker.pid, signal.SIGKILL)
        broker.child.wait()
        before = time.monotonic()
        broker = start(Path(folder), options)
        found = ready(broker)
        starting = time.monotonic() - before
        assert found == options.messages, f"{found} messages are back"
        rows.append(Phase("consume", broker, options.messages).run(consume(broker, options)))
        assert ready(broker) == 0
        broker.stop()
    print(f"\n{options.messages:,} persistent messages of {SIZE} octets; {int(on_disk):,} of them on disk only when all were published\n")
    print("| | messages/s | seconds | peak memory (MiB) |\n|---|---|---|---|")
    for phase in rows:
        print(f"| {phase.name} | {phase.rate:,.0f} | {phase.seconds:.1f} | {phase.peak >> 20} |")
    print(f"| start after kill -9 | | {starting:.2f} | {rows[1].at_start >> 20} at its end |")
    print(f"\nwritten to the disk for each octet published, before anything was consumed: {publishing:.2f}")
    peak = max(phase.peak for phase in rows)
    sys.exit(peak > options.memory_limit << 20 or starting > options.start_limit)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--confirms", type=int, default=1000, help="unconfirmed messages of a producer")
    parser.add_argument("--watermark", default="128MiB", help="memory_paging_watermark of the broker")
    parser.add_argument("--memory-limit", type=int, default=512, help="MiB that the process may have")
    parser.add_argument("--start-limit", type=float, default=10, help="seconds that a start may take")
    return parser.parse_args()


def start(folder, options):
    flags = ["--data-dir", str(folder / "data"), "--memory-paging-watermark", options.watermark, "--log", "warn"]
    return Leveret(folder / f"run{len(list(folder.glob('run*')))}", *flags)


def declare(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as connection:
        connection.channel().queue_declare("backlog", durable=True)


def ready(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as connection:
        return connection.channel().queue_declare("backlog", passive=True).method.message_count


def bench(broker, options, *flags):
    argv = [binary(), "bench", "stream", "--uri", broker.uri, "--queue", "backlog", "--predeclared", "--persistent"]
    return [*argv, "--size", str(SIZE), "--rounds", "1", *flags]


def publish(broker, options):
    each = str(options.messages // options.producers)
    flags = ["--consumers", "0", "--producers", str(options.producers), "--confirms", str(options.confirms)]
    return bench(broker, options, *flags, "--messages", each)


def consume(broker, options):
    flags = ["--producers", "0", "--consumers", "1", "--prefetch", "1000", "--multi-ack", "100"]
    return bench(broker, options, *flags, "--messages", str(options.messages))


class Phase:
    """A run of the load generator, with an eye on the broker's memory."""

    def __init__(self, name, broker, messages):
        self.name, self.broker, self.messages = name, broker, messages
        self.at_start = self.peak = resident(broker)

    def run(self, argv):
        over = threading.Event()
        watch = threading.Thread(target=self.watch, args=(over,))
        watch.start()
        before = time.monotonic()
        try:
            subprocess.run([str(word) for word in argv], check=True, stdout=sys.stderr)
        finally:
            over.set()
            watch.join()
        self.seconds = time.monotonic() - before
        self.rate = self.messages / self.seconds
        return self

    def watch(self, over):
        while not over.wait(0.2):
            self.peak = max(self.peak, resident(self.broker))


def resident(broker):
    return int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1]) * PAGE


def written(broker):
    text = Path(f"/proc/{broker.pid}/io").read_text()
    return int(re.search(r"^write_bytes: (\d+)", text, re.MULTILINE).group(1))


if __name__ == "__main__":
    main()
