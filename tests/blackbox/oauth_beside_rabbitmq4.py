"""A token expires on Leveret as on RabbitMQ 4 with its plugin, and a renewed token is sent to every upstream connection of a
client."""

import contextlib
import time

import pika
import pika.exceptions
import pytest
from cryptography.hazmat.primitives import serialization
from pika.spec import Connection

from harness.instances import leveret
from harness.patience import PATIENCE
from harness.rabbitmq import RabbitMq
from harness.releases import missing
from harness.tokens import ALL, Key, claims, flags, key_set

pytestmark = pytest.mark.skipif(missing("4") is not None, reason=f"no RabbitMQ 4: {missing('4')}")
# The lifetime in seconds of a token that expires during a test: longer than the setup takes.
SHORT = 20


@pytest.fixture(scope="module")
def key():
    return Key("RS256", "key-1")


@pytest.fixture(scope="module")
def ports(tmp_path_factory, key):
    """AMQP ports of RabbitMQ, of a pool in front of it, and of the embedded broker."""
    directory = tmp_path_factory.mktemp("keys")
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (directory / "key.pem").write_bytes(key.private.public_key().public_bytes(*form))
    (directory / "keys.json").write_text(key_set(key))
    settings = [
        "auth_backends.1 = internal", "auth_backends.2 = rabbit_auth_backend_oauth2", "auth_oauth2.resource_server_id = rabbitmq",
        "auth_oauth2.default_key = key-1", f"auth_oauth2.signing_keys.key-1 = {directory / 'key.pem'}",
    ]  # fmt: skip
    rabbitmq = RabbitMq(tmp_path_factory.mktemp("rabbitmq"), *settings, plugins="rabbitmq_auth_backend_oauth2", version="4")
    with contextlib.ExitStack() as stack:
        stack.callback(rabbitmq.stop)
        pool = stack.enter_context(leveret(tmp_path_factory.mktemp("pool"), "--upstream", f"amqp://127.0.0.1:{rabbitmq.port}"))
        own = ("--compatibility", "4", *flags(directory / "keys.json"))
        broker = stack.enter_context(leveret(tmp_path_factory.mktemp("broker"), *own))
        yield {"rabbitmq": rabbitmq.port, "pool": pool.port, "broker": broker.port}
        pool.stop()
        broker.stop()


def connect(port, token):
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, "/", pika.PlainCredentials("ignored", token)))


def update_secret(connection, token):
    answers = []
    inner = connection._impl
    inner.callbacks.add(0, Connection.UpdateSecretOk, answers.append)
    inner._send_method(0, Connection.UpdateSecret(token.encode(), "expires"))
    until(connection, lambda: answers)


def until(connection, holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        connection.process_data_events(time_limit=0.1)


class Client:
    """A publisher, a consumer with prefetch, and a consumer without acknowledgements: behind a pool each has an upstream
    connection that no other client uses."""

    def __init__(self, port, token):
        self.connection = connect(port, token)
        self.publishing, self.bounded, self.unbounded = (self.connection.channel() for _ in range(3))
        self.publishing.confirm_delivery()
        self.bounded.basic_qos(prefetch_count=10)
        self.queues = [channel.queue_declare("", exclusive=True).method.queue for channel in (self.bounded, self.unbounded)]
        self.received = []
        self.bounded.basic_consume(self.queues[0], self.acknowledge)
        self.unbounded.basic_consume(self.queues[1], lambda *delivery: self.received.append(delivery[3]), auto_ack=True)

    def acknowledge(self, channel, method, _, body):
        self.received.append(body)
        channel.basic_ack(method.delivery_tag)

    def use(self, body):
        """Uses each of them, which requires its current permissions."""
        self.received.clear()
        for queue in self.queues:
            self.publishing.basic_publish("", queue, body)
        until(self.connection, lambda: self.received == [body] * 2)
        for channel, queue in zip((self.bounded, self.unbounded), self.queues, strict=True):
            channel.queue_bind(queue, "amq.fanout")
            channel.queue_unbind(queue, "amq.fanout")


@pytest.mark.parametrize("where", ["rabbitmq", "pool", "broker"])
def test_a_renewed_token_lets_a_client_go_on_everywhere(ports, key, where):
    client = Client(ports[where], key.sign(claims(*ALL, seconds=SHORT)))
    client.use(b"before")
    end = time.time() + SHORT + 1
    update_secret(client.connection, key.sign(claims(*ALL, jti="renewed")))
    client.use(b"renewed")
    while time.time() < end:
        client.connection.process_data_events(time_limit=0.1)
    client.use(b"later")
    client.connection.close()


class Holder:
    """A client that publishes to itself and acknowledges later. Clients with the same token may share its upstream
    connections."""

    def __init__(self, port, token, queue):
        self.connection, self.queue, self.received = connect(port, token), queue, []
        self.publishing, self.consuming = self.connection.channel(), self.connection.channel()
        self.publishing.confirm_delivery()
        self.consuming.queue_declare(queue, durable=True)
        self.consuming.basic_qos(prefetch_count=10)
        self.consuming.basic_consume(queue, lambda _, method, __, body: self.received.append((method.redelivered, body)))

    def publish(self, body):
        self.publishing.basic_publish("", self.queue, body)
        until(self.connection, lambda: body in [received for _, received in self.received])


@pytest.mark.parametrize("where", ["rabbitmq", "pool", "broker"])
def test_deliveries_and_pending_acks_survive_a_token_renewal(ports, key, where):
    token, renewed = (key.sign(claims(*ALL, jti=jti)) for jti in ("first", "second"))
    holders = [Holder(ports[where], token, f"held-{number}") for number in range(2)]
    for holder in holders:
        holder.publish(b"before")
    for holder in holders:
        update_secret(holder.connection, renewed)
        holder.publish(b"after")
    for holder in holders:
        holder.consuming.basic_ack(2, multiple=True)
        holder.publish(b"last")
        holder.consuming.basic_ack(3)
        assert holder.received == [(False, b"before"), (False, b"after"), (False, b"last")]
        holder.connection.close()
    with connect(ports[where], renewed) as connection:
        for holder in holders:
            assert connection.channel().queue_delete(holder.queue).method.message_count == 0


def test_a_connection_ends_alike_with_a_token_that_is_not_renewed(ports, key):
    ends = {}
    for where, port in ports.items():
        channel = connect(port, key.sign(claims(*ALL, seconds=SHORT))).channel()
        channel.confirm_delivery()
        deadline = time.monotonic() + PATIENCE
        with pytest.raises(pika.exceptions.AMQPError) as ended:
            while time.monotonic() < deadline:
                channel.basic_publish("amq.fanout", "", b"")
                channel.connection.process_data_events(time_limit=0.1)
        ends[where] = ended.value
    assert str(ends["broker"]) == str(ends["rabbitmq"]) == "(320, 'CONNECTION_FORCED - credential expired')"
    # The pool looks for another connection, which the token cannot open.
    assert isinstance(ends["pool"], (pika.exceptions.ConnectionClosed, pika.exceptions.ChannelClosedByBroker)), ends


@pytest.mark.parametrize("where", ["rabbitmq", "pool", "broker"])
def test_an_outdated_token_lets_nobody_in_and_is_no_renewal(ports, key, where):
    outdated = key.sign(claims(*ALL, seconds=-60))
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(ports[where], outdated)
    connection = connect(ports[where], key.sign(claims(*ALL)))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        update_secret(connection, outdated)
    # RabbitMQ tells the client the backend's reason.
    assert closed.value.reply_code == 530
