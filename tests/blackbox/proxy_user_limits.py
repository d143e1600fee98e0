"""P2: RabbitMQ's limits on channels and connections count those of the pool. Only the client that exceeds one is refused."""

import json

import pika
import pika.exceptions
import pytest
from harness.amqp import connect
from harness.instances import leveret
from harness.lending import borrow
from harness.metrics import metric, wait_until

USERS = ["few-channels", "one-connection"]


@pytest.fixture(scope="module")
def upstream():
    server = borrow()
    try:
        for user in USERS:
            server.control("add_user", user, "password")
            server.control("set_permissions", user, ".*", ".*", ".*")
        yield server
    finally:
        server.stop()


@pytest.fixture
def pool(tmp_path, upstream):
    with leveret(tmp_path, "--upstream", f"amqp://127.0.0.1:{upstream.port}", "--auth-ttl", "1s") as server:
        yield server
        server.stop()


def connect_as(pool, user):
    return pika.BlockingConnection(pika.URLParameters(pool.uri.replace("guest:guest", f"{user}:password")))


def consume(connection, queue, bodies):
    """Consumes on the shared connection."""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=5)

    def take(channel, method, _properties, body):
        channel.basic_ack(method.delivery_tag)
        bodies.append(body)

    channel.basic_consume(queue, take)
    return channel


def test_a_client_with_one_channel_too_many_costs_nobody_else_a_channel(upstream, pool):
    upstream.control("set_user_limits", USERS[0], json.dumps({"max-channels": 4}))
    with connect(pool) as producer:
        source = producer.channel()
        source.confirm_delivery()
        consumers = []
        for number in range(4):
            queue = f"queue-{number}"
            source.queue_declare(queue, durable=True)
            bodies = []
            connection = connect_as(pool, USERS[0])
            consumers.append((queue, connection, consume(connection, queue, bodies), bodies))
        text = "number of channels opened for user 'few-channels' has reached the maximum allowed user limit of .?4"
        for _ in range(2):
            late = connect_as(pool, USERS[0])
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=text) as refused:
                consume(late, "queue-0", [])
            assert refused.value.reply_code == 530
        for queue, connection, channel, bodies in consumers:
            source.basic_publish("", queue, b"x")
            while not bodies:
                connection.process_data_events(0.1)
            assert channel.is_open
        assert metric(pool, "leveret_upstream_dedicated_connections") == 0
        assert metric(pool, "leveret_upstream_connections_lost_total") == 1
        # A client that leaves makes room for another.
        consumers.pop()[1].close()
        with connect_as(pool, USERS[0]) as successor:
            consume(successor, "queue-3", [])
        for _, connection, _, _ in consumers:
            connection.close()


def test_a_connection_limit_shuts_out_no_client_that_needs_no_other_connection(upstream, pool):
    with connect_as(pool, USERS[1]) as steady:
        steady.channel().queue_declare("steady", durable=True)
        upstream.control("set_user_limits", USERS[1], json.dumps({"max-connections": 1}))
        verified = metric(pool, "leveret_upstream_handshakes_total")

        def lets_in():
            with connect_as(pool, USERS[1]) as other:
                other.channel().queue_declare("steady", durable=True, passive=True)
            return metric(pool, "leveret_upstream_handshakes_total") >= verified + 4

        wait_until(lets_in)
        assert metric(pool, "leveret_upstream_connections") == 1
