"""A WebSocket handshake is checked before anything else: path, origin, version, subprotocol."""

import socket
import ssl

import pytest

from harness.certificates import TestCa
from harness.instances import leveret
from harness.patience import PATIENCE
from harness.websocket import Refused, WebSocketWire

FLAGS = ("--ws", "127.0.0.1:0", "--ws-origins", "local", "--ws-origins", "*.example.com")


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("handshake"), *FLAGS) as server:
        yield server.ws_port


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """The port of a server with a short handshake timeout, which still suffices on a busy machine."""
    with leveret(tmp_path_factory.mktemp("hasty"), *FLAGS, "--handshake-timeout", "5s") as server:
        yield server.ws_port


@pytest.mark.parametrize("path", ["/", "/ws/amqp", "/?token=1", "/ws/amqp?a=b"])
def test_amqp_is_served_at_both_paths(port, path):
    with WebSocketWire(port, path) as wire:
        assert "sec-websocket-protocol" not in wire.headers
        wire.handshake().open_channel()


@pytest.mark.parametrize(
    "offered, chosen",
    [("amqp091", "amqp091"), ("other, amqp", "amqp"), ("amqp, amqp091", "amqp091"), ("mine, yours", "mine")],
)
def test_a_subprotocol_is_one_of_those_offered(port, offered, chosen):
    with WebSocketWire(port, Sec_WebSocket_Protocol=offered) as wire:
        assert wire.headers["sec-websocket-protocol"] == chosen
        wire.handshake()


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:8080", "http://127.0.0.1", "https://app.example.com", "https://a.b.example.com:8443", None],
)
def test_allowed_origins_and_clients_without_one_may_connect(port, origin):
    with WebSocketWire(port, Origin=origin) as wire:
        wire.handshake()


@pytest.mark.parametrize(
    "origin",
    ["https://example.com", "https://evil.org", "http://localhost.evil.org", "https://app.example.com.evil.org", "null"],
)
def test_other_origins_are_refused_before_the_upgrade(port, origin):
    with pytest.raises(Refused) as refused:
        WebSocketWire(port, Origin=origin)
    assert refused.value.status == 403 and "ws_origins" in refused.value.text


@pytest.mark.parametrize(
    "path, headers, status",
    [
        ("/other", {}, 404),
        ("/ws", {}, 404),
        ("/", {"Upgrade": None}, 426),
        ("/", {"Connection": "keep-alive"}, 426),
        ("/", {"Sec_WebSocket_Version": "8"}, 426),
        ("/", {"Sec_WebSocket_Key": None}, 400),
        ("/", {"Host": None}, 400),
        ("/", {"Content_Length": "3"}, 400),
        ("/ws/amqp", {"Sec_WebSocket_Protocol": "mqtt"}, 400),
        ("/", {"Cookie": "c" * 20000}, 431),
    ],
)
def test_a_request_that_cannot_be_upgraded_is_refused_with_the_reason(port, path, headers, status):
    with pytest.raises(Refused) as refused:
        WebSocketWire(port, path, **headers)
    assert refused.value.status == status and refused.value.text.strip()


@pytest.mark.parametrize("first", [b"AMQP\x00\x00\x09\x01", b"\x16\x03\x01\x00\xa5", b"POST / HTTP/1.1\r\nHost: h\r\n\r\n"])
def test_other_protocols_get_an_answer_in_http(port, first):
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as peer:
        peer.sendall(first)
        assert peer.recv(4096).startswith(b"HTTP/1.1 40")


def test_a_request_that_does_not_come_is_not_awaited_for_ever(hasty):
    with socket.create_connection(("127.0.0.1", hasty), timeout=PATIENCE) as silent:
        with socket.create_connection(("127.0.0.1", hasty), timeout=PATIENCE) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nHost:")
            assert slow.recv(4096).startswith(b"HTTP/1.1 408")
        assert silent.recv(1) == b""


def test_a_login_that_does_not_come_is_closed_with_a_reason(hasty):
    with WebSocketWire(hasty) as wire:
        assert wire.expect_close() == (1008, "handshake timed out")


def test_the_client_address_is_taken_from_a_trusted_proxy(tmp_path):
    # guest may only log in from this machine.
    with leveret(tmp_path, "--ws", "127.0.0.1:0", "--ws-trusted-proxies", "127.0.0.0/8") as server:
        with WebSocketWire(server.ws_port, X_Forwarded_For="127.0.0.1") as near:
            near.handshake()
        with WebSocketWire(server.ws_port, X_Forwarded_For="127.0.0.1, 192.0.2.1") as far:
            far.start()
            assert far.expect_close()[0] == 1008


def test_forwarded_headers_of_untrusted_clients_are_ignored(port):
    with WebSocketWire(port, X_Forwarded_For="192.0.2.1", Forwarded="for=192.0.2.1") as wire:
        wire.handshake()


def test_wss_is_the_same_over_tls(tmp_path):
    ca = TestCa(tmp_path / "certificates")
    certificate, key = ca.issue("server")
    flags = ("--wss", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key)
    with leveret(tmp_path / "server", *flags) as server:
        port = int(server.child.wait_line(r"^wss +listening on wss://127\.0\.0\.1:(\d+)").group(1))
        context = ssl.create_default_context(cafile=ca.file)
        with WebSocketWire(port, "/ws/amqp", tls=context, Sec_WebSocket_Protocol="amqp091") as wire:
            assert wire.headers["sec-websocket-protocol"] == "amqp091"
            wire.handshake().open_channel()
        with pytest.raises(Refused) as refused:
            WebSocketWire(port, tls=context, Origin="https://example.org")
        assert refused.value.status == 403
