"""`leveret ctl` shows the state of a pool and the settings in effect, and drains a server."""

import json

import pytest

from harness.ctl import Ctl
from harness.instances import leveret
from harness.metrics import wait_until
from harness.wire import Wire


@pytest.fixture
def pool(tmp_path, targets):
    upstream = targets.upstream
    with leveret(tmp_path, "--upstream", f"amqp://127.0.0.1:{upstream.port}") as server:
        server.upstream = f"127.0.0.1:{upstream.port}"
        yield server


def test_clients_upstreams_and_leases_are_shown(pool):
    ctl = Ctl(pool.http)
    client = Wire(pool.port).handshake()
    client.open_channel()
    wait_until(lambda: ctl.rows("list_clients"))
    [[_, user, vhost, protocol, _]] = ctl.rows("list_clients")
    assert (user, vhost, protocol) == ("guest", "/", "AMQP 0-9-1")
    assert [row[:2] for row in ctl.rows("list_upstreams")] == [[pool.upstream, "true"]]
    wait_until(lambda: ctl.rows("list_upstream_connections"))
    assert ctl.json("list_upstream_connections", "user", "vhost") == [{"user": "guest", "vhost": "/"}]
    leases = dict(line.split("\t") for line in ctl("--quiet", "leases").splitlines())
    assert leases["clients"] == "1" and leases["reachable"] == "true"
    client.close()
    pool.stop()


def test_limits_and_settings_in_effect_are_shown(tmp_path):
    with leveret(tmp_path, "--max-connections", "77", env={"LEVERET_HEARTBEAT": "17"}) as server:
        ctl = Ctl(server.http)
        limits = {limit: rest for limit, *rest in (line.split("\t") for line in ctl("--quiet", "limits").splitlines())}
        assert limits["connections"] == ["0", "77", "0"] and limits["channels_per_user"][1] == "unlimited"
        assert ctl.json("limits")["connections"]["total"] == 77
        settings = {key: (value, origin, live) for key, value, origin, live in ctl.rows("environment")}
        assert settings["max_connections"] == ("77", "--max-connections", "true")
        assert settings["heartbeat"] == ("17", "LEVERET_HEARTBEAT", "false")
        assert settings["channel_max"] == ("2047", "default", "false")
        server.stop()


def test_a_drain_ends_the_server_as_a_signal_does(tmp_path):
    with leveret(tmp_path) as server:
        ctl = Ctl(server.http)
        assert ctl("drain") == "the server is draining\n"
        assert server.child.wait() == 0, server.tail()


def test_only_an_administrator_drains_a_broker_and_sees_its_settings(tmp_path):
    with leveret(tmp_path) as server:
        ctl = Ctl(server.http)
        ctl("add_user", "ann", "--tag", "monitoring", LEVERET_CTL_NEW_PASSWORD="x")
        ann = ctl.as_user("ann", "x")
        ann("authenticate_user")
        for command in ("drain", "environment"):
            assert ann.fails(command) == f"{server.http}: user 'ann' is refused: Not administrator user"
        server.stop()
