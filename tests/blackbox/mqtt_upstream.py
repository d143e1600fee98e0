"""MQTT clients in front of RabbitMQ: their sessions are the same as those of RabbitMQ's own listener, and their operations
take effect there."""

import struct
import threading
from contextlib import closing
from itertools import islice

import pika
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from harness.instances import leveret
from harness.metrics import wait_until
from harness.mqtt5_wire import Mqtt5Wire
from harness.mqtt_broker import ANY, listening
from harness.mqtt_client import V5, V311, MqttClient, persistent_session, publish_properties
from harness.mqtt_pool import MqttPool, pool
from harness.mqtt_wire import CONNACK, PUBACK, PUBLISH, MqttWire, encoded, text
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.releases import RELEASES, missing

# Fixtures of these tests.
__all__ = ["pool"]

VERSIONS = [V311, V5]
# MQTT 5.0 reason codes.
BAD_PASSWORD, NOT_AUTHORIZED, UNAVAILABLE, TAKEN_OVER = 0x86, 0x87, 0x88, 0x8E


def queues(pool):
    """The queues of MQTT clients, with their arguments."""
    listed = pool.rabbitmq.control("list_queues", "name", "arguments").splitlines()
    return dict(line.split("\t") for line in listed if line.startswith("mqtt-subscription-"))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_goes_on_at_rabbitmqs_own_listener_and_back(pool, version):
    if version == V5 and pool.version == "3.10":
        pytest.skip("RabbitMQ 3.10 does not speak MQTT 5.0")
    name = f"wanderer{version}"
    with pool.client(name, version, **persistent_session(version)) as here:
        assert not here.session_present
        assert here.subscribe(f"way/{version}/#", 1) == [1]
    pool.left(f"mqtt-subscription-{name}qos1")
    with pool.client("writer") as writer:
        for number in range(3):
            writer.publish(f"way/{version}/a", str(number).encode())
    with MqttClient(pool.native, name, version, **persistent_session(version)) as there:
        assert there.session_present
        assert [message.payload for message in there.take(3)] == [b"0", b"1", b"2"]
        assert there.subscribe(f"more/{version}", 1) == [1]
    pool.left(f"mqtt-subscription-{name}qos1")
    with pool.client("writer") as writer:
        writer.publish(f"way/{version}/b", b"3")
        writer.publish(f"more/{version}", b"4")
    with pool.client(name, version, **persistent_session(version)) as here:
        assert here.session_present
        assert [(message.topic, message.payload) for message in here.take(2)] == [
            (f"way/{version}/b", b"3"),
            (f"more/{version}", b"4"),
        ]
    with pool.client(name, version) as here:
        assert not here.session_present
    assert not [queue for queue in queues(pool) if queue.startswith(f"mqtt-subscription-{name}qos")]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_goes_on_at_another_leveret_and_back(pool, version):
    other = pool.another(f"other{version}")
    try:
        ports = [pool.mqtt, listening(other, "mqtt", "mqtt"), pool.mqtt]
        for turn, port in enumerate(ports):
            with MqttClient(port, f"nomad{version}", version, **persistent_session(version)) as nomad, pool.client("writer") as writer:
                assert nomad.session_present == (turn > 0)
                if turn == 0:
                    nomad.subscribe(f"nomad/{version}/#", 1)
                else:
                    assert nomad.message().payload == str(turn - 1).encode()
                nomad.close()
                writer.publish(f"nomad/{version}/a", str(turn).encode())
        other.stop()
    finally:
        other.child.kill()


def test_the_queue_of_a_session_is_as_rabbitmq_makes_it(pool):
    for port, name in ((pool.mqtt, "ours"), (pool.native, "theirs")):
        with MqttClient(port, name, keep=True) as client:
            client.subscribe("same/#", 1)
    ours, theirs = (queues(pool)[f"mqtt-subscription-{name}qos1"] for name in ("ours", "theirs"))
    # RabbitMQ 4 adds the type to queues declared over AMQP.
    assert ours.replace(',{"x-queue-type","classic"}', "") == theirs
    bindings = pool.rabbitmq.control("list_bindings", "source_name", "destination_name", "routing_key").splitlines()
    assert {"amq.topic\tmqtt-subscription-oursqos1\tsame.#", "amq.topic\tmqtt-subscription-theirsqos1\tsame.#"} <= set(bindings)


