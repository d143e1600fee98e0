"""AMQP over WebSocket is a full session: frames split anywhere, limits, and closes with a reason."""

import signal
import struct

import pytest

from harness.child import peak_reserved_bytes, resident_bytes
from harness.instances import leveret
from harness.websocket import BINARY, CLOSE, CONTINUATION, FIN, PING, PONG, TEXT, PeerClosed, WebSocketWire
from harness.wire import (
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_START,
    FRAME_END,
    METHOD,
    PROTOCOL_HEADER,
    Wire,
    close_of,
    frame,
    publish_frames,
    short_string,
)

WS = ("--ws", "127.0.0.1:0")
MEBIBYTE = 1 << 20
IDLE = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("sessions"), *WS) as server:
        yield server


@pytest.mark.parametrize("size", [0, 10, 70_000, 3 * MEBIBYTE])
def test_messages_hold_whole_frames(server, size):
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with WebSocketWire(server.ws_port) as wire:
        wire.handshake().open_channel()
        wire.declare(f"whole-{size}")
        wire.consume(f"whole-{size}")
        for _ in range(3):
            wire.send(publish_frames(f"whole-{size}", body))
        for _ in range(3):
            assert wire.delivered_body() == body
    for message in wire.messages:
        assert len(message) <= 131072
        position = 0
        while position < len(message):
            position += 8 + struct.unpack(">I", message[position + 3 : position + 7])[0]
            assert message[position - 1] == FRAME_END
        assert position == len(message)


def test_frames_may_come_in_any_cut(server):
    with WebSocketWire(server.ws_port) as wire:
        for byte in PROTOCOL_HEADER:
            wire.send(bytes([byte]))
        wire.expect(CONNECTION_START)
    with WebSocketWire(server.ws_port) as wire:
        wire.handshake().open_channel()
        wire.declare("cut")
        wire.consume("cut")
        data = publish_frames("cut", b"some body") * 2
        for start in range(0, len(data), 7):
            first = BINARY if start == 0 else CONTINUATION
            wire.send_frame(first, data[start : start + 7])
            wire.send_frame(FIN | PING, b"between")
            wire.send_frame(CONTINUATION)
        wire.send_frame(FIN | CONTINUATION)
        assert [wire.delivered_body(), wire.delivered_body()] == [b"some body"] * 2
        assert ("pong", b"between") in wire.messages


@pytest.mark.parametrize(
    "first, payload, masked, code",
    [
        (FIN | TEXT, b"text", True, 1003),
        (FIN | BINARY, b"bytes", False, 1002),
        (FIN | 0x40 | BINARY, b"bytes", True, 1002),
        (FIN | 3, b"", True, 1002),
        (FIN | CONTINUATION, b"", True, 1002),
        (PING, b"", True, 1002),
        (FIN | PING, bytes(126), True, 1002),
        (FIN | CLOSE, b"\x03", True, 1002),
        (FIN | CLOSE, struct.pack(">H", 1005), True, 1002),
    ],
)
def test_a_bad_frame_ends_only_the_offender(server, first, payload, masked, code):
    with WebSocketWire(server.ws_port) as bystander, WebSocketWire(server.ws_port) as offender:
        bystander.handshake()
        offender.handshake()
        offender.send_frame(first, payload, masked)
        got, reason = offender.expect_close()
        assert got == code and reason
        bystander.open_channel()


@pytest.mark.parametrize("announced", [1 << 30, 1 << 62])
def test_an_announcement_costs_nothing(server, announced):
    before = peak_reserved_bytes(server.pid)
    with WebSocketWire(server.ws_port) as wire:
        wire.handshake()
        # Announces this many bytes, the first of which are not an AMQP frame.
        Wire.send(wire, bytes([BINARY, 0xFF]) + struct.pack(">Q", announced) + bytes(4) + bytes(8))
        assert close_of(wire.expect(CONNECTION_CLOSE))[0] == 501
        assert wire.expect_close()[0] == 1008
    # Untouched memory counts: a buffer for the message would be as large as announced.
    assert peak_reserved_bytes(server.pid) - before < announced // 4


def test_amqps_own_errors_come_first_and_the_close_frame_names_them(server):
    with WebSocketWire(server.ws_port) as wire:
        wire.handshake()
        wire.send(frame(METHOD, 5, bytes(4)))
        code, text = close_of(wire.expect(CONNECTION_CLOSE))
        assert code == 503
        wire.send_method(0, CONNECTION_CLOSE_OK)
        got, reason = wire.expect_close()
        assert got == 1008 and text.partition(" - ")[2][:20] in reason


def test_a_wrong_password_is_a_matter_of_policy(server):
    with WebSocketWire(server.ws_port) as wire:
        wire.start("guest:wrong")
        assert wire.expect_close() == (1008, "login refused")


