"""A relay sends the client's address to the server in a PROXY header: the socket's, or the one reported by trusted proxies."""

import socket
import struct

import pytest

from harness.relay import HERE, Acceptor, RelayWire, exactly, relay

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def line(sock):
    data = b""
    while not data.endswith(b"\r\n"):
        data += exactly(sock, 1)
    return data.decode().strip()


def told(upstream, port, **headers):
    with RelayWire(port, **headers) as wire:
        behind = upstream.accept()
        first = line(behind)
        wire.send(b"x")
        assert exactly(behind, 1) == b"x", "nothing stands between the header and the client's bytes"
        return first


def test_version_1_tells_the_ends_of_the_clients_socket(tmp_path):
    with Acceptor() as upstream, relay(tmp_path, upstream.url, proxy_protocol="v1") as (_, port):
        with RelayWire(port) as wire:
            own = wire.socket.getsockname()[1]
            assert line(upstream.accept()) == f"PROXY TCP4 {HERE} {HERE} {own} {port}"


@pytest.mark.parametrize("listen, family", [("[::1]:0", "TCP6"), ("[::]:0", "TCP4")])
def test_ipv6_and_ipv4_mapped_addresses_are_distinguished(tmp_path, listen, family):
    with Acceptor() as upstream, relay(tmp_path, upstream.url, proxy_protocol="v1", listen=listen) as (_, port):
        host = "::1" if family == "TCP6" else HERE
        client = socket.create_connection((host, port))
        request = ["GET / HTTP/1.1", "Host: a", "Upgrade: websocket", "Connection: Upgrade",
                   "Sec-WebSocket-Key: c2l4dGVlbiBvY3RldHMhIQ==", "Sec-WebSocket-Version: 13", "", ""]
        client.sendall("\r\n".join(request).encode())
        own = client.getsockname()[1]
        assert line(upstream.accept()) == f"PROXY {family} {host} {host} {own} {port}"
        client.close()


def test_version_2_tells_the_same_in_bytes(tmp_path):
    with Acceptor() as upstream, relay(tmp_path, upstream.url, proxy_protocol="v2") as (_, port):
        with RelayWire(port) as wire:
            own = wire.socket.getsockname()[1]
            expected = SIGNATURE + b"\x21\x11\0\x0c" + socket.inet_aton(HERE) * 2 + struct.pack(">HH", own, port)
            assert exactly(upstream.accept(), len(expected)) == expected


@pytest.mark.parametrize(
    "headers, source",
    [
        ({"Forwarded": 'for="192.0.2.7:4711";proto=https'}, "TCP4 192.0.2.7"),
        ({"Forwarded": 'for=203.0.113.9, for="[2001:db8::7]:4711"'}, "TCP6 2001:db8::7"),
        ({"X_Forwarded_For": "203.0.113.9, 192.0.2.7"}, "TCP4 192.0.2.7"),
        ({"X_Forwarded_For": "203.0.113.9, 127.0.0.1"}, "TCP4 203.0.113.9"),
        ({"X_Real_IP": "2001:db8::8"}, "TCP6 2001:db8::8"),
        ({"X_Real_IP": "::ffff:192.0.2.8"}, "TCP4 192.0.2.8"),
    ],
)
def test_a_trusted_proxy_tells_the_client(tmp_path, headers, source):
    trusted = ("--ws-trusted-proxies", HERE)
    with Acceptor() as upstream, relay(tmp_path, upstream.url, *trusted, proxy_protocol="v1") as (_, port):
        destination = HERE if source.startswith("TCP4") else f"::ffff:{HERE}"
        assert told(upstream, port, **headers) == f"PROXY {source} {destination} 0 {port}"


def test_nobody_else_is_believed(tmp_path):
    trusted = ("--ws-trusted-proxies", "192.0.2.1")
    with Acceptor() as upstream, relay(tmp_path, upstream.url, *trusted, proxy_protocol="v1") as (_, port):
        assert told(upstream, port, X_Forwarded_For="203.0.113.9").startswith(f"PROXY TCP4 {HERE} {HERE} ")


def test_a_load_balancer_tells_by_the_proxy_protocol_itself(tmp_path):
    flags = ("--proxy-protocol", "v1", "--trusted-proxies", HERE)
    with Acceptor() as upstream, relay(tmp_path, upstream.url, *flags, proxy_protocol="v1") as (_, port):
        client = socket.create_connection((HERE, port))
        request = ["GET / HTTP/1.1", "Host: a", "Upgrade: websocket", "Connection: Upgrade",
                   "Sec-WebSocket-Key: c2l4dGVlbiBvY3RldHMhIQ==", "Sec-WebSocket-Version: 13", "", ""]
        client.sendall(b"PROXY TCP4 192.0.2.9 10.0.0.1 4000 443\r\n" + "\r\n".join(request).encode())
        assert line(upstream.accept()) == f"PROXY TCP4 192.0.2.9 {HERE} 4000 {port}"
        client.close()
