"""MQTT 3.1.1 and 5.0 with paho, on Leveret and, for what RabbitMQ's plugin supports, on RabbitMQ."""

import contextlib
import functools
import threading

import pika
import pytest
from paho.mqtt.subscribeoptions import SubscribeOptions

from harness.leveret import Leveret
from harness.metrics import wait_until
from harness.mqtt_broker import SERVED, KilledServer
from harness.mqtt_client import V5, V311, MqttClient, publish_properties
from harness.mqtt_pool import MqttPool
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq
from harness.releases import TAKEN_AFTER
from harness.targets import POOL, missing_target, release_of

FLAGS = ("--mqtt", "127.0.0.1:0", "--web-mqtt", "127.0.0.1:0")

# In front of an upstream (docs/compatibility.md).
EXCEPTIONS = {
    "a_request_of_mqtt_is_answered_by_amqp[proxy4]": "in front of a RabbitMQ 4 messages have its form",
}
SOMETIMES = {
    "a_kill_loses_nothing_and_quality_2_is_never_doubled[proxy-2]": "there is no transaction over a message and its record",
    "a_kill_loses_nothing_and_quality_2_is_never_doubled[proxy4-2]": "there is no transaction over a message and its record",
}


class MqttServer:
    """A server with its ports of MQTT and MQTT over WebSocket."""

    def __init__(self, kind, directory):
        self.kind = kind
        if kind == "leveret":
            self.server = Leveret(directory, *FLAGS)
            self.mqtt = int(self.server.child.wait_line(r"^mqtt +listening on mqtt://127\.0\.0\.1:(\d+)").group(1))
            self.web = int(self.server.child.wait_line(r"^web-mqtt +listening on ws://127\.0\.0\.1:(\d+)").group(1))
        else:
            self.mqtt, self.web = free_ports(2)
            settings = [f"mqtt.listeners.tcp.1 = 127.0.0.1:{self.mqtt}", f"web_mqtt.tcp.port = {self.web}"]
            self.server = RabbitMq(directory, *settings, plugins="rabbitmq_mqtt,rabbitmq_web_mqtt", version=TAKEN_AFTER)

    def client(self, name, version=V311, **options):
        return MqttClient(self.mqtt, name, version, **options)

    @contextlib.contextmanager
    def channel(self):
        with pika.BlockingConnection(pika.URLParameters(self.server.uri)) as connection:
            yield connection.channel()

    def stop(self):
        self.server.stop()


