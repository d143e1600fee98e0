"""mqtt.js from Node, over TCP and WebSocket: MQTT 3.1.1 on Leveret, in front of an upstream too, and on RabbitMQ; and 5.0 on Leveret
alone, since RabbitMQ 3.10 does not know it."""

import json
import subprocess

import pytest

from harness.leveret import ROOT
from harness.mqtt_broker import SERVED, Broker
from harness.mqtt_scenarios import IN_FRONT_OF_AN_UPSTREAM, MQTT_5, of_311
from harness.patience import PATIENCE
from harness.targets import POOL

HERE = ROOT / "tests" / "websocket"
TRANSPORTS = ["tcp", "web"]
EXCEPTIONS = {f"-{name}]": reason for name, reason in IN_FRONT_OF_AN_UPSTREAM.items()}


class Observed:
    """The results of the scenarios on a server, by version and transport; each runs once."""

    def __init__(self, kind, directory, targets):
        self.broker = Broker(kind, directory, targets=targets)
        self.seen = {}

    def of(self, module, transport):
        if (module, transport) not in self.seen:
            broker = self.broker
            url = f"mqtt://127.0.0.1:{broker.mqtt}" if transport == "tcp" else f"ws://127.0.0.1:{broker.web_mqtt}/ws"
            prefix = f"{module}-{transport}"
            exceptions = IN_FRONT_OF_AN_UPSTREAM if broker.kind in POOL else []
            done = subprocess.run(
                ["node", HERE / "mqtt_client.mjs", f"./{module}.mjs", url, prefix, *exceptions],
                capture_output=True,
                text=True,
                timeout=3 * PATIENCE,
            )
            assert done.returncode == 0, done.stderr
            self.seen[module, transport] = json.loads(done.stdout)
        return self.seen[module, transport]


@pytest.fixture(scope="module")
def observed(tmp_path_factory, targets):
    servers = {}

    def of(kind):
        if kind not in servers:
            servers[kind] = Observed(kind, tmp_path_factory.mktemp(kind), targets)
        return servers[kind]

    yield of
    for server in servers.values():
        server.broker.stop()


@pytest.mark.parametrize("name", of_311("leveret"))
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", ["rabbitmq", *SERVED])
def test_mqtt_311(observed, kind, transport, name):
    assert observed(kind).of("mqtt_scenarios", transport)[name] == of_311(kind, transport)[name]


@pytest.mark.parametrize("name", MQTT_5)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", SERVED)
def test_mqtt_5(observed, kind, transport, name):
    assert observed(kind).of("mqtt5_scenarios", transport)[name] == MQTT_5[name]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("module", "expected"), [("mqtt_scenarios", of_311("leveret")), ("mqtt5_scenarios", MQTT_5)])
def test_every_scenario_is_judged(observed, module, expected, transport):
    assert set(observed("leveret").of(module, transport)) == set(expected)
