"""permessage-deflate, if configured: with zlib as the peer, with bounded memory, and in Chromium."""

import random
import struct
import zlib

import pytest

from harness.browser import browser
from harness.child import resident_bytes
from harness.instances import leveret
from harness.relay import Acceptor, Echo, RelayWire, relay
from harness.websocket import BINARY, CONTINUATION, FIN, PeerClosed, WebSocketWire
from harness.wire import frame, publish_frames, short_string

ON = ("--ws-compression", "on")
WS = ("--ws", "127.0.0.1:0")
COMPRESSED = 0x40
PLAIN_ANSWER = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
MEBIBYTE = 1 << 20


def deflated(payload, level=6, bits=15):
    compressor = zlib.compressobj(level, zlib.DEFLATED, -bits)
    return (compressor.compress(payload) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


def inflated(payload, bits=15):
    return zlib.decompressobj(-bits).decompress(payload + b"\x00\x00\xff\xff")


class Compressing:
    """A wire that compresses what it sends and inflates what it receives; `saved` counts the bytes saved."""

    bits = 15
    saved = 0

    def __init__(self, port, *args, offer="permessage-deflate", **options):
        super().__init__(port, *args, Sec_WebSocket_Extensions=offer, **options)

    def send(self, data):
        self.send_frame(FIN | COMPRESSED | BINARY, deflated(data))

    def read_ws_frame(self):
        first = self.take(1)
        self.raw = bytes([first[0] & ~COMPRESSED]) + self.raw
        opcode, payload = super().read_ws_frame()
        if not first[0] & COMPRESSED:
            return opcode, payload
        whole = inflated(payload, self.bits)
        assert len(payload) < len(whole)
        self.saved += len(whole) - len(payload)
        return opcode, whole


class CompressingWire(Compressing, WebSocketWire):
    pass


class CompressingRelayWire(Compressing, RelayWire):
    pass


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("compression"), *WS, *ON) as server:
        yield server


def test_it_is_off_unless_configured(tmp_path):
    with leveret(tmp_path, *WS) as plain:
        with WebSocketWire(plain.ws_port, Sec_WebSocket_Extensions="permessage-deflate") as wire:
            assert "sec-websocket-extensions" not in wire.headers
            wire.handshake()
            wire.send_frame(FIN | COMPRESSED | BINARY, deflated(b"x" * 100))
            assert wire.expect_close()[0] == 1002


@pytest.mark.parametrize(
    "offer, answer",
    [
        (None, None),
        ("permessage-deflate; client_max_window_bits", PLAIN_ANSWER),
        ("permessage-deflate; server_max_window_bits=10", f"{PLAIN_ANSWER}; server_max_window_bits=10"),
        ("permessage-deflate; nonsense", None),
    ],
)
def test_negotiated_compression_has_no_context_takeover(server, offer, answer):
    negotiated = CompressingWire(server.ws_port, offer=offer) if answer else WebSocketWire(server.ws_port, Sec_WebSocket_Extensions=offer)
    with negotiated as wire:
        assert wire.headers.get("sec-websocket-extensions") == answer
        wire.handshake().open_channel()


