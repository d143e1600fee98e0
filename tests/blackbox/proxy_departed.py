"""What a client wrote that has been told close-ok is not lost with the link to the broker (P11)."""

import pika
import pytest

from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.own_rabbitmq import broker, link

# Fixtures of these tests.
__all__ = ["broker", "link"]

QUEUE = "departed"
CLIENTS = 20


def publish(server, body, confirms):
    connection = pika.BlockingConnection(pika.URLParameters(server.uri))
    channel = connection.channel()
    if confirms:
        # pika waits for each confirm; a client in a hurry does not.
        channel._impl.confirm_delivery(ack_nack_callback=lambda *_: None, callback=lambda *_: None)
    channel.basic_publish("", QUEUE, body)
    connection.close()


def bodies(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        channel = direct.channel()
        found = []
        while True:
            method, _, body = channel.basic_get(QUEUE, auto_ack=True)
            if method is None:
                return found
            found.append(body)


@pytest.mark.parametrize("confirms", [False, True], ids=["no-confirms", "confirms"])
def test_messages_of_clients_that_have_closed_arrive_although_their_packets_did_not(tmp_path, broker, link, confirms):
    with leveret(tmp_path, "--upstream", link.url) as server:
        with pika.BlockingConnection(pika.URLParameters(server.uri)) as first:
            first.channel().queue_declare(QUEUE)
            first.channel().queue_purge(QUEUE)
        publish(server, b"passes", confirms)
        wait_until(lambda: bodies(broker) == [b"passes"])
        wait_until(lambda: metric(server, "leveret_upstream_departed_bytes") == 0)
        link.swallows = True
        expected = [f"message {number}".encode() for number in range(CLIENTS)]
        for body in expected:
            publish(server, body, confirms)
        assert metric(server, "leveret_upstream_departed_bytes") > 0
        wait_until(lambda: link.swallowed > CLIENTS * len(b"message"))
        link.cut()
        found = []
        wait_until(lambda: found.extend(bodies(broker)) or set(found) >= set(expected))
        # What another connection that was cut had taken over is sent a third time.
        assert metric(server, "leveret_upstream_departed_resent_messages_total") >= CLIENTS
        assert metric(server, "leveret_upstream_departed_lost_messages_total") == 0
        wait_until(lambda: metric(server, "leveret_upstream_departed_bytes") == 0)
        server.stop()


def test_a_proof_changes_nothing_for_a_client_that_publishes_for_long(tmp_path, broker):
    """Proofs are answered by RabbitMQ as the pool expects, beside the client's own methods, with limits as they were."""
    with leveret(tmp_path, "--upstream", broker.uri.replace("guest:guest@", "")) as server:
        with pika.BlockingConnection(pika.URLParameters(server.uri)) as client:
            channel = client.channel()
            channel.queue_declare(QUEUE)
            channel.queue_purge(QUEUE)
            channel.basic_qos(prefetch_count=7)
            for number in range(300):
                channel.basic_publish("", QUEUE, f"{number:03}".encode() + bytes(1000))
                if number % 100 == 0:
                    channel.queue_declare(QUEUE, passive=True)
            wait_until(lambda: metric(server, "leveret_upstream_replay_buffer_bytes") == 0)
            taken = []
            tag = channel.basic_consume(QUEUE, lambda _, method, __, body: taken.append((method.delivery_tag, body)))
            while len(taken) < 7:
                client.process_data_events(0.05)
            assert channel.queue_declare(QUEUE, passive=True).method.message_count == 293, "the limit is still 7"
            channel.basic_ack(7, multiple=True)
            acknowledged = 7
            while len(taken) < 300:
                client.process_data_events(0.05)
                # A tag that is acknowledged twice is an error.
                if taken[-1][0] > acknowledged:
                    acknowledged = taken[-1][0]
                    channel.basic_ack(acknowledged, multiple=True)
            assert [body[:3] for _, body in taken] == [f"{number:03}".encode() for number in range(300)]
            channel.basic_cancel(tag)
        server.stop()
