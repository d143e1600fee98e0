"""Guarantees to MQTT clients: bursts are accepted, redeliveries are marked, topics are preserved, browsers find the
listener."""

import struct
import subprocess
from contextlib import closing

import pytest
from paho.mqtt.subscribeoptions import SubscribeOptions

from harness.leveret import ROOT
from harness.mqtt_broker import SERVED, Broker, KilledServer
from harness.mqtt_client import V5, V311, MqttClient
from harness.mqtt_wire import CLEAN, CONNACK, CONNECT, PUBACK, PUBLISH, PUBREC, WITH_LOGIN, MqttWire, encoded, text
from harness.patience import PATIENCE
from harness.websocket import BINARY, CLOSE, FIN, PeerClosed, WebSocketWire, framed

BURST = 5000
# More than a connection handles in one turn, but no more than is read at once.
BEFORE_CLOSE = 3000
WITH_WILL = 0x04
DISCONNECT = 14

# In front of an upstream (docs/compatibility.md).
EXCEPTIONS = {
    "dots_and_slashes_stay_apart": "topics are RabbitMQ's, where they are the same",
    "plain_topics_as_with_rabbitmq_and_dots_as_slashes": "topics are RabbitMQ's, where they are the same",
}


@pytest.fixture(scope="module", params=SERVED)
def broker(request, tmp_path_factory, targets):
    broker = Broker(request.param, tmp_path_factory.mktemp(request.param), targets=targets)
    yield broker
    broker.stop()


def test_a_burst_of_mqttjs_is_taken(broker):
    script = ROOT / "tests" / "websocket" / "mqtt_burst.mjs"
    done = subprocess.run(
        ["node", script, f"mqtt://127.0.0.1:{broker.mqtt}", str(BURST)], capture_output=True, text=True, timeout=3 * PATIENCE
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(BURST)), done.stderr


def test_the_window_is_as_large_as_can_be(broker):
    with MqttClient(broker.mqtt, "window", V5) as client:
        # If omitted, it would have the same value.
        assert getattr(client.properties, "ReceiveMaximum", 65_535) == 65_535


@pytest.mark.parametrize("path", ["/", "/mqtt", "/ws", "/ws/mqtt"])
def test_web_mqtt_is_where_clients_look_for_it(broker, path):
    with MqttClient(broker.web_mqtt, "browser", transport="websockets", path=path) as client:
        client.subscribe("web", 1)
        client.publish("web", path.encode())
        assert client.message().payload == path.encode()


def test_messages_sent_before_a_websocket_close_arrive_but_not_the_will(broker):
    with (
        MqttClient(broker.mqtt, "watcher") as watcher,
        WebSocketWire(broker.web_mqtt, "/ws", Sec_WebSocket_Protocol="mqtt") as browser,
    ):
        watcher.subscribe("last/#", 1)
        head = text("MQTT") + bytes([4, WITH_LOGIN | CLEAN | WITH_WILL]) + struct.pack(">H", 60)
        strings = ["leaving", "last/will", "gone", "guest", "guest"]
        packets = [encoded(CONNECT, head + b"".join(map(text, strings)))]
        packets += [encoded(PUBLISH, text("last/m") + b"%d" % number) for number in range(BEFORE_CLOSE)]
        packets.append(encoded(DISCONNECT, b""))
        browser.send_raw(framed(FIN | BINARY, b"".join(packets)) + framed(FIN | CLOSE, struct.pack(">H", 1000)))
        assert [message.payload for message in watcher.take(BEFORE_CLOSE)] == [b"%d" % n for n in range(BEFORE_CLOSE)]
        with pytest.raises(PeerClosed):
            while True:
                browser.read(1)
        watcher.publish("last/marker")
        assert watcher.message().topic == "last/marker"


@pytest.mark.parametrize("version", [V311, V5])
def test_dots_and_slashes_stay_apart(broker, version):
    with MqttClient(broker.mqtt, "dots", version) as dots, MqttClient(broker.mqtt, "slashes", version) as slashes:
        dots.subscribe("v1.2/+", 1)
        slashes.subscribe("v1/2/+", 1)
        for topic in ("v1.2/x.y", "v1/2/x", "v1.2/end", "v1/2/end"):
            dots.publish(topic, topic.encode())
        assert [message.topic for message in dots.take(2)] == ["v1.2/x.y", "v1.2/end"]
        assert [message.topic for message in slashes.take(2)] == ["v1/2/x", "v1/2/end"]


