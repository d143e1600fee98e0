"""Health, readiness and metrics over HTTP reflect the state of the server and its upstream."""

from harness.health import status, wait_for_status
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.ports import free_ports
from harness.wire import CONNECTION_CLOSE, Wire


def test_a_broker_is_alive_and_ready(tmp_path):
    with leveret(tmp_path) as server:
        assert status(server.http + "/healthz") == 200
        assert status(server.http + "/readyz") == 200
        assert status(server.http + "/nothing-here") == 404
        server.stop()


def test_a_proxy_is_ready_only_with_its_upstream(tmp_path, targets):
    upstream = targets.upstream
    with leveret(tmp_path, "--upstream", f"amqp://127.0.0.1:{upstream.port}") as server:
        assert status(server.http + "/healthz") == 200
        wait_for_status(server.http + "/readyz", 200)
        server.stop()


def test_a_proxy_without_its_upstream_is_alive_but_not_ready(tmp_path):
    [nobody] = free_ports(1)
    with leveret(tmp_path, "--upstream", f"amqp://127.0.0.1:{nobody}") as server:
        assert status(server.http + "/healthz") == 200
        wait_for_status(server.http + "/readyz", 503)
        server.stop()


def test_metrics_count_connections(tmp_path):
    with leveret(tmp_path) as server:
        assert metric(server, "rabbitmq_connections") == 0
        wires = [Wire(server.port).handshake() for _ in range(3)]
        assert metric(server, "rabbitmq_connections") == 3
        wires[0].open_channel()
        assert metric(server, "rabbitmq_channels") == 1
        for wire in wires:
            wire.close()
        wait_until(lambda: metric(server, "rabbitmq_connections") == 0)
        assert metric(server, "rabbitmq_connections_opened_total") == 3
        assert metric(server, "rabbitmq_connections_closed_total") == 3
        server.stop()


def test_a_draining_server_is_not_ready(tmp_path):
    with leveret(tmp_path, "--drain-timeout", "1h", "--drain-idle-timeout", "1h") as server:
        deaf = Wire(server.port).handshake()
        server.child.send(15)
        deaf.expect(CONNECTION_CLOSE)
        assert status(server.http + "/readyz") in (503, None)
        deaf.close()
        assert server.child.wait() == 0
