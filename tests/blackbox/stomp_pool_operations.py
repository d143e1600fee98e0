"""In front of an upstream STOMP clients are listed, limited, logged, closed and drained like AMQP clients, and their
passwords are never shown."""

import contextlib
import signal
import urllib.request

import pytest
from harness.access_log import Log
from harness.ctl import Ctl
from harness.frozen import frozen
from harness.health import status, wait_for_status
from harness.instances import leveret, replaceable
from harness.metrics import metric, wait_until
from harness.mqtt_broker import ANY, listening
from harness.patience import PATIENCE
from harness.stomp_client import Client, StompWire

SECRET = "hunter2-never-shown"
FORCED = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"


@contextlib.contextmanager
def pool(directory, port, *flags, **options):
    """A pool in front of the upstream on this port, with a listener for STOMP."""
    with leveret(directory, "--upstream", f"amqp://127.0.0.1:{port}", "--stomp", ANY, *flags, **options) as server:
        server.stomp = listening(server, "stomp", "stomp")
        yield server


def shared(server, name):
    return metric(server, f"leveret_multiplexed_{name}")


def test_multiplexed_queues_are_shown_with_message_and_copy_counts(tmp_path, targets):
    with pool(tmp_path, targets.upstream.port) as server:
        assert [shared(server, name) for name in ("queues", "subscribers", "bindings")] == [0, 0, 0]
        ctl = Ctl(server.http)
        assert ctl.rows("list_multiplexed_queues") == []
        clients = [Client(server.stomp) for _ in range(5)]
        for client in clients:
            client.subscribe("/topic/seen.all", id="all")
        clients[0].subscribe("/topic/seen.one", id="one")
        for destination, receivers in [("/topic/seen.all", clients), ("/topic/seen.one", clients[:1])]:
            clients[0].send(destination, "x")
            assert all(client.message().body == "x" for client in receivers)
        assert [shared(server, name) for name in ("queues", "subscribers", "bindings")] == [1, 5, 2]
        assert shared(server, "received_messages_total") == 2
        assert shared(server, "delivered_copies_total") == 6
        assert shared(server, "overflowed_subscribers_total") == shared(server, "connections_lost_total") == 0
        [[name, *figures]] = ctl.rows("list_multiplexed_queues")
        assert figures == ["guest", "/", "5", "2", "2", "6"]
        assert name in targets.upstream.control("list_queues", "name").splitlines()
        rest = {"overflowed_subscribers": 0, "connections_lost": 0}
        assert ctl.json("list_multiplexed_queues", *rest) == [rest]
        for client in clients:
            client.close()
        wait_until(lambda: shared(server, "subscribers") == 0)
        server.stop()


def test_the_embedded_broker_has_no_shared_queues(tmp_path):
    with leveret(tmp_path) as server:
        assert "this server is a broker" in Ctl(server.http).fails("list_multiplexed_queues")
        with urllib.request.urlopen(server.http + "/metrics", timeout=PATIENCE) as answer:
            assert b"leveret_multiplexed_" not in answer.read()
        server.stop()


def test_a_client_is_listed_with_its_upstream_connections_and_can_be_closed(tmp_path, targets):
    with pool(tmp_path, targets.upstream.port) as server:
        ctl = Ctl(server.http)
        wire = StompWire(server.stomp)
        assert wire.connect()[0] == "CONNECTED"
        wire.send("SEND\ndestination:/topic/nobody\nreceipt:r\n\nx")
        assert wire.frame()[0] == "RECEIPT"
        columns = ("name", "user", "vhost", "protocol")
        [[name, *described]] = ctl.rows("list_connections", *columns)
        assert described == ["guest", "/", "STOMP 1.2"]
        assert ctl.rows("list_clients", *columns) == [[name, *described]]
        # Another connection that verified the login may exist for a moment.
        wait_until(lambda: len(ctl.json("list_upstream_connections", "name")) == 1)
        [serving] = ctl.json("list_upstream_connections", "name")
        assert ctl.json("list_clients", "upstream_connections") == [{"upstream_connections": [serving["name"]]}]
        assert metric(server, 'leveret_protocol_connections{protocol="stomp",transport="tcp"}') == 1
        assert (metric(server, "rabbitmq_connections"), metric(server, "rabbitmq_channels")) == (1, 1)
        ctl("close_connection", name, "enough")
        command, headers, body = wire.frame()
        assert (command, headers["message"], body) == ("ERROR", "connection_forced", "CONNECTION_FORCED - enough")
        assert wire.frame() is None
        wait_until(lambda: ctl.rows("list_connections") == [])
        wait_until(lambda: (metric(server, "rabbitmq_connections"), metric(server, "rabbitmq_channels")) == (0, 0))
        server.stop()


