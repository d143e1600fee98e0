"""How long a bystander (connect, declare, publish, get, close) waits beside publishers that never pause and use no confirms:
on RabbitMQ 3.10, on 4 and on the embedded broker, in turn. Health checks and the heartbeats of an idle client are timed as well, and
so is what the publishers get done.

    make bystander                                          # everything, about five minutes
    make bystander ARGS="--load unroutable --seconds 5"
    make bystander ARGS="--beside target/old/leveret"       # an older build, measured in the same run
    make bystander ARGS="--alone"                           # the publishers alone: what has arrived, and in how much memory
    make bystander ARGS="--strict"                          # fails where the broker misses what it promises
"""

import argparse
import contextlib
import multiprocessing
import statistics
import struct
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import pika
from harness.benchmark import RELEASES, UNKNOWN, Servers, compared, row, table
from harness.child import peak_resident_bytes
from harness.leveret import Leveret
from harness.wire import (
    BASIC_PUBLISH,
    HEADER,
    HEARTBEAT,
    METHOD,
    Closed,
    Wire,
    content_header,
    frame,
    publish_arguments,
)

LEVERET = "Leveret"
EXCHANGE = "bystander.fanout"
# The number of publishers, and of queues that get each message; without queues the messages are unroutable.
LOADS = {
    "one queue": (4, 1),
    "unroutable": (4, 0),
    "fanout to 100": (4, 100),
    "fanout to 1500": (20, 1500),
}
# Bytes per write of a publisher.
CHUNK_BYTES = 256 * 1024
FIGURES = ("median", "p99", "worst", "health", "heartbeat")
# Seconds of load before the measurement begins.
WARM_UP_SECONDS = 1
PAUSE_SECONDS = 0.02
# Seconds without a change of the queue's length after which no message is in flight.
SETTLE_SECONDS = 1
# The limit for that: publishers may have to wait for the disk.
MAX_SETTLE_SECONDS = 15
HEARTBEAT_SECONDS = 2
# The broker's limits under each of these loads, in milliseconds.
PROMISED = {"p99": 50, "worst": 200, "health": 100, "heartbeat": 1500}


def main():
    options = arguments()
    if options.alone:
        return alone(options)
    kept, found = True, {}
    names = systems(options)
    print("| load | system | published/s | bystander median | p99 | worst | health worst | heartbeats late by |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for load in options.load or LOADS:
        for name in names:
            with started(name, options) as (title, server):
                found[load, title] = measured = measure(server, load, options.seconds)
            print(details(load, title, measured), flush=True)
            if name == "leveret":
                kept &= all(measured[what] <= limit for what, limit in PROMISED.items())
    print("\n" + summary(found))
    return 0 if kept or not options.strict else 1


def summary(found):
    """The table of docs/benchmarks.md, one column for each system."""
    loads, titles = (list(dict.fromkeys(keys)) for keys in zip(*found, strict=True))
    columns = [(figure, title) for figure in ("p99", "worst") for title in titles]
    rows = []
    for load in loads:
        publishers, queues = LOADS[load]
        into = {0: "no queue", 1: "one queue"}.get(queues, f"fanout to {queues:,} queues")
        times = [f"{found[load, title][figure]:,.0f} ms" for figure, title in columns]
        health = [f"{found[load, title]['health']:.0f} ms" for title in titles if title == LEVERET]
        rows.append([f"{publishers} publishers, {into}", *times, *health])
    header = ["load", *(f"{figure}, {title}" for figure, title in columns), *(["slowest `/healthz`"] * (LEVERET in titles))]
    return table(header, rows)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", action="append", choices=LOADS, help="one of the loads; may be given again")
    parser.add_argument("--seconds", type=float, default=10, help="how long each is measured")
    parser.add_argument("--only", action="append", choices=["leveret", *RELEASES], help="one of the systems")
    parser.add_argument("--beside", type=Path, help="another build of Leveret")
    parser.add_argument("--alone", action="store_true", help="measure the publishers without a bystander")
    parser.add_argument("--rounds", type=int, default=3, help="of the publishers alone; the median counts")
    parser.add_argument("--strict", action="store_true", help="fail where a promise is broken")
    return parser.parse_args()


def alone(options):
    """The publishers' throughput without a bystander: messages that arrived in each queue."""
    print("| load | system | messages/s | peak memory |\n|---|---|---|---|", flush=True)
    names = systems(options)
    for load in options.load or LOADS:
        rates, peaks, titles = {name: [] for name in names}, {name: 0 for name in names}, {}
        for _ in range(options.rounds):
            for name in names:
                with started(name, options) as (titles[name], server):
                    rates[name].append(arrived(server, load, options.seconds))
                    peaks[name] = max(peaks[name], peak_resident_bytes(server.pid))
        for name, of_rounds in rates.items():
            rate, peak = f"{statistics.median(of_rounds):,.0f}", f"{peaks[name] / 2**20:,.0f} MiB"
            print(row([load, titles[name], rate, peak]), flush=True)
    return 0


def arrived(server, load, seconds):
    publishers, queues = LOADS[load]
    prepare(server.port, queues)
    with flooding(server.port, publishers, queues) as sent:
        begin = time.monotonic()
        before = sent.value
        time.sleep(seconds)
        count = (sent.value - before) / len(message_to(queues))
    if queues == 0:
        return count / seconds
    # Messages that were read but not routed yet count, together with the time they take.
    last, count = -1, 0
    while count > last and time.monotonic() - begin < seconds + MAX_SETTLE_SECONDS:
        time.sleep(SETTLE_SECONDS)
        last, count = count, depth(server.port)
    return count / (time.monotonic() - begin - SETTLE_SECONDS)


def depth(port):
    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))) as connection:
        return connection.channel().queue_declare("bystander.0", passive=True).method.message_count


