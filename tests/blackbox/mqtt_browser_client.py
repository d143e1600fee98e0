"""mqtt.js in Chromium, with each MQTT over WebSocket listener, and with RabbitMQ's Web-MQTT for comparison."""

import pytest

from harness.instances import leveret
from harness.mqtt_broker import ANY, Broker, listening, shared
from harness.mqtt_scenarios import IN_FRONT_OF_AN_UPSTREAM, MQTT_5, of_311
from harness.patience import PATIENCE
from harness.site import origin, window
from harness.targets import POOL

RUN = """
    const seen = {};
    (await import("/mqtt_peer.mjs")).setPatience(args[4]);
    for (const [name, scenario] of Object.entries(await import(args[0])).filter(([name]) => args[3].includes(name))) {
        seen[name] = await scenario(args[1], `${args[2]}-${name}`).catch((error) => String(error.stack));
    }
    return seen;
"""
# A scenario that times out reports it before the script is aborted.
WAIT_MILLISECONDS = PATIENCE * 1000 // 3
# Only scenarios that fit into a page's script timeout; Node runs all of them.
OLD = ["every_quality", "wildcards", "retained", "will", "kept_session", "takeover", "refusals", "order_and_size", "reconnecting"]
NEW = [name for name in MQTT_5 if name != "assigned_name"]


def seen(window, module, url, names, prefix):
    """One scenario per script, because of the script timeout."""
    return {name: window.run(RUN, f"/{module}.mjs", url, prefix, [name], WAIT_MILLISECONDS)[name] for name in names}


class Served:
    """Where a page connects, and the expected results."""

    def __init__(self, kind, url):
        self.url = url
        # Tests of mqtt.js in Node cover the pool's differences.
        self.exceptions = IN_FRONT_OF_AN_UPSTREAM if kind in POOL else {}

    def offers(self, names):
        return [name for name in names if name not in self.exceptions]


LISTENERS = {"web-mqtt": ("--web-mqtt", "/ws"), "ws": ("--ws", "/ws/mqtt")}


@pytest.fixture(scope="module", params=[("leveret", "web-mqtt"), ("leveret", "ws"), ("proxy", "web-mqtt"), ("proxy4", "ws")], ids="-".join)
def served(request, tmp_path_factory, targets, origin):
    """Leveret's dedicated listener, and the one shared with AMQP and STOMP."""
    kind, listener = request.param
    name, path = LISTENERS[listener]
    flags = shared(kind, targets)[0] if kind in POOL else []
    with leveret(tmp_path_factory.mktemp("leveret"), *flags, name, ANY, "--ws-origins", origin) as server:
        yield Served(kind, f"ws://127.0.0.1:{listening(server, listener, 'ws')}{path}")
        server.stop()


@pytest.mark.parametrize(("module", "names", "expected"), [("mqtt_scenarios", OLD, of_311("leveret")), ("mqtt5_scenarios", NEW, MQTT_5)])
def test_a_page_speaks_mqtt(served, window, module, names, expected):
    names = served.offers(names)
    observed = seen(window, module, served.url, names, module)
    assert observed == {name: expected[name] for name in names}


def test_rabbitmq_gives_a_page_the_same(tmp_path, window):
    broker = Broker("rabbitmq", tmp_path)
    try:
        observed = seen(window, "mqtt_scenarios", f"ws://127.0.0.1:{broker.web_mqtt}/ws", OLD, "old")
    finally:
        broker.stop()
    expected = of_311("rabbitmq", "web")
    assert observed == {name: expected[name] for name in OLD}


def test_a_page_of_another_origin_is_kept_out(tmp_path, window):
    with leveret(tmp_path, "--web-mqtt", ANY, "--ws-origins", "http://127.0.0.1:1") as server:
        url = f"ws://127.0.0.1:{listening(server, 'web-mqtt', 'ws')}/ws"
        outcome = window.run("return await (await import('/mqtt_peer.mjs')).Peer.refused(args[0], {})", url)
        assert outcome != "let in"
        server.stop()
