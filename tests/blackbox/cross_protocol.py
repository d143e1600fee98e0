"""AMQP, MQTT and STOMP clients hear each other, in all six directions: contents, properties and qualities, on Leveret and on
RabbitMQ with its plugins. MQTT's topic a/b is AMQP's key a.b on amq.topic, and STOMP's destination /topic/a.b."""


import pika
import pytest
from paho.mqtt.subscribeoptions import SubscribeOptions

from harness.mqtt_broker import SERVED, Broker
from harness.mqtt_client import V5, V311, MqttClient, publish_properties
from harness.patience import PATIENCE
from harness.stomp_client import Client as StompClient

EXCHANGE = "amq.topic"
BODIES = {"nothing": b"", "text": "größe 🐇".encode(), "bytes": bytes(range(256)) * 3, "large": b"x" * 300_000}
DIRECTIONS = [(one, other) for one in ("amqp", "mqtt", "stomp") for other in ("amqp", "mqtt", "stomp") if one != other]

FORM_OF_4 = "in front of a RabbitMQ 4 messages have its form"
# In front of an upstream (docs/compatibility.md).
EXCEPTIONS = {
    "messages_confirmed_in_each_protocol_survive_kill_9": "a session that lasts is granted QoS 1",
    "from_amqp_to_mqtt_the_subscription_says_the_quality[proxy4-1-1]": FORM_OF_4,
    "from_mqtt_to_amqp_the_qos_is_in_headers_and_delivery_mode[proxy4-": FORM_OF_4,
    "from_mqtt_to_stomp_the_qos_is_in_headers[proxy4-": FORM_OF_4,
    "from_stomp_to_mqtt_the_subscription_says_the_quality[proxy4-false-1]": FORM_OF_4,
    "messages_unacknowledged_by_an_mqtt_client_are_redelivered[proxy4]": FORM_OF_4,
    "from_mqtt_to_amqp_properties_arrive[proxy4]": FORM_OF_4,
    "from_mqtt_to_stomp_properties_arrive[proxy4]": FORM_OF_4,
    "from_amqp_to_mqtt_properties_arrive[proxy4]": FORM_OF_4,
    "a_request_goes_round_three_protocols[proxy4]": FORM_OF_4,
}


@pytest.fixture(scope="module", params=["rabbitmq", *SERVED])
def broker(request, tmp_path_factory, targets):
    broker = Broker(request.param, tmp_path_factory.mktemp(request.param), targets=targets)
    yield broker
    broker.stop()


@pytest.fixture(scope="module", params=SERVED)
def leveret(request, tmp_path_factory, targets):
    """Only servers that support MQTT 5.0."""
    broker = Broker(request.param, tmp_path_factory.mktemp(request.param), targets=targets)
    yield broker
    broker.stop()


@pytest.fixture
def key(request):
    """A unique routing key for the test."""
    return "key." + "".join(character if character.isalnum() else "-" for character in request.node.name)[:150]


class Amqp:
    """A queue bound to the key."""

    def __init__(self, broker, key, name=""):
        self.key = key
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.uri))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.queue = self.channel.queue_declare(name, exclusive=not name, durable=bool(name)).method.queue
        self.channel.queue_bind(self.queue, EXCHANGE, key)
        self.messages = self.channel.consume(self.queue, auto_ack=True, inactivity_timeout=PATIENCE)

    def send(self, body, **properties):
        self.channel.basic_publish(EXCHANGE, self.key, body, pika.BasicProperties(**properties))

    def receive(self):
        method, properties, body = next(self.messages)
        assert method, "nothing came"
        return method, properties, body

    def body(self):
        return self.receive()[2]

    def close(self):
        self.connection.close()


