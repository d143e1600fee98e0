"""Publishers to a queue whose consumers fall behind although they could take more are paused for moments, which operators
see as state `flow`. No publisher is paused if there are no consumers, if the consumers are limited by themselves, or if
they are publishers too."""

import contextlib
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.amqp import connect
from harness.instances import leveret
from harness.leveret import run
from harness.management import Management
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE, TEST_SECONDS
from harness.wire import BASIC_PUBLISH, HEADER, METHOD, Wire, content_header, frame, publish_arguments, short_string

HOLDS = "leveret_broker_publisher_holds_total"
QUEUE = "flow"
BASIC_QOS, BASIC_QOS_OK, BASIC_CONSUME, BASIC_CONSUME_OK = (60, 10), (60, 11), (60, 20), (60, 21)
# More than may accumulate while consumers are behind.
MESSAGES = 40_000
# The same, chosen so that less than a second's publishes of a slow client remain when publishers are paused.
EXCESS = 12_000
# Unroutable messages, sent at once.
FLOOD = 2_000
PREFETCH = 10
# More than any socket buffers.
LARGE, LARGE_MESSAGES = 1 << 20, 64


@pytest.fixture
def server(tmp_path):
    with leveret(tmp_path) as server:
        yield server


def test_a_publisher_is_shown_in_flow_while_consumers_wait_for_the_broker(server):
    api = Management(server, server.http)
    with connected(server) as channel:
        channel.queue_declare(QUEUE)
        with busy_consumer(server):
            wait_until(lambda: publish_too_much(channel) and in_flow(api, "connections") and in_flow(api, "channels"))
            assert metric(server, HOLDS) > 0
            # Consuming channels are read from.
            states = [(channel["consumer_count"], channel["state"]) for channel in api.get("channels")]
            assert all(state == "running" for consumers, state in states if consumers), states


def test_a_publisher_that_also_consumes_the_queue_is_not_throttled(server):
    with connected(server) as channel:
        channel.queue_declare(QUEUE)
        with busy_consumer(server):
            channel.basic_qos(prefetch_count=1)
            channel.basic_consume(QUEUE, lambda *_: None)
            publish_too_much(channel)
    assert metric(server, HOLDS) == 0


def publish_too_much(channel):
    """Publishes more to an empty queue than may accumulate, and waits until the queue has it."""
    channel.queue_purge(QUEUE)
    for _ in range(EXCESS):
        channel.basic_publish("", QUEUE, b"x")
    return channel.queue_declare(QUEUE, passive=True).method.message_count > 0


@contextlib.contextmanager
def busy_consumer(server):
    """A consumer that takes one message, whose connection always has more work than fits into a turn."""
    with Wire(server.port) as wire:
        wire.handshake()
        wire.open_channel()
        wire.send_method(1, BASIC_QOS, struct.pack(">IHB", 0, 1, 0))
        wire.expect(BASIC_QOS_OK)
        wire.send_method(1, BASIC_CONSUME, struct.pack(">H", 0) + short_string(QUEUE) + short_string("busy") + bytes(5))
        wire.expect(BASIC_CONSUME_OK)
        method = struct.pack(">HH", *BASIC_PUBLISH) + publish_arguments("", "no such queue")
        flood = (frame(METHOD, 1, method) + frame(HEADER, 1, content_header(0))) * FLOOD
        stop = threading.Event()

        def work():
            while not stop.is_set():
                wire.send(flood)

        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            try:
                yield
            finally:
                stop.set()
                working.result(PATIENCE)


def in_flow(api, path):
    return any(each["state"] == "flow" for each in api.get(path))


def test_where_nobody_consumes_nobody_is_held(server):
    with connected(server) as channel:
        channel.queue_declare(QUEUE, durable=True)
        publish(server)
        assert channel.queue_declare(QUEUE, passive=True).method.message_count == MESSAGES
    assert metric(server, HOLDS) == 0


def test_where_consumers_have_all_that_they_may_have_nobody_is_held(server):
    with connected(server) as channel:
        channel.queue_declare(QUEUE, durable=True)
        channel.basic_qos(prefetch_count=PREFETCH)
        for _ in range(PREFETCH):
            channel.basic_publish("", QUEUE, b"first")
        # Never acknowledged.
        got = channel.consume(QUEUE)
        for _ in range(PREFETCH):
            next(got)
        publish(server)
    assert metric(server, HOLDS) == 0


def test_where_consumers_do_not_read_nobody_is_held(server):
    api = Management(server, server.http)
    with connected(server) as channel, connected(server) as other:
        channel.queue_declare(QUEUE, durable=True)
        # It never reads: pika takes deliveries from the socket in the next call only.
        channel.basic_consume(QUEUE, lambda *_: None, auto_ack=True)
        for _ in range(LARGE_MESSAGES):
            other.basic_publish("", QUEUE, bytes(LARGE))
        wait_until(lambda: is_stuck(api))
        before = metric(server, HOLDS)
        publish(server)
        assert metric(server, HOLDS) == before


def is_stuck(api):
    """Whether deliveries wait for the client, and the queue waits for them."""
    waiting = [connection["send_pend"] for connection in api.get("connections")]
    return max(waiting) > 0 and api.get(f"queues/%2F/{QUEUE}")["messages_ready"] > 0


def publish(server):
    """Runs two publishers at full speed."""
    flags = ["--producers", "2", "--consumers", "0", "--confirms", "1000", "--messages", str(MESSAGES // 2), "--rounds", "1"]
    words = ["--system", f"leveret={server.uri}", "--queue", QUEUE, "--predeclared", *flags]
    code, out, error = run("bench", "stream", *words, seconds=TEST_SECONDS)
    assert code == 0, out + error


@contextlib.contextmanager
def connected(server):
    with connect(server, heartbeat=0, blocked_connection_timeout=PATIENCE) as connection:
        yield connection.channel()
