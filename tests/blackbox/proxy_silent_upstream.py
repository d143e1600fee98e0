"""An upstream that accepts TCP but stays silent, or falls silent, delays only the clients that wait for it, for a limited
time."""

import select

import pika
import pytest

from harness.forwarder import Forwarder
from harness.frozen import frozen
from harness.instances import leveret
from harness.load import Load
from harness.metrics import metric
from harness.patience import PATIENCE
from harness.rabbitmq import RabbitMq
from harness.wire import CONNECTION_START, PROTOCOL_HEADER, Wire


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    # A short heartbeat, so that silence is detected soon; the broker chooses the interval.
    broker = RabbitMq(tmp_path_factory.mktemp("silent") / "rabbitmq", "heartbeat = 2")
    broker.control("add_user", "other", "other")
    broker.control("set_permissions", "other", ".*", ".*", ".*")
    yield broker
    broker.stop()


@pytest.fixture
def gate(broker):
    gate = Forwarder(broker.port)
    yield gate
    gate.stop()


def round_trip(server, user="guest"):
    uri = server.uri.replace("guest:guest", f"{user}:{user}")
    with pika.BlockingConnection(pika.URLParameters(uri + "?heartbeat=60")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.fanout", "", b"round")


def test_a_silent_upstream_delays_only_clients_that_wait_for_it(tmp_path, gate):
    # Neither may the client that waits be given up, nor may the others' login have to be verified again, however long it takes.
    patient = ["--upstream-timeout", "10m", "--upstream-arrival-max", "10m", "--handshake-timeout", "10m", "--auth-ttl", "1h"]
    with leveret(tmp_path, "--upstream", gate.url, *patient) as server:
        round_trip(server)
        gate.is_closed = True
        with Wire(server.port) as waiting:
            waiting.start("other:other")
            assert gate.silenced.wait(PATIENCE)
            for _ in range(20):
                round_trip(server)
            assert not select.select([waiting.socket], [], [], 0)[0]


def test_s7_a_client_waiting_for_a_silent_upstream_is_closed_in_time(tmp_path, gate):
    patience = ["--upstream-timeout", "5s", "--upstream-arrival-max", "5s"]
    with leveret(tmp_path, "--upstream", gate.url, *patience) as server:
        with Wire(server.port) as wire:
            wire.send(PROTOCOL_HEADER)
            wire.expect(CONNECTION_START)
            gate.is_closed = True
            wire.send_login()
            assert wire.expect_end() == 0
        server.stop()


def test_clients_of_a_silent_upstream_are_served_by_the_next_one(tmp_path, gate, broker):
    gate.is_closed = True
    upstreams = ["--upstream", gate.url, "--upstream", f"amqp://127.0.0.1:{broker.port}"]
    with leveret(tmp_path, *upstreams, "--upstream-timeout", "3s", "--upstream-arrival-max", "60s") as server:
        for user in ["guest", "other"] * 3:
            round_trip(server, user)
        assert metric(server, "leveret_upstream_connect_failures_total") >= 1
        server.stop()


def test_p7_a_frozen_upstream_is_noticed_by_its_silence(tmp_path, broker):
    upstream = ["--upstream", f"amqp://127.0.0.1:{broker.port}", "--upstream-timeout", "30s", "--upstream-arrival-max", "10m"]
    with leveret(tmp_path, *upstream) as server:
        load = Load(tmp_path, server.uri, publishers=20, consumers=5)
        load.go_on()
        with load.trouble(), frozen(broker.server):
            server.child.wait_line("missed heartbeats from the broker", PATIENCE)
        load.go_on()
        accounts = load.finish()
        assert accounts["missing"] == []
        assert accounts["unexplained"] == []
        server.stop()
