"""Stream consumers through the pool: they start at the requested offset, acknowledgements renew their credit, and a restart
of the broker neither duplicates nor skips a message (P7), on either RabbitMQ release."""

import contextlib
import datetime
import time

import pika
import pytest
from harness.amqp import connect
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE
from harness.upstreams import pool, upstream

STREAM = {"x-queue-type": "stream"}
# Fixtures of these tests.
__all__ = ["pool", "upstream"]
# Longer bodies begin with zeros.
DIGITS = 9


def without_heartbeats(server):
    """A connection without heartbeats: while a server starts, nobody reads from these clients' sockets."""
    return connect(server, heartbeat=0)


@contextlib.contextmanager
def channel(server):
    with contextlib.closing(without_heartbeats(server)) as connection:
        yield connection.channel()


def publish(server, stream, numbers):
    with channel(server) as publisher:
        publisher.queue_declare(stream, durable=True, arguments=STREAM)
        publisher.confirm_delivery()
        for number in numbers:
            publisher.basic_publish("", stream, str(number))


class Reader:
    """A stream consumer; its received messages are in `bodies`."""

    def __init__(self, server, stream, offset=None, prefetch=5, acknowledges=True):
        self.connection = without_heartbeats(server)
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.bodies, self.tags, self.acknowledges = [], [], acknowledges
        arguments = {} if offset is None else {"x-stream-offset": offset}
        self.channel.basic_consume(stream, self.take, arguments=arguments)
        # RabbitMQ resolves the offset after consume-ok and before the next method: "next" means from here on.
        self.channel.basic_qos(prefetch_count=prefetch)

    def take(self, channel, method, _properties, body):
        self.bodies.append(int(body[-DIGITS:]))
        self.tags.append(method.delivery_tag)
        if self.acknowledges:
            channel.basic_ack(method.delivery_tag)

    def expect(self, numbers):
        """Receives exactly these, in order; detects additional ones."""
        numbers = list(numbers)
        deadline = time.monotonic() + PATIENCE
        while len(self.bodies) < len(numbers):
            self.connection.process_data_events(time_limit=1)
            assert time.monotonic() < deadline, f"{self.bodies}, and then nothing"
        # The broker answers after everything it has sent.
        self.channel.basic_qos(prefetch_count=5)
        assert self.bodies == numbers

    def close(self):
        self.connection.close()


@pytest.mark.parametrize("prefetch", [3, 100])
def test_consumers_begin_where_they_ask_to(pool, prefetch):
    stream = f"offsets-{prefetch}"
    publish(pool, stream, range(50))
    for offset, first in [("first", 0), (17, 17), (datetime.datetime(2020, 1, 1), 0)]:
        with contextlib.closing(Reader(pool, stream, offset, prefetch)) as reader:
            reader.expect(range(first, 50))
    with contextlib.closing(Reader(pool, stream, "last", prefetch)) as last:
        # A chunk holds the messages that were written at once.
        wait_until(lambda: last.connection.process_data_events(time_limit=1) or last.bodies)
        assert last.bodies[0] > 0
        last.expect(range(last.bodies[0], 50))
    readers = [Reader(pool, stream, offset, prefetch) for offset in ("next", None)]
    publish(pool, stream, range(50, 60))
    for reader in readers:
        reader.expect(range(50, 60))
        reader.close()


def test_acknowledgements_are_the_credit_of_a_consumer(pool):
    publish(pool, "credit", range(20))
    with contextlib.closing(Reader(pool, "credit", "first", prefetch=4, acknowledges=False)) as reader:
        reader.expect(range(4))
        reader.channel.basic_ack(reader.tags[1], multiple=True)
        reader.expect(range(6))
        reader.channel.basic_ack(reader.tags[-1], multiple=True)
        reader.expect(range(10))


def test_refused_stream_operations_match_the_broker_and_affect_no_others(upstream, pool):
    publish(pool, "refusals", range(3))

    def refusal(server, ask):
        connection = without_heartbeats(server)
        with pytest.raises((pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker)) as refused:
            ask(connection.channel())
        if connection.is_open:
            connection.close()
        return type(refused.value), refused.value.reply_code, refused.value.reply_text

    def consume(channel, arguments=None, prefetch=5, **options):
        channel.basic_qos(prefetch_count=prefetch)
        channel.basic_consume("refusals", lambda *_: None, arguments={"x-stream-offset": "first"} | (arguments or {}), **options)

    single = STREAM | {"x-single-active-consumer": True}
    with contextlib.closing(Reader(pool, "refusals")) as beside:
        for ask in [
            lambda channel: consume(channel, prefetch=0),
            lambda channel: consume(channel, auto_ack=True),
            lambda channel: consume(channel, {"x-stream-offset": "nonsense"}),
            lambda channel: consume(channel, {"x-priority": 1}),
            lambda channel: channel.basic_get("refusals"),
            lambda channel: channel.queue_purge("refusals"),
            lambda channel: channel.queue_declare("single", durable=True, arguments=single),
            lambda channel: channel.queue_declare("transient", arguments=STREAM),
        ]:
            assert refusal(pool, ask) == refusal(upstream, ask)
        publish(pool, "refusals", range(3, 6))
        beside.expect(range(3, 6))


