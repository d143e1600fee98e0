"""A client identifier has one connection in a cluster: when a client connects to another Leveret in front of the same
RabbitMQ, its old connection is closed, and it keeps its session."""

import re
from contextlib import closing

import pika
import pytest

from harness.metrics import wait_until
from harness.mqtt5_wire import Mqtt5Wire
from harness.mqtt_broker import listening
from harness.mqtt_client import V5, V311, MqttClient, persistent_session
from harness.mqtt_pool import MqttPool, fixture_of
from harness.patience import PATIENCE

VERSIONS = [V311, V5]
EXCHANGE = "leveret.mqtt.takeover"
TAKEN_OVER = 0x8E
WARNING = "session takeover limited to connections of this server"


class Cluster(MqttPool):
    """`ports` are the MQTT ports of two Leverets, `servers`."""

    def __init__(self, version, directory):
        super().__init__(version, directory)
        try:
            self.servers = [self.server, self.another("other")]
            self.ports = [listening(server, "mqtt", "mqtt") for server in self.servers]
        except BaseException:
            self.stop()
            raise

    def stop(self):
        try:
            for server in self.servers[1:]:
                server.stop()
        finally:
            super().stop()

    def user(self, name, configure, write, read):
        self.rabbitmq.control("add_user", name, name)
        self.rabbitmq.control("set_permissions", name, configure, write, read)
        return {"user": name, "password": name}


cluster = fixture_of(Cluster)


def announcements_are_handled(cluster, name, at=0):
    """Waits until a Leveret has handled all earlier announcements, by making another one."""
    with MqttClient(cluster.ports[at], name) as first, MqttClient(cluster.ports[1 - at], name):
        assert first.gone.wait(PATIENCE)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_persistent_session_goes_along_with_its_messages_and_back(cluster, version):
    name, topic = f"wanderer{version}", f"way/{version}"
    expected = [b"%d" % number for number in range(30)]
    with MqttClient(cluster.ports[0], "writer") as writer:
        options = {"manual_ack": True, **persistent_session(version)}
        first = MqttClient(cluster.ports[0], name, version, **options)
        assert first.subscribe(topic, 1) == [1]
        # Twenty are in flight to the client; the others wait in the queue.
        for payload in expected:
            writer.publish(topic, payload)
        first.message()
        for port in (cluster.ports[1], cluster.ports[0], cluster.ports[1]):
            with first:
                second = MqttClient(port, name, version, **options)
                assert first.gone.wait(PATIENCE) and second.session_present
            first = second
        with first:
            # The client acknowledges none of these.
            got = []
            while len({message.payload for message in got}) < len(expected):
                got.append(first.message())
                first.client.ack(got[-1].mid, got[-1].qos)
            assert sorted({message.payload for message in got}, key=int) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_that_ends_with_its_connection_is_taken_over(cluster, version):
    name, topic = f"brief{version}", f"brief/{version}"
    with MqttClient(cluster.ports[0], name, version) as first, MqttClient(cluster.ports[1], "bystander") as bystander:
        first.subscribe(topic, 1)
        with MqttClient(cluster.ports[1], name, version) as second:
            assert first.gone.wait(PATIENCE) and not second.session_present
            second.subscribe(topic, 1)
            bystander.publish(topic, b"x")
            assert second.message().payload == b"x"
            assert not bystander.gone.is_set()


@pytest.mark.parametrize("expiry", [0, 3600])
@pytest.mark.parametrize("clean", [True, False])
def test_an_mqtt_5_client_taken_over_at_another_server_gets_the_reason(cluster, clean, expiry):
    name = f"told{clean}{expiry}"
    for here, there in ((0, 1), (1, 0)):
        with closing(Mqtt5Wire(cluster.ports[here])) as first, closing(Mqtt5Wire(cluster.ports[there])) as second:
            first.connect(name, SessionExpiryInterval=expiry)
            first.subscribe((f"told/{name}", 1))
            answer = second.connect(name, clean=clean, SessionExpiryInterval=expiry)
            assert answer["session"] == (not clean and expiry > 0)
            why = "another connection has the client identifier"
            assert first.answer() == {"packet": "DISCONNECT", "reason": TAKEN_OVER, "ReasonString": why}


def test_a_session_that_is_begun_anew_elsewhere_leaves_nothing_of_the_old_one(cluster):
    with MqttClient(cluster.ports[0], "anew", **persistent_session(V311)) as first, MqttClient(cluster.ports[0], "writer") as writer:
        first.subscribe("anew/old", 1)
        with MqttClient(cluster.ports[1], "anew") as second:
            assert first.gone.wait(PATIENCE) and not second.session_present
        with MqttClient(cluster.ports[0], "anew", **persistent_session(V311)) as third:
            assert not third.session_present
            third.subscribe("anew/new", 1)
            writer.publish("anew/old")
            writer.publish("anew/new", b"x")
            assert third.message().payload == b"x"


