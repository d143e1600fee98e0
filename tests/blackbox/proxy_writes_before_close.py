"""What a client wrote before close-ok survives the loss of the upstream connection (P11)."""

import contextlib

import pika
import pytest

from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.own_rabbitmq import broker, link
from harness.wire import CONNECTION_CLOSE, Wire, close_of, publish_frames

# Fixtures of these tests.
__all__ = ["broker", "link"]

QUEUE = "departed"
CLIENTS = 20
# Flags of queue.declare.
DURABLE, EXCLUSIVE = 2, 4


def publish(server, body, confirms):
    connection = pika.BlockingConnection(pika.URLParameters(server.uri))
    channel = connection.channel()
    if confirms:
        # pika waits for each confirm; this test does not.
        channel._impl.confirm_delivery(ack_nack_callback=lambda *_: None, callback=lambda *_: None)
    channel.basic_publish("", QUEUE, body)
    connection.close()


def bodies(broker, queue=QUEUE):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        channel = direct.channel()
        found = []
        while True:
            method, _, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append(body)


def lets_in(server):
    with contextlib.suppress(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(server.uri)).close()
        return True


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
        # Messages that another lost connection had taken over are sent a third time.
        assert metric(server, "leveret_upstream_departed_resent_messages_total") >= CLIENTS
        assert metric(server, "leveret_upstream_departed_lost_messages_total") == 0
        wait_until(lambda: metric(server, "leveret_upstream_departed_bytes") == 0)
        server.stop()


def test_a_proof_changes_nothing_for_a_client_that_publishes_for_long(tmp_path, broker):
    """RabbitMQ answers the pool's proofs beside the client's own methods, and the limits are unaffected."""
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
                # Acknowledging a delivery tag twice is an error.
                if taken[-1][0] > acknowledged:
                    acknowledged = taken[-1][0]
                    channel.basic_ack(acknowledged, multiple=True)
            assert [body[:3] for _, body in taken] == [f"{number:03}".encode() for number in range(300)]
            channel.basic_cancel(tag)
        server.stop()


def test_a_client_whose_last_messages_found_no_upstream_gets_506_for_close_ok_and_they_arrive_later(tmp_path, broker):
    flags = ["--upstream-connections-total", "1", "--upstream-arrival-max", "1s"]
    with leveret(tmp_path, "--upstream", broker.uri.replace("guest:guest@", ""), *flags) as server:
        # Once a login is verified, the following ones need not wait for the broker, which may take longer than that.
        wait_until(lambda: lets_in(server))
        with Wire(server.port).handshake() as holder:
            holder.open_channel()
            holder.declare("departed-late", flags=DURABLE)
            holder.declare("departed-own", flags=EXCLUSIVE)
            with Wire(server.port).handshake() as client:
                client.open_channel()
                client.send(publish_frames("departed-late", b"last"))
                client.send_close()
                text = "RESOURCE_ERROR - all 1 upstream connections are in use, and none became free in time"
                assert close_of(client.expect(CONNECTION_CLOSE)) == (506, text)
                client.expect_end()
        wait_until(lambda: bodies(broker, "departed-late") == [b"last"])
        assert metric(server, "leveret_upstream_departed_lost_messages_total") == 0
        server.stop()
