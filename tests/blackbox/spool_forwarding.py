"""Publishes that a rule matches are confirmed once they are on this host's disk, and reach the broker despite faults of the
link or kills of Leveret."""

import itertools

import pika
import pytest
from harness.amqp import connect
from harness.ctl import Ctl
from harness.lending import borrow
from harness.leveret import run
from harness.metrics import metric, wait_until
from harness.own_rabbitmq import broker, link
from harness.spool import spooling, waiting

# Fixtures of these tests.
__all__ = ["broker", "link"]

QUEUE = "spooled"
PERSISTENT = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)


@pytest.fixture(autouse=True)
def queue(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        channel = direct.channel()
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=True)


def confirming(connection):
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def taken(broker, queue=QUEUE):
    """All messages of a queue: their bodies in order, and the ids added by the spool."""
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        channel = direct.channel()
        bodies, ids = [], []
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return bodies, ids
            bodies.append(body.decode())
            ids.append(properties.headers["x-leveret-spool-id"])


def collect(broker, count):
    """Consumes until there are `count` distinct messages; in the order of their first arrival, with their ids."""
    first = {}

    def are_there():
        bodies, ids = taken(broker)
        for body, name in zip(bodies, ids, strict=True):
            assert first.setdefault(body, name) == name, "another id for the same message"
        return len(first) >= count

    wait_until(are_there)
    assert len(set(first.values())) == len(first)
    return list(first)


def names(start, end):
    return [f"message {number}" for number in range(start, end)]


def publish(channel, bodies, exchange=""):
    for body in bodies:
        channel.basic_publish(exchange, QUEUE, body, PERSISTENT)


def test_confirmed_messages_arrive_once_and_in_order_and_leave_the_spool(tmp_path, broker, link):
    with spooling(tmp_path, link.url) as server:
        with connect(server) as client:
            publish(confirming(client), names(0, 300))
        assert collect(broker, 300) == names(0, 300)
        wait_until(lambda: waiting(server) == 0)
        wait_until(lambda: metric(server, "leveret_spool_forwarded_messages_total") == 300)
        assert metric(server, "leveret_spool_bytes") == 0
        server.stop()


def test_publishers_go_on_while_the_broker_is_away(tmp_path, broker, link):
    with spooling(tmp_path, link.url) as server:
        with connect(server) as client:
            channel = confirming(client)
            publish(channel, names(0, 1))
            collect(broker, 1)
            # Its confirm has arrived, too, otherwise it would be sent again.
            wait_until(lambda: waiting(server) == 0)
            link.close()
            publish(channel, names(1, 200))
            assert waiting(server) > 0
            link.reopen()
            assert collect(broker, 199) == names(1, 200)
        wait_until(lambda: waiting(server) == 0)
        server.stop()


def test_a_client_that_publishes_and_exits_loses_nothing_when_leveret_is_killed(tmp_path, broker, link):
    with spooling(tmp_path, link.url) as server:
        first = connect(server)
        channel = first.channel()
        link.close()
        publish(channel, names(0, 100))
        # Answered once the messages are on disk.
        first.close()
        server.kill()
    link.reopen()
    with spooling(tmp_path, link.url) as server:
        assert waiting(server) == 100
        # The spool learns the user's password from the first client.
        with connect(server):
            assert collect(broker, 100) == names(0, 100)
        server.stop()


def test_a_broker_that_is_killed_and_started_again_gets_everything_in_order(tmp_path):
    broker = borrow()
    try:
        with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
            direct.channel().queue_declare(QUEUE, durable=True)
        with spooling(tmp_path, f"amqp://127.0.0.1:{broker.port}") as server:
            with connect(server) as client:
                channel = confirming(client)
                publish(channel, names(0, 50))
                broker.end()
                publish(channel, names(50, 150))
                broker.start()
                publish(channel, names(150, 200))
            assert collect(broker, 200) == names(0, 200)
            wait_until(lambda: waiting(server) == 0)
            server.stop()
    finally:
        broker.stop()


def test_two_hosts_spool_for_one_broker(tmp_path, broker, link):
    with spooling(tmp_path / "one", link.url) as one, spooling(tmp_path / "two", link.url) as two:
        with connect(one) as first, connect(two) as second:
            channels = [confirming(first), confirming(second)]
            for number in range(100):
                if number == 50:
                    link.cut()
                for host, channel in enumerate(channels):
                    publish(channel, [f"{host}:{number}"])
        found = collect(broker, 200)
        for host in range(2):
            assert [body for body in found if body.startswith(f"{host}:")] == [f"{host}:{number}" for number in range(100)]
        one.stop()
        two.stop()