def close_connections(upstream):
    upstream.control("close_all_connections", "maintenance")


def restart(upstream):
    if upstream.release.name == "3.10":
        pytest.skip("its streams do not come back from kill -9 on a single node (404, home node is down or inaccessible)")
    upstream.end()
    upstream.start()


@pytest.mark.parametrize("lose", [close_connections, restart])
def test_p7_an_outage_neither_repeats_nor_skips_a_message(upstream, pool, lose):
    stream, other = f"outage-{lose.__name__}", f"moved-{lose.__name__}"
    publish(pool, stream, range(30))
    acknowledging = Reader(pool, stream, "first")
    acknowledging.expect(range(30))
    # Stops halfway, with all its credit used.
    stopped = Reader(pool, stream, 10, acknowledges=False)
    stopped.expect(range(10, 15))
    waiting = Reader(pool, stream, 30)
    # Messages of a queue that came from a stream.
    with channel(pool) as publisher:
        publisher.queue_declare(other, durable=True)
        publisher.confirm_delivery()
        headers = pika.BasicProperties(headers={"x-stream-offset": 7}, delivery_mode=2)
        publisher.basic_publish("", other, "0", headers)
    moved = Reader(pool, other)
    moved.expect([0])
    with channel(pool) as publisher:
        publisher.confirm_delivery()
        lose(upstream)
        for number in range(30, 40):
            publisher.basic_publish("", stream, str(number))
    acknowledging.expect(range(40))
    waiting.expect(range(30, 40))
    # The new connection granted new credit; a late acknowledgement adds none.
    stopped.channel.basic_ack(stopped.tags[-1], multiple=True)
    stopped.expect(range(10, 20))
    with channel(pool) as publisher:
        publisher.confirm_delivery()
        publisher.basic_publish("", other, "1", headers)
    # Messages acknowledged just before may be redelivered.
    wait_until(lambda: moved.connection.process_data_events(time_limit=1) or moved.bodies[-1] == 1)
    for reader in [acknowledging, stopped, moved, waiting]:
        reader.close()


@pytest.mark.parametrize("lose", [close_connections, restart])
def test_p7_after_an_outage_a_consumer_still_waits_for_the_next_message(upstream, pool, lose):
    stream = f"next-{lose.__name__}"
    publish(pool, stream, range(30))
    # The pool stores the start of a consumer with offset "next" in whole seconds.
    second = int(time.time())
    while int(time.time()) == second:
        time.sleep(0.01)
    def consumers():
        """The consumers' channels, which are new after a reconnect. RabbitMQ does not list stream consumers."""
        rows = [line.split() for line in upstream.control("list_channels", "pid", "consumer_count").splitlines()]
        return {channel for channel, count in rows if count != "0"}

    with contextlib.closing(Reader(pool, stream, "next")) as waiting:
        before = consumers()
        lose(upstream)
        # RabbitMQ looks for the first message since that time, or else the end of the stream: a message published in between is
        # missed (docs/pool.md).
        wait_until(lambda: consumers() - before)
        publish(pool, stream, range(30, 40))
        waiting.expect(range(30, 40))


def test_p3_a_consumer_without_an_offset_that_moves_for_its_backlog_misses_nothing(tmp_path, upstream):
    flags = ["--upstream", f"amqp://127.0.0.1:{upstream.port}", "--upstream-consumer-budget", "64KiB"]
    with leveret(tmp_path, *flags) as server:
        publish(server, "backlog", [])
        reader = Reader(server, "backlog", prefetch=60, acknowledges=False)
        with channel(server) as publisher:
            publisher.confirm_delivery()
            for number in range(60):
                publisher.basic_publish("", "backlog", str(number).zfill(200_000))
        wait_until(lambda: metric(server, "leveret_upstream_moved_channels_total") >= 1)
        reader.expect(range(60))
        reader.close()
        server.stop()