def test_a_client_that_closes_gets_1000(server):
    with WebSocketWire(server.ws_port) as wire:
        wire.handshake()
        wire.send_method(0, CONNECTION_CLOSE, struct.pack(">H", 200) + short_string("bye") + bytes(4))
        wire.expect(CONNECTION_CLOSE_OK)
        assert wire.expect_close() == (1000, "")


@pytest.mark.parametrize("payload", [b"", struct.pack(">H", 1000), struct.pack(">H", 4001) + b"my own"])
def test_a_close_frame_is_answered_with_its_code(server, payload):
    with WebSocketWire(server.ws_port) as wire:
        wire.handshake()
        wire.send_frame(FIN | CLOSE, payload)
        with pytest.raises(PeerClosed) as closed:
            wire.read_frame()
        assert closed.value.code == (struct.unpack(">H", payload[:2])[0] if payload else None)
        assert wire.read_rest() == ""


def test_a_drain_ends_with_1001(tmp_path):
    with leveret(tmp_path, *WS) as server:
        opened, begun = WebSocketWire(server.ws_port), WebSocketWire(server.ws_port)
        opened.handshake()
        begun.start()
        server.child.send(signal.SIGTERM)
        assert close_of(opened.expect(CONNECTION_CLOSE))[0] == 320
        opened.send_method(0, CONNECTION_CLOSE_OK)
        code, reason = opened.expect_close()
        assert code == 1001 and "shutdown" in reason
        assert begun.expect_close()[0] == 1001
        assert server.child.wait() == 0


@pytest.mark.parametrize("limit", ["max-connections", "max-connections-per-ip"])
def test_a_client_over_a_connection_limit_is_closed_with_1013(tmp_path, limit):
    with leveret(tmp_path, *WS, f"--{limit}", "2") as server:
        kept = [WebSocketWire(server.ws_port).handshake() for _ in range(2)]
        code, reason = WebSocketWire(server.ws_port).expect_close()
        assert code == 1013 and "(2)" in reason
        kept[0].open_channel()


def test_a_user_over_its_connection_limit_is_closed_with_1013(tmp_path):
    with leveret(tmp_path, *WS, "--max-connections-per-user", "1") as server:
        with WebSocketWire(server.ws_port) as first, WebSocketWire(server.ws_port) as second:
            first.handshake()
            with pytest.raises(AssertionError, match="530"):
                second.handshake()
            second.send_method(0, CONNECTION_CLOSE_OK)
            assert second.expect_close()[0] == 1013


def test_a_half_open_peer_is_found_and_given_up(tmp_path):
    with leveret(tmp_path, *WS, "--ws-ping-interval", "3s") as server:
        with WebSocketWire(server.ws_port, deaf=True) as dead:
            dead.handshake()
            assert dead.expect_end() == 0
            assert dead.pings >= 1
            server.child.wait_line("WebSocket ping timed out")


def test_a_peer_that_answers_pings_stays(tmp_path):
    with leveret(tmp_path, *WS, "--ws-ping-interval", "10s") as server:
        with WebSocketWire(server.ws_port) as quiet:
            quiet.handshake()
            for _ in range(3):
                opcode, payload = quiet.read_ws_frame()
                assert opcode == PING
                quiet.send_frame(FIN | PONG, payload)
            quiet.open_channel()


def test_a_slow_consumer_holds_up_nobody_and_loses_nothing(server):
    body, count = bytes(100_000), 400
    with WebSocketWire(server.ws_port) as slow, WebSocketWire(server.ws_port) as publisher:
        slow.handshake().open_channel()
        slow.declare("slow")
        slow.consume("slow")
        publisher.handshake().open_channel()
        for _ in range(count):
            publisher.send(publish_frames("slow", body))
        # Answered after everything that was published. Unread messages stay in the queue, except for what the connection and
        # the two sockets buffer; half of them are 20 MB.
        assert publisher.declare("slow") > count // 2
        for _ in range(count):
            assert slow.delivered_body() == body


def test_idle_connections_hold_no_buffers(tmp_path):
    with leveret(tmp_path, *WS, "--ws-ping-interval", "0") as server:
        for _ in range(20):
            with WebSocketWire(server.ws_port) as warm_up:
                warm_up.handshake().open_channel()
        before = resident_bytes(server.pid)
        wires = [WebSocketWire(server.ws_port).handshake(heartbeat=600) for _ in range(IDLE)]
        grown = resident_bytes(server.pid) - before
        wires[0].open_channel()
        for wire in wires:
            wire.close()
    print(f"{IDLE} idle WebSocket connections: {grown // IDLE} bytes each")
    assert grown < IDLE * 8192
