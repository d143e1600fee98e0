"""Consumers of one channel with different prefetch limits, some set with `global`, have the same limits after their upstream
connection is lost (P7): in RabbitMQ 3.10, where `global` limits the channel, and in RabbitMQ 4, where it limits each
later consumer."""

import contextlib

import pika
import pytest
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE
from harness.upstreams import pool, upstream

# Fixtures of these tests.
__all__ = ["pool", "upstream"]
MESSAGES = 12
# Prefetches and consumers in the order in which a client sends them: (prefetch, global), or the name of a queue to consume.
PROGRAMS = {
    "each": [(3, False), "a", (7, False), "b"],
    "each-then-global": [(4, False), (7, True), "a"],
    "global-then-each": [(7, True), (4, False), "a"],
    "global-first": [(8, True), (3, False), "a", "b", (5, False), "c"],
    "global-between": [(3, False), "a", (8, True), "b", (5, False), "c"],
    "global-taken-back": [(6, True), "a", (0, True), (2, False), "b"],
    "consumer-before-global": ["a", (5, True), "b"],
}

# Programs with limits of several consumers and of the channel.
MIXED = ["global-first", "global-between"]


class Client:
    """Runs a program without acknowledging: the number of messages that a consumer receives is its limit."""

    def __init__(self, uri, program, prefix):
        self.parameters = pika.URLParameters(uri)
        self.connection = pika.BlockingConnection(self.parameters)
        self.channel = self.connection.channel()
        self.queues = {step: prefix + step for step in program if isinstance(step, str)}
        self.got = dict.fromkeys(self.queues, 0)
        for queue in self.queues.values():
            self.channel.queue_declare(queue, durable=True)
        for step in program:
            if step in self.queues:
                self.channel.basic_consume(self.queues[step], lambda *message, name=step: self.take(name))
            else:
                self.channel.basic_qos(prefetch_count=step[0], global_qos=step[1])

    def take(self, name):
        self.got[name] += 1

    def fill(self, expected):
        """Publishes to each queue in turn, and expects exactly these numbers of messages."""
        with contextlib.closing(pika.BlockingConnection(self.parameters)) as other:
            channel = other.channel()
            channel.confirm_delivery()
            for name, queue in self.queues.items():
                for _ in range(MESSAGES):
                    channel.basic_publish("", queue, b"x")
                wait_until(lambda name=name: self.process() or self.got[name] >= expected[name])
        # The channel answers after all its deliveries.
        for queue in self.queues.values():
            self.channel.queue_declare(queue, passive=True)
        self.process()
        assert self.got == expected

    def process(self):
        self.connection.process_data_events(time_limit=0.1)

    def close(self):
        self.connection.close()


def expected(program, of_channel):
    """The number of messages of each consumer if the queues are filled in turn, with `global` limiting the channel or each
    consumer."""
    each = total = 0
    limits = {}
    for step in program:
        if isinstance(step, str):
            limits[step] = each or MESSAGES
        elif step[1] and of_channel:
            total = step[0]
        else:
            each = step[0]
    room, got = total or MESSAGES * len(limits), {}
    for name, limit in limits.items():
        got[name] = min(limit, room)
        room -= got[name]
    return got


@pytest.mark.parametrize("name", PROGRAMS)
def test_p7_limits_are_the_same_again(upstream, pool, name):
    def lose():
        before = metric(pool, "leveret_upstream_recovered_channels_total")
        upstream.control("close_all_connections", "maintenance")
        wait_until(lambda: metric(pool, "leveret_upstream_recovered_channels_total") > before, PATIENCE)

    if name in MIXED and upstream.release.name == "3.10":
        pytest.skip("it delivers more than the channel's limit to several consumers with limits of their own")
    program = PROGRAMS[name]
    right = expected(program, of_channel=upstream.release.name == "3.10")
    for server, lost in [(upstream, False), (pool, False), (pool, True)]:
        client = Client(server.uri, program, f"{name}-{lost}-{server is pool}-")
        if lost:
            lose()
        client.fill(right)
        client.close()
