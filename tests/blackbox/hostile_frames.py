"""Invalid bytes get the protocol's error and a close, cost nothing, and affect no other client."""

import struct

import pytest

from harness.child import peak_reserved_bytes, peak_resident_bytes, resident_bytes
from harness.wire import (
    BASIC_PUBLISH,
    BODY,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    CONNECTION_START,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    QUEUE_DECLARE,
    Closed,
    Wire,
    close_of,
    content_header,
    frame,
    frame_announcing,
    long_string,
    publish_arguments,
    short_string,
)

# RabbitMQ is tested as well, to detect wrong expectations.
TARGETS = ["rabbitmq", "leveret", "proxy"]

GIBIBYTE = 1 << 30
# Allowed memory growth for three such frames: a small part of the announced size, but far more than a process grows by itself.
ALLOWED = GIBIBYTE // 16
FRAME_MAX = 131072
# The flag of a message's headers among its properties.
HAS_HEADERS = 1 << 13
BASIC_DELIVER = (60, 60)
QUEUE_DELETE, QUEUE_DELETE_OK = (50, 40), (50, 41)
PUBLISH = frame(METHOD, 1, struct.pack(">HH", *BASIC_PUBLISH) + publish_arguments("", "any"))
DECLARE = struct.pack(">H", 0) + short_string("any") + b"\x00" + b"\x00\x00\x00\x00"

# RabbitMQ answers with frame error, the specification (1.2.1, reply code 502) with syntax error.
SYNTAX = (501, 502)

# Bytes sent on a connection with channel 1 open: the expected reply code, and the text where it is fixed.
OFFENCES = {
    # RabbitMQ accepts frames that exceed frame_max by the frame's eight bytes.
    "a frame above frame_max": (frame_announcing(METHOD, 1, FRAME_MAX + 1) + bytes(64), 501, None),
    "a frame of 1 GiB": (frame_announcing(BODY, 1, GIBIBYTE) + bytes(64), 501, None),
    "a wrong frame end": (frame(METHOD, 1, bytes(5))[:-1] + b"\x00", 501, None),
    "an unknown frame type": (frame(5, 0, b"abc"), 501, None),
    "a heartbeat with a payload": (frame(HEARTBEAT, 0, b"abc"), 501, None),
    "a method cut short": (frame(METHOD, 1, struct.pack(">HH", *QUEUE_DECLARE) + b"\x00\x00"), SYNTAX, None),
    "a heartbeat on channel 1": (frame(HEARTBEAT, 1, b""), 505, None),
    "a body without a publish": (frame(BODY, 1, b"x"), 505, "expected method frame, got non method frame instead"),
    "a header without a publish": (
        frame(HEADER, 1, content_header(1)),
        505,
        "expected method frame, got non method frame instead",
    ),
    "a body before its header": (
        PUBLISH + frame(BODY, 1, b"x"),
        505,
        "expected content header for class 60, got non content header frame instead",
    ),
    "a method before the header": (
        PUBLISH + PUBLISH,
        505,
        "expected content header for class 60, got non content header frame instead",
    ),
    "a method before the body": (
        PUBLISH + frame(HEADER, 1, content_header(5)) + PUBLISH,
        505,
        "expected content body, got non content body frame instead",
    ),
    "a method on a channel that is not open": (
        frame(METHOD, 2, struct.pack(">HH", *QUEUE_DECLARE) + DECLARE),
        504,
        "expected 'channel.open'",
    ),
    "a second channel.open": (
        frame(METHOD, 1, struct.pack(">HH", *CHANNEL_OPEN) + short_string("")),
        504,
        "second 'channel.open' seen",
    ),
}


@pytest.mark.parametrize("offence", OFFENCES)
def test_s1_an_offence_ends_only_the_offender(target, offence):
    data, code, words = OFFENCES[offence]
    with Wire(target.port) as bystander, Wire(target.port) as offender:
        bystander.handshake()
        offender.handshake().open_channel()
        offender.send(data)
        got_code, text = offender.connection_error()
        assert got_code in (code if isinstance(code, tuple) else (code,)), text
        if words:
            assert text.partition(" - ")[2] == words
        bystander.open_channel()


@pytest.mark.parametrize("of_properties", [FRAME_MAX - 7, FRAME_MAX])
def test_a_content_header_may_exceed_frame_max_by_the_frames_own_bytes(targets, target, target_name, of_properties):
    """RabbitMQ accepts and delivers it. One client's message must not close a shared upstream connection."""
    publisher = targets["rabbitmq"] if target_name == "proxy" else target
    queue = f"hostile-frames-{target_name}-{of_properties}"
    table = short_string("h") + b"S"
    table += long_string(bytes(of_properties - 14 - 4 - len(table) - 4))
    header = struct.pack(">HHQH", 60, 0, 0, HAS_HEADERS) + long_string(table)
    with Wire(publisher.port) as sender, Wire(target.port) as receiver:
        sender.handshake().open_channel()
        sender.declare(queue)
        publish = struct.pack(">HH", *BASIC_PUBLISH) + publish_arguments("", queue)
        sender.send(frame(METHOD, 1, publish) + frame(HEADER, 1, header))
        receiver.handshake().open_channel()
        receiver.consume(queue)
        receiver.expect(BASIC_DELIVER)
        assert receiver.read_frame() == (HEADER, 1, header)
        receiver.open_channel(2)
        sender.send_method(1, QUEUE_DELETE, struct.pack(">H", 0) + short_string(queue) + b"\x00")
        sender.expect(QUEUE_DELETE_OK)


HEADERS = {
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "AMQP 1.0": b"AMQP\x00\x01\x00\x00",
    "another version": b"AMQP\x00\x00\x09\x02",
    "the right length, nothing else": b"\xff" * 8,
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_wrong_protocol_header_is_answered_with_the_right_one(target, header):
    with Wire(target.port) as peer:
        peer.send(HEADERS[header])
        assert peer.read(8) == PROTOCOL_HEADER
        assert peer.expect_end() == 0


def test_s1_frames_of_1_gib_before_login_cost_nothing(target, target_name):
    with Wire(target.port) as warm_up:
        warm_up.handshake()
    before, peak_before, reserved_before = memory(target.pid)
    peers = [Wire(target.port) for _ in range(3)]
    for peer in peers:
        peer.send(PROTOCOL_HEADER)
        peer.expect(CONNECTION_START)
        peer.send(frame_announcing(METHOD, 0, GIBIBYTE) + bytes(64))
    for peer in peers:
        assert refused_or_closed(peer)
        peer.close()
    if target_name != "rabbitmq":
        after, peak_after, reserved_after = memory(target.pid)
        assert after - before < ALLOWED
        # The announced size was never allocated, not even temporarily, and not even as untouched memory.
        assert peak_after - peak_before < ALLOWED
        assert reserved_after - reserved_before < GIBIBYTE // 2
    with Wire(target.port) as good:
        good.handshake()


def memory(pid):
    return resident_bytes(pid), peak_resident_bytes(pid), peak_reserved_bytes(pid)


def refused_or_closed(peer):
    try:
        return close_of(peer.expect(CONNECTION_CLOSE))[0] == 501
    except Closed:
        return True


@pytest.mark.parametrize("first", [METHOD, HEADER, BODY, HEARTBEAT, 0, 255])
def test_a_frame_before_the_protocol_header_ends_the_connection(target, first):
    with Wire(target.port) as peer:
        peer.send(frame(first, 0, bytes(8)))
        assert peer.expect_end() <= len(PROTOCOL_HEADER)
