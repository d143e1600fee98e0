"""Retained messages in front of RabbitMQ: every Leveret has the same ones, also after restarts, and no subscriber misses the
newest."""

import contextlib
import itertools
import signal
import threading

import pytest
from pika import BasicProperties
from pika.exceptions import ConnectionClosedByBroker

from harness.leveret import Leveret
from harness.metrics import wait_until
from harness.mqtt5_wire import Mqtt5Wire
from harness.mqtt_broker import ANY, listening
from harness.mqtt_client import V5, V311, MqttClient, publish_properties
from harness.mqtt_pool import MqttPool, pool
from harness.patience import PATIENCE
from harness.releases import missing, release

# Fixtures of these tests.
__all__ = ["pool"]

VERSIONS = [V311, V5]
LOG = "leveret.mqtt.retained"
# MQTT 5.0 reason codes.
NOT_AUTHORIZED, RETAIN_NOT_SUPPORTED = 0x87, 0x9A
TOPICS = itertools.count()
# Repetitions of a race.
ROUNDS = 200


@pytest.fixture
def other(pool):
    """Another Leveret, started with the test."""
    server = pool.another(f"other{next(TOPICS)}")
    yield listening(server, "mqtt", "mqtt")
    server.child.kill()


@pytest.fixture
def topic():
    """A topic for the test."""
    return f"t{next(TOPICS)}"


def received(port, filters, version=V311, qos=1):
    """The messages that a new subscriber receives, up to a marker message."""
    end = f"end/{next(TOPICS)}"
    with MqttClient(port, f"reader{end}", version) as reader:
        # QoS 2 messages are delivered once released, QoS 1 messages at once.
        reader.subscribe([(name, qos) for name in [*filters, end]])
        reader.publish(end, qos=qos)
        messages = []
        while (message := reader.message()).topic != end:
            messages.append(message)
        return messages


def retained(port, filters, version=V311, qos=1):
    """The messages that a new subscriber receives, all of them retained."""
    messages = received(port, filters, version, qos)
    assert all(message.retain for message in messages)
    return sorted((message.topic, message.payload, message.qos) for message in messages)


def retain(pool, topic, payload=b"", qos=1, version=V311, **options):
    with pool.client(f"writer{next(TOPICS)}", version) as writer:
        writer.publish(topic, payload, qos, retain=True, **options)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_last_message_of_a_topic_is_for_later_subscribers_of_every_leveret(pool, other, topic, version):
    for port in (pool.mqtt, other):
        assert retained(port, [f"{topic}/#"], version) == []
    for payload, qos in ((b"1", 0), (b"2", 1), (b"3", 2)):
        retain(pool, f"{topic}/a", payload, qos, version)
        # An acknowledged message is retained. One of QoS 0 may still be in flight, and a waiting subscriber may receive it as a
        # live message.
        if not qos:
            wait_until(lambda: [message.retain for message in received(other, [f"{topic}/a"], version, 2)] == [True])
        else:
            for port in (pool.mqtt, other):
                for name in (f"{topic}/a", f"{topic}/+", f"{topic}/#"):
                    assert retained(port, [name], version, 2) == [(f"{topic}/a", payload, qos)]
    retain(pool, f"{topic}/b", b"b", version=version)
    assert retained(other, [f"{topic}/+"], version, 0) == [(f"{topic}/a", b"3", 0), (f"{topic}/b", b"b", 0)]
    retain(pool, f"{topic}/a", version=version)
    for port in (pool.mqtt, other):
        assert retained(port, [f"{topic}/#"], version) == [(f"{topic}/b", b"b", 1)]
    retain(pool, f"{topic}/b", version=version)


def test_a_leveret_that_starts_later_has_all_that_is_retained(pool, topic):
    with pool.client("many") as writer:
        for number in range(300):
            for payload in (b"old", b"new"):
                writer.client.publish(f"{topic}/{number}", payload, 1, retain=True)
        writer.publish(f"{topic}/0", b"", 1, retain=True)
    late = pool.another(f"late{topic}")
    try:
        found = retained(listening(late, "mqtt", "mqtt"), [f"{topic}/#"])
        assert found == sorted((f"{topic}/{number}", b"new", 1) for number in range(1, 300))
    finally:
        late.child.kill()


def test_retain_handling_and_subscription_identifiers_are_those_of_the_protocol(pool, topic):
    retain(pool, topic, b"x")
    wire = Mqtt5Wire(pool.mqtt)
    assert "RetainAvailable" not in wire.connect(f"wire{topic}")
    # Retain handling is in bits 4 and 5: 0 always, 1 for a new subscription, 2 never.
    for options, count in ((0x01, 1), (0x01, 1), (0x11, 0), (0x21, 0)):
        assert wire.subscribe((topic, options), SubscriptionIdentifier=7)["reasons"] == [1]
        packets = wire.ping()
        assert [(packet["body"], packet["retain"], packet["SubscriptionIdentifier"]) for packet in packets] == [(b"x", 1, [7])] * count
    wire.unsubscribe(topic)
    wire.subscribe((topic, 0x11))
    assert len(wire.ping()) == 1
    wire.close()


