"""Publishers of a queue that grows though its consumers could take more are held for moments, which operators see as the state
`flow`; where nobody consumes, or consumers take no more by themselves, nobody is held."""

import contextlib

import pika
import pytest

from harness.child import Child, clean_environment
from harness.instances import leveret
from harness.leveret import binary, run
from harness.management import Management
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE, TEST_SECONDS

HOLDS = "leveret_broker_publisher_holds_total"
QUEUE = "flow"
# More than may gather while consumers are behind.
MESSAGES = 40_000
PREFETCH = 10
# Nobody's socket takes all of it.
LARGE, LARGE_MESSAGES = 1 << 20, 64


@pytest.fixture
def server(tmp_path):
    with leveret(tmp_path) as server:
        yield server


def test_publishers_that_outrun_consumers_are_shown_in_flow(server, tmp_path):
    api = Management(server, server.http)
    load = ["--producers", "10", "--consumers", "10", "--confirms", "1000", "--time", str(TEST_SECONDS), "--rounds", "1"]
    words = [binary(), "bench", "stream", "--system", f"leveret={server.uri}", *load]
    bench = Child(words, tmp_path / "bench.log", env=clean_environment())
    try:
        wait_until(lambda: in_flow(api, "connections") and in_flow(api, "channels"))
        assert metric(server, HOLDS) > 0
        # Those that consume are read.
        states = [(channel["consumer_count"], channel["state"]) for channel in api.get("channels")]
        assert all(state == "running" for consumers, state in states if consumers), states
    finally:
        bench.kill()


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
        # They are not acknowledged.
        got = channel.consume(QUEUE)
        for _ in range(PREFETCH):
            next(got)
        publish(server)
    assert metric(server, HOLDS) == 0


def test_where_consumers_do_not_read_nobody_is_held(server):
    api = Management(server, server.http)
    with connected(server) as channel, connected(server) as other:
        channel.queue_declare(QUEUE, durable=True)
        # It never reads: a delivery is taken from a socket by the next call alone.
        channel.basic_consume(QUEUE, lambda *_: None, auto_ack=True)
        for _ in range(LARGE_MESSAGES):
            other.basic_publish("", QUEUE, bytes(LARGE))
        wait_until(lambda: is_stuck(api))
        before = metric(server, HOLDS)
        publish(server)
        assert metric(server, HOLDS) == before


def is_stuck(api):
    """Whether deliveries wait for their client, and the queue for them."""
    waiting = [connection["send_pend"] for connection in api.get("connections")]
    return max(waiting) > 0 and api.get(f"queues/%2F/{QUEUE}")["messages_ready"] > 0


def publish(server):
    """Has two publishers publish as fast as they can."""
    flags = ["--producers", "2", "--consumers", "0", "--confirms", "1000", "--messages", str(MESSAGES // 2), "--rounds", "1"]
    words = ["--system", f"leveret={server.uri}", "--queue", QUEUE, "--predeclared", *flags]
    code, out, error = run("bench", "stream", *words, seconds=TEST_SECONDS)
    assert code == 0, out + error


@contextlib.contextmanager
def connected(server):
    parameters = pika.URLParameters(f"{server.uri}/?heartbeat=0&blocked_connection_timeout={PATIENCE}")
    with pika.BlockingConnection(parameters) as connection:
        yield connection.channel()