def systems(options):
    """The names of the systems."""
    beside = ["beside"] if options.beside else []
    return [name for name in ["leveret", *compared()] if name in (options.only or ["leveret", *RELEASES])] + beside


@contextlib.contextmanager
def started(name, options):
    """A freshly started server, and its name in tables."""
    with tempfile.TemporaryDirectory() as directory, Servers(directory) as servers:
        if name in RELEASES:
            yield servers.title(name), servers.rabbitmq(name)
            return
        server = Leveret(servers.directory / name, program=options.beside.resolve() if name == "beside" else None)
        servers.callback(server.child.kill)
        yield LEVERET if name == "leveret" else str(options.beside), server


def measure(server, load, seconds):
    publishers, queues = LOADS[load]
    prepare(server.port, queues)
    with flooding(server.port, publishers, queues) as sent:
        time.sleep(WARM_UP_SECONDS)
        watchers = [Health(server), Heartbeats(server.port)]
        before, begin = sent.value, time.monotonic()
        waits = list(bystander(server.port, begin + seconds))
        rate = (sent.value - before) / len(message_to(queues)) / (time.monotonic() - begin)
        late = [watcher.finish() for watcher in watchers]
    return {
        "rate": rate,
        "median": statistics.median(waits),
        "p99": sorted(waits)[int(len(waits) * 0.99)],
        "worst": max(waits),
        "health": late[0] if watchers[0].url else None,
        "heartbeat": late[1],
    }


def details(load, title, measured):
    times = [UNKNOWN if measured[what] is None else f"{measured[what]:.0f} ms" for what in FIGURES]
    return row([load, title, f"{measured['rate']:,.0f}", *times])


def prepare(port, queues):
    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "fanout")
        for number in range(queues):
            channel.queue_declare(f"bystander.{number}")
            channel.queue_bind(f"bystander.{number}", EXCHANGE)


@contextlib.contextmanager
def flooding(port, publishers, queues):
    """Runs publishers in a separate process for the length of the block; yields the number of bytes that the server has
    taken."""
    stop, sent = multiprocessing.Event(), multiprocessing.Value("Q", 0)
    flood = multiprocessing.Process(target=publish_until, args=(port, publishers, message_to(queues), stop, sent))
    flood.start()
    try:
        yield sent
    finally:
        stop.set()
        flood.kill()
        flood.join()


def message_to(queues):
    """The frames of an empty message."""
    arguments = publish_arguments(EXCHANGE, "key") if queues else publish_arguments("", "nowhere")
    method = struct.pack(">HH", *BASIC_PUBLISH) + arguments
    return frame(METHOD, 1, method) + frame(HEADER, 1, content_header(0))


def publish_until(port, publishers, message, stop, sent):
    chunk = message * (CHUNK_BYTES // len(message))
    threads = [threading.Thread(target=publish_on_one, args=(port, chunk, stop, sent), daemon=True) for _ in range(publishers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def publish_on_one(port, chunk, stop, sent):
    with Wire(port) as wire:
        wire.handshake().open_channel()
        wire.socket.settimeout(None)
        view = memoryview(chunk)
        while not stop.is_set():
            rest = view
            while rest:
                # Partial writes count as the busy server reads them.
                count = wire.socket.send(rest)
                rest = rest[count:]
                with sent.get_lock():
                    sent.value += count


def bystander(port, end):
    """The milliseconds of each visit."""
    number = 0
    while time.monotonic() < end:
        begin = time.monotonic()
        with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))) as connection:
            channel = connection.channel()
            name = channel.queue_declare(f"visit.{number}", auto_delete=True).method.queue
            channel.basic_publish("", name, b"hello")
            # RabbitMQ may confirm a message before it reaches its queue.
            while channel.basic_get(name, auto_ack=True)[2] is None:
                pass
            channel.queue_delete(name)
        yield (time.monotonic() - begin) * 1000
        number += 1
        time.sleep(PAUSE_SECONDS)


class Watcher:
    """Records the worst value it observes until it is asked for, in milliseconds."""

    def __init__(self):
        self.worst = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def finish(self):
        self.over.set()
        self.thread.join()
        return self.worst


class Health(Watcher):
    def __init__(self, server):
        self.url = f"{server.http}/healthz" if isinstance(server, Leveret) else None
        super().__init__()

    def watch(self):
        while self.url and not self.over.wait(PAUSE_SECONDS):
            begin = time.monotonic()
            urllib.request.urlopen(self.url, timeout=60).read()
            self.worst = max(self.worst, (time.monotonic() - begin) * 1000)


class Heartbeats(Watcher):
    """A client that only sends heartbeats. Records how late the server's heartbeats are, which come every half interval."""

    def __init__(self, port):
        self.port = port
        super().__init__()

    def watch(self):
        with Wire(self.port) as wire:
            wire.handshake(heartbeat=HEARTBEAT_SECONDS)
            last = time.monotonic()
            while not self.over.is_set():
                wire.send(frame(HEARTBEAT, 0, b""))
                try:
                    wire.read_frame()
                except Closed:
                    self.worst = float("inf")
                    return
                gap, last = time.monotonic() - last, time.monotonic()
                self.worst = max(self.worst, (gap - HEARTBEAT_SECONDS / 2) * 1000)


if __name__ == "__main__":
    sys.exit(main())