def test_large_and_small_messages_keep_their_order_over_lost_connections(tmp_path, broker, link):
    def body(number):
        # The pool streams the large ones, and forwards the small ones at once.
        return f"{number} ".ljust(2 << 20 if number % 2 == 0 else 1 << 10, "x")

    with spooling(tmp_path, link.url) as server:
        found, numbers = [], itertools.count()

        def have_arrived(count):
            found.extend(int(body.split()[0]) for body in taken(broker)[0])
            return len(set(found)) == count

        with connect(server) as client:
            channel = confirming(client)
            publish(channel, map(body, itertools.islice(numbers, 2)))
            wait_until(lambda: have_arrived(2))
            for count in range(10, 50, 8):
                link.swallowed, link.swallows = 0, True
                publish(channel, map(body, itertools.islice(numbers, 8)))
                # Messages of both sizes are in flight.
                wait_until(lambda: link.swallowed > 5 << 20)
                link.cut()
                wait_until(lambda count=count: have_arrived(count))
        wait_until(lambda: waiting(server) == 0)
        assert list(dict.fromkeys(found)) == list(range(next(numbers)))
        server.stop()


def test_rules_without_an_upstream_or_a_directory_are_mistakes():
    for flags, complaint in [
        ([], "spool: has no effect without an upstream"),
        (["--upstream", "amqp://localhost", "--data-dir", "off"], "spool: needs data_dir, a directory for the messages"),
    ]:
        code, _, error = run("serve", "--spool", '{exchange = "orders"}', *flags)
        assert code == 2 and complaint in error, error


def test_a_deleted_exchange_and_a_lost_permission_park_their_own_messages_alone(tmp_path, broker, link):
    with spooling(tmp_path, link.url) as server:
        with connect(server) as client:
            channel = confirming(client)
            publish(channel, names(0, 3))
            publish(channel, ["lost"], exchange="no-such-exchange")
            publish(channel, names(3, 6))
            assert collect(broker, 6) == names(0, 6)
            wait_until(lambda: metric(server, "leveret_spool_parked_messages") == 1)
            wait_until(lambda: waiting(server) == 0)
            broker.control("set_permissions", "guest", ".*", "^(?!amq.direct$)", ".*")
            publish(channel, ["refused"], exchange="amq.direct")
            publish(channel, names(6, 9))
            assert collect(broker, 3) == names(6, 9)
            wait_until(lambda: metric(server, "leveret_spool_parked_messages") == 2)
            broker.control("set_permissions", "guest", ".*", ".*", ".*")
        server.stop()


def test_parked_messages_are_listed_forwarded_again_and_dropped(tmp_path, broker, link):
    with spooling(tmp_path, link.url) as server:
        ctl = Ctl(server.http)
        with connect(server) as client:
            publish(confirming(client), ["one", "two"], exchange="late")
            wait_until(lambda: metric(server, "leveret_spool_parked_messages") == 2)
            reason = "NOT_FOUND - no exchange 'late' in vhost '/'"
            shown = ctl.json("spool", "parked", "user", "vhost", "exchange", "routing_key", "reason")
            one = {"user": "guest", "vhost": "/", "exchange": "late", "routing_key": QUEUE, "reason": reason}
            assert shown == [one, one]
            [row] = ctl.json("spool", "list", "user", "vhost", "messages")
            assert (row["user"], row["vhost"]) == ("guest", "/")
            with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
                direct.channel().exchange_declare("late", "fanout")
                direct.channel().queue_bind(QUEUE, "late")
            assert ctl("spool", "requeue") == "2 parked messages are forwarded again, 0 are parked\n"
            assert collect(broker, 2) == ["one", "two"]
            assert metric(server, "leveret_spool_parked_messages") == 0
            publish(confirming(client), ["three"], exchange="never")
            wait_until(lambda: metric(server, "leveret_spool_parked_messages") == 1)
            assert ctl("spool", "purge", "--yes") == "1 parked messages are dropped\n"
            assert ctl.json("spool", "parked", "exchange") == []
        with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
            direct.channel().exchange_delete("late")
        server.stop()


def test_a_full_queue_delays_its_own_messages_alone(tmp_path, broker, link):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        direct.channel().queue_declare("full", arguments=arguments)
    with spooling(tmp_path, link.url) as server:
        with connect(server) as client:
            channel = confirming(client)
            for number in range(4):
                channel.basic_publish("", "full", f"full {number}")
            publish(channel, names(0, 50))
            assert collect(broker, 50) == names(0, 50)
            # Its nacks may come later than the other queue's messages.
            wait_until(lambda: metric(server, "leveret_spool_deferred_messages") == 3)
            found = []
            wait_until(lambda: found.extend(taken(broker, "full")[0]) or len(found) >= 4)
            assert sorted(found) == [f"full {number}" for number in range(4)]
            wait_until(lambda: waiting(server) == 0)
        server.stop()


def test_a_message_of_several_frames_is_spooled_whole(tmp_path, broker, link):
    body = "x" * 700_000
    with spooling(tmp_path, link.url) as server:
        with connect(server) as client:
            publish(confirming(client), [body])
        assert collect(broker, 1) == [body]
        wait_until(lambda: metric(server, "leveret_spool_forwarded_messages_total") == 1)
        server.stop()
