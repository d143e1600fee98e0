"""The tail of the time from publish to delivery, on RabbitMQ 3.10, on 4 and on the embedded broker, each at half of what the slower RabbitMQ
gets done: p99.9 and the longest, with 10,000 idle connections around, while nothing else happens and during what might cause a pause.

    make tails                                   # everything, about eight minutes
    make tails ARGS="--quick --only leveret"     # to see that it works
    make tails ARGS="--idle 1000 --seconds 10"
    make tails ARGS="--strict"                   # fails where a pause of the broker is longer than it promises

One table for transient and one for durable messages goes to standard output, what each disturbance did to standard error.
"""

import argparse
import concurrent.futures
import contextlib
import http.client
import os
import sys
import tempfile
import threading
import time
from base64 import b64encode

from harness.benchmark import RELEASES, UNKNOWN, Servers, bench, compared, median, milliseconds, per_second, system, table
from harness.exposition import scrape
from harness.leveret import CREDENTIALS
from harness.ports import free_ports
from harness.process import descriptors
from harness.wire import QUEUE_DECLARE_OK, Wire, queue_declare

LEVERET = "leveret"
# The longest pause of the broker in milliseconds, on an otherwise idle machine.
PROMISED = 20
KINDS = {"transient": [], "durable": ["--persistent"]}
LOAD = ["--producers", "5", "--consumers", "5", "--size", "1024", "--confirms", "100", "--prefetch", "100"]
PRODUCERS = 5
# Messages without a consumer at first: 64 KiB each, 50 MB per second, during the whole measurement. Leveret pages them out, or
# retires journal segments, and then pages them in.
BACKLOG = ["--size", "65536", "--rate", "800"]
BACKLOG_QUEUE = "tails.backlog"
WATERMARK = "32MB"
# File descriptors for other purposes than clients.
SPARE = 1000
OPENING_AT_ONCE = 16
DURABLE = 0b10
DECLARED_AT_ONCE = 500
# Seconds between two exports or scrapes.
PAUSE_SECONDS = 0.1
PLUGINS = "rabbitmq_management,rabbitmq_prometheus"


def main():
    options = arguments()
    names = options.only or [LEVERET, *compared()]
    with tempfile.TemporaryDirectory() as directory, descriptors(10**9) as allowed, Servers(directory) as servers:
        idle = min(options.idle, allowed - SPARE)
        print(f"{idle:,} idle connections, of {options.idle:,} that were wanted", file=sys.stderr)
        rates = {kind: options.rate or half_of_slowest(servers, kind, options) for kind in KINDS}
        found, titles = {}, {}
        for name in names:
            with started(servers, name, options) as server:
                titles[name] = server.title
                measure(Measured(server, name, rates, options, found), idle)
    for kind, rate in rates.items():
        print(f"{kind.capitalize()} messages of 1 KiB, {per_second(rate)}:\n\n{table_of(kind, found, titles)}\n", flush=True)
    longest = max((figures[1] for (name, _, _), figures in found.items() if name == LEVERET), default=0)
    print(f"load average at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", file=sys.stderr)
    return 1 if options.strict and longest * 1000 > PROMISED else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[LEVERET, *RELEASES], help="one of the systems; may be given again")
    parser.add_argument("--seconds", type=float, default=6, help="how long each is measured")
    parser.add_argument("--idle", type=int, default=10_000, help="connections that do nothing")
    parser.add_argument("--objects", type=int, default=100_000, help="queues of Leveret for exports and scrapes")
    parser.add_argument("--objects-of-rabbitmq", type=int, default=5_000, help="of RabbitMQ, which takes minutes to declare more")
    parser.add_argument("--rate", type=float, help="messages a second, in place of half of what RabbitMQ does")
    parser.add_argument("--quick", action="store_true", help="a second each, a tenth of the rest")
    parser.add_argument("--strict", action="store_true", help=f"fail where a message takes more than {PROMISED} ms on Leveret")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rate = 1, options.rate or 5000
        options.idle, options.objects, options.objects_of_rabbitmq = (
            count // 10 for count in (options.idle, options.objects, options.objects_of_rabbitmq)
        )
    return options


def half_of_slowest(servers, kind, options):
    """Half the rate of the slowest RabbitMQ release that can run here, with no other load."""
    rates = []
    for name in compared():
        with Servers(servers.directory / f"{kind}-{name}") as alone:
            server = alone.rabbitmq(name)
            _, report = bench("stream", [system(name, server)], *LOAD, *KINDS[kind], "--rounds", "1", "--time", "3")
            rates.append(median(report, name, "rate"))
    if not rates:
        raise SystemExit("no RabbitMQ can be run here: --rate says how many messages a second")
    return min(rates) / 2


@contextlib.contextmanager
def started(servers, name, options):
    """The only server that runs, the address of its definitions and metrics, and its number of objects."""
    with Servers(servers.directory / f"measured-{name}") as alone:
        if name == LEVERET:
            server = alone.leveret(name, "--memory-paging-watermark", WATERMARK)
            server.management = server.metrics = server.http.removeprefix("http://")
            server.objects = options.objects
        else:
            management, prometheus = free_ports(2)
            settings = [f"management.tcp.port = {management}", "management.tcp.ip = 127.0.0.1", f"prometheus.tcp.port = {prometheus}"]
            server = alone.rabbitmq(name, *settings, plugins=PLUGINS)
            server.management, server.metrics = f"127.0.0.1:{management}", f"127.0.0.1:{prometheus}"
            server.objects = options.objects_of_rabbitmq
        server.title = alone.title(name)
        yield server


