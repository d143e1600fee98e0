"""MQTT 5.0 shared subscriptions: each message is delivered to one member of a group, and to another one if that member
disconnects without acknowledging it. On the embedded broker, and in front of RabbitMQ, where members may be connected to
different Leverets."""

from contextlib import ExitStack, closing

import pytest

from harness.leveret import Leveret
from harness.metrics import wait_until
from harness.mqtt5_wire import Mqtt5Wire, packets
from harness.mqtt_broker import listening
from harness.mqtt_client import V5, V311, MqttClient
from harness.mqtt_pool import MqttPool
from harness.mqtt_wire import PUBACK
from harness.patience import PATIENCE
from harness.releases import RELEASES, missing

QUOTA_EXCEEDED, NO_SUBSCRIPTION, INVALID, NOT_AUTHORIZED = 0x97, 0x11, 0x8F, 0x87


class Embedded:
    """Leveret with the embedded broker."""

    def __init__(self, directory):
        self.server = Leveret(directory, "--mqtt", "127.0.0.1:0")
        self.mqtt = listening(self.server, "mqtt", "mqtt")

    def stop(self):
        self.server.stop()


def started(kind, directory):
    if kind == "leveret":
        return Embedded(directory)
    if reason := missing(kind):
        pytest.skip(reason)
    return MqttPool(kind, directory)


@pytest.fixture(scope="module", params=["leveret", *RELEASES])
def broker(request, tmp_path_factory):
    broker = started(request.param, tmp_path_factory.mktemp("shared"))
    yield broker
    broker.stop()


@pytest.fixture(scope="module", params=RELEASES)
def pool(request, tmp_path_factory):
    pool = started(request.param, tmp_path_factory.mktemp("pool"))
    yield pool
    pool.stop()


def member(port, name, filter_, qos=1, **properties):
    wire = Mqtt5Wire(port)
    assert wire.connect(name, **properties)["reason"] == 0
    assert wire.subscribe((filter_, qos))["reasons"] == [qos]
    return wire


def writer(broker, version=V5):
    return MqttClient(broker.mqtt, "writer", version)


def group_queues(pool):
    return [name for name in pool.rabbitmq.control("list_queues", "name").splitlines() if name.endswith("-shared")]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_comes_to_one_member(broker, qos):
    count = 100
    with ExitStack() as stack:
        members = [stack.enter_context(MqttClient(broker.mqtt, f"one{qos}{number}", V5)) for number in range(2)]
        for each in members:
            assert each.subscribe(f"$share/g/one/{qos}/+", qos) == [qos]
        outsider = stack.enter_context(MqttClient(broker.mqtt, f"outsider{qos}", V311))
        outsider.subscribe(f"one/{qos}/#", qos)
        publisher = stack.enter_context(writer(broker))
        for number in range(count):
            publisher.publish(f"one/{qos}/a", str(number).encode(), max(qos, 1))
        everything = [str(number).encode() for number in range(count)]
        assert [message.payload for message in outsider.take(count)] == everything
        wait_until(lambda: sum(each.messages.qsize() for each in members) >= count)
        came = [[message.payload for message in each.take(each.messages.qsize())] for each in members]
        assert sorted(came[0] + came[1]) == sorted(everything)
        assert all(came), "both have had some"


def test_unacknowledged_messages_of_a_leaving_member_go_to_another(broker):
    with closing(member(broker.mqtt, "mortal", "$share/g/left/#")) as mortal, writer(broker) as publisher:
        for number in range(5):
            publisher.publish("left/a", str(number).encode())
        first = [mortal.answer() for _ in range(5)]
        assert [message["body"] for message in first] == [b"0", b"1", b"2", b"3", b"4"]
        mortal.ack(PUBACK, first[0]["id"])
        # The answer to the ping shows that it was received.
        assert mortal.ping() == []
        with closing(member(broker.mqtt, "heir", "$share/g/left/#")) as heir:
            mortal.close()
            again = []
            while len(again) < 4:
                message = heir.answer()
                again.append((message["body"], message["dup"]))
                heir.ack(PUBACK, message["id"])
            assert sorted(again) == [(b"1", 1), (b"2", 1), (b"3", 1), (b"4", 1)]


def test_an_unsubscribed_member_keeps_its_message_and_others_get_the_rest(broker):
    name = "$share/g/leave/#"
    with closing(member(broker.mqtt, "leaver", name, ReceiveMaximum=1)) as leaver, writer(broker) as publisher:
        for number in range(3):
            publisher.publish("leave/a", str(number).encode())
        first = leaver.answer()
        assert first["body"] == b"0"
        with closing(member(broker.mqtt, "stayer", name)) as stayer:
            assert leaver.unsubscribe(name)["reasons"] == [0]
            assert leaver.unsubscribe(name)["reasons"] == [NO_SUBSCRIPTION]
            came = []
            for _ in range(2):
                message = stayer.answer()
                came.append(message["body"])
                stayer.ack(PUBACK, message["id"])
            assert sorted(came) == [b"1", b"2"]
            leaver.ack(PUBACK, first["id"])
            assert leaver.ping() == []
            for number in range(3, 13):
                publisher.publish("leave/a", str(number).encode())
            for number in range(3, 13):
                message = stayer.answer()
                assert message["body"] == str(number).encode(), "the first one is not sent again"
                stayer.ack(PUBACK, message["id"])


