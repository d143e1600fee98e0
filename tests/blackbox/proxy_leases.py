"""The pool in front of a RabbitMQ: channels are reused by other clients, which do not notice."""

import contextlib

import pika
import pika.exceptions
import pytest
from harness.instances import leveret
from harness.metrics import metric

ROUNDS = 60
QUEUE = "proxy-leases"


@contextlib.contextmanager
def proxy(targets, tmp_path, *flags):
    upstream = targets.upstream.uri.replace("guest:guest@", "")
    with leveret(tmp_path, "--upstream", upstream, *flags) as server:
        with connected(targets.upstream) as connection:
            connection.channel().queue_declare(QUEUE, durable=True)
            connection.channel().queue_purge(QUEUE)
        yield server
        with connected(targets.upstream) as connection:
            connection.channel().queue_delete(QUEUE)
        server.stop()


@contextlib.contextmanager
def connected(server, password="guest"):
    parameters = pika.URLParameters(server.uri.replace(":guest@", f":{password}@"))
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()



def take_all(targets):
    bodies = []
    with connected(targets.upstream) as connection:
        channel = connection.channel()
        while (got := channel.basic_get(QUEUE, auto_ack=True))[0]:
            bodies.append(got[2].decode())
    return bodies


def test_a_connection_for_each_message_takes_one_upstream_connection_and_hardly_a_channel(targets, tmp_path):
    # The login need not be verified again, however long it takes.
    with proxy(targets, tmp_path, "--auth-ttl", "1h") as server:
        for turn in range(ROUNDS):
            with connected(server) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.basic_publish("", QUEUE, str(turn))
        assert take_all(targets) == [str(turn) for turn in range(ROUNDS)]
        assert metric(server, "leveret_upstream_connections") == 1
        assert metric(server, "leveret_upstream_leases_total") == ROUNDS
        assert metric(server, "leveret_upstream_leases_reused_total") == ROUNDS - 1
        assert metric(server, "leveret_upstream_handshakes_total") == 1


def test_one_clients_unroutable_and_refused_messages_are_nobody_elses(targets, tmp_path):
    with proxy(targets, tmp_path) as server:
        for turn in range(ROUNDS):
            with connected(server) as connection:
                channel = connection.channel()
                # Neither is awaited: the channel is returned to the pool while the broker's answers are pending.
                channel.basic_publish("", "nobody-has-this-queue", b"lost", mandatory=True)
                if turn % 2:
                    # Unless the broker was fast.
                    with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
                        channel.basic_publish("no-such-exchange", "x", b"refused")
            with connected(server) as connection:
                channel = connection.channel()
                channel.basic_publish("", QUEUE, str(turn))
        with connected(server) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(pika.exceptions.UnroutableError):
                channel.basic_publish("", "nobody-has-this-queue", b"returned", mandatory=True)
            channel.basic_publish("", QUEUE, "last")
        assert sorted(take_all(targets)) == sorted([*map(str, range(ROUNDS)), "last"])


def test_an_old_password_in_a_loop_is_put_to_the_upstream_now_and_then(targets, tmp_path):
    with proxy(targets, tmp_path) as server:
        for _ in range(20):
            with pytest.raises(pika.exceptions.ProbableAuthenticationError), connected(server, password="wrong"):
                pass
        asked = metric(server, "leveret_upstream_handshakes_total")
        assert asked + metric(server, "leveret_upstream_refusals_repeated_total") == 20
        assert asked < 20
