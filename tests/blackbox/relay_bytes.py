"""A relay forwards every byte, once and in order, however the data is fragmented, and applies backpressure to the faster
side."""

import contextlib
import os
import random
import socket
import threading
from pathlib import Path

import pytest

from harness.instances import leveret
from harness.patience import PATIENCE
from harness.relay import Acceptor, Echo, RelayWire, exactly, relay, to_the_end
from harness.websocket import BINARY, CONTINUATION, FIN, PING, TEXT
from harness.wire import PROTOCOL_HEADER

# The size of the tests' own socket buffers.
SMALL_BUFFER = 256 << 10
# Far more than a relay may buffer in one direction.
RELAYS_OWN = 16 << 20


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    with Echo() as upstream, relay(tmp_path_factory.mktemp("echo"), upstream.url) as (_, port):
        yield port


def largest_buffer(kind):
    """The largest automatic buffer size of a socket, in bytes (tcp(7))."""
    return int(Path(f"/proc/sys/net/ipv4/{kind}").read_text().split()[2])


def pieces(rng, data, most):
    at = 0
    while at < len(data):
        size = rng.randint(1, most)
        yield data[at : at + size]
        at += size


class Record:
    """A fake socket that records what is sent."""

    def __init__(self):
        self.raw = bytearray()

    def sendall(self, more):
        self.raw.extend(more)


def fragmented(wire, rng, data):
    """Messages of any number of fragments with pings in between, as bytes on the wire."""
    real, wire.socket = wire.socket, Record()
    for message in pieces(rng, data, 70_000):
        fragments = list(pieces(rng, message, rng.choice([50, 3000, 70_000])))
        for at, fragment in enumerate(fragments):
            first = BINARY if at == 0 else CONTINUATION
            wire.send_frame(first | (FIN if at == len(fragments) - 1 else 0), fragment)
            if rng.random() < 0.05:
                wire.send_frame(FIN | PING, os.urandom(rng.randint(0, 125)))
    raw, wire.socket = bytes(wire.socket.raw), real
    return raw


def send_cut(sock, rng, raw):
    """Sends in pieces of random length."""
    most = rng.choice([7, 1500, 100_000]) if len(raw) < 50_000 else 100_000
    for piece in pieces(rng, raw, most):
        sock.sendall(piece)


@pytest.mark.parametrize("seed", range(12))
def test_bytes_come_back_as_they_went(echo, seed):
    rng = random.Random(seed)
    data = rng.randbytes(rng.choice([1, 1000, 40_000, 1_500_000]))
    with RelayWire(echo) as wire:
        raw = fragmented(wire, rng, data)
        sending = threading.Thread(target=send_cut, args=(wire.socket, rng, raw))
        sending.start()
        assert wire.read(len(data)) == data
        sending.join()
        wire.send_close(3001)
        assert wire.read_to_close() == (b"", 3001, "")


def test_a_close_frame_ends_the_upstreams_input_and_the_rest_of_its_output_still_comes(tmp_path):
    with Acceptor() as upstream, relay(tmp_path, upstream.url) as (_, port), RelayWire(port) as wire:
        server = upstream.accept()
        wire.send(b"question")
        wire.send_close(1000)
        assert to_the_end(server) == b"question"
        server.sendall(b"answer" * 50_000)
        server.close()
        assert wire.read_to_close() == (b"answer" * 50_000, 1000, "")


def test_the_upstreams_end_is_1000_behind_everything_it_said(tmp_path):
    with Acceptor() as upstream, relay(tmp_path, upstream.url) as (_, port), RelayWire(port) as wire:
        server = upstream.accept()
        server.sendall(b"x" * 3_000_000)
        server.shutdown(socket.SHUT_WR)
        data, code, reason = wire.read_to_close()
        assert (len(data), code, reason) == (3_000_000, 1000, "")
        # The other direction stays open until the client closes, too.
        wire.send(b"last")
        wire.send_close()
        assert to_the_end(server) == b"last"


def test_an_upstream_that_breaks_off_is_1011(tmp_path):
    with Acceptor() as upstream, relay(tmp_path, upstream.url) as (_, port), RelayWire(port) as wire:
        server = upstream.accept()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        server.close()
        _, code, reason = wire.read_to_close()
        assert (code, reason) == (1011, "upstream connection failed")


