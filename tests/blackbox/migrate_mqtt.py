"""A broker with MQTT sessions migrates: persistent sessions are queues, so their subscriptions and messages move, and the
sessions continue at the pool."""

import pytest
from harness.metrics import wait_until
from harness.migration import Movable, bodies, migration_fixtures, take_all, to
from harness.mqtt_client import MqttClient
from harness.patience import TEST_SECONDS
from harness.ports import free_ports

pytestmark = pytest.mark.timeout(2 * TEST_SECONDS)
cluster, movable = migration_fixtures()


@pytest.fixture
def mqtt(movable):
    """The port of its MQTT listener."""
    [port] = free_ports(1)
    movable.flags = ("--mqtt", f"127.0.0.1:{port}")
    movable.restart()
    return port


def test_unacknowledged_messages_of_a_persistent_session_are_moved(movable: Movable, cluster, mqtt):
    name = f"reader{cluster.version.replace('.', '')}"
    reader = MqttClient(mqtt, name, keep=True, manual_ack=True)
    reader.subscribe("t/#", qos=1)
    with MqttClient(mqtt, "writer") as writer:
        writer.publish("t/1", b"held")
        assert reader.message().payload == b"held"
        reader.close()
        writer.publish("t/1", b"waiting")
    movable.ctl(*to(cluster))
    assert sorted(bodies(take_all(cluster, f"mqtt-subscription-{name}qos1"))) == [b"held", b"waiting"]
    again = MqttClient(mqtt, f"{name}-new", keep=True)
    again.subscribe("t/#", qos=1)
    with MqttClient(mqtt, "writer") as writer:
        writer.publish("t/2", b"by the pool")
    wait_until(lambda: not again.messages.empty())
    assert again.message().payload == b"by the pool"
    again.close()


def test_a_persistent_session_goes_on_at_the_pool(movable, cluster, mqtt):
    name = f"same{cluster.version.replace('.', '')}"
    reader = MqttClient(mqtt, name, keep=True)
    reader.subscribe("s/#", qos=1)
    reader.close()
    with MqttClient(mqtt, "writer") as writer:
        writer.publish("s/1", b"waiting")
    movable.ctl(*to(cluster))
    reader = MqttClient(mqtt, name, keep=True)
    assert reader.reason.value == 0
    assert reader.subscribe("s/#", qos=1) == [1]
    with MqttClient(mqtt, "writer") as writer:
        writer.publish("s/2", b"later")
    found = set()
    while b"later" not in found:
        found.add(reader.message().payload)
    assert (reader.session_present, found) == (True, {b"waiting", b"later"})
    reader.close()