def test_a_session_that_lasts_goes_on_with_its_group(broker):
    lasts = {"SessionExpiryInterval": 600}
    with closing(member(broker.mqtt, "persistent", "$share/g/lasts/#", **lasts)) as first, writer(broker) as publisher:
        # Another member leaves, and the group is kept for the disconnected member.
        with closing(member(broker.mqtt, "brief", "$share/g/lasts/#")) as brief:
            first.disconnect()
            assert first.answer() is None
            brief.disconnect()
            assert brief.answer() is None
        for number in range(5):
            publisher.publish("lasts/a", str(number).encode())
        with closing(Mqtt5Wire(broker.mqtt)) as again:
            assert again.connect("persistent", clean=False, **lasts)["session"] == 1
            for number in range(5):
                message = again.answer()
                assert message["body"] == str(number).encode()
                again.ack(PUBACK, message["id"])
            assert again.unsubscribe("$share/g/lasts/#")["reasons"] == [0]


def test_each_group_and_filter_gets_a_copy_of_a_message(broker):
    with ExitStack() as stack:
        wires = [
            stack.enter_context(closing(member(broker.mqtt, f"apart{number}", filter_)))
            for number, filter_ in enumerate(("$share/g/apart/a", "$share/h/apart/a", "$share/g/apart/+", "apart/a"))
        ]
        publisher = stack.enter_context(writer(broker))
        publisher.publish("apart/a", b"x")
        for wire in wires:
            assert wire.answer()["body"] == b"x"


def test_a_member_gets_no_topics_in_dollar_by_a_wildcard_in_front(broker):
    with closing(member(broker.mqtt, "front", "$share/only/+/only")) as front, writer(broker) as publisher:
        # AMQP's `*`, from a leading `+`, matches `$x`.
        for topic in ("$x/only", "x/only"):
            publisher.publish(topic, topic.encode())
        assert front.answer()["body"] == b"x/only"


def test_a_share_filter_of_an_mqtt_3_1_1_client_is_an_ordinary_filter(broker):
    with MqttClient(broker.mqtt, "old", V311) as old, writer(broker, V311) as publisher:
        assert old.subscribe("$share/g/old", 1) == [1]
        publisher.publish("old", b"unshared")
        publisher.publish("$share/g/old", b"plain")
        assert old.message().payload == b"plain"


def test_a_member_stays_one_when_it_comes_back_with_3_1_1(broker):
    name = "$share/g/versions"
    with closing(member(broker.mqtt, "versions", name, SessionExpiryInterval=600)) as first, writer(broker) as publisher:
        first.disconnect()
        assert first.answer() is None
        publisher.publish("versions", b"away")
        with MqttClient(broker.mqtt, "versions", V311, keep=True) as old:
            assert old.session_present
            assert old.message().payload == b"away"
            assert old.subscribe(name, 1) == [1]
            publisher.publish("versions", b"back")
            assert old.message().payload == b"back"
            old.unsubscribe(name)
            publisher.publish("versions", b"left")
            # The session's own queue and the group's queue were both empty.
            assert old.subscribe("versions/end", 1) == [1]
            publisher.publish("versions/end", b"end")
            assert old.message().payload == b"end"
        MqttClient(broker.mqtt, "versions", V311).close()


def test_an_ordinary_filter_of_3_1_1_stays_one_until_a_client_of_5_0_subscribes(broker):
    name = "$share/g/ordinary"
    with MqttClient(broker.mqtt, "ordinary", V311, keep=True) as old:
        assert old.subscribe([(name, 1), ("ordinary/end", 1)]) == [1, 1]
    with writer(broker) as publisher, closing(Mqtt5Wire(broker.mqtt)) as new:
        publisher.publish(name, b"ordinary")
        assert new.connect("ordinary", clean=False, SessionExpiryInterval=600)["session"] == 1
        message = new.answer()
        assert message["body"] == b"ordinary"
        new.ack(PUBACK, message["id"])
        assert new.subscribe((name, 1))["reasons"] == [1]
        for topic in (name, "ordinary", "ordinary/end"):
            publisher.publish(topic, topic.encode())
        assert {new.answer()["body"] for _ in range(2)} == {b"ordinary", b"ordinary/end"}
        assert new.unsubscribe(name)["reasons"] == [0]


