"""AMQP over secure WebSocket: in Chromium, at the broker and through the pool; and its memory cost."""

import signal
import ssl

import pytest

from harness.browser import browser
from harness.certificates import TestCa
from harness.child import resident_bytes
from harness.instances import leveret
from harness.process import descriptors
from harness.websocket import WebSocketWire
from harness.wire import CONNECTION_CLOSE, CONNECTION_CLOSE_OK, close_of

MEBIBYTE = 1 << 20
IDLE = 400
# What an idle connection may cost, of which TLS takes the larger part.
ALLOWED_BYTES = 24 << 10


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    ca = TestCa(tmp_path_factory.mktemp("certificates"))
    pair = ca.issue("server")
    pair.context = ssl.create_default_context(cafile=ca.file)
    return pair


@pytest.fixture(scope="module")
def window(tmp_path_factory, pair):
    # It trusts this one certificate; what it thinks of strangers' is not changed.
    trusting = f"--ignore-certificate-errors-spki-list={pair.fingerprint}"
    with browser(tmp_path_factory.mktemp("browser"), trusting) as window:
        yield window


def wss(directory, pair, *flags):
    certificate, key = pair
    return leveret(directory, "--wss", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key, *flags)


def port(server):
    return int(server.child.wait_line(r"^wss +listening on wss://127\.0\.0\.1:(\d+)").group(1))


@pytest.mark.parametrize("behind", ["broker", "pool"])
def test_a_page_publishes_with_confirms_and_consumes_with_a_prefetch(tmp_path, targets, pair, window, behind):
    flags = ["--upstream", f"amqp://127.0.0.1:{targets.upstream.port}"] if behind == "pool" else []
    with wss(tmp_path, pair, *flags) as server:
        window.open(server.http + "/messages")
        script = """
            const { Connection } = await import("/page/amqp/connection.js");
            const connection = await Connection.open(args[0]);
            const publishing = await connection.openChannel();
            await publishing.confirmSelect();
            const { queue } = await publishing.declareQueue("", { exclusive: true });
            const bodies = [...Array(100).keys()].map((n) => `${n}:${"x".repeat((n * 997) % 20000)}`);
            const confirmed = await Promise.all(bodies.map((body) => publishing.publish("", queue, body)));
            const consuming = await connection.openChannel();
            await consuming.prefetch(7);
            let [seen, unsettled, most] = [[], [], 0];
            // Nothing is acknowledged before seven have come, so that more than seven would be seen.
            await new Promise((resolve) => consuming.consume(queue, (message) => {
                most = Math.max(most, unsettled.push(message));
                seen.push(message.text());
                const last = seen.length === bodies.length;
                if (unsettled.length === 7 || last) setTimeout(() => {
                    unsettled.splice(0).forEach((message) => consuming.ack(message));
                    if (last) resolve();
                });
            }));
            await connection.close();
            return [confirmed.length, seen.every((text, n) => text === bodies[n]), most];
        """
        assert window.run(script, f"wss://127.0.0.1:{port(server)}/ws/amqp") == [100, True, 7]
        assert window.complaints() == []
        server.stop()


def test_a_drain_ends_with_1001(tmp_path, pair):
    with wss(tmp_path, pair) as server:
        wire = WebSocketWire(port(server), tls=pair.context).handshake()
        server.child.send(signal.SIGTERM)
        assert close_of(wire.expect(CONNECTION_CLOSE))[0] == 320
        wire.send_method(0, CONNECTION_CLOSE_OK)
        code, reason = wire.expect_close()
        assert code == 1001 and "shutdown" in reason
        assert server.child.wait() == 0


def test_a_silent_peer_is_found_and_given_up(tmp_path, pair):
    with wss(tmp_path, pair, "--ws-ping-interval", "3s") as server:
        with WebSocketWire(port(server), tls=pair.context, deaf=True) as dead:
            dead.handshake()
            assert dead.expect_end() == 0
            assert dead.pings >= 1


def test_idle_connections_cost_no_more_than_tls_needs(tmp_path, pair):
    with descriptors(4 * IDLE), wss(tmp_path, pair, "--ws-ping-interval", "0") as server:
        for _ in range(20):
            with WebSocketWire(port(server), tls=pair.context) as warm_up:
                warm_up.handshake().open_channel()
        before = resident_bytes(server.pid)
        wires = [WebSocketWire(port(server), tls=pair.context).handshake(heartbeat=600) for _ in range(IDLE)]
        grown = resident_bytes(server.pid) - before
        wires[0].open_channel()
        for wire in wires:
            wire.close()
        server.stop()
    print(f"{IDLE} idle wss connections: {grown // IDLE} bytes each")
    assert grown < IDLE * ALLOWED_BYTES