def test_properties_of_a_retained_message_are_those_of_the_publisher(pool, other, topic):
    properties = publish_properties(
        ContentType="text/plain", ResponseTopic="answers/me", CorrelationData=b"\xff\0", PayloadFormatIndicator=1,
        UserProperty=[("b", "1"), ("a", "2"), ("b", "3"), ("BCC", "4"), ("x-leveret-retained", "5")],
    )
    retain(pool, topic, b"x", version=V5, properties=properties)
    for port in (pool.mqtt, other):
        with MqttClient(port, f"reader{topic}{port}", V5) as reader:
            reader.subscribe(topic, 1)
            assert reader.message().properties.json() == properties.json()


def test_an_expired_message_is_not_retained(pool, other, topic):
    retain(pool, f"{topic}/short", b"x", version=V5, properties=publish_properties(MessageExpiryInterval=1))
    retain(pool, f"{topic}/long", b"x", version=V5, properties=publish_properties(MessageExpiryInterval=3600))
    wait_until(lambda: retained(other, [f"{topic}/#"]) == [(f"{topic}/long", b"x", 1)])
    with MqttClient(other, f"reader{topic}", V5) as reader:
        reader.subscribe(f"{topic}/long", 1)
        assert 3000 < reader.message().properties.MessageExpiryInterval <= 3600


@pytest.mark.parametrize("version", VERSIONS)
def test_a_will_is_retained_if_it_is_to_be(pool, other, topic, version):
    client = pool.client(f"mortal{topic}", version, will=(topic, b"gone", 1, True))
    with pool.client(f"witness{topic}") as witness:
        witness.subscribe(topic, 1)
        client.vanish()
        assert witness.message().payload == b"gone"
    for port in (pool.mqtt, other):
        assert retained(port, [topic]) == [(topic, b"gone", 1)]


