"""With `compatibility = "4"` AMQP clients do not see a message's MQTT-only properties; MQTT clients do, also after kill -9."""

import pika
import pytest
from paho.mqtt.subscribeoptions import SubscribeOptions

from harness.mqtt_broker import KilledServer
from harness.mqtt_client import V5, MqttClient, publish_properties

LONG = "x" * 300
PAIRS = [("a", "1"), ("b", "2"), ("a", "3")]

# In front of an upstream (docs/compatibility.md).
EXCEPTIONS = {
    "get_all_of_a_message": "a session that lasts is granted QoS 1",
    "has_its_queues_back": "messages of QoS 0 do not wait for a client that is away",
}


@pytest.fixture(params=["leveret", "proxy4"])
def server(request, tmp_path, targets):
    follows = ("--compatibility", "4") if request.param == "leveret" else ()
    server = KilledServer(tmp_path, *follows, kind=request.param, targets=targets)
    yield server
    server.stop()


def test_mqtt_clients_get_all_of_a_message_after_kill_minus_nine(server):
    options = {"keep": True, "expiry": 3600}
    with MqttClient(server.port, "reader", V5, **options) as reader:
        reader.subscribe("t/#", options=SubscribeOptions(qos=2, retainAsPublished=True))
        reader.close()
    with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.queue_bind("q", "amq.topic", "t.#")
    with MqttClient(server.port, "writer", V5) as writer:
        properties = publish_properties(ContentType=LONG, UserProperty=PAIRS, CorrelationData=b"\xff\x00", ResponseTopic="r/s")
        writer.publish("t/x", b"1", 2, retain=True, properties=properties)
    server.kill()
    with MqttClient(server.port, "reader", V5, **options) as reader:
        message = reader.message()
        assert (message.payload, message.qos, message.retain) == (b"1", 2, True)
        told = message.properties
        assert (told.ContentType, told.UserProperty, told.CorrelationData, told.ResponseTopic) == (LONG, PAIRS, b"\xff\x00", "r/s")
    with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
        _, properties, body = connection.channel().basic_get("q", auto_ack=True)
    assert (body, properties.content_type, properties.delivery_mode) == (b"1", None, 2)
    assert properties.headers == {"x-reply-to-topic": "r.s", "x-correlation-id": b"\xff\x00", "a": "1", "b": "2"}


def test_a_persistent_session_has_its_queues_back_after_kill_minus_nine(server):
    options = {"keep": True, "expiry": 3600}
    with MqttClient(server.port, "reader", V5, **options) as reader:
        reader.subscribe([("zero", SubscribeOptions(qos=0)), ("one", SubscribeOptions(qos=1))])
        reader.close()
    server.kill()
    with MqttClient(server.port, "writer", V5) as writer:
        for topic in ("zero", "one"):
            writer.publish(topic, topic.encode(), 1)
    with MqttClient(server.port, "reader", V5, **options) as reader:
        assert reader.session_present
        assert sorted((message.topic, message.qos) for message in reader.take(2)) == [("one", 1), ("zero", 0)]


def test_a_data_directory_of_either_release_is_read_by_the_other(server):
    if server.kind != "leveret":
        pytest.skip("messages and sessions are the upstream's")
    options = {"keep": True, "expiry": 3600}
    for flags, body in ((("--compatibility", "3.10"), b"1"), (("--compatibility", "4"), b"2")):
        with MqttClient(server.port, "reader", V5, **options) as reader:
            reader.subscribe([("zero", SubscribeOptions(qos=0)), ("one", SubscribeOptions(qos=1))])
            reader.close()
        with MqttClient(server.port, "writer", V5) as writer:
            writer.publish("one", body, 1, properties=publish_properties(ContentType="text/plain"))
        server.flags = flags
        server.kill()
        with MqttClient(server.port, "reader", V5, **options) as reader:
            assert reader.session_present
            message = reader.message()
            assert (message.payload, message.qos, message.properties.ContentType) == (body, 1, "text/plain")
            with MqttClient(server.port, "writer", V5) as writer:
                writer.publish("zero", body, 0)
            message = reader.message()
            assert (message.topic, message.payload) == ("zero", body)
