"""MQTT sessions in front of RabbitMQ with quorum queues (`mqtt_durable_queue_type`), which RabbitMQ's own listener continues
if it is configured alike; and sessions whose queue has the other type."""

import contextlib

import pytest

from harness.leveret import run
from harness.metrics import wait_until
from harness.mqtt5_wire import Mqtt5Wire
from harness.mqtt_broker import ANY, listening
from harness.mqtt_client import V5, V311, MqttClient, persistent_session
from harness.mqtt_pool import MqttPool, fixture_of
from harness.mqtt_wire import PUBACK

VERSIONS = [V311, V5]
QUORUM = ("--mqtt-durable-queue-type", "quorum")
CLASSIC = ("--mqtt-durable-queue-type", "classic")


class Types(MqttPool):
    """`ports` are the MQTT ports of two Leverets, by the type of queue they declare. RabbitMQ declares quorum queues."""

    def __init__(self, version, directory):
        super().__init__(version, directory, *QUORUM, settings=["mqtt.durable_queue_type = quorum"])
        try:
            self.servers = [self.server, self.another("classic", CLASSIC)]
            quorum, classic = (listening(server, "mqtt", "mqtt") for server in self.servers)
        except BaseException:
            super().stop()
            raise
        self.ports = {"quorum": quorum, "classic": classic}

    def queues(self, name):
        """The queues whose names contain `name`: type and arguments."""
        lines = self.rabbitmq.control("list_queues", "name", "type", "arguments").splitlines()
        return {row[0]: row[1:] for row in (line.split("\t") for line in lines) if name in row[0]}

    def stop(self):
        try:
            self.servers[1].child.kill()
        finally:
            super().stop()


pool = fixture_of(Types)


def own(name):
    return f"mqtt-subscription-{name}qos1"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_goes_on_at_rabbitmqs_own_listener_and_back(pool, version):
    if version == V5 and pool.version == "3.10":
        pytest.skip("RabbitMQ 3.10 does not speak MQTT 5.0")
    name = f"wanderer{version}"
    with pool.client("writer") as writer:
        for turn, port in enumerate((pool.mqtt, pool.native, pool.mqtt, pool.native)):
            with MqttClient(port, name, version, **persistent_session(version)) as client:
                assert client.session_present == (turn > 0)
                if turn == 0:
                    assert client.subscribe(f"way/{version}/#", 1) == [1]
                else:
                    assert [message.payload for message in client.take(3)] == [f"{turn} {each}".encode() for each in range(3)]
            pool.left(own(name))
            for each in range(3):
                writer.publish(f"way/{version}/a", f"{turn + 1} {each}".encode())
    assert pool.queues(own(name))[own(name)][0] == "quorum"
    with pool.client(name, version) as client:
        assert not client.session_present
    assert not pool.queues(own(name))


def test_the_queue_of_a_session_is_as_rabbitmq_makes_it(pool):
    for port, name in ((pool.mqtt, "ours"), (pool.native, "theirs")):
        with MqttClient(port, name, keep=True) as client:
            client.subscribe("same/#", 1)
    # In any order.
    ours, theirs = (pool.queues(own(name))[own(name)] for name in ("ours", "theirs"))
    assert (ours[0], sorted(ours[1][2:-2].split("},{"))) == (theirs[0], sorted(theirs[1][2:-2].split("},{")))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("first", "second"), [("classic", "quorum"), ("quorum", "classic")])
def test_a_session_whose_queue_has_the_other_type_resumes(pool, version, first, second):
    name = f"{first}{version}"
    ports = [pool.ports[first], pool.ports[second], pool.ports[first]]
    with pool.client("writer") as writer:
        for turn, port in enumerate(ports):
            with MqttClient(port, name, version, **persistent_session(version)) as client:
                assert client.session_present == (turn > 0)
                assert client.subscribe([(f"{name}/a", 1), (f"{name}/{turn}", 1)]) == [1, 1]
                if turn:
                    assert client.message().payload == str(turn - 1).encode()
            writer.publish(f"{name}/a", str(turn).encode())
    assert pool.queues(own(name))[own(name)][0] == first


@pytest.mark.parametrize(("first", "second"), [("classic", "quorum"), ("quorum", "classic"), ("quorum", "quorum")])
def test_a_session_that_its_client_ends_leaves_no_queue_of_either_type(pool, first, second):
    name = f"ends{first}{second}"
    for turn, port in enumerate((pool.ports[first], pool.ports[second])):
        with contextlib.closing(Mqtt5Wire(port)) as wire:
            assert wire.connect(name, clean=False, SessionExpiryInterval=3600)["session"] == turn
            # With a state queue.
            assert wire.subscribe((f"{name}/a", 1), (f"{name}/b", 0))["reasons"] == [1, 0]
            wire.disconnect(SessionExpiryInterval=3600 if turn == 0 else 0)
            assert wire.answer() is None
    wait_until(lambda: not pool.queues(name))
    with contextlib.closing(Mqtt5Wire(pool.mqtt)) as wire:
        assert not wire.connect(name, clean=False, SessionExpiryInterval=0)["session"]


@pytest.mark.parametrize(("first", "second"), [("classic", "quorum"), ("quorum", "classic"), ("quorum", "quorum")])
def test_members_of_a_group_share_a_queue_of_either_type(pool, first, second):
    group = f"group{first}{second}"
    name = f"mqtt-subscription-{group}/shared.{group}-shared"
    members = [Mqtt5Wire(pool.ports[kind]) for kind in (first, second)]
    with contextlib.closing(members[0]), contextlib.closing(members[1]), pool.client("writer") as writer:
        for number, member in enumerate(members):
            member.connect(f"{group}{number}")
            assert member.subscribe((f"$share/{group}/shared/{group}", 1))["reasons"] == [1]
        assert pool.queues(name)[name][0] == first
        for number in range(2):
            writer.publish(f"shared/{group}", str(number).encode())
        # Each in turn.
        messages = [member.answer() for member in members]
        assert {message["body"] for message in messages} == {b"0", b"1"}
        for member, message in zip(members, messages, strict=True):
            member.ack(PUBACK, message["id"])
            assert member.unsubscribe(f"$share/{group}/shared/{group}")["reasons"] == [0]
            assert member.ping() == []
        wait_until(lambda: not pool.queues(name))


def test_quorum_needs_an_upstream():
    code, _, told = run("serve", "--mqtt", ANY, *QUORUM)
    assert code == 2 and "quorum needs an upstream" in told and "delivery limit" in told, told