def test_clients_on_both_sides_read_each_other(pool):
    with pool.client("inside") as inside, MqttClient(pool.native, "outside") as outside:
        # RabbitMQ maps a dot to a slash.
        for topic, seen in (("both/a", "both/a"), ("both/v1.2/x", "both/v1/2/x")):
            for reader in (inside, outside):
                reader.subscribe(topic, 1)
            for writer in (inside, outside):
                writer.publish(topic, b"x", 1)
                for reader in (inside, outside):
                    message = reader.message()
                    assert (message.topic, message.payload, message.qos) == (seen, b"x", 1)


def test_many_subscribers_are_one_queue_upstream(pool):
    clients = [pool.client(f"many{number}") for number in range(20)]
    try:
        for client in clients:
            assert client.subscribe("crowd/+", 1) == [1]
        mine = [name for name in queues(pool) if "many" in name]
        assert not mine, "none of them has a queue of its own"
        live = [name for name in queues(pool) if not name.endswith(("qos0", "qos1"))]
        assert len(live) == 1
        clients[0].publish("crowd/a", b"all")
        assert [client.message().payload for client in clients] == [b"all"] * len(clients)
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_second_connection_takes_the_session_over(pool, version):
    name = f"twin{version}"
    with pool.client(name, version, manual_ack=True, **persistent_session(version)) as first, pool.client("writer") as writer:
        first.subscribe(f"twin/{version}", 1)
        for number in range(5):
            writer.publish(f"twin/{version}", str(number).encode())
        assert [message.payload for message in first.take(5)] == [b"0", b"1", b"2", b"3", b"4"]
        with pool.client(name, version, **persistent_session(version)) as second:
            assert first.gone.wait(PATIENCE) and second.session_present
            again = second.take(5)
            assert [message.payload for message in again] == [b"0", b"1", b"2", b"3", b"4"], "in their order"
            assert all(message.dup for message in again)


def test_a_taken_over_mqtt_5_client_gets_a_disconnect_with_the_reason(pool):
    with closing(Mqtt5Wire(pool.mqtt)) as first, closing(Mqtt5Wire(pool.mqtt)) as second:
        first.connect("told")
        second.connect("told")
        why = "another connection has the client identifier"
        assert first.answer() == {"packet": "DISCONNECT", "reason": TAKEN_OVER, "ReasonString": why}


def test_wills_are_published_after_their_delay_and_not_if_the_client_comes_back(pool):
    with pool.client("heir") as heir:
        heir.subscribe("will/#", 1)
        for name in ("back", "gone"):
            mortal = Mqtt5Wire(pool.mqtt)
            delay = {"WillDelayInterval": 1}
            mortal.connect(name, will=(f"will/{name}", b"x", 1, False, delay), SessionExpiryInterval=3600)
            mortal.close()
            if name == "back":
                with pool.client(name, V5, **persistent_session(V5)) as back:
                    # It only knows that the session exists.
                    assert back.session_present
        assert heir.message().topic == "will/gone"


@pytest.mark.parametrize("version", VERSIONS)
def test_strangers_are_refused_as_by_rabbitmq(pool, version):
    # As in RabbitMQ: 4 means a wrong user, password or virtual host.
    pool.rabbitmq.control("add_user", f"outsider{version}", "x")
    for options, refused in (
        ({"password": "wrong"}, "bad"),
        ({"user": "nowhere:guest"}, "bad"),
        ({"user": f"outsider{version}", "password": "x"}, "not"),
        ({"user": None}, "bad"),
    ):
        with pool.client("stranger", version, **options) as client:
            assert client.reason.is_failure and client.reason.getName().lower().startswith(refused), options


@pytest.mark.parametrize("version", VERSIONS)
def test_an_upstream_that_is_away_is_no_wrong_password(tmp_path, version):
    (port,) = free_ports(1)
    with leveret(tmp_path, "--upstream", f"amqp://127.0.0.1:{port}", "--mqtt", ANY) as server:
        with MqttClient(listening(server, "mqtt", "mqtt"), "early", version) as client:
            assert client.reason == ("Server unavailable" if version == V5 else "Server unavailable")
        server.stop()


