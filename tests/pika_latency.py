"""pika's BlockingConnection with a connection for each message (connect, open, publish, close), without and with a
confirm, to a RabbitMQ 3.10 and a 4 that are far away: directly, through Leveret's pool next door, and through one with a spool. One publisher, one
message after the other; the systems take turns at each latency. Every message is counted in the queue in the end.

    make pika-latency                                            # everything, about nine minutes
    make pika-latency ARGS="--latency 0,50 --seconds 2"
    make pika-latency ARGS="--at-least 420"                      # fails when the pool is slower anywhere, without confirms
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time

import pika
from harness.benchmark import Servers, compared, ratio_titles, row, table
from harness.link import Link
from harness.patience import PATIENCE

QUEUE = "pika-latency"
BODY = b"sixteen bytes.."
LATENCIES = "0,1,5,10,50,100"
# Unmeasured messages: the first ones open the pool's connection and channel.
WARM_UP = 3


def main():
    options = arguments()
    met = True
    with tempfile.TemporaryDirectory() as directory, Servers(directory) as servers:
        upstreams = [Upstream(servers, name) for name in compared()]
        titles = [f"{way} {servers.title(each.name)}" for each in upstreams for way in ("directly to", "through the pool to", "spooled for")]
        versions = [servers.title(each.name) for each in upstreams]
        print(table(["round trip", "confirm", *titles, *ratio_titles(versions)], []), flush=True)
        for latency in map(float, options.latency.split(",")):
            for upstream in upstreams:
                upstream.link.order(f"latency {latency}")
            for confirm in [False, True]:
                met &= compare(upstreams, latency, confirm, options)
    return 0 if met else 1


def compare(upstreams, latency, confirm, options):
    """Prints a row; returns whether all messages arrived and the pools were fast enough."""
    rates = measure(upstreams, confirm, options)
    arrived, published = sum(settle(each) for each in upstreams), sum(each.published for each in upstreams)
    medians = {key: statistics.median(of_rounds) for key, of_rounds in rates.items()}
    rows = [[medians[each.name, way] for way in each.uris] for each in upstreams]
    cells = [f"{rate:.1f}/s" for rates in rows for rate in rates] + [f"{pool / direct:.1f}" for direct, pool, _ in rows]
    print(row([f"{latency:g} ms", "yes" if confirm else "no", *cells]), flush=True)
    if arrived != published:
        print(f"{arrived} of {published} messages have arrived", file=sys.stderr)
    for each in upstreams:
        each.published = 0
    is_fast = confirm or all(pool >= options.at_least for _, pool, _ in rows)
    return arrived == published and is_fast and all(spool >= options.spooled_at_least for _, _, spool in rows)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", default=LATENCIES, help="round trips to RabbitMQ in milliseconds, by commas")
    parser.add_argument("--seconds", type=float, default=3, help="how long each round takes")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts")
    parser.add_argument("--at-least", type=float, default=0, help="messages a second through the pool, without confirms")
    parser.add_argument("--spooled-at-least", type=float, default=0, help="messages a second through the spool, with and without")
    return parser.parse_args()


class Upstream:
    """A RabbitMQ behind a slow link, and two pools on this side of it. `published` counts the messages since the queue was
    last checked."""

    def __init__(self, servers, name):
        self.name, self.published = name, 0
        self.rabbitmq = servers.rabbitmq(name)
        self.link = Link(servers.directory / f"{name}.link.log", self.rabbitmq.port)
        servers.callback(self.link.stop)
        port = int(self.link.address.rpartition(":")[2])
        pool = servers.pool(f"pool-{name}", port)
        spooling = ["--spool", '{exchange = ".*"}', "--data-dir", str(servers.directory / f"spool-{name}-data")]
        spool = servers.pool(f"spool-{name}", port, *spooling)
        self.uris = {"direct": f"amqp://guest:guest@{self.link.address}", "pool": pool.uri, "spool": spool.uri}
        with connected(self.rabbitmq.uri) as connection:
            connection.channel().queue_declare(QUEUE)


@contextlib.contextmanager
def connected(uri):
    connection = pika.BlockingConnection(pika.URLParameters(uri))
    try:
        yield connection
    finally:
        connection.close()


def publish(uri, confirm):
    with connected(uri) as connection:
        channel = connection.channel()
        if confirm:
            channel.confirm_delivery()
        channel.basic_publish("", QUEUE, BODY)
        channel.close()


def measure(upstreams, confirm, options):
    """The rates of each round, by upstream and path."""
    ways = [(upstream, way, uri) for upstream in upstreams for way, uri in upstream.uris.items()]
    rates = {(upstream.name, way): [] for upstream, way, _ in ways}
    for upstream, _, uri in ways:
        for _ in range(WARM_UP):
            publish(uri, confirm)
            upstream.published += 1
    for _ in range(options.rounds):
        for upstream, way, uri in ways:
            begin, count = time.monotonic(), 0
            while (taken := time.monotonic() - begin) < options.seconds:
                publish(uri, confirm)
                count += 1
            rates[upstream.name, way].append(count / taken)
            upstream.published += count
    return rates


def settle(upstream):
    """The number of messages that arrived, once all are there or no more come; empties the queue."""
    with connected(upstream.rabbitmq.uri) as connection:
        channel = connection.channel()
        deadline = time.monotonic() + PATIENCE
        count = lambda: channel.queue_declare(QUEUE, passive=True).method.message_count
        while (arrived := count()) < upstream.published and time.monotonic() < deadline:
            connection.sleep(0.05)
        channel.queue_purge(QUEUE)
        return arrived


if __name__ == "__main__":
    sys.exit(main())