def test_amqp_clients_see_plain_topics_as_with_rabbitmq_and_dots_as_slashes(broker):
    with broker.channel() as channel, MqttClient(broker.mqtt, "bridge") as client:
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.topic", "hosts.#")
        client.subscribe("hosts/#", 1)
        for topic, key in [("hosts/web1/up", "hosts.web1.up"), ("hosts/web1.example/up", "hosts.web1/example.up")]:
            client.publish(topic, b"1")
            method, _, _ = next(channel.consume(queue, auto_ack=True))
            assert (method.routing_key, client.message().topic) == (key, topic)
            channel.basic_publish("amq.topic", key, b"2")
            assert client.message().topic == topic
            next(channel.consume(queue, auto_ack=True))
        channel.cancel()


def test_each_filter_of_one_subscribe_is_sent_the_retained_message(broker):
    with MqttClient(broker.mqtt, "retained", V5) as client:
        client.publish("kept/a", b"x", retain=True)
        filters = [("kept/a", SubscribeOptions(qos=1)), ("kept/+", SubscribeOptions(qos=0))]
        assert client.subscribe(filters) == [1, 0]
        assert sorted((message.payload, message.qos, message.retain) for message in client.take(2)) == [
            (b"x", 0, True),
            (b"x", 1, True),
        ]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_queue_leaves_a_client_of_3_1_1_connected_and_its_message_unanswered(broker, qos):
    name, topic, answer = f"full{qos}", f"full/{qos}", {1: PUBACK, 2: PUBREC}[qos]
    with broker.channel() as channel, closing(MqttWire(broker.mqtt)) as writer:
        channel.queue_declare(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        channel.queue_bind(name, "amq.topic", topic.replace("/", "."))
        writer.connect("full", user=f"{broker.vhost}:guest")
        assert writer.packet()[0] == CONNACK
        for number, to in enumerate([topic, topic, "other"], 1):
            writer.publish(to, b"x", qos, number)
        # Answers are in the order of the messages.
        assert [writer.expect(answer) for _ in range(2)] == [1, 3]
        channel.queue_purge(name)
        writer.publish(topic, b"y", qos, 2, dup=True)
        assert writer.expect(answer) == 2
        assert channel.basic_get(name, auto_ack=True)[2] == b"y"
        channel.queue_delete(name)


@pytest.mark.parametrize("kind", SERVED)
@pytest.mark.parametrize("version", [V311, V5])
def test_messages_resent_after_a_restart_have_the_dup_flag(tmp_path, targets, version, kind):
    server = KilledServer(tmp_path, kind=kind, targets=targets)
    options = {"keep": True, "manual_ack": True, "expiry": 3600 if version == V5 else None}
    try:
        with MqttClient(server.port, "reader", version, **options) as reader, MqttClient(server.port, "writer") as writer:
            reader.subscribe("t", 1)
            writer.publish("t", b"1")
            assert not reader.message().dup
            # Its confirm is written after the record that the first was sent.
            writer.publish("t", b"2")
            assert not reader.message().dup
            writer.publish("other", b"3")
            server.kill()
        with MqttClient(server.port, "reader", version, **options) as reader:
            assert reader.session_present
            assert [(message.payload, message.dup) for message in reader.take(2)] == [(b"1", True), (b"2", True)]
        with MqttClient(server.port, "reader", version, **options) as reader:
            assert [(message.payload, message.dup) for message in reader.take(2)] == [(b"1", True), (b"2", True)]
    finally:
        server.stop()


@pytest.mark.parametrize("kind", SERVED)
def test_the_server_sets_the_keep_alive_of_those_that_ask_for_more(tmp_path, targets, kind):
    server = KilledServer(tmp_path, "--mqtt-keep-alive-max", "7s", kind=kind, targets=targets)
    try:
        with MqttClient(server.port, "quiet", V5) as client:
            assert client.properties.ServerKeepAlive == 7
    finally:
        server.stop()


@pytest.mark.parametrize("kind", ["rabbitmq", *SERVED])
def test_the_queue_of_a_session_expires_with_it(tmp_path, targets, kind):
    broker = Broker(kind, tmp_path, targets=targets)
    try:
        with MqttClient(broker.mqtt, "away", keep=True) as client:
            client.subscribe("t", 1)
        with broker.channel() as channel:
            name, arguments = "mqtt-subscription-awayqos1", {"x-expires": 86_400_000}
            # Any other value would cause 406.
            assert channel.queue_declare(name, durable=True, arguments=arguments).method.queue == name
    finally:
        broker.stop()
