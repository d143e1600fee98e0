"""A virtual host that is deleted and recreated contains nothing of the old one, before and after a restart."""

import pytest

from harness.management import leveret, path
from harness.mqtt_broker import ANY, listening
from harness.mqtt_wire import CONNACK, PUBACK, PUBLISH, SUBACK, MqttWire

VHOST = "mqtt"


def made(ours):
    assert ours.status("PUT", path("vhosts", VHOST), {}) == 201


def client(ours, present):
    """A client with a persistent session."""
    wire = MqttWire(listening(ours.server, "mqtt", "mqtt"))
    wire.connect("stays", clean=False, user=f"{VHOST}:guest")
    assert wire.packet() == (CONNACK, bytes([present, 0]))
    return wire


def retained(wire):
    """The retained messages that the client receives before a normal message."""
    wire.subscribe("#", 1)
    assert wire.packet()[0] == SUBACK
    found = []
    wire.publish("end", b"end", 1, 9)
    while (packet := wire.packet()) != (PUBACK, b"\0\x09"):
        if b"end" not in packet[1]:
            found.append(packet)
    return found


def furnish(ours, wire):
    wire.subscribe("a/#", 1)
    assert wire.packet()[0] == SUBACK
    retain, qos = 1, 1 << 1
    wire.send_packet(PUBLISH, b"\0\x03b/c\0\x01kept", flags=retain | qos)
    assert wire.expect(PUBACK) == 1
    durable = {"durable": True, "auto_delete": False, "arguments": {}}
    assert ours.status("PUT", path("queues", VHOST, "q"), durable) == 201
    assert ours.status("PUT", path("exchanges", VHOST, "e"), {"type": "topic", **durable}) == 201
    assert ours.status("POST", path("bindings", VHOST, "e", "e", "q", "q"), {"routing_key": "k"}) == 201


@pytest.mark.parametrize("stays_connected", [True, False])
def test_nothing_comes_back(tmp_path, stays_connected):
    with leveret(tmp_path, "--mqtt", ANY) as ours:
        made(ours)
        wire = client(ours, False)
        furnish(ours, wire)
        if not stays_connected:
            wire.close()
            ours.eventually("connections", lambda all: not all)
        assert ours.status("DELETE", path("vhosts", VHOST)) == 204
        if stays_connected:
            assert wire.packet() is None
        made(ours)
        assert ours.get(path("queues", VHOST)) == []
    with leveret(tmp_path, "--mqtt", ANY) as ours:
        assert ours.get(path("queues", VHOST)) == []
        assert "e" not in [each["name"] for each in ours.get(path("exchanges", VHOST))]
        wire = client(ours, False)
        assert retained(wire) == []
        wire.close()
