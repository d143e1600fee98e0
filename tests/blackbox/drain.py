"""S5: a shutdown notifies the clients, waits for them up to a limit, and exits with success."""

import select
import signal
import struct

import pytest

from harness.health import wait_for_status
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.mqtt_broker import listening
from harness.mqtt_wire import CONNACK, MqttWire
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.stomp_client import StompWire
from harness.websocket import WebSocketWire
from harness.wire import CHANNEL_OPEN, CHANNEL_OPEN_OK, CONNECTION_CLOSE, CONNECTION_CLOSE_OK, Closed, Wire, close_of, short_string

SHUTDOWN = (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_s5_clients_get_connection_close_and_the_exit_code_is_0(tmp_path, number):
    with leveret(tmp_path) as server:
        wires = [Wire(server.port).handshake() for _ in range(3)]
        wires[0].open_channel()
        server.child.send(number)
        for wire in wires:
            assert wire.connection_error() == SHUTDOWN
        assert server.child.wait() == 0


def test_a_peer_in_its_handshake_does_not_hold_up_the_end(tmp_path):
    with leveret(tmp_path) as server:
        with Wire(server.port) as silent, Wire(server.port) as begun:
            begun.start()
            assert server.child.stop() == 0
            silent.expect_end()


def test_a_client_that_never_answers_delays_the_end_only_to_the_bound(tmp_path):
    with leveret(tmp_path, "--drain-timeout", "1s") as server:
        deaf = Wire(server.port).handshake()
        server.child.send(signal.SIGTERM)
        assert close_of(deaf.expect(CONNECTION_CLOSE)) == SHUTDOWN
        # Draining: new connections are refused.
        assert not lets_in(server.port)
        assert server.child.wait() == 0


def test_a_successor_binds_all_addresses_at_once(tmp_path):
    ports = free_ports(3)
    names = ("--amqp", "--http", "--prometheus")
    addresses = [word for name, port in zip(names, ports, strict=True) for word in (name, f"127.0.0.1:{port}")]
    with leveret(tmp_path / "old", "--drain-timeout", "1h", "--drain-idle-timeout", "1h", *addresses) as old:
        old.child.wait_line("^prometheus +listening on")
        deaf, *visitors = [Wire(port) for port in ports]
        deaf.handshake()
        old.child.send(signal.SIGTERM)
        deaf.expect(CONNECTION_CLOSE)
        for visitor in visitors:
            # A listener closes before the connections that it has accepted.
            visitor.expect_end()
        wait_until(lambda: not lets_in(ports[0]))
        with leveret(tmp_path / "new", *addresses) as new:
            assert lets_in(new.port)
        assert old.child.running()


def test_an_idle_client_that_does_not_close_is_waited_for_briefly(tmp_path):
    with leveret(tmp_path, "--drain-timeout", "1h", "--drain-idle-timeout", "100ms") as server:
        deaf = Wire(server.port).handshake()
        server.child.send(signal.SIGTERM)
        assert close_of(deaf.expect(CONNECTION_CLOSE)) == SHUTDOWN
        assert server.child.wait() == 0


def test_a_second_signal_leaves_at_once(tmp_path):
    with leveret(tmp_path, "--drain-timeout", "1h", "--drain-idle-timeout", "1h") as server:
        deaf = Wire(server.port).handshake()
        server.child.send(signal.SIGINT)
        deaf.expect(CONNECTION_CLOSE)
        server.child.send(signal.SIGINT)
        assert server.child.wait() == 1


def test_a_client_that_answers_late_ends_the_drain(tmp_path):
    with leveret(tmp_path, "--drain-timeout", "1h", "--drain-idle-timeout", "1h") as server:
        late = Wire(server.port).handshake()
        server.child.send(signal.SIGTERM)
        late.expect(CONNECTION_CLOSE)
        assert server.child.running()
        late.send_method(0, CONNECTION_CLOSE_OK)
        assert server.child.wait() == 0


def test_clients_are_served_during_the_drain_delay_with_readyz_at_503(tmp_path):
    with leveret(tmp_path, "--drain-delay", "1h") as server:
        before = Wire(server.port).handshake()
        server.child.send(signal.SIGTERM)
        wait_for_status(server.http + "/readyz", 503)
        assert metric(server, "leveret_draining") == 1
        # New clients are accepted until the drain begins, and connected ones stay.
        assert lets_in(server.port)
        before.open_channel()
        server.child.send(signal.SIGTERM)
        assert server.child.wait() == 1


def amqp(server):
    return Wire(server.port).handshake()


def web_amqp(server):
    return WebSocketWire(server.ws_port).handshake()


def mqtt(server):
    wire = MqttWire(listening(server, "mqtt", "mqtt"))
    wire.connect(f"m{wire.socket.getsockname()[1]}")
    assert wire.packet()[0] == CONNACK
    return wire


def stomp(server):
    wire = StompWire(listening(server, "stomp", "stomp"))
    assert wire.connect()[0] == "CONNECTED"
    return wire


@pytest.mark.parametrize("connect", [amqp, web_amqp, mqtt, stomp])
def test_clients_leave_one_after_the_other(tmp_path, connect):
    with leveret(tmp_path, "--drain-spread", "5m", *ALL_PROTOCOLS) as server:
        # A hundred clients are closed over three seconds.
        wires = [connect(server) for _ in range(100)]
        sockets = {wire.socket: wire for wire in wires}
        server.child.send(signal.SIGTERM)
        told = select.select(sockets, [], [], PATIENCE)[0]
        assert told and not lets_in(server.port)
        # The others are not notified at the same moment.
        assert len(select.select(sockets, [], [], 0)[0]) < len(sockets)
        if connect is amqp:
            assert sockets[told[0]].connection_error() == SHUTDOWN
            assert any(is_served(wire) for wire in wires if wire.socket not in told)


def test_the_last_client_leaves_within_the_spread(tmp_path):
    with leveret(tmp_path, "--drain-spread", "1s", *ALL_PROTOCOLS) as server:
        wires = [connect(server) for connect in (amqp, web_amqp, mqtt, stomp) for _ in range(5)]
        server.child.send(signal.SIGTERM)
        left = {wire.socket for wire in wires}
        while left:
            told = select.select(left, [], [], PATIENCE)[0]
            assert told, f"{len(left)} are still there"
            left -= set(told)
            for one in told:
                one.close()
        assert server.child.wait() == 0


ALL_PROTOCOLS = [word for name in ("--ws", "--mqtt", "--stomp") for word in (name, "127.0.0.1:0")]


def is_served(wire):
    """Whether the server has not asked it to leave."""
    wire.send_method(1, CHANNEL_OPEN, short_string(""))
    _, channel, payload = wire.read_frame()
    return (channel, payload[:4]) == (1, struct.pack(">HH", *CHANNEL_OPEN_OK))


def lets_in(port):
    try:
        with Wire(port) as newcomer:
            newcomer.handshake()
        return True
    except (Closed, OSError):
        return False
