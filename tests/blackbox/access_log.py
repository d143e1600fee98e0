"""The access log records each login, and for each closed connection the reason; it contains no secrets."""

import contextlib
import signal

import pika
import pytest

from harness.access_log import Log
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.mqtt5_wire import Mqtt5Wire
from harness.stomp_client import StompWire
from harness.wire import CHANNEL_OPEN, CONNECTION_TUNE, Closed, Wire, short_string

TARGETS = ["leveret", "proxy"]
SECRET = "hunter2-never-shown"
# A client must not be able to inject a log line.
LIE = "line\nevent=open"


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "access.log")


def listening(server, protocol):
    return int(server.child.wait_line(rf"^{protocol} +listening on {protocol}://127\.0\.0\.1:(\d+)").group(1))


def upstream_of(target_name, targets):
    return ["--upstream", targets.upstream.uri.replace("guest:guest@", "")] if target_name == "proxy" else []


def test_a_connection_is_logged_when_it_opens_and_when_it_closes(targets, tmp_path, target_name, log):
    with leveret(tmp_path, *upstream_of(target_name, targets), *log.flags()) as server:
        with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
            channel = connection.channel()
            for _ in range(3):
                channel.basic_publish("amq.fanout", "", b"x" * 1000)
            opened = log.wait(event="open")
            # Once this is answered, everything before it is done.
            channel.queue_declare("", exclusive=True)
        closed = log.wait(event="close")
        server.stop()
    assert opened.keys() == {"time", "event", "connection", "client", "protocol", "tls", "user", "vhost", "handshake_ms"}
    for entry in (opened, closed):
        assert entry["client"].startswith("127.0.0.1:")
        assert (entry["protocol"], entry["tls"], entry["user"], entry["vhost"]) == ("amqp", False, "guest", "/")
    assert opened["connection"] == closed["connection"]
    assert (closed["published_messages"], closed["reason"]) == (3, "closed by client")
    assert 3000 < closed["received_bytes"] < 10_000 and closed["sent_bytes"] > 100
    upstreams = closed.get("upstreams", [])
    # The shared one, and the dedicated one that the exclusive queue needs.
    assert len(upstreams) == (0 if target_name == "leveret" else 2)
    assert all(upstream.startswith(f"127.0.0.1:{targets.upstream.port}#") for upstream in upstreams)
    # They replace the corresponding lines of the log.
    assert "connection closed" not in server.child.output()


def refused_login(server):
    with Wire(server.port) as wire:
        wire.start(f"guest:{SECRET}")
        # The connection just closes, as with RabbitMQ for clients without the capability authentication_failure_close.
        wire.expect_end()


def refused_vhost(server):
    with Wire(server.port) as wire, pytest.raises(AssertionError, match="530"):
        wire.handshake(vhost="nowhere")


def goes_away_early(server):
    with Wire(server.port) as wire:
        wire.start()
        # Unread data would turn the close into a reset.
        wire.expect(CONNECTION_TUNE)


def goes_away(server):
    Wire(server.port).handshake().close()


def misses_heartbeats(server):
    with Wire(server.port) as wire:
        wire.handshake(heartbeat=1).expect_end()


def opens_two_channels(server):
    with Wire(server.port) as wire:
        wire.handshake().open_channel()
        wire.send_method(2, CHANNEL_OPEN, short_string(""))
        assert wire.connection_error()[0] == 530


def closes(server):
    pika.BlockingConnection(pika.URLParameters(server.uri)).close()


def closes_and_lies(server):
    pika.BlockingConnection(pika.URLParameters(server.uri)).close(reply_code=320, reply_text=LIE)


def speaks_http(server):
    with Wire(server.port) as wire:
        wire.send(b"GET / HTTP/1.1\r\n\r\n")
        wire.expect_end()


NO_VHOST = "closed by server: 530 NOT_ALLOWED - vhost nowhere not found"
REASONS = {
    closes: "closed by client",
    closes_and_lies: f"closed by client: 320 {LIE}",
    goes_away: "client unexpectedly closed TCP connection",
    goes_away_early: "client closed the connection during the handshake",
    misses_heartbeats: "missed heartbeats from client",
    opens_two_channels: "closed by server: 530 NOT_ALLOWED - channel limit (1) is reached",
    refused_login: "login refused",
    refused_vhost: NO_VHOST,
    speaks_http: "peer does not speak AMQP 0-9-1",
}


