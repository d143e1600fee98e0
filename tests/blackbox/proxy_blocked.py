"""connection.blocked of the upstream is forwarded to clients that publish, including later ones, and blocks nobody else, as
with RabbitMQ itself."""

import contextlib

import pika
import pytest

from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.own_rabbitmq import broker
from harness.patience import PATIENCE

# Fixtures of these tests.
__all__ = ["broker"]

QUEUE = "blocked"
BACKLOG = 10
"""Messages that a consumer finds when the alarm begins."""


@pytest.fixture(params=["rabbitmq", "pool"])
def server(request, tmp_path, broker):
    """The broker itself, or the pool in front of it."""
    if request.param == "rabbitmq":
        yield broker
        return
    with leveret(tmp_path, "--upstream", broker.uri.replace("guest:guest@", "")) as server:
        yield server
        server.stop()


class Client:
    """A connection with a channel, and its blocked notifications."""

    def __init__(self, server):
        self.told = []
        self.published = 0
        parameters = pika.URLParameters(server.uri)
        parameters.blocked_connection_timeout = PATIENCE
        self.connection = pika.BlockingConnection(parameters)
        self.connection.add_on_connection_blocked_callback(lambda _, blocked: self.told.append(blocked.method.reason))
        self.connection.add_on_connection_unblocked_callback(lambda *_: self.told.append("unblocked"))
        self.channel = self.connection.channel()

    def publish(self):
        self.channel.basic_publish("", QUEUE, b"late")
        self.published += 1

    def publish_until_told(self):
        """The command that raises an alarm may return before this connection is blocked; a publisher is notified once it is."""

        def told():
            self.publish()
            return self.hears("low on memory")

        wait_until(told)

    def hears(self, *told):
        """Whether it has received exactly these notifications: pika delivers them only when it is polled."""
        self.connection.process_data_events(0.05)
        return self.told == list(told)

    def finish(self):
        wait_until(lambda: self.hears("low on memory", "unblocked"))
        # Close once all publishes were sent.
        self.connection.close()


@contextlib.contextmanager
def alarm(broker):
    broker.control("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        yield
    finally:
        broker.control("set_vm_memory_high_watermark", "0.4")


def count(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        return direct.channel().queue_declare(QUEUE, passive=True).method.message_count


def test_early_and_late_publishers_are_blocked_and_all_messages_arrive(server, broker):
    early = Client(server)
    early.channel.queue_declare(QUEUE)
    early.channel.queue_purge(QUEUE)
    with alarm(broker):
        early.publish_until_told()
        late = [Client(server) for _ in range(3)]
        for each in late:
            each.publish_until_told()
        if server is not broker:
            assert metric(server, "leveret_upstream_blocked_connections") >= 1
    for each in [early, *late]:
        each.finish()
    published = sum(each.published for each in [early, *late])
    wait_until(lambda: count(broker) == published)


def test_a_consumer_is_not_notified_of_the_alarm_and_continues(server, broker):
    publisher, consumer = Client(server), Client(server)
    publisher.channel.queue_declare(QUEUE)
    publisher.channel.queue_purge(QUEUE)
    for _ in range(BACKLOG):
        publisher.publish()
    wait_until(lambda: count(broker) == BACKLOG)
    consumer.channel.basic_qos(prefetch_count=1)
    consumed = consumer.channel.consume(QUEUE, inactivity_timeout=0.05)

    def take():
        method, _, body = next(consumed)
        if method:
            consumer.channel.basic_ack(method.delivery_tag)
        return body == b"late"

    with alarm(broker):
        publisher.publish_until_told()
        # Each message arrives once the previous acknowledgement was read.
        for _ in range(BACKLOG):
            wait_until(take)
        # A notification would come before the answer.
        consumer.channel.queue_declare(QUEUE, passive=True)
        assert consumer.hears()
    publisher.finish()
    for _ in range(publisher.published - BACKLOG):
        wait_until(take)
    assert consumer.hears()
    consumer.channel.cancel()
    consumer.connection.close()