class Mqtt:
    def __init__(self, broker, key, version=V311, qos=1, name="", **options):
        self.topic = key.replace(".", "/")
        self.client = MqttClient(broker.mqtt, name or f"client-{key}"[-200:], version, **options)
        assert self.client.subscribe(self.topic, options=SubscribeOptions(qos=qos)) == [qos] if version == V5 else (
            self.client.subscribe(self.topic, qos) == [qos]
        )

    def send(self, body, qos=1, **properties):
        properties = publish_properties(**properties) if properties else None
        self.client.publish(self.topic, body, qos, properties=properties)

    def receive(self):
        return self.client.message()

    def body(self):
        return self.receive().payload

    def close(self):
        self.client.close()


class Stomp:
    def __init__(self, broker, key, **options):
        self.destination = f"/topic/{key}"
        self.client = StompClient(broker.stomp, vhost=broker.vhost, binary=True)
        self.client.subscribe(self.destination, **options)

    def send(self, body, **headers):
        self.client.send(self.destination, body, **headers)

    def receive(self):
        return self.client.message(PATIENCE)

    def body(self):
        body = self.receive().body
        return body if isinstance(body, bytes) else body.encode()

    def close(self):
        self.client.close()


KINDS = {"amqp": Amqp, "mqtt": Mqtt, "stomp": Stomp}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(("one", "other"), DIRECTIONS)
def test_messages_sent_over_one_protocol_are_received_over_another(broker, key, one, other, body):
    sender, receiver = KINDS[one](broker, key), KINDS[other](broker, key)
    for _ in range(3):
        sender.send(BODIES[body])
    assert [receiver.body() for _ in range(3)] == [BODIES[body]] * 3
    sender.close()
    receiver.close()


@pytest.mark.parametrize(("one", "other"), DIRECTIONS)
def test_messages_stay_in_order(broker, key, one, other):
    sender, receiver = KINDS[one](broker, key), KINDS[other](broker, key)
    for number in range(50):
        sender.send(str(number).encode())
    assert [int(receiver.body()) for _ in range(50)] == list(range(50))
    sender.close()
    receiver.close()


@pytest.mark.parametrize("granted", [0, 1])
@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_from_amqp_to_mqtt_the_subscription_says_the_quality(broker, key, delivery_mode, granted):
    sender, receiver = Amqp(broker, key), Mqtt(broker, key, qos=granted)
    sender.send(b"x", delivery_mode=delivery_mode)
    message = receiver.receive()
    assert (message.topic, message.qos, message.retain, message.dup) == (receiver.topic, granted, False, False)
    sender.close()
    receiver.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_from_mqtt_to_amqp_the_qos_is_in_headers_and_delivery_mode(broker, key, qos):
    sender, receiver = Mqtt(broker, key), Amqp(broker, key)
    sender.send(b"x", qos=qos)
    method, properties, _ = receiver.receive()
    assert (method.exchange, method.routing_key, method.redelivered) == (EXCHANGE, key, False)
    # RabbitMQ downgrades QoS 2 to 1.
    told = min(qos, 1) if broker.kind == "rabbitmq" else qos
    assert properties.headers == {"x-mqtt-publish-qos": told, "x-mqtt-dup": False}
    assert properties.delivery_mode == (1 if qos == 0 else 2)
    sender.close()
    receiver.close()


@pytest.mark.parametrize("qos", [0, 1])
def test_from_mqtt_to_stomp_the_qos_is_in_headers(broker, key, qos):
    sender, receiver = Mqtt(broker, key), Stomp(broker, key)
    sender.send(b"x", qos=qos)
    headers = receiver.receive().headers
    if broker.kind != "rabbitmq":
        # RabbitMQ's STOMP adapter omits bytes and booleans (docs/compatibility.md).
        assert (headers["x-mqtt-publish-qos"], headers["x-mqtt-dup"]) == (str(qos), "false")
    # RabbitMQ reports the delivery mode of transient messages.
    transient = "1" if broker.kind == "rabbitmq" else None
    assert headers.get("persistent") == (transient if qos == 0 else "true")
    assert (headers["destination"], headers["subscription"]) == (f"/topic/{key}", "1")
    assert (headers["redelivered"], headers["content-length"]) == ("false", "1")
    sender.close()
    receiver.close()