def test_the_will_of_a_client_that_is_taken_over_waits_for_its_delay(cluster):
    with MqttClient(cluster.ports[0], "heir") as heir:
        heir.subscribe("will/#", 1)
        delay = {"WillDelayInterval": 1}
        for name in ("resumed", "gone"):
            mortal = Mqtt5Wire(cluster.ports[0])
            mortal.connect(name, will=(f"will/{name}", b"x", 1, False, delay), SessionExpiryInterval=3600)
            if name == "resumed":
                with MqttClient(cluster.ports[1], name, V5, **persistent_session(V5)):
                    assert mortal.answer()["reason"] == TAKEN_OVER
            mortal.close()
        # It has reconnected in time.
        assert heir.message().topic == "will/gone"
        delay = {"WillDelayInterval": 3600}
        with closing(Mqtt5Wire(cluster.ports[0])) as mortal:
            mortal.connect("anew", will=("will/anew", b"x", 1, False, delay), SessionExpiryInterval=3600)
            with MqttClient(cluster.ports[1], "anew", V5):
                assert heir.message().topic == "will/anew", "its session has ended"


def test_another_user_closes_nobodys_connection(cluster):
    # It has no access to other clients' queues.
    other = cluster.user("other", f"^{EXCHANGE}", f"^(amq.topic|{EXCHANGE}.*)$", f"^(amq.topic|{EXCHANGE}.*)$")
    with MqttClient(cluster.ports[0], "mine", **persistent_session(V311)) as mine, MqttClient(cluster.ports[0], "writer") as writer:
        mine.subscribe("mine", 1)
        for keep in (True, False):
            with MqttClient(cluster.ports[1], "mine", keep=keep, **other) as stranger:
                # RabbitMQ 3.10 reveals to any user that a queue exists.
                assert not stranger.session_present or stranger.gone.wait(PATIENCE)
        parameters = pika.URLParameters(cluster.rabbitmq.uri)
        parameters.credentials = pika.PlainCredentials("other", "other")
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            body = b"leveret-takeover-1\nz\n18446744073709551615\nsession\nmine"
            for user in (None, "other"):
                for text in (body, b"", b"\xff" * 1_000_000):
                    channel.basic_publish(EXCHANGE, "", text, pika.BasicProperties(user_id=user))
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="user_id"):
                channel.basic_publish(EXCHANGE, "", body, pika.BasicProperties(user_id="guest"))
        announcements_are_handled(cluster, "marker")
        writer.publish("mine", b"x")
        assert mine.message().payload == b"x" and not mine.gone.is_set()


@pytest.mark.parametrize("version", VERSIONS)
def test_without_permission_for_the_exchange_a_takeover_is_local(cluster, version):
    patterns = ("^mqtt-subscription-", "^(amq.topic|mqtt-subscription-.*)$", "^(amq.topic|mqtt-subscription-.*)$")
    local = cluster.user(f"local{version}", *patterns)
    with MqttClient(cluster.ports[0], "alone", version, **local) as first:
        with MqttClient(cluster.ports[1], "alone", version, **local) as second:
            announcements_are_handled(cluster, f"marker{version}")
            for client in (first, second):
                client.subscribe("alone", 1)
            first.publish("alone", b"x")
            assert [client.message().payload for client in (first, second)] == [b"x", b"x"]
            with MqttClient(cluster.ports[1], "alone", version, **local):
                assert second.gone.wait(PATIENCE)
            assert not first.gone.is_set()
    warns = rf"{re.escape(WARNING)}.*{local['user']}"
    for server in cluster.servers:
        server.child.wait_line(warns)
        assert len(re.findall(warns, server.child.output())) == 1


def test_each_leveret_has_one_queue_for_a_user_however_many_clients(cluster):
    many = cluster.user("many", ".*", ".*", ".*")

    def queues():
        listed = cluster.rabbitmq.control("list_queues", "name", "owner_pid").splitlines()
        return {name for name, owner in (line.split("\t") for line in listed) if name.startswith(f"{EXCHANGE}-") and owner}

    before = queues()
    clients = [MqttClient(cluster.ports[number % 2], f"many{number}", **many) for number in range(20)]
    try:
        assert len(queues() - before) == 2
    finally:
        for client in clients:
            client.close()
    # They are deleted with the clients.
    wait_until(lambda: not queues() - before)