@pytest.mark.parametrize("version", VERSIONS)
def test_permissions_are_the_upstreams_and_a_refusal_is_the_clients_own(pool, version):
    user = f"limited{version}"
    for command in (
        ("add_user", user, user),
        ("set_permissions", user, ".*", ".*", ".*"),
        ("set_topic_permissions", user, "amq.topic", "^ok.*", "^ok.*"),
    ):
        pool.rabbitmq.control(*command)
    mine = {"user": user, "password": user}
    with pool.client(f"bystander{version}", version, **mine) as bystander:
        bystander.subscribe("ok/b", 1)
        for qos in (0, 1):
            with pool.client(f"reader{version}", version, **mine, **(persistent_session(version) if qos else {})) as reader:
                reader.subscribe([("ok/a", qos), ("no/a", qos)])
                with pool.client(f"reader{version}", version, **mine) as reader:
                    expected = NOT_AUTHORIZED if version == V5 else 0x80
                    assert reader.subscribe([("ok/a", qos), ("no/a", qos), ("ok/c", qos)]) == [qos, expected, qos]
                    reader.publish("ok/c", b"mine")
                    assert reader.message().payload == b"mine"
        if version == V5:
            with closing(Mqtt5Wire(pool.mqtt)) as writer:
                writer.connect("writer", **mine)
                assert writer.publish("no/a", b"x", 1)["reason"] == NOT_AUTHORIZED
                assert writer.publish("ok/b", b"x", 1)["reason"] == 0
        else:
            with pool.client("writer", version, **mine) as writer:
                writer.client.publish("no/a", b"x", 1)
                assert writer.gone.wait(PATIENCE)
                bystander.publish("ok/b", b"x", 1)
        assert bystander.message().payload == b"x"


def test_connack_offers_the_same_features_as_the_embedded_broker(pool):
    with closing(Mqtt5Wire(pool.mqtt)) as mortal, closing(Mqtt5Wire(pool.mqtt)) as persistent:
        answer = mortal.connect("mortal")
        assert not answer.keys() & {"RetainAvailable", "SharedSubscriptionAvailable", "MaximumQoS"}
        answer = persistent.connect("persistent", SessionExpiryInterval=60)
        assert answer["ReceiveMaximum"] == 1024 and "MaximumQoS" not in answer


@pytest.mark.parametrize("version", VERSIONS)
def test_quality_2_is_published_once(pool, version):
    with pool.channel() as channel, pool.client("twice", version) as client:
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.topic", "once.#")
        client.subscribe("once/#", 2)
        for number in range(20):
            client.publish("once/a", str(number).encode(), 2)
        expected = [str(number).encode() for number in range(20)]
        assert [message.payload for message in client.take(20)] == expected
        # A duplicate would come before this.
        client.publish("once/last", b"last", 2)
        consumed = islice(channel.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE), 21)
        assert [body for _, _, body in consumed] == [*expected, b"last"]


def test_a_publisher_that_is_far_ahead_of_its_confirms_is_read_on(pool):
    # More than a client may have unconfirmed upstream, in one write.
    identifiers = range(1, 8001)
    with closing(MqttWire(pool.mqtt)) as writer:
        writer.connect("ahead")
        assert writer.packet()[0] == CONNACK
        writer.send(b"".join(encoded(PUBLISH, text("ahead") + struct.pack(">H", number), 2) for number in identifiers))
        assert [writer.expect(PUBACK) for _ in identifiers] == list(identifiers)


def test_options_of_subscriptions_are_kept(pool):
    with pool.client("options", V5) as client, pool.client("other", V5) as other:
        properties = Properties(PacketTypes.SUBSCRIBE)
        properties.SubscriptionIdentifier = 7
        options = SubscribeOptions(qos=1, noLocal=True, retainAsPublished=True)
        client.subscribe("opt/#", options=options, properties=properties)
        client.publish("opt/a", b"own")
        other.publish(
            "opt/a",
            b"{}",
            properties=publish_properties(ContentType="text/plain", ResponseTopic="answers/me", CorrelationData=b"7"),
        )
        message = client.message()
        assert (message.payload, message.properties.SubscriptionIdentifier) == (b"{}", [7])
        assert (message.properties.ContentType, message.properties.ResponseTopic) == ("text/plain", "answers/me")
        assert message.properties.CorrelationData == b"7"


