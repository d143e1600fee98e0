"""P7 with 200 confirming publishers and 50 consumers: clients do not notice the loss of the upstream connections, whatever
its cause."""

import signal

import pytest

from harness.instances import leveret
from harness.load import Load
from harness.metrics import metric
from harness.own_rabbitmq import broker

# Fixtures of these tests.
__all__ = ["broker"]


@pytest.fixture
def proxy(tmp_path, broker):
    with leveret(tmp_path, "--upstream", broker.uri.replace("guest:guest@", "")) as server:
        yield server


def accounts_of(load, proxy):
    accounts = load.finish()
    print(accounts)
    assert accounts["missing"] == []
    assert accounts["unexplained"] == []
    assert accounts["reordered"] == 0
    proxy.stop()
    return accounts


def test_p7_the_brokers_application_is_stopped_and_started(tmp_path, broker, proxy):
    load = Load(tmp_path, proxy.uri)
    load.go_on()
    with load.trouble():
        broker.control("stop_app")
        broker.control("start_app")
    load.go_on()
    assert metric(proxy, "leveret_upstream_recovered_channels_total") > 0
    accounts_of(load, proxy)


def test_p7_the_broker_is_killed_and_started(tmp_path, broker, proxy):
    load = Load(tmp_path, proxy.uri)
    load.go_on()
    with load.trouble():
        broker.end(signal.SIGKILL)
        broker.start()
    load.go_on()
    accounts_of(load, proxy)


def test_p7_the_upstream_closes_all_connections_by_force(tmp_path, broker, proxy):
    load = Load(tmp_path, proxy.uri)
    load.go_on()
    with load.trouble():
        broker.control("close_all_connections", "drained")
    load.go_on()
    assert metric(proxy, "leveret_upstream_recovered_channels_total") > 0
    accounts_of(load, proxy)
