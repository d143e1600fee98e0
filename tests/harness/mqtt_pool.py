"""Leveret with MQTT in front of a RabbitMQ whose native MQTT clients use the same topics and sessions."""

import contextlib
import time

import pika
import pytest

from harness.lending import borrow
from harness.leveret import Leveret
from harness.mqtt_broker import ANY, listening
from harness.mqtt_client import V311, MqttClient
from harness.patience import PATIENCE
from harness.releases import RELEASES, missing
from harness.targets import POOL, release_of


class MqttPool:
    """`mqtt` and `web` are Leveret's ports, `native` is RabbitMQ's. `version` is the RabbitMQ release."""

    def __init__(self, version, directory, *flags, settings=()):
        """`settings` go to RabbitMQ."""
        self.version, self.directory, self.flags = version, directory, flags
        self.kind = next(kind for kind in POOL if release_of(kind) == version)
        self.rabbitmq = borrow(*settings, version=version)
        self.native = self.rabbitmq.mqtt
        try:
            self.server = self.another()
        except BaseException:
            self.rabbitmq.stop()
            raise
        self.mqtt = listening(self.server, "mqtt", "mqtt")
        self.web = listening(self.server, "web-mqtt", "ws")

    def another(self, name="leveret", flags=None):
        """Starts another Leveret in front of the same RabbitMQ."""
        own = self.flags if flags is None else flags
        flags = ("--upstream", f"amqp://127.0.0.1:{self.rabbitmq.port}", "--mqtt", ANY, "--web-mqtt", ANY, *own)
        return Leveret(self.directory / name, *flags)

    def client(self, name, version=V311, **options):
        return MqttClient(self.mqtt, name, version, **options)

    @contextlib.contextmanager
    def channel(self):
        """An AMQP channel to RabbitMQ for the length of a `with`."""
        with pika.BlockingConnection(pika.URLParameters(self.rabbitmq.uri)) as connection:
            yield connection.channel()

    def left(self, queue):
        """The number of ready messages once the queue has no consumers; RabbitMQ does not count unacknowledged ones here.
        Messages published before that may go to a departed client, and be requeued behind later ones."""
        with self.channel() as channel:
            deadline = time.monotonic() + PATIENCE
            while (now := channel.queue_declare(queue, passive=True).method).consumer_count:
                assert time.monotonic() < deadline, f"{now.consumer_count} consumers of {queue}"
            return now.message_count

    def stop(self):
        try:
            self.server.stop()
        finally:
            self.rabbitmq.stop()


def fixture_of(kind):
    """A module's fixture: one such pool for each installed RabbitMQ release."""

    @pytest.fixture(scope="module", params=RELEASES)
    def started(request, tmp_path_factory):
        if reason := missing(request.param):
            pytest.skip(reason)
        started = kind(request.param, tmp_path_factory.mktemp(kind.__name__.lower()))
        yield started
        started.stop()

    return started


pool = fixture_of(MqttPool)