@pytest.mark.parametrize("version", VERSIONS)
def test_subscriptions_end_when_they_are_taken_back(pool, version):
    with pool.client("fickle", version, **persistent_session(version)) as reader, pool.client("writer") as writer:
        for qos in (0, 1):
            reader.subscribe(f"fickle/{qos}", qos)
            reader.subscribe("fickle/last", qos)
        for qos in (0, 1):
            reader.unsubscribe(f"fickle/{qos}")
            writer.publish(f"fickle/{qos}", b"unwanted")
        writer.publish("fickle/last", b"wanted")
        assert reader.message().payload == b"wanted"


def test_an_upstream_that_restarts_is_no_outage_for_sessions(tmp_path):
    release = next(name for name in RELEASES if not missing(name))
    pool = MqttPool(release, tmp_path)
    try:
        with pool.client("reader", keep=True) as reader, pool.client("live") as live, pool.client("writer") as writer:
            reader.subscribe("restart/#", 1)
            live.subscribe("restart/#", 1)
            writer.publish("restart/a", b"before")
            assert [client.message().payload for client in (reader, live)] == [b"before"] * 2
            pool.rabbitmq.end()
            done = threading.Event()
            writer.client.on_publish = lambda *_: done.set()
            writer.client.publish("restart/b", b"during", 1)
            pool.rabbitmq.start()
            assert done.wait(PATIENCE), "it is acknowledged when the upstream is back"
            # Acknowledged messages may be redelivered: the upstream was killed.
            while (message := reader.message()).payload == b"before":
                assert message.dup
            assert message.payload == b"during"

            def heard():
                writer.publish("restart/c", b"after")
                return not live.messages.empty()

            wait_until(heard)
            assert not any(client.gone.is_set() for client in (reader, live, writer))
    finally:
        pool.stop()


def test_an_expired_session_is_deleted(pool):
    with pool.client("brief", V5, keep=True, expiry=1) as client:
        client.subscribe("brief", 1)
        assert '"x-expires",1000' in queues(pool)["mqtt-subscription-briefqos1"]
    wait_until(lambda: "mqtt-subscription-briefqos1" not in queues(pool))
    with pool.client("brief", V5, keep=True, expiry=1) as client:
        assert not client.session_present


def test_a_client_without_permission_for_queues_may_publish(pool):
    pool.rabbitmq.control("add_user", "sensor", "sensor")
    pool.rabbitmq.control("set_permissions", "sensor", "^$", "^amq.topic$", "^$")
    with pool.channel() as channel, pool.client("sensor", user="sensor", password="sensor") as sensor:
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.topic", "sensor")
        sensor.publish("sensor", b"21")
        assert next(channel.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE))[2] == b"21"


def test_consumers_of_amqp_on_the_same_leveret_read_mqtt(pool):
    with pika.BlockingConnection(pika.URLParameters(pool.server.uri)) as connection, pool.client("sensor2") as sensor:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.topic", "through.one")
        sensor.publish("through/one", b"x")
        assert next(channel.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE))[0].routing_key == "through.one"


def test_all_of_a_message_arrives_and_others_see_no_more_than_rabbitmq_shows_them(pool):
    sent = {"PayloadFormatIndicator": 1, "ContentType": "x" * 200, "CorrelationData": b"\xff\0"}
    pairs = [("b", "1"), ("a", "2"), ("b", "3")]
    properties = publish_properties(**sent, UserProperty=pairs)
    with pool.client("whole", V5) as reader, MqttClient(pool.native, "plain", V311 if pool.version == "3.10" else V5) as plain:
        reader.subscribe("whole", options=SubscribeOptions(qos=2))
        plain.subscribe("whole", 1) if pool.version == "3.10" else plain.subscribe("whole", options=SubscribeOptions(qos=1))
        reader.publish("whole", b"text", 2, properties=properties)
        message = reader.message()
        assert message.qos == 2
        assert {name: getattr(message.properties, name) for name in sent} == sent
        assert message.properties.UserProperty == pairs
        other = plain.message()
        assert (other.payload, other.qos) == (b"text", 1)
        if pool.version == "4":
            assert sorted(other.properties.UserProperty) == [("a", "2"), ("b", "1")]
