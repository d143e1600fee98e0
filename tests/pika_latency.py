"""pika's BlockingConnection with a connection for each message (connect, open, publish, close), without and with a
confirm, to a RabbitMQ that is far away: directly, and through Leveret's pool next door. One publisher, one message after
the other; the systems take turns at each latency. Every message is counted in the queue in the end.

    make pika-latency                                            # everything, about six minutes
    make pika-latency ARGS="--latency 0,50 --seconds 2"
    make pika-latency ARGS="--at-least 420"                      # fails when the pool is slower anywhere, without confirms
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pika
from harness.child import Child, clean_environment
from harness.leveret import Leveret, binary
from harness.patience import PATIENCE
from harness.rabbitmq import RabbitMq

QUEUE = "pika-latency"
BODY = b"sixteen bytes.."
LATENCIES = "0,1,5,10,50,100"
# So many are not measured: the first ones make the pool's connection and channel.
WARM_UP = 3


def main():
    options = arguments()
    met = True
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as (rabbitmq, link, systems):
        with connected(rabbitmq.uri) as connection:
            connection.channel().queue_declare(QUEUE)
        print("| round trip | confirm | direct | through the pool | ratio | messages |\n|---|---|---|---|---|---|", flush=True)
        for latency in map(float, options.latency.split(",")):
            link.order(f"latency {latency}")
            for confirm in [False, True]:
                rates, published = measure(systems, confirm, options)
                arrived = settle(rabbitmq, published)
                direct, pool = (statistics.median(rates[name]) for name in systems)
                with_confirm = "yes" if confirm else "no"
                counted = f"{arrived} of {published}"
                print(
                    f"| {latency:g} ms | {with_confirm} | {direct:.1f}/s | {pool:.1f}/s | {pool / direct:.1f} | {counted} |",
                    flush=True,
                )
                met &= arrived == published and (confirm or pool >= options.at_least)
    return 0 if met else 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", default=LATENCIES, help="round trips to RabbitMQ in milliseconds, by commas")
    parser.add_argument("--seconds", type=float, default=3, help="how long each round takes")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts")
    parser.add_argument("--at-least", type=float, default=0, help="messages a second through the pool, without confirms")
    return parser.parse_args()


@contextlib.contextmanager
def servers(folder):
    with contextlib.ExitStack() as stack:
        rabbitmq = RabbitMq(folder / "rabbitmq")
        stack.callback(rabbitmq.stop)
        link = Link(folder, rabbitmq.port)
        stack.callback(link.stop)
        pool = Leveret(folder / "pool", "--log", "warn", "--upstream", f"amqp://{link.address}")
        stack.callback(pool.stop)
        yield rabbitmq, link, {"direct": f"amqp://guest:guest@{link.address}", "pool": pool.uri}


class Link:
    """`leveret bench link` in front of a server."""

    def __init__(self, folder, port):
        argv = [binary(), "bench", "link", "--to", f"127.0.0.1:{port}"]
        self.child = Child(argv, folder / "link.log", env=clean_environment(), stdin=subprocess.PIPE)
        self.address = self.child.wait_line(r"listening on tcp://(\S+)").group(1)
        self.orders = 0

    def order(self, words):
        self.child.process.stdin.write(f"{words}\n")
        self.child.process.stdin.flush()
        self.orders += 1
        with self.child.changed:
            assert self.child.changed.wait_for(lambda: self.child.lines.count("done") == self.orders, PATIENCE)

    def stop(self):
        self.child.kill()


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


def measure(systems, confirm, options):
    """The rates of each system, and how many messages all of them published."""
    rates, published = {name: [] for name in systems}, 0
    for uri in systems.values():
        for _ in range(WARM_UP):
            publish(uri, confirm)
            published += 1
    for _ in range(options.rounds):
        for name, uri in systems.items():
            begin, count = time.monotonic(), 0
            while (taken := time.monotonic() - begin) < options.seconds:
                publish(uri, confirm)
                count += 1
            rates[name].append(count / taken)
            published += count
    return rates, published


def settle(rabbitmq, published):
    """How many messages have arrived, once they are all there or no more come; the queue is empty then."""
    with connected(rabbitmq.uri) as connection:
        channel = connection.channel()
        deadline = time.monotonic() + PATIENCE
        count = lambda: channel.queue_declare(QUEUE, passive=True).method.message_count
        while (arrived := count()) < published and time.monotonic() < deadline:
            connection.sleep(0.05)
        channel.queue_purge(QUEUE)
        return arrived


if __name__ == "__main__":
    sys.exit(main())
