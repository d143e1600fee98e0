"""Live MQTT subscribers in front of RabbitMQ receive everything published after their SUBACK, however slowly they
acknowledge and however often they change their subscriptions."""

import itertools
import struct
from contextlib import closing

import pytest

from harness.mqtt5_wire import Mqtt5Wire, packets
from harness.mqtt_client import MqttClient
from harness.mqtt_pool import pool
from harness.mqtt_wire import PUBACK, PUBLISH, SUBACK, MqttWire

# Fixtures of these tests.
__all__ = ["pool"]


@pytest.mark.parametrize("window", [1, 3])
def test_a_subscriber_that_acknowledges_late_gets_all_in_order(pool, window):
    count = 400
    with closing(Mqtt5Wire(pool.mqtt)) as slow, closing(Mqtt5Wire(pool.mqtt)) as writer:
        slow.connect(f"slow{window}", ReceiveMaximum=window)
        assert slow.subscribe((f"late/{window}", 1))["reasons"] == [1]
        writer.connect("writer")
        for number in range(count):
            writer.publish(f"late/{window}", str(number).encode())
        came = []
        unacknowledged = []
        while len(came) < count:
            # The client acknowledges nothing until its window is full.
            while len(unacknowledged) < window and len(came) < count:
                message = slow.answer()
                came.append(int(message["body"]))
                unacknowledged.append(message["id"])
            # Other requests are answered meanwhile.
            assert slow.subscribe(("aside", 0))["reasons"] == [0]
            while unacknowledged:
                slow.ack(PUBACK, unacknowledged.pop(0))
        assert came == list(range(count))


def wait_for_routing(subscriber, writer, changed, qos, unchanged):
    """RabbitMQ 4 may route by a deleted binding for a moment after unbind-ok: waits until messages of `changed` arrive with
    the new QoS only. With the old QoS they are in the queue of `unchanged`, before its next message."""
    for turn in itertools.count():
        probe, marker = f"probe {turn}".encode(), f"marker {turn}".encode()
        writer.publish(changed, probe)
        writer.publish(unchanged, marker)
        expected, seen = {(probe, qos), (marker, 1 - qos)}, set()
        while not expected <= seen:
            message = subscriber.answer()
            seen.add((message["body"], message["qos"]))
            if message["qos"]:
                subscriber.ack(PUBACK, message["id"])
        if seen == expected:
            return


@pytest.mark.parametrize("lasts", [False, True])
def test_requests_in_one_write_are_all_answered_in_their_order(pool, lasts):
    properties = {"SessionExpiryInterval": 60} if lasts else {}
    with closing(Mqtt5Wire(pool.mqtt)) as hasty, closing(Mqtt5Wire(pool.mqtt)) as writer:
        hasty.connect(f"hasty{lasts}", **properties)
        writer.connect("writer")
        for turn, qos in enumerate((0, 1, 0)):
            root = f"hasty/{lasts}/{turn}"
            requests = [
                (f"{root}/gone", qos),
                (f"{root}/gone", None),
                (f"{root}/twice", qos),
                (f"{root}/twice", qos),
                (f"{root}/again", qos),
                (f"{root}/again", None),
                (f"{root}/again", qos),
                (f"{root}/other", qos),
                (f"{root}/other", 1 - qos),
                (f"{root}/none", None),
            ]
            hasty.send(packets(*requests))
            answers = [hasty.answer() for _ in requests]
            assert [(answer["packet"], answer["id"]) for answer in answers] == [
                ("SUBACK" if options is not None else "UNSUBACK", number)
                for number, (_, options) in enumerate(requests, 1)
            ]
            expected = [0 if options is None else options for _, options in requests]
            expected[-1] = 0x11
            assert [answer["reasons"] for answer in answers] == [[reason] for reason in expected]
            wait_for_routing(hasty, writer, f"{root}/other", 1 - qos, f"{root}/twice")
            for name in ("gone", "twice", "again", "other"):
                writer.publish(f"{root}/{name}", name.encode())
            came = [hasty.answer() for _ in range(3)]
            assert sorted(message["body"] for message in came) == [b"again", b"other", b"twice"]
            for message in came:
                if message["qos"]:
                    hasty.ack(PUBACK, message["id"])
            # A duplicate would come before this.
            writer.publish(f"{root}/again", b"last", qos=0)
            assert hasty.answer()["body"] == b"last"


