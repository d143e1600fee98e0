"""Destinations that refuse messages: full queues with more messages than fit into memory, exchanges whose messages are
refused, and parked messages that are only on disk."""

import time

import pika
import pytest
from harness.amqp import connect
from harness.ctl import Ctl
from harness.metrics import metric, wait_until
from harness.own_rabbitmq import broker, link
from harness.patience import PATIENCE
from harness.spool import spooling, waiting, waits_for

# Fixtures of these tests.
__all__ = ["broker", "link"]

QUEUE, FULL = "deferred-not", "deferred-full"


@pytest.fixture
def direct(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as connection:
        channel = connection.channel()
        for queue in (QUEUE, FULL):
            channel.queue_delete(queue)
        channel.queue_declare(QUEUE, durable=True)
        channel.queue_declare(FULL, durable=True)
        yield channel


@pytest.fixture
def full(broker):
    """Fills a queue with one message; calling the fixture's function makes space."""
    broker.control("set_policy", "full", f"^{FULL}$", '{"max-length": 1, "overflow": "reject-publish"}')
    yield lambda: broker.control("clear_policy", "full")
    broker.control("set_policy", "full", f"^{FULL}$", '{"max-length": 1}')
    broker.control("clear_policy", "full")


def taken(direct, queue):
    bodies = []
    while (got := direct.basic_get(queue, auto_ack=True))[0] is not None:
        bodies.append(got[2][:10].decode())
    return bodies


def collect(direct, queue, count):
    """The distinct messages of a queue in the order of their first arrival, once there are this many."""
    first = {}
    wait_until(lambda: first.update(dict.fromkeys(taken(direct, queue))) or len(first) >= count)
    return list(first)


def publish(channel, queue, names, size=10):
    for name in names:
        channel.basic_publish("", queue, name.ljust(size))


def names(start, end):
    return [f"{number:010}" for number in range(start, end)]


def test_a_full_queue_blocks_no_other_and_its_messages_keep_their_order_over_kill_9(tmp_path, broker, direct, full):
    """With more messages than may wait in memory, some of which are being moved when the process is killed."""
    upstream = f"amqp://127.0.0.1:{broker.port}"
    with spooling(tmp_path, upstream) as server:
        with connect(server) as client:
            channel = client.channel()
            publish(channel, FULL, names(0, 9000))
            publish(channel, QUEUE, names(0, 10))
            assert collect(direct, QUEUE, 10) == names(0, 10)
            wait_until(lambda: metric(server, "leveret_spool_deferred_messages") >= 8000)
            publish(channel, FULL, names(9000, 15000))
            publish(channel, QUEUE, names(10, 20))
            # Once the close is answered, everything is on this disk.
        assert collect(direct, QUEUE, 10) == names(10, 20)
        server.kill()
    with spooling(tmp_path, upstream) as server:
        assert waiting(server) >= 14_000
        with connect(server) as client:
            # Messages of another queue need not wait.
            publish(client.channel(), QUEUE, names(20, 30))
            found = []
            wait_until(lambda: found.extend(taken(direct, QUEUE)) or set(names(20, 30)) <= set(found))
            # After the kill some earlier ones may be duplicated.
            assert list(dict.fromkeys(found))[-10:] == names(20, 30)
            full()
            assert collect(direct, FULL, 15_000) == names(0, 15_000)
        wait_until(lambda: waiting(server) == 0)
        assert metric(server, "leveret_spool_deferred_messages") == 0
        assert metric(server, "leveret_spool_bytes") == 0
        server.stop()


def test_poison_costs_hardly_more_than_itself(tmp_path, broker, direct):
    """A message with another user's id is refused with 406, whose text does not name its exchange."""
    other = pika.BasicProperties(user_id="somebody")
    direct.exchange_declare("poisoned", "fanout")
    with spooling(tmp_path, f"amqp://127.0.0.1:{broker.port}") as server:
        ctl = Ctl(server.http)
        with connect(server) as client:
            channel = client.channel()
            ctl("spool", "pause")
            for number in range(2000):
                is_poison = number % 10 == 7
                exchange = "poisoned" if is_poison else ""
                channel.basic_publish(exchange, QUEUE, f"{number:010}", other if is_poison else None)
            wait_until(lambda: waiting(server) == 2000)
            ctl("spool", "resume")
            wait_until(lambda: waiting(server) == 0)
            found = taken(direct, QUEUE)
            good = [f"{number:010}" for number in range(2000) if number % 10 != 7]
            assert list(dict.fromkeys(found)) == good
            # Those in flight when the exchange became suspect are sent at most twice more.
            assert len(found) <= 3 * len(good), len(found)
            assert metric(server, "leveret_spool_parked_messages") == 200
        server.stop()
    direct.exchange_delete("poisoned")


def test_parked_messages_that_are_only_on_disk_are_listed_and_all_forwarded_again(tmp_path, broker, direct):
    upstream, count, size = f"amqp://127.0.0.1:{broker.port}", 1500, 64 << 10
    with spooling(tmp_path, upstream) as server:
        with connect(server) as client:
            channel = client.channel()
            for name in names(0, count):
                channel.basic_publish("gone-for-now", QUEUE, name.ljust(size))
        wait_until(lambda: metric(server, "leveret_spool_parked_messages") == count)
        server.stop()
    with spooling(tmp_path, upstream) as server:
        ctl = Ctl(server.http)
        assert metric(server, "leveret_spool_parked_messages") == count
        shown = ctl.json("spool", "parked", "exchange")
        assert len(shown) >= 100 and all(row["exchange"] == "gone-for-now" for row in shown)
        direct.exchange_declare("gone-for-now", "fanout")
        direct.queue_bind(QUEUE, "gone-for-now")
        assert ctl("spool", "requeue") == f"{count} parked messages are forwarded again, 0 are parked\n"
        with connect(server):
            assert collect(direct, QUEUE, count) == names(0, count)
            wait_until(lambda: waiting(server) == 0)
        assert ctl.json("spool", "parked", "exchange") == []
        server.stop()
    direct.exchange_delete("gone-for-now")


def test_an_outage_is_reported_and_delays_no_shutdown(tmp_path, link, direct):
    with spooling(tmp_path, link.url, "--drain-timeout", f"{int(PATIENCE)}s") as server:
        with connect(server) as client:
            publish(client.channel(), QUEUE, names(0, 1))
            assert collect(direct, QUEUE, 1) == names(0, 1)
            link.close()
            publish(client.channel(), QUEUE, names(1, 100))
        wait_until(lambda: metric(server, "leveret_spool_waiting") == 1)
        begun = time.monotonic()
        server.stop()
        assert time.monotonic() - begun < PATIENCE, "three times as long before"


def test_a_login_ends_the_wait_after_a_refused_one(tmp_path, broker, link, direct):
    broker.control("add_user", "deferred", "old")
    broker.control("set_permissions", "deferred", ".*", ".*", ".*")
    with spooling(tmp_path, link.url) as server:
        uri = server.uri.replace("guest:guest", "deferred:{}")
        with pika.BlockingConnection(pika.URLParameters(uri.format("old"))) as client:
            publish(client.channel(), QUEUE, names(0, 1))
            assert collect(direct, QUEUE, 1) == names(0, 1)
            # Its confirm has arrived, too, otherwise it would be sent again.
            wait_until(lambda: waiting(server) == 0)
            link.close()
            publish(client.channel(), QUEUE, names(1, 2))
        broker.control("change_password", "deferred", "new")
        link.reopen()
        # The reason is the lost connection until the old password is retried.
        wait_until(lambda: "refused" in (waits_for(server) or ""))
        begun = time.monotonic()
        with pika.BlockingConnection(pika.URLParameters(uri.format("new"))):
            assert collect(direct, QUEUE, 1) == names(1, 2)
        assert time.monotonic() - begun < PATIENCE
        server.stop()
    broker.control("delete_user", "deferred")
