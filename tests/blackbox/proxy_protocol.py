"""The PROXY protocol: load balancers report the client's address, which counts only if they are trusted."""

import socket
import struct

import pytest

from harness.instances import leveret
from harness.rabbitmq import RabbitMq
from harness.wire import CONNECTION_TUNE, PROTOCOL_HEADER, Closed, Wire

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
HERE = "127.0.0.1"
AFAR = "192.0.2.1"


def v1(source, destination=HERE):
    family = "TCP6" if ":" in source else "TCP4"
    return f"PROXY {family} {source} {destination} 50000 5672\r\n".encode()


def v2(source, destination=HERE):
    family, code = (socket.AF_INET6, 0x21) if ":" in source else (socket.AF_INET, 0x11)
    addresses = socket.inet_pton(family, source) + socket.inet_pton(family, destination)
    body = addresses + struct.pack(">HH", 50000, 5672) + b"\x04\x00\x01x"
    return SIGNATURE + struct.pack(">BBH", 0x21, code, len(body)) + body


LOCAL = SIGNATURE + b"\x20\x00\x00\x00"


def behind_proxy(directory, *flags, version="any", trusted=HERE):
    return leveret(directory, "--proxy-protocol", version, "--trusted-proxies", trusted, *flags)


def opened(server, header):
    wire = Wire(server.port)
    wire.send(header)
    return wire.handshake()


@pytest.mark.parametrize(
    "header",
    [v1(HERE), v2(HERE), v2("::1", "::1"), LOCAL, b"PROXY UNKNOWN\r\n"],
    ids=["v1", "v2", "v2 over IPv6", "LOCAL", "UNKNOWN"],
)
def test_a_header_of_a_trusted_proxy_is_taken(tmp_path, header):
    with behind_proxy(tmp_path) as server:
        opened(server, header).open_channel()
        # Also byte by byte.
        wire = Wire(server.port)
        for at in range(len(header)):
            wire.send(header[at : at + 1])
        wire.handshake()


@pytest.mark.parametrize("header", [v1(AFAR), v2(AFAR)], ids=["v1", "v2"])
def test_guest_comes_from_where_the_client_is(tmp_path, header):
    with behind_proxy(tmp_path) as server:
        wire = Wire(server.port)
        wire.send(header)
        wire.start()
        with pytest.raises((Closed, AssertionError)):
            wire.expect(CONNECTION_TUNE)
        server.child.wait_line(rf"login refused.*{AFAR}:50000")


def test_the_limit_of_an_address_counts_clients_and_not_the_proxy(tmp_path):
    with behind_proxy(tmp_path, "--max-connections-per-ip", "1") as server:
        first = opened(server, v1(HERE))
        second = Wire(server.port)
        second.send(v2(HERE))
        second.expect_end()
        server.child.wait_line("connection limit per address")
        other = Wire(server.port)
        other.send(v2("127.0.0.2") + PROTOCOL_HEADER)
        assert other.read(1) == b"\x01"
        first.close()


def test_a_trusted_proxy_that_sends_no_header_is_closed(tmp_path):
    with behind_proxy(tmp_path) as server:
        wire = Wire(server.port)
        wire.send(PROTOCOL_HEADER)
        assert wire.expect_end() == 0
        server.child.wait_line("no PROXY protocol header")


@pytest.mark.parametrize("header", [v1(HERE), v2(HERE)], ids=["v1", "v2"])
def test_a_header_of_a_stranger_is_not_believed(tmp_path, header):
    with behind_proxy(tmp_path, trusted="192.0.2.0/24") as server:
        wire = Wire(server.port)
        wire.send(header + PROTOCOL_HEADER)
        assert wire.expect_end() == 0
        server.child.wait_line("header from a peer that trusted_proxies does not name")
        # A client without a header is served.
        Wire(server.port).handshake().open_channel()


def test_a_header_means_nothing_where_none_is_expected(tmp_path):
    with leveret(tmp_path) as server:
        wire = Wire(server.port)
        wire.send(v1(HERE) + PROTOCOL_HEADER)
        assert wire.read(8) == PROTOCOL_HEADER
        wire.expect_end()


def test_the_version_is_the_configured_one(tmp_path):
    with behind_proxy(tmp_path, version="v2") as server:
        wire = Wire(server.port)
        wire.send(v1(HERE))
        wire.expect_end()
        server.child.wait_line("version 1 is not accepted here")
        opened(server, v2(HERE))


@pytest.mark.parametrize("start", [b"", v1(HERE)[:20], v2(HERE)[:20]], ids=["nothing", "v1", "v2"])
def test_a_header_that_is_never_finished_is_cut_off(tmp_path, start):
    with behind_proxy(tmp_path, "--handshake-timeout", "1s") as server:
        wire = Wire(server.port)
        wire.send(start)
        assert wire.expect_end() == 0
        server.child.wait_line("handshake timed out")


BROKEN = {
    "no address": b"PROXY TCP4 1.2.3.4 1.2.3.400 1 65\r\n",
    "a line without end": b"PROXY " + b"x" * 200,
    "too long": SIGNATURE + b"\x21\x11\xff\xff",
    "a version to come": SIGNATURE + b"\x41\x11\x00\x0c",
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_header_is_refused_at_once(tmp_path, what):
    with behind_proxy(tmp_path) as server:
        wire = Wire(server.port)
        wire.send(BROKEN[what])
        assert wire.expect_end() == 0
        server.child.wait_line("PROXY protocol header")
        server.check()


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_rabbitmq_that_expects_headers_gets_them(tmp_path, version):
    rabbit = RabbitMq(tmp_path / "rabbit", "proxy_protocol = true")
    try:
        flags = ["--upstream", f"amqp://127.0.0.1:{rabbit.port}", "--upstream-proxy-protocol", version]
        with leveret(tmp_path / "leveret", *flags) as server:
            Wire(server.port).handshake().open_channel()
    finally:
        rabbit.stop()