@pytest.mark.parametrize("lasts", [False, True])
def test_very_many_entries_in_a_packet_are_all_answered(pool, lasts):
    properties = {"SessionExpiryInterval": 60} if lasts else {}
    # In RabbitMQ 4 each queue operation is a round of its metadata store.
    count = 1500 if lasts else 10_000
    few = count // 10
    with closing(Mqtt5Wire(pool.mqtt)) as client:
        # The answers may take longer than any keep alive on a slow disk.
        client.connect(f"many{lasts}", keep_alive=0, **properties)
        dotted = [f"many.{number}" for number in range(count)]
        client.send(packets(("many/one", 1), (["many/one"] * count, 0), (["many/one"] * count, 1)))
        for expected in ([1], [0] * count, [1] * count):
            assert client.answer()["reasons"] == expected
        client.send(packets((dotted[:few], 0), (dotted, None), (["many/one"] * count, None)))
        assert client.answer()["reasons"] == [0] * few
        assert client.answer()["reasons"] == [0] * few + [0x11] * (count - few)
        assert client.answer()["reasons"] == [0] + [0x11] * (count - 1)


def test_no_message_is_missed_while_the_quality_of_a_subscription_changes(pool):
    changes = 12
    with closing(Mqtt5Wire(pool.mqtt)) as fickle, MqttClient(pool.mqtt, "writer") as writer:
        fickle.connect("changing", SessionExpiryInterval=60)
        assert fickle.subscribe(("changing", 0))["reasons"] == [0]
        published, came = 0, []

        def take():
            message = fickle.answer()
            if message["packet"] != "PUBLISH":
                return message
            came.append(int(message["body"]))
            if message["qos"]:
                fickle.ack(PUBACK, message["id"])

        for change in range(changes):
            for _ in range(20):
                writer.client.publish("changing", str(published).encode(), 1)
                published += 1
            fickle.send(packets(("changing", 1 - change % 2)))
            for _ in range(20):
                writer.client.publish("changing", str(published).encode(), 1)
                published += 1
            while not (answer := take()):
                pass
            assert answer["reasons"] == [1 - change % 2]
        writer.publish("changing", str(published).encode())
        while not came or max(came) < published or len(set(came)) <= published:
            assert take() is None
        assert set(came) == set(range(published + 1))


def test_a_filter_that_is_too_long_to_be_bound_has_no_subscription(pool):
    for properties in ({}, {"SessionExpiryInterval": 60}):
        with closing(Mqtt5Wire(pool.mqtt)) as client:
            client.connect(f"long{len(properties)}", **properties)
            assert client.subscribe(("x" * 255, 1))["reasons"] == [1]
            assert client.subscribe(("x" * 256, 1))["reasons"] == [0x8F]
            # Truncated to 255 bytes it would be the other one.
            assert client.unsubscribe("x" * 256)["reasons"] == [0x11]
            client.publish("x" * 255, b"still there", qos=0)
            assert client.answer()["body"] == b"still there"


def test_queued_messages_keep_their_quality_when_the_subscription_loses_it(pool):
    qualities = {}
    for port in (pool.native, pool.mqtt):
        with closing(MqttWire(port)) as reader, pool.client("writer") as writer:
            reader.connect(f"downgraded{port}", clean=False)
            assert reader.packet()[0] == 2
            reader.subscribe(f"down/{port}", 1)
            assert reader.packet()[0] == SUBACK
            for number in range(30):
                writer.publish(f"down/{port}", str(number).encode())
            # Each of them has a smaller window.
            first = [reader.message() for _ in range(10)]
            reader.subscribe(f"down/{port}", 0)
            rest = []
            came = []
            while len(came) < 20:
                head = reader.take(1)
                reader.unread = head + reader.unread
                kind, body = reader.packet()
                if kind == PUBLISH:
                    qos = head[0] >> 1 & 3
                    came.append(qos)
                    if qos:
                        rest.append(struct.unpack(">H", body[2 + body[1] : 4 + body[1]])[0])
                for packet_id in [packet_id for packet_id, _ in first] + rest:
                    reader.ack(PUBACK, packet_id)
                first, rest = [], []
            qualities[port] = came
    assert qualities[pool.native] == qualities[pool.mqtt] == [1] * 20