def test_the_access_log_tells_of_logins_refusals_and_ends(tmp_path, targets):
    log = Log(tmp_path / "access.log")
    with pool(tmp_path, targets.upstream.port, *log.flags()) as server:
        client = Client(server.stomp)
        for _ in range(3):
            client.send("/topic/nobody", "x" * 1000)
        opened = log.wait(event="open")
        client.do("disconnect")
        closed = log.wait(event="close")
        for entry in (opened, closed):
            assert (entry["protocol"], entry["tls"], entry["user"], entry["vhost"]) == ("stomp", False, "guest", "/")
        assert opened["connection"] == closed["connection"]
        assert (closed["published_messages"], closed["reason"]) == (3, "closed by client")
        assert closed["received_bytes"] > 3000 and closed["sent_bytes"] > 100
        assert all(each.startswith(f"127.0.0.1:{targets.upstream.port}#") for each in closed["upstreams"]) and closed["upstreams"]
        wire = StompWire(server.stomp)
        wire.connect()
        wire.send("SEND\ndestination:/topic/nobody\nreceipt:r\n\nx")
        wire.frame()
        wire.close()
        gone = log.wait(connection=2, event="close")
        assert gone["upstreams"] and gone["reason"] != closed["reason"]
        refused = StompWire(server.stomp)
        assert refused.connect(passcode=SECRET)[0] == "ERROR"
        log.wait(connection=3, event="close", user="guest")
        assert not log.entries(connection=3, event="open")
        drained = StompWire(server.stomp)
        drained.connect()
        server.stop()
        assert log.wait(connection=4, event="close")["reason"] == f"closed by server: {FORCED}"
    assert SECRET not in log.path.read_text()


@pytest.mark.parametrize("limit", ["connections", "connections_per_ip", "connections_per_user", "channels", "channels_per_ip", "channels_per_user"])
def test_limits_count_stomp_clients(tmp_path, targets, limit):
    with pool(tmp_path, targets.upstream.port, f"--max-{limit.replace('_', '-')}", "1") as server:
        first = StompWire(server.stomp)
        assert first.connect()[0] == "CONNECTED"
        second = StompWire(server.stomp)
        if limit in ("connections", "connections_per_ip"):
            assert second.frame() is None, "refused before it has said anything"
        else:
            kind, _, scope = limit.partition("_per_")
            where = {"": "", "ip": " per address", "user": " per user"}[scope]
            command, headers, body = second.connect()
            assert (command, headers["message"]) == ("ERROR", "Bad CONNECT")
            assert body == f"{kind[:-1]} limit{where} (1) is reached"
        assert metric(server, f'leveret_limit_exceeded_total{{limit="{limit}"}}') == 1
        first.send("SEND\ndestination:/topic/nobody\nreceipt:r\n\nx")
        assert first.frame()[0] == "RECEIPT", "whoever was there goes on"
        first.close()
        wait_until(lambda: lets_in(server))
        server.stop()


def lets_in(server):
    wire = StompWire(server.stomp)
    with contextlib.suppress(ConnectionError):
        answer = wire.connect()
        wire.close()
        return answer is not None and answer[0] == "CONNECTED"
    return False


def test_readiness_follows_the_upstream_even_with_clients_connected(tmp_path):
    with replaceable(tmp_path / "broker") as broker, pool(tmp_path, broker.port) as server:
        client = Client(server.stomp)
        client.subscribe("/topic/stays")
        wait_for_status(server.http + "/readyz", 200)
        broker.child.kill()
        wait_for_status(server.http + "/readyz", 503)
        assert status(server.http + "/healthz") == 200
        wait_until(lambda: shared(server, "connections_lost_total") == 1)
        assert Ctl(server.http).json("list_multiplexed_queues", "name", "subscribers") == [{"name": None, "subscribers": 1}]
        with leveret(tmp_path / "again", amqp=broker.address):
            wait_for_status(server.http + "/readyz", 200)
            wait_until(lambda: Ctl(server.http).json("list_multiplexed_queues", "name")[0]["name"])
            assert client.heard("disconnected") == client.heard("error") == 0
            client.close()
            server.stop()


