"""A relay only upgrades requests that it can serve: its server is reachable, and origin, subprotocol and limits permit it."""

import contextlib
import signal
import socket
import ssl
import time

import pytest

from harness.certificates import TestCa
from harness.instances import leveret
from harness.leveret import run
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.relay import HERE, Acceptor, Echo, RelayWire, exactly, relay
from harness.websocket import FIN, PONG, Refused
from harness.wire import Closed


def refused(port, path="/", **headers):
    with pytest.raises(Refused) as caught:
        RelayWire(port, path, **headers)
    return caught.value


def test_a_server_that_is_down_is_502_and_its_place_stays_secret(tmp_path):
    (nobody,) = free_ports(1)
    with relay(tmp_path, f"tcp://{HERE}:{nobody}") as (server, port):
        answer = refused(port)
        assert answer.status == 502 and str(nobody) not in answer.text
        server.child.wait_line(f"relay failed.*tcp://{HERE}:{nobody}")


def test_a_server_that_does_not_answer_is_504(tmp_path):
    """TLS to a server that stays silent: the connection is made, but the handshake does not complete."""
    with Acceptor() as silent, relay(tmp_path, silent.url.replace("tcp", "tls"), connect_timeout="300ms",
                                     upstream_verify="off") as (_, port):
        assert refused(port).status == 504


def test_the_server_behind_is_connected_to_before_the_client_is_upgraded(tmp_path):
    with Acceptor() as upstream, relay(tmp_path, upstream.url) as (_, port):
        assert refused(port, Upgrade=None).status == 426
        assert refused(port, Origin="https://example.org").status == 403
        with RelayWire(port):
            # Already connected; and refused requests made no connection.
            upstream.socket.settimeout(0)
            upstream.accept()
            with pytest.raises(BlockingIOError):
                upstream.accept()


def test_origins_are_the_relays_own_or_those_of_the_listener(tmp_path):
    with Echo() as upstream:
        tables = [
            "{path = '/own', upstream = '%s', origins = ['app.example.com']}" % upstream.url,
            "{path = '/usual', upstream = '%s'}" % upstream.url,
        ]
        flags = [word for table in tables for word in ("--relay", table)]
        with leveret(tmp_path, "--ws", f"{HERE}:0", *flags) as server:
            RelayWire(server.ws_port, "/own", Origin="https://app.example.com").close()
            RelayWire(server.ws_port, "/usual", Origin="http://localhost:3000").close()
            RelayWire(server.ws_port, "/own").close()
            assert "relay's origins" in refused(server.ws_port, "/own", Origin="http://localhost:3000").text
            assert refused(server.ws_port, "/usual", Origin="https://app.example.com").status == 403
            assert refused(server.ws_port, "/other").status == 404
            with RelayWire(server.ws_port, "/") as amqp:
                amqp.handshake()


@pytest.mark.parametrize(
    "own, offered, chosen",
    [
        (["b", "a"], "a, b", "b"),
        (["b", "a"], "x, a", "a"),
        (["b"], None, None),
        ([], "x, y", "x"),
        ([], None, None),
    ],
)
def test_a_subprotocol_is_echoed_only_if_offered(tmp_path, own, offered, chosen):
    with Echo() as upstream, relay(tmp_path, upstream.url, subprotocols=own) as (_, port):
        with RelayWire(port, Sec_WebSocket_Protocol=offered) as wire:
            assert wire.headers.get("sec-websocket-protocol") == chosen


def test_a_client_that_offers_only_others_is_refused(tmp_path):
    with Echo() as upstream, relay(tmp_path, upstream.url, subprotocols=["mqtt"]) as (_, port):
        answer = refused(port, Sec_WebSocket_Protocol="graphql-ws")
        assert answer.status == 400 and "mqtt" in answer.text


@pytest.mark.parametrize("limit", [{"max_connections": 1}, {"max_connections_per_ip": 1}])
def test_a_limit_is_503_and_its_place_comes_free_again(tmp_path, limit):
    with Acceptor() as upstream, relay(tmp_path, upstream.url, **limit) as (_, port):
        with RelayWire(port) as first:
            assert refused(port).status == 503
            first.send_close()
            upstream.accept().close()
            first.read_to_close()
        with free_again(port):
            pass