@pytest.mark.parametrize("granted", [0, 1])
@pytest.mark.parametrize("persistent", ["true", "false"])
def test_from_stomp_to_mqtt_the_subscription_says_the_quality(broker, key, persistent, granted):
    sender, receiver = Stomp(broker, key), Mqtt(broker, key, qos=granted)
    sender.send("x", persistent=persistent)
    message = receiver.receive()
    assert (message.topic, message.qos, message.retain) == (receiver.topic, granted, False)
    sender.close()
    receiver.close()


# A property by its name in each protocol; its value is text in all of them.
SHARED = [
    ("content_type", "content-type", "text/plain"),
    ("content_encoding", "content-encoding", "identity"),
    ("correlation_id", "correlation-id", "c-1"),
    ("expiration", "expiration", "600000"),
    ("message_id", "amqp-message-id", "m-1"),
    ("type", "type", "greeting"),
    ("user_id", "user-id", "guest"),
    ("app_id", "app-id", "tests"),
]


def test_from_amqp_to_stomp_properties_and_headers_arrive(broker, key):
    sender, receiver = Amqp(broker, key), Stomp(broker, key)
    own = {"text": "a:b\nc\\d", "number": -5, "yes": True, "nothing": None, "table": {"a": 1}, "list": [1]}
    given = {amqp: value for amqp, _, value in SHARED}
    sender.send(b"x", delivery_mode=2, priority=3, timestamp=1700000000, reply_to="answers", headers=own, **given)
    headers = receiver.receive().headers
    expected = {stomp: value for _, stomp, value in SHARED}
    expected |= {"persistent": "true", "priority": "3", "timestamp": "1700000000", "reply-to": "/reply-queue/answers"}
    expected |= {"text": "a:b\nc\\d", "number": "-5"}
    if broker.kind != "rabbitmq":
        expected["yes"] = "true"
    assert {name: headers.get(name) for name in expected} == expected
    assert not {"table", "list"} & set(headers), "they have no form in STOMP"
    sender.close()
    receiver.close()


def test_from_stomp_to_amqp_properties_and_headers_arrive(broker, key):
    sender, receiver = Stomp(broker, key), Amqp(broker, key)
    given = {stomp: value for _, stomp, value in SHARED}
    sender.client.do(
        "send",
        sender.destination,
        b"x",
        headers={**given, "persistent": "true", "priority": "3", "timestamp": "1700000000", "x-own": "a:b\nc\\d"},
    )
    method, properties, _ = receiver.receive()
    assert (method.exchange, method.routing_key) == (EXCHANGE, key)
    assert {amqp: getattr(properties, amqp) for amqp, _, _ in SHARED} == {amqp: value for amqp, _, value in SHARED}
    assert (properties.delivery_mode, properties.priority, properties.timestamp) == (2, 3, 1700000000)
    assert properties.headers["x-own"] == "a:b\nc\\d"
    sender.close()
    receiver.close()


# MQTT 5.0 properties, which RabbitMQ 3.10 does not support.
PROPERTIES = {
    "ContentType": "text/plain",
    "ResponseTopic": "answers/me",
    "CorrelationData": b"c-1",
    "MessageExpiryInterval": 600,
    "PayloadFormatIndicator": 1,
    "UserProperty": [("unit", "°C"), ("site", "a:b")],
}


def test_from_mqtt_to_amqp_properties_arrive(leveret, key):
    sender, receiver = Mqtt(leveret, key, V5), Amqp(leveret, key)
    sender.send(b"x", **PROPERTIES)
    _, properties, _ = receiver.receive()
    assert (properties.content_type, properties.reply_to) == ("text/plain", "answers.me")
    assert (properties.correlation_id, properties.expiration) == ("c-1", "600000")
    told = {"unit": "°C", "site": "a:b", "x-mqtt-payload-format-indicator": True, "x-mqtt-publish-qos": 1, "x-mqtt-dup": False}
    assert properties.headers == told
    sender.close()
    receiver.close()


