"""P2: RabbitMQ stops reading a connection while one of its channels waits for a quorum queue without a leader. The clients
that share it continue on another connection, and that queue's client on a dedicated one. A spool's other messages
continue as well."""

import contextlib
import struct

import pika
import pytest
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.own_rabbitmq import broker
from harness.spool import count, spooling, waiting
from harness.wire import Wire, publish_frames

# Fixtures of these tests.
__all__ = ["broker"]

CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)
BASIC_ACK, BASIC_NACK = (60, 80), (60, 120)
FLOOD = 2000
STALLED = "leveret_upstream_stalled_connections_total"
LOST = "leveret_upstream_connections_lost_total"
DEDICATED = "leveret_upstream_dedicated_connections"


@pytest.fixture
def direct(broker):
    """A channel to the broker, which redeclares the queues."""
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as connection:
        channel = connection.channel()
        for queue in ("healthy", "stuck"):
            channel.queue_delete(queue)
        channel.queue_declare("healthy", durable=True)
        channel.queue_declare("stuck", durable=True, arguments={"x-queue-type": "quorum"})
        yield channel


@contextlib.contextmanager
def without_leader(broker):
    """The quorum queue has no leader for the length of the block."""
    server = f"quorum_queues, {{'%2F_stuck', '{broker.node}'}}"
    broker.control("eval", f"ra:stop_server({server}).")
    try:
        yield
    finally:
        broker.control("eval", f"ra:restart_server({server}).")


class Publisher:
    """A client with one channel in confirm mode."""

    def __init__(self, server, queue):
        self.wire = Wire(server.port).handshake()
        self.wire.open_channel()
        self.wire.send_method(1, CONFIRM_SELECT, b"\x00")
        self.wire.expect(CONFIRM_SELECT_OK)
        self.queue, self.published, self.answered = queue, 0, set()

    def publish(self, count=1):
        self.published += count
        self.wire.send(publish_frames(self.queue, b"x" * 200) * count)

    def expect_confirms(self, *others):
        """Waits until all messages are confirmed, or until one of these other methods."""
        while len(self.answered) < self.published:
            _, _, payload = self.wire.read_frame()
            *method, tag, flags = struct.unpack(">HHQB", payload)
            assert tuple(method) in (BASIC_ACK, *others)
            self.answered.update(range(1, tag + 1) if flags & 1 else [tag])


def test_a_queue_without_a_leader_delays_others_on_its_connection_for_seconds_only(tmp_path, broker, direct):
    with leveret(tmp_path, "--upstream", f"amqp://127.0.0.1:{broker.port}") as pool:
        culprit, innocent = Publisher(pool, "stuck"), Publisher(pool, "healthy")
        for client in (culprit, innocent):
            client.publish()
            client.expect_confirms()
        with without_leader(broker):
            culprit.publish(FLOOD)

            def is_stalled():
                innocent.publish()
                return metric(pool, STALLED) == 1

            wait_until(is_stalled)
            innocent.expect_confirms()
            wait_until(lambda: metric(pool, DEDICATED) == 1)
            late = Publisher(pool, "healthy")
            late.publish(100)
            late.expect_confirms()
            assert (metric(pool, STALLED), metric(pool, LOST)) == (1, 1)
        # On a channel that has not used the quorum queue yet, RabbitMQ nacks.
        culprit.expect_confirms(BASIC_NACK)
        assert (metric(pool, STALLED), metric(pool, LOST)) == (1, 1)
        pool.stop()


def test_a_queue_without_a_leader_delays_other_spooled_messages_for_seconds_only(tmp_path, broker, direct):
    with spooling(tmp_path, f"amqp://127.0.0.1:{broker.port}") as pool:
        publisher = Publisher(pool, "stuck")
        publisher.publish()
        wait_until(lambda: count(direct, "stuck") == 1)
        with without_leader(broker):
            publisher.publish(FLOOD)
            publisher.queue = "healthy"
            publisher.publish(10)
            publisher.expect_confirms()
            wait_until(lambda: count(direct, "healthy") >= 10)
        wait_until(lambda: waiting(pool) == 0)
        assert (metric(pool, STALLED), metric(pool, LOST)) == (1, 1)
        pool.stop()
