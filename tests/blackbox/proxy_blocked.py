"""connection.blocked of the upstream reaches the clients that publish there, those who come later as well."""

import contextlib

import pika
import pytest

from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.rabbitmq import RabbitMq

QUEUE = "blocked"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    broker = RabbitMq(tmp_path_factory.mktemp("blocked") / "rabbitmq")
    yield broker
    broker.stop()


class Publisher:
    """A client that publishes one message, and what it is told about waiting."""

    def __init__(self, server):
        self.told = []
        self.connection = pika.BlockingConnection(pika.URLParameters(server.uri))
        self.connection.add_on_connection_blocked_callback(lambda _, blocked: self.told.append(blocked.method.reason))
        self.connection.add_on_connection_unblocked_callback(lambda *_: self.told.append("unblocked"))
        self.channel = self.connection.channel()

    def publish(self):
        self.channel.basic_publish("", QUEUE, b"late")

    def hears(self, *told):
        self.connection.process_data_events(0.05)
        return self.told == list(told)

    def finish(self):
        wait_until(lambda: self.hears("low on memory", "unblocked"))
        # Closed once what was published has been handed over.
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


def test_who_publishes_is_told_late_joiners_too_and_their_messages_arrive_in_the_end(tmp_path, broker):
    with leveret(tmp_path, "--upstream", broker.uri.replace("guest:guest@", "")) as server:
        early = Publisher(server)
        early.channel.queue_declare(QUEUE)
        with alarm(broker):
            early.publish()
            wait_until(lambda: early.hears("low on memory"))
            late = [Publisher(server) for _ in range(3)]
            for each in late:
                each.publish()
                wait_until(lambda each=each: each.hears("low on memory"))
            assert metric(server, "leveret_upstream_blocked_connections") >= 1
        for each in [early, *late]:
            each.finish()
        wait_until(lambda: count(broker) == 4)
        server.stop()


def test_who_only_consumes_is_not_told_and_goes_on(tmp_path, broker):
    with leveret(tmp_path, "--upstream", broker.uri.replace("guest:guest@", "")) as server:
        publisher, consumer = Publisher(server), Publisher(server)
        publisher.channel.queue_declare(QUEUE)
        publisher.channel.queue_purge(QUEUE)
        consumed = consumer.channel.consume(QUEUE, auto_ack=True, inactivity_timeout=0.05)
        publisher.publish()
        wait_until(lambda: next(consumed)[2] == b"late")
        with alarm(broker):
            publisher.publish()
            wait_until(lambda: publisher.hears("low on memory"))
            # Its acknowledgements and methods are read, its heartbeats are answered.
            for _ in range(10):
                consumer.channel.queue_declare(QUEUE, passive=True)
            assert consumer.told == []
        publisher.finish()
        wait_until(lambda: next(consumed)[2] == b"late")
        consumer.channel.cancel()
        consumer.connection.close()
        server.stop()