def started(kind, directory):
    if kind not in POOL:
        return MqttServer(kind, directory)
    if reason := missing_target(kind):
        pytest.skip(reason)
    return MqttPool(release_of(kind), directory)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """By kind, each started on first use."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def of(kind):
            server = started(kind, tmp_path_factory.mktemp(kind))
            stack.callback(server.stop)
            return server

        yield of


@pytest.fixture(scope="module", params=["rabbitmq", "leveret", *POOL])
def broker(request, servers):
    return servers(request.param)


@pytest.fixture(scope="module", params=["leveret", *POOL])
def leveret(request, servers):
    """Only servers with QoS 2 and MQTT 5.0."""
    return servers(request.param)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_arrives_at_its_quality(broker, qos):
    with broker.client("writer") as writer, broker.client("reader") as reader:
        assert reader.subscribe("quality/+/#", qos) == [qos]
        writer.publish("quality/of/life", b"good", qos)
        message = reader.message()
        assert (message.topic, message.payload, message.qos, message.retain) == ("quality/of/life", b"good", qos, False)


def test_a_retained_message_waits_for_its_subscriber(broker):
    with broker.client("writer") as writer:
        writer.publish("retained/a", b"1", 1, retain=True)
        writer.publish("retained/a", b"2", 1, retain=True)
    with broker.client("reader") as reader:
        reader.subscribe("retained/a", 1)
        message = reader.message()
        assert (message.payload, message.retain) == (b"2", True)


def test_a_session_is_kept_for_a_client_that_wants_it(broker):
    with broker.client("keeper", keep=True) as reader:
        reader.subscribe("kept/#", 1)
    with broker.client("writer") as writer:
        for number in range(10):
            writer.publish(f"kept/{number}", str(number).encode())
    with broker.client("keeper", keep=True) as reader:
        assert reader.session_present
        assert sorted(int(message.payload) for message in reader.take(10)) == list(range(10))
    with broker.client("keeper") as reader:
        assert not reader.session_present


def test_the_will_of_a_client_that_vanishes_is_published(broker):
    with broker.client("heir") as heir:
        heir.subscribe("wills/#", 1)
        broker.client("mortal", will=("wills/mortal", b"gone", 1)).vanish()
        assert heir.message().payload == b"gone"


def test_amqp_consumers_receive_messages_of_mqtt_publishers(broker):
    with broker.channel() as channel, broker.client("sensor") as sensor:
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.topic", "sensors.*.temperature")
        sensor.publish("sensors/kitchen/temperature", b"21")
        for method, properties, body in channel.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE):
            assert (method.routing_key, body) == ("sensors.kitchen.temperature", b"21")
            assert properties.delivery_mode == 2
            # RabbitMQ 4 sets no headers, and Leveret in front of it neither.
            assert broker.kind == "proxy4" or properties.headers["x-mqtt-publish-qos"] == 1
            break


def test_mqtt_subscribers_receive_messages_of_amqp_publishers(broker):
    with broker.channel() as channel, broker.client("display") as display:
        display.subscribe("display/+", 1)
        channel.basic_publish("amq.topic", "display.1", b"hello")
        message = display.message()
        # With RabbitMQ 4, QoS 1 requires a persistent message.
        assert (message.topic, message.payload, message.qos) == ("display/1", b"hello", int(broker.kind != "proxy4"))


def test_a_wrong_password_is_refused(broker):
    with MqttClient(broker.mqtt, "stranger", password="wrong") as client:
        assert client.reason.is_failure


def test_names_of_virtual_hosts_come_in_front_of_users(broker):
    with MqttClient(broker.mqtt, "x", user="/:guest") as client:
        assert not client.reason.is_failure
    with MqttClient(broker.mqtt, "x", user="nowhere:guest") as client:
        assert client.reason.is_failure


def test_mqtt_over_websocket(broker):
    with MqttClient(broker.web, "browser", transport="websockets") as client:
        client.subscribe("web", 1)
        client.publish("web", b"x" * 200_000)
        assert client.message().payload == b"x" * 200_000


@pytest.mark.parametrize("version", [V311, V5])
def test_quality_2_and_retained_on_wildcards(leveret, version):
    with leveret.client("writer", version) as writer, leveret.client("reader", version) as reader:
        reader.subscribe(f"two/{version}/#", 2)
        writer.publish(f"two/{version}/x", b"once", 2, retain=True)
        assert reader.message().qos == 2
        with leveret.client("late", version) as late:
            late.subscribe(f"two/{version}/+", 2)
            message = late.message()
            assert (message.payload, message.retain, message.qos) == (b"once", True, 2)


def test_every_property_of_a_message_arrives(leveret):
    with leveret.client("writer", V5) as writer, leveret.client("reader", V5) as reader:
        reader.subscribe("properties", options=SubscribeOptions(qos=1))
        writer.publish(
            "properties",
            b"{}",
            properties=publish_properties(
                ContentType="application/json",
                ResponseTopic="answers/me",
                CorrelationData=b"\xff\0",
                MessageExpiryInterval=1000,
                PayloadFormatIndicator=1,
                UserProperty=[("b", "1"), ("a", "2"), ("b", "3")],
            ),
        )
        got = reader.message().properties
        assert (got.ContentType, got.ResponseTopic, got.CorrelationData) == ("application/json", "answers/me", b"\xff\0")
        assert got.UserProperty == [("b", "1"), ("a", "2"), ("b", "3")]
        assert 0 < got.MessageExpiryInterval <= 1000 and got.PayloadFormatIndicator == 1


def test_a_request_of_mqtt_is_answered_by_amqp(leveret):
    with leveret.channel() as channel, leveret.client("asker", V5) as asker:
        asker.subscribe("answers/asker", options=SubscribeOptions(qos=1))
        channel.queue_declare("rpc", exclusive=True)
        channel.queue_bind("rpc", "amq.topic", "questions")
        asker.publish(
            "questions", b"?", properties=publish_properties(ResponseTopic="answers/asker", CorrelationData=b"7")
        )
        for _method, properties, _body in channel.consume("rpc", auto_ack=True, inactivity_timeout=PATIENCE):
            answer = pika.BasicProperties(correlation_id=properties.correlation_id, content_type="text/plain")
            channel.basic_publish("amq.topic", properties.reply_to, b"!", answer)
            break
        message = asker.message()
        assert (message.payload, message.properties.CorrelationData) == (b"!", b"7")
        assert message.properties.ContentType == "text/plain"


def test_a_missing_user_is_refused_and_a_missing_client_id_is_assigned(leveret):
    with MqttClient(leveret.mqtt, "nobody", V5, user=None) as client:
        assert client.reason.is_failure
    with leveret.client("", V5) as client:
        assert client.properties.AssignedClientIdentifier


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kind", SERVED)
def test_a_kill_loses_nothing_and_quality_2_is_never_doubled(tmp_path, targets, kind, qos):
    broker = KilledServer(tmp_path, kind=kind, targets=targets)
    client = functools.partial(MqttClient, keep=True)
    with client(broker.port, "reader") as reader:
        reader.subscribe("k", qos)
    sent, accepted = 400, []
    writer = client(broker.port, "writer")
    enough = threading.Event()

    def published(_client, _userdata, mid, *_):
        accepted.append(mid)
        if len(accepted) >= 100:
            enough.set()

    writer.client.on_publish = published
    for number in range(sent):
        writer.client.publish("k", str(number).encode(), qos)
    assert enough.wait(PATIENCE)
    broker.kill()
    try:
        # The client resends its unacknowledged messages.
        assert writer.gone.wait(PATIENCE)
        writer.client.loop_stop()
        writer.client.connect("127.0.0.1", broker.port)
        writer.client.loop_start()
        wait_until(lambda: len(accepted) >= sent)
        writer.close()
        with client(broker.port, "reader") as reader:
            numbers = [int(reader.message().payload)]
            while len(set(numbers)) < sent:
                numbers.append(int(reader.message().payload))
            if qos == 2:
                assert numbers == list(range(sent)), "each of them once, and in order"
    finally:
        broker.stop()