def test_requests_for_groups_in_one_write_are_answered_in_their_order(broker):
    with closing(Mqtt5Wire(broker.mqtt)) as hasty, writer(broker) as publisher:
        hasty.connect("hasty")
        name = "$share/g/hasty"
        hasty.send(packets(*((name, options) for options in (1, None, 1, 0, None, None, 1))))
        answers = [hasty.answer() for _ in range(7)]
        assert [(answer["id"], answer["reasons"]) for answer in answers] == [
            (1, [1]), (2, [0]), (3, [1]), (4, [0]), (5, [0]), (6, [NO_SUBSCRIPTION]), (7, [1]),
        ]
        publisher.publish("hasty", b"x")
        assert hasty.answer()["body"] == b"x"


def test_a_name_that_is_too_long_is_refused(broker):
    with closing(Mqtt5Wire(broker.mqtt)) as client:
        assert "SharedSubscriptionAvailable" not in client.connect("long")
        assert client.subscribe((f"$share/{'g' * 255}/x", 1))["reasons"] == [INVALID]
        assert client.unsubscribe(f"$share/{'g' * 255}/x")["reasons"] == [NO_SUBSCRIPTION]


def test_members_on_two_leverets_get_each_message_once(pool):
    other = pool.another("other")
    try:
        ports = [pool.mqtt, listening(other, "mqtt", "mqtt")]
        with ExitStack() as stack:
            members = [stack.enter_context(MqttClient(port, f"far{port}", V5)) for port in ports]
            for each in members:
                each.subscribe("$share/g/far/#", 1)
            publisher = stack.enter_context(writer(pool))
            for number in range(50):
                publisher.publish("far/a", str(number).encode())
            wait_until(lambda: sum(each.messages.qsize() for each in members) >= 50)
            came = [[message.payload for message in each.take(each.messages.qsize())] for each in members]
            assert sorted(came[0] + came[1]) == sorted(str(number).encode() for number in range(50))
            assert all(came)
        # A killed Leveret leaves its messages to the other members, and a queue that is deleted with the last of them.
        with closing(member(pool.mqtt, "survivor", "$share/g/killed")) as survivor, writer(pool) as publisher:
            with closing(member(ports[1], "victim", "$share/g/killed")) as victim:
                for number in range(20):
                    publisher.publish("killed", str(number).encode())
                taken = victim.answer()["body"]
                other.child.kill()
                came = set()
                while len(came) < 20:
                    message = survivor.answer()
                    came.add(int(message["body"]))
                    survivor.ack(PUBACK, message["id"])
                assert int(taken) in came
    finally:
        other.child.kill()
    wait_until(lambda: not group_queues(pool))


def test_the_queue_of_a_group_ends_with_its_last_member(pool):
    lasts = {"SessionExpiryInterval": 600}
    name = "mqtt-subscription-ends/ends.#-shared"
    with closing(member(pool.mqtt, "ends1", "$share/ends/ends/#")) as first:
        assert group_queues(pool) == [name]
        with closing(member(pool.mqtt, "ends2", "$share/ends/ends/#", **lasts)) as second:
            first.disconnect()
            second.disconnect()
            assert (first.answer(), second.answer()) == (None, None)
    with closing(member(pool.mqtt, "ends3", "$share/ends/ends/#")) as third:
        assert third.unsubscribe("$share/ends/ends/#")["reasons"] == [0]
        # One member's session is persistent.
        assert group_queues(pool) == [name]
    with closing(Mqtt5Wire(pool.mqtt)) as second:
        second.connect("ends2", clean=False, **lasts)
        assert second.unsubscribe("$share/ends/ends/#")["reasons"] == [0]
    wait_until(lambda: not group_queues(pool))
    exchanges = pool.rabbitmq.control("list_exchanges", "name").splitlines()
    assert not [exchange for exchange in exchanges if exchange.endswith("-shared")]


def test_a_user_without_permission_is_refused(pool):
    for command in (
        ("add_user", "lonely", "lonely"),
        ("set_permissions", "lonely", "^mqtt-subscription-[^/]*$", ".*", ".*"),
    ):
        pool.rabbitmq.control(*command)
    with closing(Mqtt5Wire(pool.mqtt)) as lonely:
        lonely.connect("lonely", user="lonely", password="lonely")
        answer = lonely.subscribe(("$share/g/lonely", 1), ("lonely", 1))
        assert answer["reasons"] == [NOT_AUTHORIZED, 1]
        lonely.publish("lonely", b"x", qos=0)
        assert lonely.answer()["body"] == b"x"


def test_members_go_on_when_the_upstream_has_restarted(tmp_path):
    release = next(name for name in RELEASES if not missing(name))
    pool = MqttPool(release, tmp_path)
    try:
        with MqttClient(pool.mqtt, "worker", V5) as worker, writer(pool) as publisher:
            worker.subscribe("$share/g/restart", 1)
            publisher.publish("restart", b"before")
            assert worker.message().payload == b"before"
            pool.rabbitmq.end()
            pool.rabbitmq.start()
            publisher.publish("restart", b"after")
            while worker.messages.get(timeout=PATIENCE).payload != b"after":
                pass
            assert not worker.gone.is_set()
    finally:
        pool.stop()
