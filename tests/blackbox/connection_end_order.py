"""When a channel or a connection closes, its unacknowledged messages are requeued in one step: other consumers get them in
order, it counts as one failed delivery, and no other channel of the connection receives them in between."""

import struct

import pytest

from harness.amqp import connect
from harness.instances import leveret
from harness.metrics import wait_until
from harness.wire import CHANNEL_CLOSE, CONNECTION_CLOSE, Wire, short_string

TARGETS = ["rabbitmq", "leveret", "rabbitmq4", "leveret4"]
QUEUE = "connection-end-order"
MESSAGES = 30
PREFETCH = 5
# More than RabbitMQ 4's delivery limit of quorum queues.
CHANNELS = 25
# More than Leveret requeues in one turn of a connection.
VERY_MANY = 10_000


def close(wire, channel, method):
    wire.send_method(channel, method, struct.pack(">H", 200) + short_string("") + bytes(4))


# A consumer is not cancelled before its channel ends.
ENDS = {
    "channel": lambda wire: close(wire, 1, CHANNEL_CLOSE),
    "connection": lambda wire: close(wire, 0, CONNECTION_CLOSE),
    "socket": Wire.close,
}


@pytest.mark.parametrize("how", ENDS)
def test_the_next_single_active_consumer_starts_with_requeued_messages(target, how):
    with connect(target) as connection, Wire(target.port) as predecessor:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, arguments={"x-single-active-consumer": True})
        for number in range(MESSAGES):
            channel.basic_publish("", QUEUE, str(number).encode())
        predecessor.handshake().open_channel()
        predecessor.qos(PREFETCH)
        predecessor.consume(QUEUE, no_ack=False)
        assert [predecessor.delivered_body() for _ in range(PREFETCH)] == [b"%d" % number for number in range(PREFETCH)]
        got = []

        def receive(channel, method, _, body):
            got.append((int(body), method.redelivered))
            channel.basic_ack(method.delivery_tag)

        def is_all_there():
            connection.process_data_events()
            return len(got) == MESSAGES

        channel.basic_qos(prefetch_count=2 * PREFETCH)
        channel.basic_consume(QUEUE, receive)
        ENDS[how](predecessor)
        wait_until(is_all_there)
        assert got == [(number, number < PREFETCH) for number in range(MESSAGES)]
        channel.queue_delete(QUEUE)


@pytest.fixture
def server(tmp_path):
    """Leveret only: with RabbitMQ the result depends on which channel's process ends first."""
    with leveret(tmp_path, "--compatibility", "4") as server:
        yield server


@pytest.mark.parametrize("how", ["connection", "socket"])
@pytest.mark.parametrize("is_acknowledged", [True, False], ids=["acknowledged", "automatic"])
def test_a_message_does_not_pass_through_the_other_channels_of_its_connection(server, how, is_acknowledged):
    with connect(server) as connection, Wire(server.port) as ending:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        ending.handshake().open_channel()
        ending.consume(QUEUE, no_ack=False)
        channel.basic_publish("", QUEUE, b"message")
        assert ending.delivered_body() == b"message"
        for number in range(2, 2 + CHANNELS):
            ending.open_channel(number)
            ending.consume(QUEUE, no_ack=not is_acknowledged, channel=number)
        ENDS[how](ending)
        wait_until(lambda: channel.queue_declare(QUEUE, passive=True).method.consumer_count == 0)
        method, _, body = channel.basic_get(QUEUE, auto_ack=True)
        assert (method and method.redelivered, body) == (True, b"message")


@pytest.mark.parametrize("how", ENDS)
def test_very_many_messages_are_requeued_in_order_and_all_at_once(server, how):
    with connect(server) as connection, Wire(server.port) as ending:
        channel = connection.channel()
        channel.queue_declare(QUEUE)
        ending.handshake().open_channel()
        ending.consume(QUEUE, no_ack=False)
        for number in range(VERY_MANY):
            channel.basic_publish("", QUEUE, b"%d" % number)
        for number in range(VERY_MANY):
            assert ending.delivered_body() == b"%d" % number
        ENDS[how](ending)
        counts = set()

        def are_back():
            counts.add(channel.queue_declare(QUEUE, passive=True).method.message_count)
            return VERY_MANY in counts

        wait_until(are_back)
        assert counts <= {0, VERY_MANY}
        got = []
        for method, _, body in channel.consume(QUEUE, auto_ack=True):
            got.append((int(body), method.redelivered))
            if len(got) == VERY_MANY:
                break
        assert got == [(number, True) for number in range(VERY_MANY)]
        assert channel.queue_declare(QUEUE, passive=True).method.message_count == 0
