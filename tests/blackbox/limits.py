"""S4: limits on connections, channels and rates: clients above a limit are refused or delayed; all others continue."""

import contextlib
import struct
import threading
import time

import pika
import pika.exceptions
import pytest

from harness.amqp import connect
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE
from harness.wire import CHANNEL_OPEN, CONNECTION_CLOSE, CONNECTION_TUNE, Wire, close_of, short_string

# Concurrent clients, where one per second is allowed.
AT_ONCE = 10


@contextlib.contextmanager
def target(target_name, targets, tmp_path, *flags):
    """The embedded broker or the proxy, with limits."""
    upstream = ["--upstream", targets.upstream.uri.replace("guest:guest@", "")] if target_name == "proxy" else []
    with leveret(tmp_path, *upstream, *flags) as server:
        yield server


TARGETS = ["leveret", "proxy"]


def exceeded(server, limit):
    return metric(server, f'leveret_limit_exceeded_total{{limit="{limit}"}}')


def refused_channel(wire):
    wire.send_method(2, CHANNEL_OPEN, short_string(""))
    return wire.connection_error()


@pytest.mark.parametrize("scope", ["", "_per_ip", "_per_user"])
def test_s4_a_channel_too_many_closes_its_connection_and_no_other(targets, tmp_path, target_name, scope):
    name = "channels" + scope
    with target(target_name, targets, tmp_path, f"--max-{name.replace('_', '-')}", "2") as server:
        first = connect(server)
        first.channel()
        with Wire(server.port) as second:
            second.handshake().open_channel()
            code, text = refused_channel(second)
        where = {"": "", "_per_ip": " per address", "_per_user": " per user"}[scope]
        assert (code, text) == (530, f"NOT_ALLOWED - channel limit{where} (2) is reached")
        assert exceeded(server, name) == 1
        # The server notices the closed connection some time later.
        wait_until(lambda: opens_one_after_the_other(server))
        first.close()
        server.stop()


def opens_one_after_the_other(server):
    """Whether a channel can be opened, and another one after it is closed."""
    connection = connect(server)
    try:
        connection.channel().close()
        connection.channel().close()
    except pika.exceptions.ConnectionClosedByBroker:
        return False
    connection.close()
    return True


@pytest.mark.parametrize("scope", ["", "_per_ip"])
def test_connections_that_come_too_fast_are_refused_for_a_moment(tmp_path, scope):
    with leveret(tmp_path, f"--max-connection-rate{scope.replace('_', '-')}", "1") as server:
        wait_until(lambda: come_too_fast(server, scope))
        server.child.wait_line(r"limit exceeded.*connection rate limit.*\(1/s\) is reached")
        wait_until(lambda: lets_in(server))
        server.stop()


def come_too_fast(server, scope=""):
    """Whether concurrent clients exceed the rate. On a slow machine, sequential logins may be slow enough to be allowed."""
    with contextlib.ExitStack() as stack:
        for _ in range(AT_ONCE):
            stack.enter_context(Wire(server.port))
    return exceeded(server, "connection_rate" + scope)


def lets_in(server):
    try:
        connect(server).close()
        return True
    except pika.exceptions.AMQPConnectionError:
        return False


def test_a_user_over_its_connection_rate_is_refused_with_the_reason(tmp_path):
    with leveret(tmp_path, "--max-connection-rate-per-user", "1") as server:
        refusals = []
        wait_until(lambda: refusals.extend(refusals_of_many(server)) or refusals)
        for code, text in refusals:
            assert code == 530
            assert "connection rate limit per user (1/s) is reached" in text
        server.stop()


def refusals_of_many(server):
    """The errors that refused clients receive, of clients that open a connection at the same time."""
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.port)) for _ in range(AT_ONCE)]
        for wire in wires:
            wire.start()
            wire.expect(CONNECTION_TUNE)
        for wire in wires:
            wire.send_open()
        answers = [wire.read_frame()[2] for wire in wires]
    return [close_of(payload[4:]) for payload in answers if struct.unpack(">HH", payload[:4]) == CONNECTION_CLOSE]