class Measured:
    """Measures one server. `found` has p99.9 and the maximum in seconds, by system, kind of message and disturbance."""

    def __init__(self, server, name, rates, options, found):
        self.server, self.name, self.rates, self.options, self.found = server, name, rates, options, found

    def during(self, kind, title, disturbance=None):
        words = [*LOAD, *KINDS[kind], "--rate", f"{self.rates[kind] / PRODUCERS:.0f}", "--rounds", "1", "--time", str(self.options.seconds)]
        with disturbance or contextlib.nullcontext():
            _, report = bench("stream", [system(self.name, self.server)], *words)
        self.found[self.name, kind, title] = [median(report, self.name, metric) for metric in ("p99.9", "max")]


def measure(measured, idle):
    server, seconds = measured.server, measured.options.seconds
    with contextlib.ExitStack() as connections:
        for wire in opened(server.port, idle):
            connections.callback(wire.close)
        for kind in KINDS:
            measured.during(kind, "nothing else")
            backlog = Backlog(server, measured.name, kind, seconds)
            measured.during(kind, "a backlog that grows", backlog.filled())
            measured.during(kind, "a backlog that is consumed", backlog.emptied())
        declare(server.port, server.objects)
        for kind in KINDS:
            for title, host, path in (
                ("export of definitions", server.management, "/api/definitions"),
                ("scrape of all objects", server.metrics, "/metrics/per-object"),
            ):
                measured.during(kind, title, asked(measured.name, title, host, path))


def opened(port, count):
    with concurrent.futures.ThreadPoolExecutor(OPENING_AT_ONCE) as pool:
        return list(pool.map(lambda _: Wire(port).handshake(), range(count)))


def declare(port, count):
    """Declares idle queues; they are durable, because definitions contain no others."""
    declare_all(port, [f"tails.object.{number}" for number in range(count)], DURABLE)


def declare_all(port, names, flags=0):
    with Wire(port) as wire:
        wire.handshake().open_channel()
        for first in range(0, len(names), DECLARED_AT_ONCE):
            some = names[first : first + DECLARED_AT_ONCE]
            wire.send(b"".join(queue_declare(name, flags) for name in some))
            for _ in some:
                wire.expect(QUEUE_DECLARE_OK)


@contextlib.contextmanager
def asked(name, title, host, path):
    """Repeats a request until the block ends."""
    ended, took = threading.Event(), []

    def ask():
        authorization = {"authorization": "Basic " + b64encode(CREDENTIALS.encode()).decode()}
        while not ended.is_set():
            began = time.monotonic()
            connection = http.client.HTTPConnection(host, timeout=60)
            connection.request("GET", path, headers=authorization)
            answer = connection.getresponse()
            length = len(answer.read())
            assert answer.status == 200, (path, answer.status)
            connection.close()
            took.append((time.monotonic() - began, length))
            ended.wait(PAUSE_SECONDS)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        seconds, length = max(took)
        print(f"{name}: {title}: {len(took)} times, {length / 2**20:.1f} MiB in {seconds:.2f} s at most", file=sys.stderr)


class Backlog:
    """Large messages that are consumed only after a while."""

    def __init__(self, server, name, kind, seconds):
        self.server, self.name, self.kind, self.seconds = server, name, kind, seconds
        queue = f"{BACKLOG_QUEUE}.{kind}"
        declare_all(server.port, [queue], DURABLE if KINDS[kind] else 0)
        self.flags = [*KINDS[kind], "--queue", queue, "--predeclared", "--rounds", "1"]

    @contextlib.contextmanager
    def beside(self, *words):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(bench, "stream", [system(self.name, self.server)], *self.flags, *words)
            yield
            _, report = running.result()
        [[done]] = [each["rounds"] for each in report["systems"]]
        print(f"{self.name}: {self.kind} backlog: {done['counts']}{self.of_store()}", file=sys.stderr)

    def filled(self):
        return self.beside("--producers", "1", "--consumers", "0", *BACKLOG, "--time", str(self.seconds))

    def emptied(self):
        return self.beside("--producers", "0", "--consumers", "1", "--time", str(self.seconds))

    def of_store(self):
        if self.name != LEVERET:
            return ""
        text = scrape(self.server.http + "/metrics")
        paged = {way: text.value(f"leveret_broker_messages_paged_{way}_total") for way in ("out", "in")}
        segments = text.value("leveret_store_journal_segments")
        return f"; paged out {paged['out']:,.0f} and in {paged['in']:,.0f} so far; {segments:.0f} segments of the journal"


def table_of(kind, found, titles):
    disturbances = list(dict.fromkeys(title for _, of, title in found if of == kind))
    header = ["meanwhile", *(f"{figure}, {title}" for title in titles.values() for figure in ("p99.9", "longest"))]
    rows = []
    for disturbance in disturbances:
        figures = [found.get((name, kind, disturbance), [None, None]) for name in titles]
        rows.append([disturbance, *(milliseconds(value) if value else UNKNOWN for both in figures for value in both)])
    return table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
