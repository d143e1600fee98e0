"""An alarm of the upstream blocks only publishers (P10): consumers drain a backlog, new clients connect, declare and
consume, and clients that do both acknowledge until they publish. After the alarm all continue, also if it ended because
the upstream was killed."""

import contextlib
import threading

import pika
import pytest

from harness.amqp import connect
from harness.ctl import Ctl
from harness.instances import leveret
from harness.lending import borrow
from harness.metrics import metric, wait_until
from harness.own_rabbitmq import broker
from harness.patience import PATIENCE
from harness.wire import CONNECTION_CLOSE_OK, Wire, publish_frames

# Fixtures of these tests.
__all__ = ["broker"]

BACKLOG = 3000
PUBLISHERS = 3
WORKERS = 100
PREFETCH = 50
PERSISTENT = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)


@pytest.fixture
def pool(tmp_path, broker):
    with leveret(tmp_path, "--upstream", broker.uri.replace("guest:guest@", "")) as server:
        yield server
        server.stop()


# How each alarm is raised and cleared.
MEMORY = ("set_vm_memory_high_watermark", "0", "0.4")
DISK = ("set_disk_free_limit", "1000000GB", "50MB")


@contextlib.contextmanager
def alarm(broker, resource=MEMORY):
    command, raised, cleared = resource
    broker.control(command, raised)
    try:
        yield
    finally:
        broker.control(command, cleared)


class Publisher(threading.Thread):
    """Publishes with confirms until it is stopped, and counts them. Processes notifications between publishes."""

    def __init__(self, server, queue):
        super().__init__(daemon=True)
        self.queue = queue
        self.confirmed = 0
        self.told = []
        self.ends = False
        self.connection = connect(server)
        self.reasons = []
        self.connection.add_on_connection_blocked_callback(self.blocked)
        self.connection.add_on_connection_unblocked_callback(lambda *_: self.told.append("unblocked"))
        self.channel = self.connection.channel()
        self.channel.queue_declare(queue, durable=True)
        self.channel.confirm_delivery()
        self.start()

    def blocked(self, _connection, method):
        self.told.append("blocked")
        self.reasons.append(method.method.reason)

    def run(self):
        while not self.ends:
            self.channel.basic_publish("", self.queue, b"on and on", PERSISTENT)
            self.confirmed += 1
            self.connection.sleep(0.001)
        self.connection.close()

    def finish(self):
        self.ends = True
        self.join(PATIENCE)
        assert not self.is_alive()


def fill(server, queue, count):
    with connect(server) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        for number in range(count):
            channel.basic_publish("", queue, str(number).encode())


def take(connection, queue, count):
    """Consumes this many messages and acknowledges each; returns their bodies."""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    bodies = []
    for method, _, body in channel.consume(queue, inactivity_timeout=PATIENCE):
        assert method is not None, f"nothing more came after {len(bodies)}"
        channel.basic_ack(method.delivery_tag)
        bodies.append(body)
        if len(bodies) == count:
            break
    channel.cancel()
    return bodies