@pytest.mark.parametrize("bits", [9, 12, 15])
@pytest.mark.parametrize("size", [10, 70_000, 3 * MEBIBYTE])
def test_amqp_is_the_same_compressed(server, size, bits):
    body = (b"some words, again and again " * (size // 28 + 1))[:size]
    with CompressingWire(server.ws_port, offer=f"permessage-deflate; server_max_window_bits={bits}") as wire:
        # This wire could not inflate a larger window than it asked for.
        wire.bits = bits
        wire.handshake().open_channel()
        wire.declare(f"compressed-{size}-{bits}")
        wire.consume(f"compressed-{size}-{bits}")
        for _ in range(2):
            wire.send(publish_frames(f"compressed-{size}-{bits}", body))
        for _ in range(2):
            assert wire.delivered_body() == body
        assert wire.saved > size


def test_compressed_messages_may_come_in_fragments_and_beside_plain_ones(server):
    with CompressingWire(server.ws_port) as wire:
        wire.handshake().open_channel()
        wire.declare("fragments")
        wire.consume("fragments")
        content = deflated(publish_frames("fragments", b"body " * 100))
        for start in range(0, len(content), 11):
            wire.send_frame(COMPRESSED | BINARY if start == 0 else CONTINUATION, content[start : start + 11])
        wire.send_frame(FIN | CONTINUATION)
        wire.send_frame(FIN | BINARY, publish_frames("fragments", b"plain"))
        assert wire.delivered_body() == b"body " * 100
        assert wire.delivered_body() == b"plain"


def test_invalid_deflate_data_closes_only_the_offending_connection(server):
    with CompressingWire(server.ws_port) as bystander, CompressingWire(server.ws_port) as offender:
        bystander.handshake()
        offender.handshake()
        offender.send_frame(FIN | COMPRESSED | BINARY, b"\x07\xff")
        assert offender.expect_close()[0] == 1007
        bystander.open_channel()


def test_a_message_that_blows_up_costs_its_sender_only(server):
    # 256 MiB of valid heartbeats, so that the server must parse all of it.
    heartbeats = frame(8, 0, b"") * (MEBIBYTE // 8)
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = b"".join(compressor.compress(heartbeats) for _ in range(256)) + compressor.flush(zlib.Z_SYNC_FLUSH)
    with CompressingWire(server.ws_port) as bystander, CompressingWire(server.ws_port) as bomber:
        bystander.handshake()
        bomber.handshake()
        before = resident_bytes(server.pid)
        bomber.send_frame(FIN | COMPRESSED | BINARY, bomb[:-4])
        most = 0
        # The other client is served in between, the attacker once everything has been parsed.
        for _ in range(20):
            bystander.open_channel()
            bystander.send_method(1, (20, 40), struct.pack(">H", 200) + short_string("") + bytes(4))
            bystander.expect((20, 41))
            most = max(most, resident_bytes(server.pid) - before)
        bomber.open_channel()
        most = max(most, resident_bytes(server.pid) - before)
    assert most < 16 * MEBIBYTE


def test_a_relay_is_the_same_compressed(tmp_path):
    with Echo() as echo, relay(tmp_path, echo.url, *ON) as (_server, port):
        with CompressingRelayWire(port) as wire:
            assert wire.headers["sec-websocket-extensions"] == PLAIN_ANSWER
            data = b"bytes of a stream, " * 50_000
            for start in range(0, len(data), 100_000):
                wire.send(data[start : start + 100_000])
            assert read_bytes(wire, len(data)) == data
            assert wire.saved > 0


@pytest.mark.parametrize("seed", range(8))
def test_any_zlib_output_survives_a_round_trip_through_the_relay(tmp_path, seed):
    rng = random.Random(seed)
    with Echo() as echo, relay(tmp_path, echo.url, *ON) as (_server, port), CompressingRelayWire(port) as wire:
        for _ in range(15):
            data = some_data(rng)
            send_in_fragments(wire, rng, deflated_somehow(rng, data))
            assert read_bytes(wire, len(data)) == data


def send_in_fragments(wire, rng, content):
    first = COMPRESSED | BINARY
    while len(content) > (size := rng.choice([1, 7, 1000, 70_000, len(content)])):
        wire.send_frame(first, content[:size])
        first, content = CONTINUATION, content[size:]
    wire.send_frame(FIN | first, content)


def some_data(rng):
    """Noise, repetition, or words; sometimes empty."""
    size = rng.choice([0, 1, 100, 5_000, 300_000])
    kind = rng.randrange(3)
    if kind == 0:
        return rng.randbytes(size)
    if kind == 1:
        return bytes([rng.randrange(256)]) * size
    return (b" ".join(rng.choices([b"queue", b"exchange", b"binding", b"\x00\xff"], k=size // 5 + 1)))[:size]


def deflated_somehow(rng, data):
    """With random settings, in flushed blocks, and sometimes with a final block."""
    strategies = [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED]
    settings = rng.randint(0, 9), zlib.DEFLATED, -rng.randint(9, 15), rng.randint(1, 9), rng.choice(strategies)
    compressor = zlib.compressobj(*settings)
    content, at = b"", 0
    while at < len(data):
        size = rng.choice([10, 5_000, len(data)])
        content += compressor.compress(data[at : at + size])
        content += compressor.flush(rng.choice([zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_NO_FLUSH]))
        at += size
    if rng.random() < 0.3:
        # RFC 7692, 7.2.3.4: an empty block without its length follows a final block.
        return content + compressor.flush(zlib.Z_FINISH) + b"\x00"
    return (content + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


def read_bytes(wire, count):
    data = b""
    while len(data) < count:
        data += wire._receive()
    return data


def test_a_relay_stops_inflating_while_its_upstream_does_not_read(tmp_path):
    with Acceptor() as upstream, relay(tmp_path, upstream.url, *ON) as (server, port):
        with CompressingRelayWire(port) as wire:
            behind = upstream.accept()
            before = resident_bytes(server.pid)
            size = 512 * MEBIBYTE
            compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
            bomb = b"".join(compressor.compress(bytes(MEBIBYTE)) for _ in range(size // MEBIBYTE))
            wire.send_frame(FIN | COMPRESSED | BINARY, (bomb + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4])
            wire.send_close()
            # The relay has begun to forward; what it holds back stays compressed.
            taken = len(behind.recv(65536))
            assert resident_bytes(server.pid) - before < 16 * MEBIBYTE
            while content := behind.recv(1 << 20):
                assert not content.strip(b"\x00")
                taken += len(content)
            assert taken == size
            behind.close()
            with pytest.raises(PeerClosed) as closed:
                wire.read_frame()
            assert closed.value.code == 1000


def test_a_browser_compresses_and_is_understood(tmp_path):
    with browser(tmp_path / "browser") as window, leveret(tmp_path / "server", *WS, *ON) as server:
        window.open(server.http + "/messages")
        script = """
            const { Connection } = await import("/page/amqp/connection.js");
            const connection = await Connection.open(args[0]);
            const channel = await connection.openChannel();
            const { queue } = await channel.declareQueue("", { exclusive: true });
            const arrived = new Promise((resolve) =>
                channel.consume(queue, (message) => resolve(message.text()), { noAck: true }));
            await channel.confirmSelect();
            await channel.publish("", queue, "again and again ".repeat(10000));
            const text = await arrived;
            await connection.close();
            return [text === "again and again ".repeat(10000), await new Promise((resolve) => {
                const socket = new WebSocket(args[0]);
                socket.onopen = () => { resolve(socket.extensions); socket.close(); };
            })];
        """
        assert window.run(script, f"ws://127.0.0.1:{server.ws_port}/") == [True, PLAIN_ANSWER]
        server.stop()
