"""Operators pause, resume and drain the spool, purge its messages, and see its age and rates."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest
from harness.ctl import Ctl
from harness.disks import FailingDisk
from harness.management import Management
from harness.metrics import metric, wait_until
from harness.own_rabbitmq import broker
from harness.spool import count, spooling, take, waiting, waits_for

# Fixtures of these tests.
__all__ = ["broker"]

QUEUE = "operated"


@pytest.fixture
def server(tmp_path, broker):
    with spooling(tmp_path, f"amqp://127.0.0.1:{broker.port}") as server:
        yield server
        server.stop()


@pytest.fixture
def direct(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as connection:
        channel = connection.channel()
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=True)
        yield channel


@pytest.fixture
def channel(server):
    with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def test_a_paused_spool_accepts_and_forwards_nothing_until_it_is_resumed(server, direct, channel):
    ctl = Ctl(server.http)
    channel.basic_publish("", QUEUE, "before")
    wait_until(lambda: count(direct, QUEUE) == 1)
    ctl("spool", "pause")
    for number in range(50):
        channel.basic_publish("", QUEUE, f"{number}")
    # Measured now and then; it falls again afterwards.
    wait_until(lambda: ctl.json("spool", "list", "accept_rate")[0]["accept_rate"] > 0)
    wait_until(lambda: (metric(server, "leveret_spool_oldest_seconds") or 0) >= 1)
    [row] = ctl.json("spool", "list", "state", "messages", "forward_rate", "waits_for")
    assert (row["state"], row["messages"], row["waits_for"], count(direct, QUEUE)) == ("paused", 50, None, 1)
    assert metric(server, "leveret_spool_paused") == 1
    ctl("spool", "resume")
    wait_until(lambda: count(direct, QUEUE) == 51)
    [row] = ctl.json("spool", "list", "state")
    assert row["state"] == "running"
    assert [take(direct, QUEUE)[0] for _ in range(51)] == ["before", *map(str, range(50))]


def test_a_drained_spool_is_empty_before_publishes_go_directly(server, direct, channel):
    ctl = Ctl(server.http)
    ctl("spool", "pause")
    for number in range(500):
        channel.basic_publish("", QUEUE, f"{number}")
    assert waiting(server) == 500
    ctl("spool", "drain")
    channel.basic_publish("", QUEUE, "direct")
    # Confirmed by the broker itself, after everything that was spooled.
    assert (waiting(server), count(direct, QUEUE)) == (0, 501)
    found = [take(direct, QUEUE) for _ in range(501)]
    assert found == [*((f"{number}", True) for number in range(500)), ("direct", False)]
    ctl("spool", "resume")
    channel.basic_publish("", QUEUE, "spooled")
    wait_until(lambda: count(direct, QUEUE) == 1)
    assert take(direct, QUEUE) == ("spooled", True)


def test_messages_of_a_user_without_a_rule_wait_for_the_users_next_login(tmp_path, broker, direct):
    upstream, data = f"amqp://127.0.0.1:{broker.port}", tmp_path / "data"
    with spooling(tmp_path, upstream, data=data) as server:
        Ctl(server.http)("spool", "pause")
        with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("", QUEUE, "spooled")
        server.stop()
    with spooling(tmp_path, upstream, rule='{user = "^nobody$"}', data=data) as server:
        wait_until(lambda: waits_for(server) == "no client of this user has logged in since the start")
        server.child.wait_line("no spool rule matches the user of these spooled messages")
        assert (waiting(server), count(direct, QUEUE)) == (1, 0)
        with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
            connection.channel().basic_publish("", QUEUE, "direct")
            wait_until(lambda: count(direct, QUEUE) == 2)
        assert sorted(take(direct, QUEUE) for _ in range(2)) == [("direct", False), ("spooled", True)]
        wait_until(lambda: waiting(server) == 0)
        server.stop()


def test_publishers_are_blocked_with_the_reason_while_a_spool_is_drained(tmp_path, broker, direct):
    """The destination is full, so the spool does not change."""
    direct.queue_declare("stuck", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    with spooling(tmp_path, f"amqp://127.0.0.1:{broker.port}") as server:
        with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
            blocked = threading.Event()
            reasons = []
            connection.add_on_connection_blocked_callback(
                lambda _, frame: (reasons.append(frame.method.reason), blocked.set())
            )
            channel = connection.channel()
            channel.basic_publish("", "stuck", "never")
            wait_until(lambda: waiting(server) == 1)
            Ctl(server.http)("spool", "drain")
            channel.basic_publish("", QUEUE, "waits")
            wait_until(lambda: connection.process_data_events(0) or blocked.is_set())
            assert reasons == ["spool is being drained"]
            assert metric(server, "leveret_spool_blocked_connections") == 1
            direct.queue_delete("stuck")
            # Unroutable messages are confirmed, too.
            wait_until(lambda: connection.process_data_events(0) or count(direct, QUEUE) == 1)
        server.stop()


def test_deferred_messages_can_be_purged_so_that_a_drain_ends(server, direct, channel):
    direct.queue_declare("stuck", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    ctl = Ctl(server.http)
    for _ in range(3):
        channel.basic_publish("", "stuck", "never")
    wait_until(lambda: metric(server, "leveret_spool_deferred_messages") == 3)
    assert "3 messages of user 'guest' in virtual host '/' are left: 3 messages wait for their destination" in ctl("spool", "drain")
    assert "would drop 3 messages" in ctl.fails("spool", "purge", "--waiting", "--of-user", "guest", code=2)
    assert ctl.raw("spool", "purge", "--waiting")[0] == 2, "whose messages is not said"
    api = Management(server, server.http)
    for query in ["waiting?user=guest&vhots=other", "waiting?user=", "parked?usr=nobody"]:
        assert api.status("DELETE", f"leveret/spool/{query}") == 400, query
    dropped = "messages that were not forwarded are dropped\n"
    assert ctl("spool", "purge", "--waiting", "--yes", "--of-user", "nobody") == f"0 {dropped}"
    assert ctl("spool", "purge", "--waiting", "--yes", "--of-user", "guest", "--vhost", "/") == f"3 {dropped}"
    assert waiting(server) == 0
    channel.basic_publish("", QUEUE, "direct")
    assert take(direct, QUEUE) == ("direct", False), "it is drained"
    direct.queue_delete("stuck")


@pytest.mark.parametrize("what", ["waiting", "parked"])
def test_messages_of_an_answered_purge_stay_gone_after_a_kill(tmp_path, broker, direct, what):
    """While the disk cannot write there is no answer: after a kill the messages would reappear."""
    direct.queue_declare("stuck", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    exchange, key, command = {
        "waiting": ("", "stuck", ["purge", "--waiting", "--yes", "--of-user", "guest"]),
        "parked": ("no-such-exchange", "key", ["purge", "--yes"]),
    }[what]
    disk = FailingDisk.without_room(tmp_path / "failing")
    upstream, flags = f"amqp://127.0.0.1:{broker.port}", ["--disk-free-limit", "0"]
    place = {"data": disk.directory / "data", "env": disk.environment}
    left = lambda: (metric(server, "leveret_spool_deferred_messages"), metric(server, "leveret_spool_parked_messages"))
    with spooling(tmp_path, upstream, *flags, **place) as server, ThreadPoolExecutor(1) as executor:
        with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for _ in range(3):
                channel.basic_publish(exchange, key, "never")
        wait_until(lambda: sum(left()) == 3)
        disk.fail()
        answer = executor.submit(Ctl(server.http), "spool", *command)
        wait_until(lambda: left() == (0, 0) and metric(server, 'leveret_store_failing{cause="full"}') == 1)
        assert not answer.done()
        disk.mend()
        assert answer.result().startswith("3 ")
        server.kill()
    with spooling(tmp_path, upstream, *flags, data=disk.directory / "data") as server:
        messages = [row["messages"] for row in Ctl(server.http).json("spool", "list", "messages")]
        assert (sum(messages), metric(server, "leveret_spool_parked_messages")) == (0, 0)
        server.stop()
    direct.queue_delete("stuck")
    disk.remove()
