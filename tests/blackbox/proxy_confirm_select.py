"""P7: messages published before confirm.select get no confirms, also if the upstream connection is lost before their arrival
is known."""

import struct

import pytest

from harness.forwarder import Forwarder
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.upstreams import upstream  # noqa: F401
from harness.wire import (
    BODY,
    HEADER,
    METHOD,
    QUEUE_DECLARE_OK,
    Wire,
    content_header,
    frame,
    publish_arguments,
    queue_declare,
    short_string,
)

QUEUE = "confirm.select"
QUEUE_DELETE, QUEUE_DELETE_OK = (50, 40), (50, 41)
PUBLISH, ACK = (60, 40), (60, 80)
SELECT, SELECT_OK = (85, 10), (85, 11)
DURABLE = 2
IN_FRONT = 3


def method(ids, arguments=b""):
    return frame(METHOD, 1, struct.pack(">HH", *ids) + arguments)


def publish(body):
    content = frame(HEADER, 1, content_header(len(body))) + frame(BODY, 1, body)
    return method(PUBLISH, publish_arguments("", QUEUE)) + content


def take_confirms(wire, numbers, wanted):
    """Adds the confirmed numbers, up to these ones."""
    while not wanted <= numbers:
        tag, multiple = struct.unpack(">QB", wire.expect(ACK))
        assert tag not in numbers
        numbers |= set(range(1, tag + 1)) if multiple else {tag}


@pytest.fixture
def link(upstream):  # noqa: F811
    link = Forwarder(upstream.port)
    yield link
    link.stop()


@pytest.mark.parametrize("no_wait", [False, True], ids=["wait", "no-wait"])
def test_p7_no_message_is_confirmed_for_one_in_front_of_confirm_select(tmp_path, link, no_wait):
    with leveret(tmp_path, "--upstream", link.url) as server, Wire(server.port).handshake() as wire:
        wire.open_channel()
        # From now on it has a publishing channel on which the arrival of all messages is known.
        wire.send(queue_declare(QUEUE, DURABLE) + publish(b"proven") + queue_declare(QUEUE, DURABLE))
        wire.expect(QUEUE_DECLARE_OK)
        wire.expect(QUEUE_DECLARE_OK)
        link.swallows = True
        lost = b"".join(publish(b"in front %d" % number) for number in range(IN_FRONT))
        wire.send(lost + method(SELECT, bytes([no_wait])) + publish(b"first"))
        wait_until(lambda: link.swallowed >= len(lost + publish(b"first")))
        link.cut()
        if not no_wait:
            wire.expect(SELECT_OK)
        wire.send(publish(b"second"))
        numbers = set()
        take_confirms(wire, numbers, {1, 2})
        # All confirms are then on their way to the client, before the answer to its next request.
        wait_until(lambda: metric(server, "leveret_upstream_replay_buffer_bytes") == 0)
        wire.send(queue_declare(QUEUE, DURABLE))
        messages = struct.unpack(">I", wire.expect(QUEUE_DECLARE_OK)[-8:-4])[0]
        assert (numbers, messages) == ({1, 2}, 1 + IN_FRONT + 2)
        wire.send(method(QUEUE_DELETE, b"\0\0" + short_string(QUEUE) + b"\0"))
        wire.expect(QUEUE_DELETE_OK)
        server.stop()
