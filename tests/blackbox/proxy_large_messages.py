"""P2, P3: a message of 100 MiB delays no other client, in either direction; a message above the upstream's limit closes only
its channel, and so does an error that comes in the middle of a large message."""

import contextlib
import os
import struct

import pika
import pika.exceptions
import pytest
from harness.amqp import connect
from harness.child import peak_resident_bytes
from harness.instances import leveret
from harness.metrics import metric
from harness.rabbitmq import RabbitMq
from harness.wire import (
    BASIC_PUBLISH,
    BODY,
    CHANNEL_CLOSE,
    HEADER,
    METHOD,
    QUEUE_DECLARE_OK,
    Wire,
    close_of,
    frame,
    queue_declare,
    short_string,
)

QUEUE, SMALL_QUEUE = "proxy-large-messages", "proxy-large-messages-small"
SIZE = 100 << 20
PIECE = os.urandom(1 << 16)
PIECES = SIZE // len(PIECE)
SMALL = 100
EXCLUSIVE_QUEUE = "proxy-large-messages-exclusive"
# 2 MiB: larger messages than 1 MiB are streamed.
LARGE_PIECES = 32
# Bits of queue.declare.
PASSIVE, EXCLUSIVE = 1, 4
# The proxy buffers only what sockets and buffers hold.
ALLOWED_BYTES = 64 << 20
BASIC_QOS, BASIC_QOS_OK = (60, 10), (60, 11)
BASIC_CONSUME, BASIC_CONSUME_OK = (60, 20), (60, 21)
BASIC_DELIVER = (60, 60)
CHANNEL_CLOSE_OK = (20, 41)