@pytest.mark.parametrize("scope", ["", "_per_ip", "_per_user"])
def test_s2_a_client_over_the_receive_rate_waits_and_loses_nothing(targets, tmp_path, target_name, scope):
    # Almost two seconds' worth, of which one may arrive at once. Small enough to arrive with the first read, even on a slow
    # machine.
    rate, size = 20_000, 36_000
    flags = [f"--max-receive-rate{scope.replace('_', '-')}", str(rate)]
    with target(target_name, targets, tmp_path, *flags) as server:
        connection = connect(server)
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.confirm_delivery()
        began = time.monotonic()
        channel.basic_publish("", queue, b"x" * size)
        # Everything was read at once, so the next request has to wait.
        assert channel.basic_get(queue, auto_ack=True)[2] == b"x" * size
        seconds = time.monotonic() - began
        # Never faster than this; how much slower depends on the machine.
        assert seconds > (size - rate) / rate - 0.1
        assert exceeded(server, "receive_rate" + scope) > 0
        connection.close()
        server.stop()


def test_a_heartbeat_is_not_missed_for_want_of_reading(tmp_path):
    with leveret(tmp_path, "--max-receive-rate", "5000") as server:
        parameters = pika.URLParameters(server.uri + "?heartbeat=3")
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            queue = channel.queue_declare("", exclusive=True).method.queue
            channel.basic_publish("", queue, b"x" * 60_000)
            # Not read for about eleven seconds, with a heartbeat expected every six.
            assert channel.queue_declare(queue, passive=True).method.message_count == 1
        server.stop()


def test_alarms_count_and_log_and_refuse_nobody(targets, tmp_path, target_name):
    limits = ["connections", "connections-per-ip", "channels-per-user", "connection-rate", "receive-rate"]
    flags = [word for limit in limits for word in (f"--max-{limit}", "1")]
    with target(target_name, targets, tmp_path, *flags, "--limits-mode", "alarm") as server:
        connections = [connect(server) for _ in range(3)]
        for connection in connections:
            for _ in range(3):
                connection.channel().queue_declare("", exclusive=True)
        wait_until(lambda: come_too_fast(server))
        for limit in limits:
            assert exceeded(server, limit.replace("-", "_")) > 0, limit
        server.child.wait_line("limit exceeded, not enforced.*channel limit per user")
        assert metric(server, "leveret_connections_refused_total") == 0
        for connection in connections:
            connection.close()
        server.stop()


def test_one_clients_rate_is_not_anothers(tmp_path, targets):
    broker = targets.upstream
    broker.control("add_user", "calm", "calm")
    broker.control("set_permissions", "calm", ".*", ".*", ".*")
    upstream = broker.uri.replace("guest:guest@", "")
    with leveret(tmp_path, "--upstream", upstream, "--max-receive-rate-per-user", "200000") as server:
        flood = connect(server).channel()

        def send():
            # Far more than the sockets buffer, and than is read before the other client is done.
            with contextlib.suppress(pika.exceptions.AMQPError):
                while True:
                    flood.basic_publish("amq.fanout", "", b"x" * 100_000)

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        wait_until(lambda: exceeded(server, "receive_rate_per_user") > 0)
        uri = server.uri.replace("guest:guest", "calm:calm")
        before = metric(server, "leveret_received_bytes_total")
        with pika.BlockingConnection(pika.URLParameters(uri)) as connection:
            for _ in range(50):
                connection.channel()
        # Otherwise the flood would wait for minutes for what is in its socket.
        assert metric(server, "leveret_received_bytes_total") < before + 20_000_000
        assert sending.is_alive()
    sending.join(PATIENCE)
    broker.control("delete_user", "calm")