def test_from_mqtt_to_stomp_properties_arrive(leveret, key):
    sender, receiver = Mqtt(leveret, key, V5), Stomp(leveret, key)
    sender.send(b"x", **PROPERTIES)
    headers = receiver.receive().headers
    expected = {
        "content-type": "text/plain",
        # The reply address, in the form that a STOMP client can use.
        "reply-to": "/reply-queue/answers.me",
        "correlation-id": "c-1",
        "expiration": "600000",
        "unit": "°C",
        "site": "a:b",
    }
    assert {name: headers.get(name) for name in expected} == expected
    sender.close()
    receiver.close()


def check_mqtt_5(message):
    properties = message.properties
    assert (properties.ContentType, properties.CorrelationData) == ("text/plain", b"c-1")
    assert 0 < properties.MessageExpiryInterval <= 600
    assert ("unit", "°C") in properties.UserProperty


def test_from_amqp_to_mqtt_properties_arrive(leveret, key):
    sender, receiver = Amqp(leveret, key), Mqtt(leveret, key, V5)
    headers = {"unit": "°C", "number": 5, "yes": True, "table": {"a": 1}}
    given = {"content_type": "text/plain", "correlation_id": "c-1", "reply_to": "answers.me", "expiration": "600000"}
    sender.send(b"x", headers=headers, **given)
    message = receiver.receive()
    check_mqtt_5(message)
    assert message.properties.ResponseTopic == "answers/me"
    assert sorted(message.properties.UserProperty) == [("number", "5"), ("unit", "°C"), ("yes", "true")]
    sender.close()
    receiver.close()


def test_from_stomp_to_mqtt_properties_arrive(leveret, key):
    sender, receiver = Stomp(leveret, key), Mqtt(leveret, key, V5)
    given = {"content_type": "text/plain", "correlation_id": "c-1", "expiration": "600000", "unit": "°C"}
    sender.send("x", **given)
    check_mqtt_5(receiver.receive())
    sender.close()
    receiver.close()


def test_retained_mqtt_publishes_are_delivered_live_to_amqp_and_stomp(broker, key):
    amqp, stomp = Amqp(broker, key), Stomp(broker, key)
    writer = Mqtt(broker, key)
    writer.client.publish(writer.topic, b"kept", 1, retain=True)
    assert (amqp.body(), stomp.body()) == (b"kept", b"kept")
    late = Mqtt(broker, key, name=f"late-{key}"[-200:])
    message = late.receive()
    assert (message.payload, message.retain) == (b"kept", True)
    writer.client.publish(writer.topic, b"", 1, retain=True)
    for client in (amqp, stomp, writer, late):
        client.close()


def test_the_will_of_an_mqtt_client_reaches_the_others(broker, key):
    amqp, stomp = Amqp(broker, key), Stomp(broker, key)
    topic = key.replace(".", "/")
    MqttClient(broker.mqtt, f"mortal-{key}"[-200:], will=(topic, b"gone", 1)).vanish()
    assert (amqp.body(), stomp.body()) == (b"gone", b"gone")
    amqp.close()
    stomp.close()


def test_messages_unacknowledged_by_a_stomp_client_are_redelivered(broker, key):
    durable = {"id": "kept", "durable": "true", "auto_delete": "false", "ack": "client-individual"}
    sender, receiver = Mqtt(broker, key), Stomp(broker, key, **durable)
    sender.send(b"1")
    sender.send(b"2")
    first, _ = receiver.receive(), receiver.receive()
    receiver.client.acknowledge(first)
    receiver.client.do("disconnect")
    again = Stomp(broker, key, **durable)
    frame = again.receive()
    assert (frame.body, frame.headers["redelivered"]) == (b"2", "true")
    again.client.acknowledge(frame)
    again.client.do("unsubscribe", "kept", headers={"durable": "true"})
    sender.close()
    again.close()


