"""QoS 2 step by step on the wire, with a kill -9 between any two steps: no loss, no duplicates."""

import pytest

from harness.mqtt_broker import SERVED, KilledServer
from harness.mqtt_wire import CONNACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, MqttWire, of_publish

# In front of an upstream (docs/compatibility.md).
EXCEPTIONS = {"test_": "a session that lasts is granted QoS 1"}


class Server(KilledServer):
    """A server that is killed and restarted, and its clients with persistent sessions."""

    def client(self, name, present):
        wire = MqttWire(self.port)
        wire.connect(name, clean=False)
        assert wire.packet() == (CONNACK, bytes([present, 0]))
        return wire


@pytest.fixture(params=SERVED)
def server(request, tmp_path, targets):
    server = Server(tmp_path, kind=request.param, targets=targets)
    yield server
    server.stop()


def subscribed(server, name):
    wire = server.client(name, False)
    wire.subscribe("t", 2)
    assert wire.packet() == (SUBACK, b"\0\1\2")
    return wire


def sent(server, *bodies):
    """The messages of a writer without interruption."""
    wire = MqttWire(server.port)
    wire.connect("sender")
    assert wire.packet()[0] == CONNACK
    for packet_id, body in enumerate(bodies, 1):
        wire.publish("t", body, 2, packet_id)
        assert wire.expect(PUBREC) == packet_id
        wire.ack(PUBREL, packet_id)
        assert wire.expect(PUBCOMP) == packet_id
    wire.close()


def everything(server, name):
    """Everything that a reconnected client receives and completes, up to a marker message."""
    wire = server.client(name, True)
    sent(server, b"end")
    bodies, unreleased = [], set()
    while b"end" not in bodies or unreleased:
        kind, body = wire.packet()
        if kind == PUBLISH:
            packet_id, payload = of_publish(body)
            bodies.append(payload)
            unreleased.add(packet_id)
            wire.ack(PUBREC, packet_id)
        else:
            # It may be for a message of an earlier connection whose PUBCOMP was lost.
            assert kind == PUBREL
            packet_id = int.from_bytes(body)
            unreleased.discard(packet_id)
            wire.ack(PUBCOMP, packet_id)
    wire.close()
    return bodies[:-1]


def test_a_kill_between_publish_and_pubrec(server):
    """The client resends it: whether or not the server had it, it is delivered once."""
    subscribed(server, "reader").close()
    writer = server.client("writer", False)
    for packet_id in range(1, 11):
        writer.publish("t", b"%d" % packet_id, 2, packet_id)
    # Some of them are on disk by now, others are not.
    assert writer.expect(PUBREC) == 1
    server.kill()
    writer = server.client("writer", True)
    for packet_id in range(1, 11):
        writer.publish("t", b"%d" % packet_id, 2, packet_id, dup=True)
    assert [writer.expect(PUBREC) for _ in range(10)] == list(range(1, 11))
    for packet_id in range(1, 11):
        writer.ack(PUBREL, packet_id)
    assert [writer.expect(PUBCOMP) for _ in range(10)] == list(range(1, 11))
    assert sorted(map(int, everything(server, "reader"))) == list(range(1, 11))


@pytest.mark.parametrize("again", [True, False])
def test_a_kill_between_pubrec_and_pubrel(server, again):
    """The client resends PUBLISH, because PUBREC was lost, or continues with PUBREL."""
    subscribed(server, "reader").close()
    writer = server.client("writer", False)
    writer.publish("t", b"once", 2, 7)
    assert writer.expect(PUBREC) == 7
    server.kill()
    writer = server.client("writer", True)
    if again:
        writer.publish("t", b"once", 2, 7, dup=True)
        assert writer.expect(PUBREC) == 7
        server.kill()
        writer = server.client("writer", True)
    writer.ack(PUBREL, 7)
    assert writer.expect(PUBCOMP) == 7
    # The identifier is free: a message with it is a new one.
    writer.publish("t", b"another", 2, 7)
    assert writer.expect(PUBREC) == 7
    assert everything(server, "reader") == [b"once", b"another"]


def test_a_kill_between_pubrel_and_pubcomp(server):
    subscribed(server, "reader").close()
    writer = server.client("writer", False)
    writer.publish("t", b"once", 2, 7)
    assert writer.expect(PUBREC) == 7
    writer.ack(PUBREL, 7)
    assert writer.expect(PUBCOMP) == 7
    server.kill()
    # The client did not receive PUBCOMP.
    writer = server.client("writer", True)
    writer.ack(PUBREL, 7)
    assert writer.expect(PUBCOMP) == 7
    assert everything(server, "reader") == [b"once"]


def test_a_reader_is_sent_the_same_until_it_says_pubrec_and_then_not_again(server):
    reader = subscribed(server, "reader")
    sent(server, b"1", b"2", b"3")
    first, second, third = [reader.message() for _ in range(3)]
    assert [body for _, body in (first, second, third)] == [b"1", b"2", b"3"]
    # The first message is completed, the second only half.
    reader.ack(PUBREC, first[0])
    assert reader.expect(PUBREL) == first[0]
    reader.ack(PUBREC, second[0])
    assert reader.expect(PUBREL) == second[0]
    for _ in range(2):
        server.kill()
        reader = server.client("reader", True)
        # The client recognises them by their identifiers.
        assert reader.expect(PUBREL) == first[0]
        assert reader.expect(PUBREL) == second[0]
        assert reader.message() == third
    for packet_id, _ in (first, second):
        reader.ack(PUBCOMP, packet_id)
    reader.ack(PUBREC, third[0])
    assert reader.expect(PUBREL) == third[0]
    reader.ack(PUBCOMP, third[0])
    reader.close()
    assert everything(server, "reader") == []
