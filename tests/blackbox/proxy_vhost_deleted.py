"""Clients of a virtual host that is deleted upstream are closed with the reason, whatever they have open there; clients of
other virtual hosts stay."""

import struct

import pytest

from harness.lending import borrow
from harness.management import leveret
from harness.wire import (
    BASIC_PUBLISH,
    BODY,
    CONNECTION_CLOSE,
    HEADER,
    METHOD,
    Wire,
    close_of,
    content_header,
    frame,
    long_string,
    publish_arguments,
    short_string,
)

DOOMED, OTHER = "doomed", "other"
# RabbitMQ sends one of the first two, depending on which of its processes ends first; a reconnecting client gets the third.
CLOSE_REASONS = [
    (320, "CONNECTION_FORCED - vhost 'doomed' is deleted"),
    (320, "CONNECTION_FORCED - vhost 'doomed' is down"),
    (530, "NOT_ALLOWED - vhost doomed not found"),
]


@pytest.fixture
def upstream():
    server = borrow()
    try:
        for vhost in (DOOMED, OTHER):
            server.control("add_vhost", vhost)
            server.control("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        yield server
    finally:
        server.stop()


def consume(wire):
    wire.send_method(1, (60, 10), struct.pack(">IHB", 0, 5, 0))
    wire.expect((60, 11))
    wire.send_method(1, (50, 10), struct.pack(">H", 0) + short_string("q") + b"\x00" + long_string(b""))
    wire.expect((50, 11))
    names = short_string("q") + short_string("")
    wire.send_method(1, (60, 20), struct.pack(">H", 0) + names + b"\x00" + long_string(b""))
    wire.expect((60, 21))


def publish(wire):
    # Unroutable, so that nothing is delivered to the consumer, whatever the order.
    message = frame(METHOD, 1, struct.pack(">HH", *BASIC_PUBLISH) + publish_arguments("", "none"))
    wire.send(message + frame(HEADER, 1, content_header(1)) + frame(BODY, 1, b"x"))


def test_only_clients_of_a_deleted_virtual_host_are_closed(tmp_path, upstream):
    with leveret(tmp_path / "leveret", "--upstream", f"amqp://127.0.0.1:{upstream.port}") as pool:
        port = pool.server.port
        with Wire(upstream.port) as direct, Wire(port) as bystander:
            direct.handshake(vhost=DOOMED)
            idle, publisher, consumer = clients = [Wire(port).handshake(vhost=DOOMED) for _ in range(3)]
            publisher.open_channel()
            publish(publisher)
            consumer.open_channel()
            consume(consumer)
            bystander.handshake(vhost=OTHER).open_channel()
            upstream.control("delete_vhost", DOOMED)
            assert close_of(direct.expect(CONNECTION_CLOSE)) in CLOSE_REASONS
            for client in clients:
                assert client.connection_error() in CLOSE_REASONS
                client.close()
            bystander.open_channel(2)
            # The virtual host is gone, and new clients are told so.
            with Wire(port) as newcomer:
                with pytest.raises(AssertionError, match="vhost doomed not found"):
                    newcomer.handshake(vhost=DOOMED)