def test_messages_unacknowledged_by_an_mqtt_client_are_redelivered(broker, key):
    name = f"slow-{key}"[-200:]
    receiver = Mqtt(broker, key, name=name, keep=True, manual_ack=True)
    amqp, stomp = Amqp(broker, key), Stomp(broker, key)
    amqp.send(b"amqp")
    assert receiver.body() == b"amqp"
    stomp.send(b"stomp")
    assert receiver.body() == b"stomp"
    receiver.close()
    again = MqttClient(broker.mqtt, name, keep=True)
    assert {again.message().payload, again.message().payload} == {b"amqp", b"stomp"}
    again.close()
    MqttClient(broker.mqtt, name).close()
    amqp.close()
    stomp.close()


def test_a_request_goes_round_three_protocols(leveret, key):
    """A sensor sends a request over MQTT, a STOMP page forwards it, and an AMQP service answers."""
    asker = MqttClient(leveret.mqtt, "asker", V5)
    asker.subscribe("answers/asker", options=SubscribeOptions(qos=1))
    page, service = Stomp(leveret, key), Amqp(leveret, f"{key}.service")
    properties = publish_properties(ResponseTopic="answers/asker", CorrelationData=b"7")
    asker.publish(key.replace(".", "/"), b"?", properties=properties)
    frame = page.receive()
    reply_to = frame.headers["reply-to"].removeprefix("/reply-queue/")
    headers = {"reply-to": reply_to, "correlation-id": frame.headers["correlation-id"]}
    page.client.do("send", f"/topic/{key}.service", frame.body, headers=headers)
    _, question, body = service.receive()
    answer = pika.BasicProperties(correlation_id=question.correlation_id)
    service.channel.basic_publish(EXCHANGE, question.reply_to, body + b"!", answer)
    message = asker.message()
    assert (message.payload, message.properties.CorrelationData) == (b"?!", b"7")
    for client in (asker, page, service):
        client.close()


@pytest.mark.parametrize("kind", SERVED)
def test_messages_confirmed_in_each_protocol_survive_kill_9(tmp_path, targets, kind):
    """After a confirm, a PUBACK, a PUBCOMP and a receipt the process is killed; all durable subscribers get all messages."""
    broker = Broker(kind, tmp_path, targets=targets)
    key = "survivors"
    durable = {"id": "kept", "durable": "true", "auto_delete": "false"}
    amqp, mqtt = Amqp(broker, key, "survivors"), Mqtt(broker, key, name="keeper", keep=True, qos=2)
    stomp = Stomp(broker, key, **durable)
    mqtt.close()
    stomp.client.do("disconnect")
    expected = []
    writer = MqttClient(broker.mqtt, "writer")
    sender = StompClient(broker.stomp, vhost=broker.vhost)
    for number in range(20):
        amqp.send(f"amqp {number}".encode(), delivery_mode=2)
        for qos in (1, 2):
            writer.publish(key, f"mqtt {number} at {qos}", qos)
        sender.send(f"/topic/{key}", f"stomp {number}", persistent="true")
        expected += [f"amqp {number}", f"mqtt {number} at 1", f"mqtt {number} at 2", f"stomp {number}"]
    broker.kill()
    try:
        amqp = Amqp(broker, key, "survivors")
        assert [amqp.body().decode() for _ in expected] == expected
        mqtt = MqttClient(broker.mqtt, "keeper", keep=True)
        # paho delivers QoS 2 messages once they are released, after messages that arrived later.
        assert sorted(mqtt.message().payload.decode() for _ in expected) == sorted(expected)
        stomp = Stomp(broker, key, **durable)
        assert [stomp.body().decode() for _ in expected] == expected
        # A duplicate would come before this message.
        again = MqttClient(broker.mqtt, "writer")
        again.publish(key, "marker", 2)
        assert mqtt.message().payload == b"marker"
        again.close()
        for client in (amqp, mqtt, stomp):
            client.close()
        broker.stop()
    finally:
        broker.server.child.kill()