@contextlib.contextmanager
def free_again(port):
    """The server may notice the close a moment after the client."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(Refused), RelayWire(port) as wire:
            yield wire
            return
    raise AssertionError("the place is not given back")


def test_the_servers_own_limit_is_503_too(tmp_path):
    with Echo() as upstream, relay(tmp_path, upstream.url, "--max-connections", "1") as (_, port), RelayWire(port):
        assert refused(port).status == 503


def test_a_drain_is_1001_and_reaches_the_server_behind(tmp_path):
    with Acceptor() as upstream, relay(tmp_path, upstream.url) as (server, port), RelayWire(port) as wire:
        behind = upstream.accept()
        wire.send(b"before")
        assert exactly(behind, 6) == b"before"
        server.child.process.send_signal(signal.SIGTERM)
        _, code, _ = wire.read_to_close()
        assert code == 1001
        wire.send_close(1001)
        assert behind.recv(1) == b""
        assert server.child.process.wait(PATIENCE) == 0


def test_a_client_that_answers_no_ping_is_given_up_and_one_that_does_is_not(tmp_path):
    with Acceptor() as upstream, relay(tmp_path, upstream.url, "--ws-ping-interval", "1s") as (_, port):
        with RelayWire(port, deaf=True) as deaf:
            behind = upstream.accept()
            with pytest.raises(Closed):
                deaf.read(1)
            assert deaf.pings >= 1
            assert behind.recv(1) == b""
    # Enough time to answer on a busy machine.
    with Acceptor() as upstream, relay(tmp_path / "patient", upstream.url, "--ws-ping-interval", "10s") as (_, port):
        with RelayWire(port) as alive:
            behind = upstream.accept()
            while alive.pings < 2:
                opcode, payload = alive.read_ws_frame()
                alive.pings += 1
                alive.send_frame(FIN | PONG, payload)
            behind.sendall(b"here")
            assert alive.read(4) == b"here"


def test_a_relay_can_have_tls_on_both_sides_and_unix_sockets_behind(tmp_path):
    ca = TestCa(tmp_path)
    certificate, key = ca.issue("server")
    tls = ("--tls-cert", certificate, "--tls-key", key)
    path = str(tmp_path / "behind.sock")
    with Acceptor(socket.AF_UNIX, path) as behind:
        # Two relays in a chain: the outer one forwards to the inner one.
        with relay(tmp_path / "inner", behind.url, *tls, tls=True) as (_, port):
            context = ssl.create_default_context(cafile=ca.file)
            with RelayWire(port, tls=context) as wire:
                accepted = behind.accept()
                wire.send(b"in")
                assert exactly(accepted, 2) == b"in"
                accepted.sendall(b"out")
                assert wire.read(3) == b"out"
            inner = f"tls://localhost:{port}"
            with relay(tmp_path / "outer", inner, upstream_ca=str(ca.file)) as (_, outer):
                # The test itself speaks the inner WebSocket.
                with RelayWire(outer) as wire:
                    wire.send(b"GET /inner HTTP/1.0\r\n\r\n")
                    assert wire.read(12) == b"HTTP/1.1 426"
            with relay(tmp_path / "stranger", inner) as (_, outer):
                assert refused(outer).status == 502, "a certificate that nobody vouches for"


def test_the_setting_is_a_flag_over_a_variable_over_tables_of_the_file(tmp_path):
    file = tmp_path / "leveret.toml"
    file.write_text(
        '[[relay]]\npath = "/a"\nupstream = "tcp://a:1"\nsubprotocols = ["mqtt"]\n'
        '[[relay]]\nlisten = "127.0.0.1:7000"\nupstream = "unix:/run/b"\n'
    )
    code, output, _ = run("config", "print", "--config", file)
    assert code == 0
    assert 'relay = [{ path = "/a", upstream = "tcp://a:1", subprotocols = ["mqtt"] }, ' in output
    env = {"LEVERET_RELAY": '/c=tcp://c:1,{path="/d",upstream="tcp://d:1"}'}
    code, output, _ = run("config", "print", "--config", file, env=env)
    assert 'relay = [{ path = "/c", upstream = "tcp://c:1" }, { path = "/d", upstream = "tcp://d:1" }]' in output
    code, output, _ = run("config", "print", "--config", file, "--relay", "/e=tcp://e:1", env=env)
    assert 'relay = [{ path = "/e", upstream = "tcp://e:1" }]' in output


@pytest.mark.parametrize(
    "flags, at_fault",
    [
        (["--relay", "/=tcp://a:1"], "--relay: / is where AMQP is"),
        (["--relay", "/a=tcp://a:1", "--relay", "/a=tcp://b:1"], "--relay: /a is given twice"),
        (["--relay", "/a=tcp://a:1", "--ws", "off"], "--relay: /a needs ws or wss"),
        (["--relay", "127.0.0.1:5672=tcp://a:1"], "--relay: the same address as amqp"),
        (["--relay", "{listen='a:1', tls=true, upstream='tcp://a:1'}"], "--relay: a:1: tls needs tls_cert"),
        (["--relay", "/a=amqp://a:1"], "--relay: '/a=amqp://a:1' is not LISTEN=URL"),
        (["--webroot", "/srv", "--ws", "off"], "--webroot: has no effect"),
    ],
)
def test_an_invalid_relay_configuration_is_reported(flags, at_fault):
    code, _, error = run("config", "check", *flags)
    assert code == 2 and at_fault in error
