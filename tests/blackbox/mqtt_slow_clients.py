"""An MQTT client that does not read takes at most `mqtt_queue_max` of memory: its oldest QoS 0 messages are dropped; it is
closed if messages that no queue stores would be lost. It blocks nobody. On the embedded broker, and in front of RabbitMQ."""

import os
import struct
from contextlib import closing

import pytest

from harness.child import resident_bytes
from harness.leveret import Leveret
from harness.metrics import metric, wait_until
from harness.mqtt5_wire import Mqtt5Wire
from harness.mqtt_broker import ANY, listening
from harness.mqtt_pool import MqttPool
from harness.mqtt_wire import PUBACK, PUBLISH, MqttWire, encoded, text
from harness.releases import RELEASES, missing

QUEUE_MAX = 1024 * 1024
FLAGS = ("--mqtt-queue-max", "1MiB", "--http", ANY)
SIZE = 16 * 1024
# Many times more than the sockets, the outbox and the queue hold; 25600 messages are 400 MiB.
COUNT = int(os.environ.get("LEVERET_SLOW_MESSAGES", "4000"))
# The bytes of all of them together, and the maximum memory growth.
ALL, MAX_MEMORY = COUNT * SIZE, 30 << 20
QUOTA_EXCEEDED = 0x97
DROPPED = {"leveret": "leveret_broker_mqtt_messages_dropped_total", "pool": "leveret_multiplexed_dropped_messages_total"}


class Embedded:
    def __init__(self, directory, *flags):
        self.server = Leveret(directory, "--mqtt", ANY, *FLAGS, *flags)
        self.mqtt = listening(self.server, "mqtt", "mqtt")
        self.dropped = DROPPED["leveret"]

    def stop(self):
        self.server.stop()


def pool_of(version, directory):
    if reason := missing(version):
        pytest.skip(reason)
    pool = MqttPool(version, directory, *FLAGS)
    pool.dropped = DROPPED["pool"]
    return pool


@pytest.fixture(scope="module", params=RELEASES)
def pool(request, tmp_path_factory):
    pool = pool_of(request.param, tmp_path_factory.mktemp("pool"))
    yield pool
    pool.stop()


