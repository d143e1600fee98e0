"""In front of an upstream the API shows clients, upstream connections, leases and limits, to this machine only."""

import signal
import socket
import struct

import pika
import pytest

from harness.lending import borrow
from harness.management import leveret, path
from harness.metrics import metric
from harness.patience import PATIENCE
from harness.wire import CONNECTION_CLOSE, CONNECTION_CLOSE_OK, Wire


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    upstream = borrow()
    try:
        flags = ["--upstream", f"amqp://127.0.0.1:{upstream.port}", "--max-connections", "50"]
        with leveret(tmp_path_factory.mktemp("leveret"), *flags) as ours:
            yield ours
    finally:
        upstream.stop()


def test_clients_and_their_shared_upstream_connections_are_shown(pool):
    connections = [pika.BlockingConnection(pika.URLParameters(pool.server.uri)) for _ in range(3)]
    channels = [connection.channel() for connection in connections]
    try:
        for channel in channels:
            channel.queue_declare("shared-by-all")
        clients = pool.get("leveret/clients", user=None)
        assert len(clients) == 3
        # For a moment there may be another connection, which verified a login.
        [shared] = pool.eventually("leveret/connections", lambda all: len(all) == 1 and all[0]["channels"] == 3, user=None)
        assert {client["user"] for client in clients} == {"guest"} and shared["user"] == "guest"
        assert {client["id"] for client in clients} == set(shared["clients"])
        assert all(client["upstream_connections"] == [shared["name"]] for client in clients)
        assert shared["channels"] == 3 and not shared["own"] and shared["blocked"] is None
        [upstream] = pool.eventually("leveret/upstreams", lambda all: all[0]["connections"] == 1, user=None)
        assert upstream["up"]
        leases = pool.eventually("leveret/leases", lambda leases: leases["upstream_connections"] == 1, user=None)
        assert (leases["clients"], leases["upstream_connections"], leases["channels"]) == (3, 1, 3)
        assert pool.get("overview", user=None)["mode"] == "proxy"
        # Channels that publish share another connection.
        for count, channel in enumerate(channels, 1):
            channel.basic_publish("amq.fanout", "", b"x")
            is_placed = lambda both, all_channels=3 + count: sum(each["channels"] for each in both) == all_channels
            both = [each for each in pool.eventually("leveret/connections", is_placed) if each["channels"]]
        assert [each["channels"] for each in both] == [3, 3]
        assert all(set(each["clients"]) == set(shared["clients"]) and not each["own"] for each in both)
    finally:
        for connection in connections:
            connection.close()
    pool.eventually("leveret/clients", lambda clients: not clients)


def test_the_channels_of_a_client_are_counted(pool):
    churn = lambda: {name: count for name, count in pool.get("overview", user=None)["churn_rates"].items() if name in ("channel_created", "channel_closed")}
    before = churn()
    with pika.BlockingConnection(pika.URLParameters(pool.server.uri)) as connection:
        channels = [connection.channel() for _ in range(3)]
        pool.eventually("connections", lambda shown: [each["channels"] for each in shown] == [3])
        channels[0].close()
        pool.eventually("connections", lambda shown: [each["channels"] for each in shown] == [2])
        assert pool.get("overview", user=None)["object_totals"]["channels"] == 2
        assert metric(pool.server, "rabbitmq_channels") == 2
    pool.eventually("overview", lambda shown: shown["object_totals"]["channels"] == 0)
    assert {name: count - before[name] for name, count in churn().items()} == {"channel_created": 3, "channel_closed": 3}


def test_channels_of_a_client_with_a_failed_socket_are_no_longer_counted(pool):
    with Wire(pool.server.port) as client:
        client.handshake()
        for number in (1, 2):
            client.open_channel(number)
        pool.eventually("connections", lambda shown: [each["channels"] for each in shown] == [2])
        # Resets the connection.
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pool.eventually("overview", lambda shown: shown["object_totals"] == {"channels": 0, "connections": 0})


def test_a_client_is_closed(pool):
    connection = pika.BlockingConnection(pika.URLParameters(pool.server.uri))
    [shown] = pool.get("connections", user=None)
    assert pool.status("DELETE", path("connections", shown["name"]), user=None, headers={"x-reason": "enough"}) == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(PATIENCE)
    assert (closed.value.reply_code, closed.value.reply_text) == (320, "CONNECTION_FORCED - enough")


def test_limits_are_shown(pool):
    limits = pool.get("leveret/limits", user=None)
    assert limits["connections"] == {"total": 50, "per_ip": None, "per_user": None}
    assert limits["mode"] == "enforce" and limits["exceeded"]["connections"] == 0


def test_the_present_use_of_limits_is_shown(pool):
    nothing = {"total": 0, "per_ip": 0, "per_user": 0}
    idle = pool.eventually("leveret/limits", lambda limits: limits["in_use"]["connections"] == nothing)
    assert idle["in_use"]["channels"] == nothing
    connections = [pika.BlockingConnection(pika.URLParameters(pool.server.uri)) for _ in range(3)]
    try:
        for _ in range(2):
            connections[0].channel().queue_declare("", exclusive=False, auto_delete=True)
        told = pool.get("leveret/limits", user=None)
        assert told["in_use"]["connections"] == {"total": 3, "per_ip": 3, "per_user": 3}
        assert told["in_use"]["channels"] == {"total": 2, "per_ip": 2, "per_user": 2}
        assert told["upstream"]["connections"]["total"] == 4096 and told["upstream"]["connections"]["in_use"] >= 1
        assert told["upstream"]["replay_bytes"]["total"] == 256 << 20
    finally:
        for connection in connections:
            connection.close()


def test_there_is_no_broker_to_manage(pool):
    for path_of_broker in ("queues", "users", "definitions", "exchanges/%2F", "nodes"):
        assert pool.status("GET", path_of_broker) == 404


def test_a_name_that_is_not_this_machines_is_refused(pool):
    assert pool.status("GET", "leveret/clients", headers={"host": "rebound.example"}) == 403
    assert pool.status("GET", "leveret/clients", headers={"x-forwarded-for": "10.0.0.1"}) == 403, "through a proxy"


def test_a_drain_ends_the_process_in_order(tmp_path):
    with leveret(tmp_path) as ours:
        connection = pika.BlockingConnection(pika.URLParameters(ours.server.uri))
        assert ours.status("POST", "leveret/drain") == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            connection.process_data_events(PATIENCE)
        assert closed.value.reply_code == 320
        assert ours.server.child.wait(PATIENCE) == 0


def test_a_drain_over_http_is_no_signal(tmp_path):
    with leveret(tmp_path, "--drain-timeout", "1h", "--drain-idle-timeout", "1h") as ours:
        late = Wire(ours.server.port).handshake()
        for _ in range(2):
            assert ours.status("POST", "leveret/drain") == 204
        late.expect(CONNECTION_CLOSE)
        ours.server.child.send(signal.SIGTERM)
        # As an orchestrator does after a drain: SIGTERM is logged, and the drain continues.
        ours.server.child.wait_line(r"shutting down; a second signal exits immediately")
        assert ours.server.child.running()
        late.send_method(0, CONNECTION_CLOSE_OK)
        assert ours.server.child.wait() == 0