def test_a_drain_sends_pending_receipts_and_then_errors_to_all_clients(tmp_path):
    with leveret(tmp_path / "broker") as broker, pool(tmp_path, broker.port) as server:
        idle, subscriber, publisher = (StompWire(server.stomp) for _ in range(3))
        for wire in (idle, subscriber, publisher):
            assert wire.connect()[0] == "CONNECTED"
        subscriber.send("SUBSCRIBE\nid:1\ndestination:/topic/drained\nreceipt:r\n\n")
        assert subscriber.frame()[0] == "RECEIPT"
        publisher.send(*(f"SEND\ndestination:/queue/drained\npersistent:true\nreceipt:{number}\n\nx" for number in range(500)))
        receipts = [publisher.frame()[1]["receipt-id"]]
        server.child.send(signal.SIGTERM)
        while (frame := publisher.frame())[0] == "RECEIPT":
            receipts.append(frame[1]["receipt-id"])
        for command, headers, body in (frame, idle.frame(), subscriber.frame()):
            assert (command, headers["message"], body) == ("ERROR", "connection_forced", FORCED)
        assert all(wire.frame() is None for wire in (idle, subscriber, publisher))
        assert server.child.wait() == 0, server.tail()
        assert receipts == [str(number) for number in range(len(receipts))]
        # Each receipt means that the message is upstream.
        [[messages]] = Ctl(broker.http).rows("list_queues", "messages")
        assert len(receipts) <= int(messages) <= 500


def test_an_upstream_that_does_not_answer_holds_up_a_drain_only_for_a_while(tmp_path):
    with leveret(tmp_path / "broker") as broker, pool(tmp_path, broker.port) as server:
        publisher, subscriber = StompWire(server.stomp), StompWire(server.stomp)
        for wire in (publisher, subscriber):
            assert wire.connect()[0] == "CONNECTED"
        subscriber.send("SUBSCRIBE\nid:1\ndestination:/topic/drained\nreceipt:r\n\n")
        assert subscriber.frame()[0] == "RECEIPT"
        publisher.send("SEND\ndestination:/queue/drained\nreceipt:answered\n\nx")
        assert publisher.frame()[0] == "RECEIPT"
        with frozen(broker.child):
            publisher.send("SEND\ndestination:/queue/drained\nreceipt:not-answered\n\nx")
            server.child.send(signal.SIGTERM)
            for wire in (publisher, subscriber):
                command, headers, _ = wire.frame()
                assert (command, headers["message"]) == ("ERROR", "connection_forced")
                assert wire.frame() is None
            assert server.child.wait() == 0, server.tail()


def test_passwords_of_stomp_clients_are_never_shown(tmp_path, targets):
    upstream = targets.upstream
    upstream.control("add_user", "secretive", SECRET)
    upstream.control("set_permissions", "secretive", ".*", ".*", ".*")
    try:
        with pool(tmp_path, upstream.port, "--log", "trace") as server:
            client = Client(server.stomp, user="secretive", password=SECRET)
            client.subscribe("/topic/told")
            client.send("/topic/told", "x")
            assert client.message().body == "x"
            wire = StompWire(server.stomp)
            assert SECRET not in str(wire.connect(login="secretive", passcode=SECRET + "-wrong"))
            ctl = Ctl(server.http)
            shown = [ctl("--format", "json", list) for list in ("list_connections", "list_clients", "list_multiplexed_queues", "list_upstream_connections")]
            assert all("secretive" in each for each in shown)
            with urllib.request.urlopen(server.http + "/metrics", timeout=PATIENCE) as answer:
                shown.append(answer.read().decode())
            # The new login is refused upstream.
            upstream.control("change_password", "secretive", "another")
            upstream.control("close_all_user_connections", "secretive", "changed")
            server.child.wait_line("upstream refused multiplexed subscriptions")
            client.close()
            server.stop()
            shown.append(server.child.output())
    finally:
        upstream.control("delete_user", "secretive")
    assert "secretive" in shown[-1] and not [each for each in shown if SECRET in each]