def test_p2_p3_a_message_of_100_mib_holds_up_nobody_in_either_direction(targets, tmp_path):
    upstream = targets.upstream.uri.replace("guest:guest@", "")
    with queues(targets.upstream), leveret(tmp_path, "--upstream", upstream) as server:
        with Wire(server.port) as large:
            large.handshake().open_channel()
            large.send(begin(PIECES))
            large.send(bodies(PIECES // 2))
            pass_small_ones(server)
            large.send(bodies(PIECES - PIECES // 2))
            consume_it(server)
        assert metric(server, "leveret_upstream_moved_channels_total") == 1
        # The peak includes the proxy's own memory and everything in flight.
        assert peak_resident_bytes(server.pid) < ALLOWED_BYTES
        server.stop()


def test_a_message_over_the_upstreams_limit_is_refused_on_its_channel_alone(tmp_path):
    # RabbitMQ 4's default is 16 MiB, that of 3.10 and Leveret 128 MiB.
    upstream = RabbitMq(tmp_path / "rabbitmq", "max_message_size = 65536")
    try:
        with leveret(tmp_path / "leveret", "--upstream", f"amqp://127.0.0.1:{upstream.port}") as server:
            with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
                channel, beside = connection.channel(), connection.channel()
                for each in (channel, beside):
                    each.confirm_delivery()
                beside.queue_declare(SMALL_QUEUE, durable=True)
                with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
                    channel.basic_publish("", SMALL_QUEUE, b"x" * 65537)
                text = "PRECONDITION_FAILED - message size 65537 is larger than configured max size 65536"
                assert (closed.value.reply_code, closed.value.reply_text) == (406, text)
                beside.basic_publish("", SMALL_QUEUE, b"x" * 65536)
                assert len(beside.basic_get(SMALL_QUEUE, auto_ack=True)[2]) == 65536
            server.stop()
    finally:
        upstream.stop()


def test_p2_a_channel_closed_in_the_middle_of_a_large_message_leaves_the_connection_open(targets, tmp_path):
    upstream = targets.upstream.uri.replace("guest:guest@", "")
    with leveret(tmp_path, "--upstream", upstream) as server:
        with Wire(server.port) as client:
            client.handshake().open_channel()
            client.declare(EXCLUSIVE_QUEUE, EXCLUSIVE)
            client.open_channel(2)
            # RabbitMQ closes the channel over the first message, while the second one is on its way.
            client.send(begin(LARGE_PIECES, "no-such-exchange", channel=2) + bodies(LARGE_PIECES, channel=2))
            client.send(begin(LARGE_PIECES, "no-such-exchange", channel=2) + bodies(1, channel=2))
            closes = [close for _ in range(SMALL) for close in declare_passively(client)]
            client.send(bodies(LARGE_PIECES - 1, channel=2))
            # On a slow machine it has come before the second message.
            [close] = closes or [client.expect(CHANNEL_CLOSE)]
            assert close_of(close) == (404, "NOT_FOUND - no exchange 'no-such-exchange' in vhost '/'")
            client.send_method(2, CHANNEL_CLOSE_OK)
            client.open_channel(2)
            assert declare_passively(client) == []
        server.stop()


def declare_passively(client):
    """Declares the exclusive queue; returns the arguments of each channel.close that comes before the answer."""
    client.send(queue_declare(EXCLUSIVE_QUEUE, PASSIVE))
    closes = []
    while True:
        kind, _, payload = client.read_frame()
        method = struct.unpack(">HH", payload[:4])
        assert (kind, method) in ((METHOD, QUEUE_DECLARE_OK), (METHOD, CHANNEL_CLOSE)), payload
        if method == QUEUE_DECLARE_OK:
            return closes
        closes.append(payload[4:])


def consume_it(server):
    """Consumes the large message slowly, with a prefetch that lets its consumer share a connection."""
    with Wire(server.port) as consumer:
        consumer.handshake().open_channel()
        consumer.send_method(1, BASIC_QOS, struct.pack(">IHB", 0, 1, 0))
        consumer.expect(BASIC_QOS_OK)
        arguments = struct.pack(">H", 0) + short_string(QUEUE) + short_string("tag") + struct.pack(">BI", 0, 0)
        consumer.send_method(1, BASIC_CONSUME, arguments)
        consumer.expect(BASIC_CONSUME_OK)
        consumer.expect(BASIC_DELIVER)
        pass_small_ones(server)
        kind, _, header = consumer.read_frame()
        assert (kind, struct.unpack(">Q", header[4:12])[0]) == (HEADER, SIZE)
        received = 0
        while received < SIZE:
            kind, _, body = consumer.read_frame()
            assert kind == BODY
            at = received % len(PIECE)
            assert body == (PIECE * (len(body) // len(PIECE) + 2))[at : at + len(body)]
            received += len(body)


def pass_small_ones(server):
    """Small messages in both directions, each confirmed, on shared connections."""
    with connect(server) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=10)
        for turn in range(SMALL):
            channel.basic_publish("", SMALL_QUEUE, str(turn))
        deliveries = channel.consume(SMALL_QUEUE)
        for turn, (method, _, body) in zip(range(SMALL), deliveries):
            assert body == str(turn).encode()
            channel.basic_ack(method.delivery_tag)
        channel.cancel()


@contextlib.contextmanager
def queues(broker):
    with connect(broker) as connection:
        channel = connection.channel()
        for queue in (QUEUE, SMALL_QUEUE):
            channel.queue_declare(queue)
    yield
    with connect(broker) as connection:
        channel = connection.channel()
        for queue in (QUEUE, SMALL_QUEUE):
            channel.queue_delete(queue)


def begin(pieces, exchange="", channel=1):
    publish = struct.pack(">HHH", *BASIC_PUBLISH, 0) + short_string(exchange) + short_string(QUEUE) + b"\x00"
    header = struct.pack(">HHQH", 60, 0, pieces * len(PIECE), 0)
    return frame(METHOD, channel, publish) + frame(HEADER, channel, header)


def bodies(pieces, channel=1):
    return frame(BODY, channel, PIECE) * pieces