def test_a_backlog_is_consumed_during_an_alarm_and_newcomers_are_served(broker, pool):
    fill(pool, "backlog", BACKLOG)
    consumer = connect(pool)
    publishers = [Publisher(pool, "busy") for _ in range(PUBLISHERS)]
    wait_until(lambda: all(publisher.confirmed for publisher in publishers))
    with alarm(broker):
        wait_until_blocked(broker, pool, publishers)
        confirmed = sum(publisher.confirmed for publisher in publishers)
        assert [int(body) for body in take(consumer, "backlog", BACKLOG // 2)] == list(range(BACKLOG // 2))
        # New clients connect, declare, consume and close.
        with connect(pool) as late_client:
            late_client.channel().queue_declare("new", exclusive=False, durable=True)
            assert len(take(late_client, "backlog", BACKLOG // 2)) == BACKLOG // 2
        assert sum(publisher.confirmed for publisher in publishers) == confirmed
    wait_until(lambda: all(publisher.told == ["blocked", "unblocked"] for publisher in publishers))
    wait_until(lambda: sum(publisher.confirmed for publisher in publishers) > confirmed)
    for publisher in publishers:
        publisher.finish()
    consumer.close()


def test_publishers_get_the_same_disk_alarm_reason_as_at_the_upstream(broker, pool):
    publishers = [Publisher(pool, "disk"), Publisher(broker, "disk")]
    wait_until(lambda: all(publisher.confirmed for publisher in publishers))
    with alarm(broker, DISK):
        wait_until_blocked(broker, pool, publishers)
    wait_until(lambda: all(publisher.told == ["blocked", "unblocked"] for publisher in publishers))
    behind, beside = (publisher.reasons for publisher in publishers)
    assert behind == beside == ["low on disk"]
    confirmed = [publisher.confirmed for publisher in publishers]
    wait_until(lambda: all(p.confirmed > before for p, before in zip(publishers, confirmed, strict=True)))
    for publisher in publishers:
        publisher.finish()


@pytest.mark.parametrize("resource", [MEMORY, DISK], ids=["memory", "disk"])
def test_an_upstream_that_dies_with_an_alarm_blocks_nobody_once_it_is_back(tmp_path, resource):
    broker = borrow()
    try:
        with leveret(tmp_path, "--upstream", broker.uri.replace("guest:guest@", "")) as pool:
            publishers = [Publisher(pool, "survives") for _ in range(PUBLISHERS)]
            wait_until(lambda: all(publisher.confirmed for publisher in publishers))
            broker.control(*resource[:2])
            wait_until_blocked(broker, pool, publishers)
            confirmed = [publisher.confirmed for publisher in publishers]
            broker.end()
            # Runtime settings are lost: it restarts without an alarm.
            broker.start()
            wait_until(lambda: all(p.confirmed > before for p, before in zip(publishers, confirmed, strict=True)))
            wait_until(lambda: all(publisher.told == ["blocked", "unblocked"] for publisher in publishers))
            for publisher in publishers:
                publisher.finish()
            # Messages that were resent because their outcome was unknown may be duplicated.
            assert count(broker, "survives") >= sum(publisher.confirmed for publisher in publishers)
            pool.stop()
    finally:
        broker.stop()


def test_workers_that_publish_replies_share_few_connections_and_settle_during_an_alarm(broker, pool):
    with connect(pool) as connection:
        channel = connection.channel()
        for queue in ("requests", "replies"):
            channel.queue_declare(queue, durable=True)
    workers = []
    for _ in range(WORKERS):
        channel = connect(pool).channel()
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume("requests", lambda *_: None)
        channel.basic_publish("", "replies", b"here")
        workers.append(channel)
    wait_until(lambda: count(broker, "replies") == WORKERS)
    # Up to eight for each role are shared; without sharing there would be at least one for each worker. Connections without a
    # channel verify logins, and may exist for a moment.
    connections = Ctl(pool.http).json("list_upstream_connections", "name", "channels", "clients")
    assert len([each for each in connections if each["channels"]]) < WORKERS / 2, connections
    for channel in workers[1:]:
        channel.connection.close()
    worker = workers[0]
    worker.basic_cancel(worker.consumer_tags[0])
    fill(pool, "requests", 100)
    publisher = Publisher(pool, "steady")
    wait_until(lambda: publisher.confirmed)
    with alarm(broker):
        wait_until_blocked(broker, pool, [publisher])
        served = 0
        for method, _, _ in worker.consume("requests", inactivity_timeout=PATIENCE):
            assert method is not None, f"nothing more came after {served}"
            worker.basic_ack(method.delivery_tag)
            served += 1
            if served == 100:
                break
        wait_until(lambda: count(broker, "requests") == 0)
        # Its publish waits, and so does everything after it.
        worker.basic_publish("", "replies", b"there")
    wait_until(lambda: count(broker, "replies") == WORKERS + 1)
    worker.connection.close()
    publisher.finish()


def test_messages_of_more_clients_than_channels_that_close_during_an_alarm_arrive_after_it(tmp_path, broker):
    limits = ["--upstream-channels-max", "10", "--upstream-connections-max", "2"]
    with leveret(tmp_path, "--upstream", broker.uri.replace("guest:guest@", ""), *limits) as pool:
        fill(pool, "last-words", 0)
        publisher = Publisher(pool, "steady-too")
        wait_until(lambda: publisher.confirmed)
        with alarm(broker):
            wait_until_blocked(broker, pool, [publisher])
            clients = [Wire(pool.port).handshake() for _ in range(30)]
            for client in clients:
                client.open_channel()
                client.send(publish_frames("last-words", b"goodbye"))
                client.send_close()
            for client in clients:
                client.expect(CONNECTION_CLOSE_OK)
                client.close()
        wait_until(lambda: count(broker, "last-words") == len(clients))
        assert metric(pool, "leveret_upstream_departed_lost_messages_total") == 0
        publisher.finish()
        pool.stop()


def wait_until_blocked(broker, pool, publishers):
    wait_until(lambda: is_blocked(broker, publishers))
    wait_until(lambda: metric(pool, "leveret_upstream_blocked_connections") >= 1)


def is_blocked(broker, publishers):
    """Whether the broker has stopped reading the publishers' connections, and everything it has read is confirmed."""
    channels = listed(broker, "list_channels", "connection", "confirm")
    confirming = {connection for connection, confirm in channels if confirm == "true"}
    states = dict(listed(broker, "list_connections", "pid", "state"))
    if not confirming or {states.get(connection) for connection in confirming} != {"blocked"}:
        return False
    return count(broker, publishers[0].queue) == sum(publisher.confirmed for publisher in publishers)


def listed(broker, *command):
    return [line.split("\t") for line in broker.control(*command).splitlines() if line.startswith("<")]


def count(broker, queue):
    with contextlib.closing(connect(broker)) as direct:
        return direct.channel().queue_declare(queue, passive=True).method.message_count