def test_without_websocket_the_last_words_of_the_upstream_reach_a_client_that_is_still_sending(tmp_path):
    with Acceptor() as upstream:
        flags = ["--upstream", "amqp://127.0.0.1:1", "--upstream-stomp", upstream.url, "--stomp", "127.0.0.1:0"]
        with leveret(tmp_path, *flags) as server:
            port = int(server.child.wait_line(r"^stomp +listening on stomp://127\.0\.0\.1:(\d+)").group(1))
            for _ in range(10):
                with socket.create_connection(("127.0.0.1", port), PATIENCE) as client, upstream.accept() as refusing:
                    sending = threading.Thread(target=send_until_refused, args=(client,))
                    sending.start()
                    assert exactly(refusing, 1) == b"x"
                    refusing.sendall(b"ERROR")
                    # It has unread data, so this is a reset.
                    refusing.close()
                    assert exactly(client, 5) == b"ERROR"
                    # Bytes it has sent since do not reset its own connection.
                    assert client.recv(1) == b""
                    client.shutdown(socket.SHUT_WR)
                    sending.join(PATIENCE)
            server.stop()


def send_until_refused(client):
    with contextlib.suppress(OSError):
        for _ in range(100):
            client.sendall(b"x" * 1000)


def test_a_client_that_goes_away_ends_the_upstream(tmp_path):
    with Acceptor() as upstream, relay(tmp_path, upstream.url) as (_, port):
        with RelayWire(port) as wire:
            server = upstream.accept()
            wire.send(b"half a word")
            assert exactly(server, 11) == b"half a word"
        assert to_the_end(server) == b""


def test_a_protocol_violation_gets_1002_and_earlier_bytes_are_relayed(tmp_path):
    with Acceptor() as upstream, relay(tmp_path, upstream.url) as (_, port), RelayWire(port) as wire:
        server = upstream.accept()
        wire.send(b"good")
        wire.send_frame(FIN | BINARY, b"bad", masked=False)
        _, code, _ = wire.read_to_close()
        assert code == 1002
        assert to_the_end(server) == b"good"


@pytest.mark.parametrize("direction", ["inward", "outward"])
def test_a_slow_reader_holds_back_the_sender_and_loses_nothing(tmp_path, direction):
    chunk = bytes(range(256)) * 256
    # More than the kernel's buffers and the relay hold.
    count = (largest_buffer("tcp_rmem") + largest_buffer("tcp_wmem") + RELAYS_OWN) // len(chunk)
    total, sent = count * len(chunk), [0]
    with Acceptor() as upstream, relay(tmp_path, upstream.url) as (_, port), RelayWire(port) as wire:
        server = upstream.accept()
        for own in (server, wire.socket):
            for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                own.setsockopt(socket.SOL_SOCKET, buffer, SMALL_BUFFER)
        stalled = threading.Event()

        def send():
            sender = wire.socket if direction == "inward" else server
            # A second without progress means backpressure; the reader begins then.
            sender.settimeout(1)
            frame = b"\x82\xff" + len(chunk).to_bytes(8, "big") + bytes(4) + chunk if direction == "inward" else chunk
            while sent[0] < total:
                rest = memoryview(frame)
                while rest:
                    try:
                        rest = rest[sender.send(rest) :]
                    except TimeoutError:
                        stalled.set()
                        sender.settimeout(PATIENCE)
                sent[0] += len(chunk)

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        assert stalled.wait(PATIENCE), "nobody held the sender back"
        assert sent[0] < total, "all of it was taken"
        if direction == "inward":
            assert exactly(server, total) == chunk * count
        else:
            got = bytearray()
            while len(got) < total:
                got += wire._receive()
            assert got == chunk * count
        sending.join()


def test_text_is_bytes_unless_a_relay_refuses_it(echo, tmp_path):
    with RelayWire(echo) as wire:
        wire.send_frame(FIN | TEXT, "grüße".encode())
        assert wire.read(7) == "grüße".encode()
        wire.send_frame(FIN | TEXT, b"\xff")
        assert wire.read_to_close()[1] == 1007
    with Echo() as upstream, relay(tmp_path, upstream.url, text="refuse") as (_, port), RelayWire(port) as wire:
        wire.send_frame(FIN | TEXT, b"hello")
        _, code, reason = wire.read_to_close()
        assert code == 1003 and "binary" in reason


def test_a_message_of_amqp_is_made_of_whole_frames(tmp_path):
    """Clients in browsers read message by message, and must not see partial frames."""
    frames = [b"\3\0\1" + size.to_bytes(4, "big") + bytes(size) + b"\xce" for size in (0, 10, 3000, 100_000)]
    stream = b"".join(frames) * 5
    with Acceptor() as upstream, relay(tmp_path, upstream.url) as (_, port), RelayWire(port) as wire:
        server = upstream.accept()
        wire.send(PROTOCOL_HEADER)
        assert exactly(server, 8) == PROTOCOL_HEADER
        for piece in pieces(random.Random(1), stream, 5000):
            server.sendall(piece)
        assert wire.read(len(stream)) == stream
        server.close()
        wire.read_to_close()
        ends, at = set(), 0
        for frame in frames * 5:
            at += len(frame)
            ends.add(at)
        at = 0
        for fin, payload in wire.frames:
            at += len(payload)
            assert not fin or at in ends