def test_no_subscriber_is_left_with_an_old_message(pool, other, topic):
    """The writer continues while subscribers come: each receives everything from the retained message on, possibly preceded
    by live ones."""
    rounds = 60
    over = threading.Event()
    last = itertools.count(1)

    def write():
        with pool.client(f"writer{topic}") as writer:
            while not over.is_set():
                writer.publish(topic, str(next(last)).encode(), 1, retain=True)
            writer.publish(topic, b"end", 1, retain=True)

    retain(pool, topic, b"0")
    writing = threading.Thread(target=write)
    writing.start()
    readers = []
    try:
        for number in range(rounds):
            qos = number % 2
            reader = MqttClient((pool.mqtt, other)[number // 2 % 2], f"reader{topic}{number}", VERSIONS[number // 4 % 2])
            readers.append(reader)
            assert reader.subscribe(topic, qos) == [qos]
    finally:
        over.set()
        writing.join()
    for reader in readers:
        seen = [reader.message()]
        while seen[-1].payload != b"end":
            seen.append(reader.message())
        first = [int(message.payload) for message in seen[:-1] if message.retain]
        live = [int(message.payload) for message in seen[:-1] if not message.retain]
        assert live == list(range(live[0], live[0] + len(live))) if live else first
        # At most one. A faster live message comes instead of it. Only one message after it may be missing: the one that
        # RabbitMQ was routing when the client subscribed (docs/mqtt-and-stomp.md).
        assert len(first) <= 1 and all(not live or live[0] <= number + 2 for number in first), (first, live)
        reader.close()


def test_a_race_of_one_message_and_one_subscriber_leaves_it_with_the_message(pool, other, topic):
    """In each round a message is replaced while a client subscribes; a message on another topic ends the round."""
    missed = []
    with pool.client(f"writer{topic}") as writer, MqttClient(other, f"reader{topic}") as reader:
        reader.subscribe(f"{topic}/end", 1)
        for number in range(ROUNDS):
            name = f"{topic}/{number}"
            writer.publish(name, b"old", 1, retain=True)
            info = writer.client.publish(name, b"new", 1, retain=True)
            reader.subscribe(name, 1)
            info.wait_for_publish(PATIENCE)
            writer.publish(f"{topic}/end", b"", 1)
            seen = []
            while (message := reader.message()).topic == name:
                seen.append(message.payload)
            assert seen[-1:] in ([b"new"], [b"old"]) and len(seen) <= 2, (number, seen)
            if seen == [b"old"]:
                missed.append(number)
            reader.unsubscribe(name)
            writer.publish(name, b"", 1, retain=True)
    # RabbitMQ enqueues a message to one queue after the other, the stream last: one of thousands of rounds hits that interval.
    assert len(missed) <= ROUNDS // 50, missed


def test_queues_of_amqp_get_each_message_once_and_none_by_the_logs_key(pool, topic):
    patterns = ["#", "*", "*.#", "*.*", "*.b", "#.b", "#.b.#", f"{topic}.#", f"{topic}.*", f"{topic}.b", "%*", "%*.b", "%*.#"]
    expected = {"#", "*.#", "*.*", "*.b", "#.b", "#.b.#", f"{topic}.#", f"{topic}.*", f"{topic}.b"}
    with pool.channel() as channel:
        queues = {pattern: channel.queue_declare("", exclusive=True).method.queue for pattern in patterns}
        for pattern, queue in queues.items():
            channel.queue_bind(queue, "amq.topic", pattern)
        for retain_it in (True, False):
            with pool.client(f"writer{topic}") as writer:
                writer.publish(f"{topic}/b", b"x", 1, retain=retain_it)
            got = {}
            for pattern, queue in queues.items():
                while (answer := channel.basic_get(queue, auto_ack=True))[0] is not None:
                    method, properties, body = answer
                    assert (method.exchange, method.routing_key, body) == ("amq.topic", f"{topic}.b", b"x")
                    assert "BCC" not in (properties.headers or {})
                    got[pattern] = got.get(pattern, 0) + 1
            assert got == dict.fromkeys(expected, 1)


def test_entries_that_somebody_else_has_written_do_no_harm(pool, other, topic):
    """Any client with write access to the exchanges can write to the log: invalid entries are skipped, and hide nothing."""
    version = (2**63).to_bytes(8, "big")
    headers = [
        None, {}, {"x-leveret-retained": "text"}, {"x-leveret-retained": b""}, {"x-leveret-retained": b"\xfc"},
        {"x-leveret-retained": b"\xfc\x03" + bytes(8)}, {"x-leveret-retained": b"\xfc\x01" + bytes(8) + b"\xff" * 9},
        {"x-leveret-retained": b"\xfd" + version + b"\x01" + bytes(8)}, {"x-leveret-retained": b"\xfe" + version},
        {"x-leveret-retained": b"\xff" + bytes(16)}, {"x-leveret-retained": b"\xff" * 40},
    ]
    # The first client creates the exchange.
    assert retained(other, [f"{topic}/#"]) == []
    with pool.channel() as channel:
        for own in headers:
            for exchange, key in (("amq.topic", f"{topic}.a"), (LOG, f"{topic}.a"), (LOG, "#.+"), ("", LOG)):
                copies = {"BCC": [f"%leveret-retained.{number}" for number in range(3)]}
                channel.basic_publish(exchange, key, b"forged", BasicProperties(headers=(own or {}) | copies))
    # Names and strings that are not UTF-8, and publisher-defined offsets.
    for properties in (
        BasicProperties(content_type=b"\xff\xfe", content_encoding=b"\xff"),
        BasicProperties(content_type=b"\xff\xfe", headers={"x-stream-offset": 2**40}),
        BasicProperties(headers={b"\xff\xfe": b"\xff"}),
        BasicProperties(headers={"x-stream-offset": "text"}),
        BasicProperties(message_id=b"\xff", correlation_id=b"\xff", reply_to=b"\xff", app_id=b"\xff"),
    ):
        for exchange, key in (("amq.topic", "%leveret-retained.x"), (LOG, "")):
            # RabbitMQ 4 closes the connection for some of them.
            with contextlib.suppress(ConnectionClosedByBroker), pool.channel() as channel:
                channel.basic_publish(exchange, key, b"forged", properties)
                channel.queue_declare("", exclusive=True)
    assert retained(other, [f"{topic}/#"]) == []
    retain(pool, f"{topic}/a", b"true")
    for port in (pool.mqtt, other):
        assert retained(port, [f"{topic}/#"]) == [(f"{topic}/a", b"true", 1)]


def test_without_a_login_that_may_have_the_log_nothing_is_retained(pool, topic):
    vhost, user = f"v{topic}", f"u{topic}"
    for command in (
        ("add_vhost", vhost),
        ("add_user", user, user),
        ("set_permissions", "-p", vhost, user, "^mqtt-.*", ".*", "^(amq.topic|mqtt-.*)$"),
        ("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*"),
    ):
        pool.rabbitmq.control(*command)
    mine = {"user": f"{vhost}:{user}", "password": user}
    wire = Mqtt5Wire(pool.mqtt)
    assert wire.connect(f"wire{topic}", **mine)["RetainAvailable"] == 0
    wire.publish("a", b"x", qos=0, retain=True)
    assert wire.answer()["reason"] == RETAIN_NOT_SUPPORTED
    wire.close()
    mortal = Mqtt5Wire(pool.mqtt)
    assert mortal.connect(f"mortal{topic}", will=("a", b"", 0, True, {}), **mine)["reason"] == RETAIN_NOT_SUPPORTED
    with pool.client(f"plain{topic}", **mine) as plain:
        assert plain.subscribe("a", 1) == [1]
        plain.publish("a", b"x", 1, retain=True)
        assert plain.message().payload == b"x"
        # With a login that is permitted to, it appears to all.
        with pool.client(f"guest{topic}", user=f"{vhost}:guest") as guest:
            guest.publish("b", b"y", 1, retain=True)
            plain.publish("c", b"z", 1, retain=True)
            plain.subscribe([("b", 1), ("c", 1)])
            assert {(message.topic, message.payload) for message in plain.take(2)} == {("b", b"y"), ("c", b"z")}


def test_topic_permissions_are_asked_for_the_logs_key_by_rabbitmq_4(pool, topic):
    allowed, refused = f"allowed{topic}", f"refused{topic}"
    for user, pattern in ((allowed, f"^({topic}|%leveret-retained)"), (refused, f"^{topic}")):
        pool.rabbitmq.control("add_user", user, user)
        pool.rabbitmq.control("set_permissions", user, ".*", ".*", ".*")
        pool.rabbitmq.control("set_topic_permissions", user, "amq.topic", pattern, ".*")
    for user, reason in ((allowed, 0), (refused, NOT_AUTHORIZED if pool.version == "4" else 0)):
        wire = Mqtt5Wire(pool.mqtt)
        wire.connect(user, user=user, password=user)
        assert wire.publish(f"{topic}/a", user.encode(), retain=True)["reason"] == reason
        if not reason:
            assert retained(pool.mqtt, [f"{topic}/#"]) == [(f"{topic}/a", user.encode(), 1)]
        wire.close()


def test_all_is_there_after_all_have_started_again(tmp_path):
    # RabbitMQ 4.3.6 does not find a stream again if it is killed just after the declaration.
    pool = MqttPool(release().name, tmp_path)
    servers = [pool.server]
    try:
        retain(pool, "stays", b"1")
        retain(pool, "goes", b"1")
        with pool.client("waits") as waits:
            waits.subscribe("later", 1)
            pool.rabbitmq.end(signal.SIGTERM)
            pool.rabbitmq.start()
            # The same Leveret continues to read.
            retain(pool, "later", b"2")
            retain(pool, "goes")
        assert retained(pool.mqtt, ["#"]) == [("later", b"2", 1), ("stays", b"1", 1)]
        pool.server.stop()
        pool.rabbitmq.end(signal.SIGTERM)
        pool.rabbitmq.start()
        flags = ("--upstream", f"amqp://127.0.0.1:{pool.rabbitmq.port}", "--mqtt", ANY)
        for name in ("one", "two"):
            servers.append(Leveret(tmp_path / name, *flags))
            assert retained(listening(servers[-1], "mqtt", "mqtt"), ["#"]) == [("later", b"2", 1), ("stays", b"1", 1)]
    finally:
        for server in servers:
            server.child.kill()
        pool.rabbitmq.stop()


def test_retained_messages_survive_when_the_log_drops_old_entries(tmp_path):
    """More than the log's maximum is written to one topic; all others are still there for a new Leveret."""
    pool = MqttPool(release().name, tmp_path)
    late = None
    try:
        kept = sorted((f"kept/{number}", str(number).encode(), 1) for number in range(50))
        with pool.client("writer") as writer:
            for name, payload, _ in kept:
                writer.publish(name, payload, 1, retain=True)
            writer.publish("removed", b"x", 1, retain=True)
            writer.publish("removed", b"", 1, retain=True)
            large = bytes(1 << 20)
            for _ in range(320):
                writer.publish("large", large, 1, retain=True)
            writer.publish("large", b"small", 1, retain=True)
        with pool.channel() as channel:
            channel.basic_qos(prefetch_count=1)
            arguments = {"x-stream-offset": "first"}
            _, properties, _ = next(channel.consume(LOG, arguments=arguments, inactivity_timeout=PATIENCE))
            assert properties.headers["x-stream-offset"] > len(kept), "nothing was dropped"
        late = pool.another("late")
        for port in (pool.mqtt, listening(late, "mqtt", "mqtt")):
            assert retained(port, ["#"]) == [*kept, ("large", b"small", 1)]
    finally:
        if late:
            late.child.kill()
        pool.stop()