@pytest.fixture(scope="module", params=["leveret 3.10", "leveret 4", *RELEASES])
def broker(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("slow")
    if request.param.startswith("leveret"):
        broker = Embedded(directory, "--compatibility", request.param.split()[1])
    else:
        broker = pool_of(request.param, directory)
    yield broker
    broker.stop()


def body(number):
    return struct.pack(">I", number).ljust(SIZE, b".")


def publish_all(port, topic, qos=1, count=COUNT):
    """Publishes numbered messages at QoS 1 in batches, and waits for their acknowledgements."""
    with closing(Mqtt5Wire(port)) as writer:
        writer.connect("writer")
        for first in range(0, count, 50):
            numbers = range(first, min(first + 50, count))
            for number in numbers:
                writer.send(encoded(PUBLISH, text(topic) + struct.pack(">HB", number + 1, 0) + body(number), qos << 1))
            for number in numbers:
                assert writer.answer()["id"] == number + 1


def numbers_until(wire, last):
    """The numbers of the messages up to this one."""
    numbers = []
    while not numbers or numbers[-1] != last:
        numbers.append(struct.unpack(">I", wire.answer()["body"][:4])[0])
    return numbers


def test_a_subscriber_of_qos_0_that_does_not_read_gets_the_newest_messages(broker):
    with closing(Mqtt5Wire(broker.mqtt)) as slow:
        slow.connect("slow")
        assert slow.subscribe(("slow/0", 0))["reasons"] == [0]
        before, dropped = resident_bytes(broker.server.pid), metric(broker.server, broker.dropped)
        publish_all(broker.mqtt, "slow/0")
        assert resident_bytes(broker.server.pid) - before < MAX_MEMORY < ALL
        came = numbers_until(slow, COUNT - 1)
        assert came == sorted(came), "in order"
        # The oldest waiting messages were dropped, the newest are there.
        newest = QUEUE_MAX // SIZE // 2
        assert came[-newest:] == list(range(COUNT - newest, COUNT))
        assert metric(broker.server, broker.dropped) - dropped == COUNT - len(came) > 0
        # The client continues normally.
        assert slow.ping() == []


def test_others_get_everything_meanwhile(broker):
    with closing(Mqtt5Wire(broker.mqtt)) as slow, closing(Mqtt5Wire(broker.mqtt)) as quick:
        slow.connect("slow")
        assert slow.subscribe(("both", 0))["reasons"] == [0]
        quick.connect("quick")
        assert quick.subscribe(("both", 1))["reasons"] == [1]
        for first in range(0, COUNT, 500):
            with closing(Mqtt5Wire(broker.mqtt)) as writer:
                writer.connect("writer")
                for number in range(first, first + 500):
                    assert writer.publish("both", body(number))["reason"] == 0
                    message = quick.answer()
                    assert struct.unpack(">I", message["body"][:4])[0] == number
                    quick.ack(PUBACK, message["id"])


def test_a_live_subscriber_of_qos_1_that_does_not_acknowledge_is_closed_with_quota_exceeded(pool):
    with closing(Mqtt5Wire(pool.mqtt)) as slow, closing(MqttWire(pool.mqtt)) as older:
        slow.connect("slow", ReceiveMaximum=1)
        assert slow.subscribe(("slow/1", 1))["reasons"] == [1]
        older.connect("older")
        older.packet()
        older.subscribe("slow/1", 1)
        older.packet()
        name = "leveret_multiplexed_overflowed_subscribers_total"
        before, dropped = metric(pool.server, name), metric(pool.server, pool.dropped)
        publish_all(pool.mqtt, "slow/1", count=200)
        answer = slow.answer()
        # The upstream's first burst may already exceed the limit.
        if answer["packet"] == "PUBLISH":
            assert struct.unpack(">I", answer["body"][:4])[0] == 0
            answer = slow.answer()
        assert (answer["packet"], answer["reason"]) == ("DISCONNECT", QUOTA_EXCEEDED)
        assert slow.answer() is None
        while (packet := older.packet()) is not None:
            assert packet[0] == PUBLISH
        wait_until(lambda: metric(pool.server, name) == before + 2)
        assert metric(pool.server, pool.dropped) == dropped


def test_messages_of_qos_0_go_before_a_live_subscriber_of_qos_1_is_closed(pool):
    with closing(Mqtt5Wire(pool.mqtt)) as slow, closing(Mqtt5Wire(pool.mqtt)) as writer:
        slow.connect("slow", ReceiveMaximum=1)
        assert slow.subscribe(("mixed", 1))["reasons"] == [1]
        writer.connect("writer")
        reliable = 8
        for number in range(reliable):
            writer.publish("mixed", body(number))
            for _ in range(50):
                writer.publish("mixed", body(COUNT), qos=0)
        # Everything else comes before the last answer.
        assert writer.publish("mixed", body(reliable))["reason"] == 0
        came = []
        while not came or came[-1] != reliable:
            message = slow.answer()
            assert message["packet"] == "PUBLISH", message
            if message["qos"]:
                came.append(struct.unpack(">I", message["body"][:4])[0])
                slow.ack(PUBACK, message["id"])
        assert came == list(range(reliable + 1))
        assert metric(pool.server, pool.dropped) > 0


def test_a_session_that_lasts_gets_all_of_qos_1_however_late(broker):
    count = 200
    with closing(Mqtt5Wire(broker.mqtt)) as slow:
        slow.connect("persistent", ReceiveMaximum=1, SessionExpiryInterval=60)
        assert slow.subscribe(("persistent", 1))["reasons"] == [1]
        publish_all(broker.mqtt, "persistent", count=count)
        for number in range(count):
            message = slow.answer()
            assert struct.unpack(">I", message["body"][:4])[0] == number
            slow.ack(PUBACK, message["id"])