def test_every_end_has_its_reason(targets, tmp_path, target_name, log):
    flags = [*log.flags(), "--max-channels", "1", "--log", "trace"]
    with leveret(tmp_path, *upstream_of(target_name, targets), *flags) as server:
        for count, (end, reason) in enumerate(REASONS.items(), 1):
            end(server)
            wait_until(lambda: len(log.entries(event="close")) == count)
            assert log.entries(event="close")[-1]["reason"] == reason, end.__name__
        assert log.wait(reason="login refused")["user"] == "guest"
        server.stop()
    told = log.path.read_text() + server.child.output()
    assert SECRET not in told and "guest\\u0000guest" not in told


def test_a_refused_login_has_the_same_reason_over_all_protocols(targets, tmp_path, target_name, log):
    flags = [*upstream_of(target_name, targets), *log.flags(), "--mqtt", "127.0.0.1:0", "--stomp", "127.0.0.1:0"]
    with leveret(tmp_path, *flags) as server:
        mqtt, stomp = listening(server, "mqtt"), listening(server, "stomp")

        def amqp(password, vhost):
            with Wire(server.port) as wire, contextlib.suppress(AssertionError, Closed):
                wire.handshake(f"guest:{password}", vhost=vhost)

        def mqtt5(password, vhost):
            with contextlib.closing(Mqtt5Wire(mqtt)) as wire:
                assert wire.connect("a", user=f"{vhost}:guest", password=password)["reason"] >= 0x80

        def stomp12(password, vhost):
            with contextlib.closing(StompWire(stomp)) as wire:
                assert wire.connect(passcode=password, host=vhost)[0] == "ERROR"

        entries = 0
        for logs_in in (amqp, mqtt5, stomp12):
            for reason, password, vhost in [("login refused", SECRET, "/"), (NO_VHOST, "guest", "nowhere")]:
                logs_in(password, vhost)
                wait_until(lambda: len(log.entries(event="close")) == entries + 1)
                entry = log.entries(event="close")[-1]
                assert (entry["reason"], entry["user"]) == (reason, "guest"), logs_in.__name__
                entries += 1
        assert metric(server, "leveret_logins_refused_total") == entries
        server.stop()
    assert SECRET not in log.path.read_text() + server.child.output()


@pytest.mark.parametrize("listener", ["amqp", "ws"])
def test_a_connection_refused_by_a_limit_is_logged(tmp_path, log, listener):
    with leveret(tmp_path, "--ws", "127.0.0.1:0", "--max-connections", "1", *log.flags()) as server:
        with Wire(server.port) as first:
            first.handshake()
            Wire(server.port if listener == "amqp" else server.ws_port).close()
            entry = log.wait(reason="connection limit (1) is reached")
        assert (entry["event"], entry["protocol"]) == ("close", "amqp+ws" if listener == "ws" else "amqp")


def test_a_drain_is_a_reason(tmp_path, log):
    with leveret(tmp_path, *log.flags()) as server:
        with Wire(server.port) as opened, Wire(server.port) as begun:
            opened.handshake()
            begun.start()
            server.child.send(signal.SIGTERM)
            assert opened.connection_error()[0] == 320
            assert server.child.wait() == 0
    forced = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    reasons = sorted(entry["reason"] for entry in log.entries(event="close"))
    assert reasons == [f"closed by server: 320 {forced}", "server is shutting down"]


def test_the_file_is_opened_anew_on_sighup(tmp_path, log):
    with leveret(tmp_path, *log.flags()) as server:
        goes_away(server)
        log.wait(event="close")
        moved = log.path.rename(tmp_path / "moved.log")
        server.child.send(signal.SIGHUP)
        wait_until(log.path.exists)
        refused_login(server)
        log.wait(event="close", reason="login refused")
        server.stop()
    assert len(moved.read_text().splitlines()) == 2
    assert len(log.path.read_text().splitlines()) == 1


def test_text_on_standard_error_is_one_line_for_each_event(tmp_path):
    with leveret(tmp_path, "--access-log", "stderr", "--log", "error") as server:
        closes_and_lies(server)
        line = server.child.wait_line(r"^\S+Z close connection=1 client=127\.0\.0\.1:\d+ .*").group(0)
        server.stop()
    assert line.endswith(r'reason="closed by client: 320 line\nevent=open"'), line
