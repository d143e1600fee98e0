"""With `compatibility = "4"` MQTT clients, and AMQP clients that exchange messages with them, get the same as from RabbitMQ
4.3.6."""

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from harness.beside import both, next_message, same, sides
from harness.management import path
from harness.mqtt_wire import PUBACK, SUBACK
from harness.releases import missing

# Fixtures of these tests.
__all__ = ["same", "sides"]
pytestmark = pytest.mark.skipif(missing("4") is not None, reason=f"no RabbitMQ 4: {missing('4')}")

EXCHANGE = "amq.topic"
# Intended differences (docs/compatibility.md): QoS 2, shared subscriptions, and a larger packet for a message's properties.
OWN = {"MaximumQoS", "SharedSubscriptionAvailable", "MaximumPacketSize", "ReceiveMaximum"}
# Human-readable properties, which RabbitMQ does not send.
FOR_PEOPLE = {"ReasonString"}
LONG = "x" * 256
# Seconds; does not expire during a test.
LONG_TIME = 3600
PROTOCOL_ERROR = 0x82
NO_LOCAL, AS_PUBLISHED, IF_NEW, NEVER_RETAINED = 4, 8, 0x10, 0x20


def without(packet, names=OWN | FOR_PEOPLE):
    return packet and {name: value for name, value in packet.items() if name not in names}


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"SessionExpiryInterval": 0},
        {"SessionExpiryInterval": 100},
        {"SessionExpiryInterval": 86_400},
        {"SessionExpiryInterval": 86_401},
        {"SessionExpiryInterval": 0xFFFFFFFF},
        {"ReceiveMaximum": 5},
        {"MaximumPacketSize": 100},
        {"TopicAliasMaximum": 5},
        {"RequestResponseInformation": 1},
        {"RequestProblemInformation": 0},
        {"UserProperty": ("a", "b")},
        {"AuthenticationMethod": "x"},
        {"password": "wrong"},
        {"user": "nobody"},
        {"user": "nowhere:guest"},
        {"keep_alive": 0},
        {"keep_alive": 65_535},
        {"clean": False, "SessionExpiryInterval": 7},
        {"will": ("will", b"x", 1, True, {"WillDelayInterval": 5})},
    ],
    ids=str,
)
def test_a_connect_is_answered_alike(same, asked):
    same(lambda side: without(side.mqtt5().connect("asks", **asked)))


def test_a_client_without_an_identifier_is_given_one(same):
    def connect(side):
        answer = without(side.mqtt5().connect(""))
        assert answer.pop("AssignedClientIdentifier")
        return answer

    same(connect)


@pytest.mark.parametrize("name", ["a.b", "a/b", "a+#", "ü", "x" * 232])
def test_these_identifiers_are_taken(same, name):
    def subscribe(side):
        return without(side.mqtt5().connect(name)), side.connected(name).subscribe(("t", 1))

    same(subscribe)


@pytest.mark.parametrize("options", [0, 1, 1 | NO_LOCAL, 1 | AS_PUBLISHED, 1 | IF_NEW, 1 | NEVER_RETAINED])
def test_a_subscribe_is_answered_alike(same, options):
    def subscribe(side):
        client = side.connected("subscribes")
        answers = [client.subscribe(("s/+", options), packet_id=7), client.subscribe(("a", 0), ("b/#", 1), SubscriptionIdentifier=5)]
        return answers + [client.unsubscribe("s/+", "never", packet_id=9), client.unsubscribe("a"), client.unsubscribe("a")]

    same(subscribe)


@pytest.mark.parametrize("properties", [
    {}, {"ContentType": LONG}, {"ResponseTopic": LONG}, {"CorrelationData": LONG.encode()}, {"UserProperty": (LONG, LONG)},
    {"MessageExpiryInterval": 0xFFFFFFFF}, {"PayloadFormatIndicator": 1}, {"TopicAlias": 16},
], ids=lambda properties: ",".join(properties))  # fmt: skip
def test_a_publish_is_acknowledged_alike(same, properties):
    def publish(side):
        client = side.connected("publishes")
        answers = [client.publish("to/nobody", b"x", **properties)]
        client.subscribe(("to/me", 0))
        answers.append(client.publish("to/me", b"x", packet_id=3, **properties))
        return answers + [len(client.until("PUBLISH"))]

    same(publish)


def test_topic_aliases_stand_for_topics_and_wrong_ones_end_the_connection(same):
    def publish(side):
        client = side.connected("alias")
        answers = [client.publish("some/topic", TopicAlias=1), client.publish("", TopicAlias=1)]
        for alias in (3, 17):
            broken = side.connected(f"alias-{alias}")
            answers.append(without(broken.publish("" if alias == 3 else "t", TopicAlias=alias)))
            answers.append(broken.answer())
        return answers

    same(publish)


def test_disconnects_have_the_same_reasons(same):
    def disconnect(side):
        first = side.connected("twin")
        second = side.connected("twin")
        silent = side.connected("silent", keep_alive=1)
        return list(map(without, first.until(""))), second.ping(), list(map(without, silent.until("")))

    same(disconnect)


def test_a_session_that_was_to_end_is_not_kept_by_a_disconnect(same):
    def disconnect(side):
        heir = side.connected("heir")
        heir.subscribe(("raised", 0))
        client = side.connected("raised", will=("raised", b"bye", 0, False, {}), SessionExpiryInterval=0)
        client.disconnect(SessionExpiryInterval=5)
        packets = [without(packet) for packet in client.until("")]
        if side.kind == "leveret":
            # RabbitMQ sends neither (docs/compatibility.md).
            assert packets.pop(0) == {"packet": "DISCONNECT", "reason": PROTOCOL_ERROR}
            assert heir.answer()["body"] == b"bye"
        return packets, side.mqtt5().connect("raised", clean=False)["session"], heir.ping()

    same(disconnect)


# Messages published over MQTT, with their options.
PUBLISHED = {
    "QoS 1": {},
    "QoS 0": {"qos": 0},
    "DUP": {"dup": True},
    "RETAIN": {"retain": True},
    "content type": {"ContentType": "text/plain"},
    "long content type": {"ContentType": LONG},
    "response topic": {"ResponseTopic": "answers/me"},
    "long response topic": {"ResponseTopic": LONG},
    "correlation": {"CorrelationData": b"c-1"},
    "binary correlation": {"CorrelationData": b"\xff\x00"},
    "long correlation": {"CorrelationData": LONG.encode()},
    "expiry": {"MessageExpiryInterval": LONG_TIME},
    "text": {"PayloadFormatIndicator": 1},
    "bytes": {"PayloadFormatIndicator": 0},
    "user properties": {"UserProperty": [("a", "1"), ("b", "2"), ("a", "3"), ("x-mqtt-dup", "4"), (LONG, "5"), ("", "6")]},
}  # fmt: skip


def of_amqp(message):
    """A message of basic.get, without its timestamp."""
    method, properties, body = message
    values = {name: value for name, value in vars(properties).items() if value is not None}
    if "timestamp" in values:
        values["timestamp"] = "now"
    return method.exchange, method.routing_key, method.redelivered, values, body


def get(channel, queue):
    return of_amqp(next_message(channel, queue))


@pytest.mark.parametrize("options", PUBLISHED.values(), ids=PUBLISHED)
def test_amqp_clients_see_an_mqtt_message_alike(same, options):
    def publish(side):
        with side.channel() as channel:
            queue = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_bind(queue, EXCHANGE, "to.amqp")
            side.connected("to-amqp").publish("to/amqp", b"x", **options)
            return get(channel, queue)

    same(publish)


@pytest.mark.parametrize("options", PUBLISHED.values(), ids=PUBLISHED)
def test_mqtt_clients_see_an_mqtt_message_alike(same, options):
    def publish(side):
        readers = [side.connected("reads-1"), side.connected("reads-0")]
        for qos, reader in zip((1, 0), readers, strict=True):
            reader.subscribe(("to/mqtt", qos | AS_PUBLISHED), SubscriptionIdentifier=9)
        writer = side.connected("to-mqtt")
        writer.publish("to/mqtt", b"x", **options)
        packets = [reader.answer() for reader in readers]
        writer.publish("to/mqtt", b"", retain=True)
        for packet in packets:
            if "MessageExpiryInterval" in packet:
                # Some seconds may have passed.
                assert 0 < packet.pop("MessageExpiryInterval") <= LONG_TIME
        return packets

    same(publish)


def properties(**values):
    return pika.BasicProperties(**values)


# Properties of messages published over AMQP.
PROPERTIES = {
    "none": properties(),
    "transient": properties(delivery_mode=1),
    "persistent": properties(delivery_mode=2),
    "content": properties(content_type="text/plain", content_encoding="gzip"),
    "reply_to": properties(reply_to="answers.me"),
    "reply topic": properties(reply_to="q", headers={"x-reply-to-topic": "answers.me"}),
    "correlation": properties(correlation_id="c-ä"),
    "long correlation": properties(headers={"x-correlation-id": "c"}),
    "both correlations": properties(correlation_id="c", headers={"x-correlation-id": "d"}),
    "others": properties(message_id="m", timestamp=1700000000, type="t", user_id="guest", app_id="a", priority=3),
    "headers": properties(headers={"s": "v", "i": -5, "big": 2**40, "yes": True, "nothing": None, "list": [1], "table": {"a": 1}}),
    "binary header": properties(headers={"b": b"\xff"}),
    "x- headers": properties(headers={"x-mqtt-publish-qos": 0, "x-mqtt-dup": True, "x-mqtt-retain": True, "x-other": "o"}),
    "CC": properties(headers={"CC": ["elsewhere"]}),
    "unknown delivery_mode": properties(delivery_mode=5),
}  # fmt: skip


@pytest.mark.parametrize("given", PROPERTIES.values(), ids=PROPERTIES)
def test_mqtt_clients_see_an_amqp_message_alike(same, given):
    def publish(side):
        readers = [side.connected("sees-1"), side.connected("sees-0")]
        for qos, reader in zip((1, 0), readers, strict=True):
            reader.subscribe(("from/amqp", qos))
        with side.channel() as channel:
            channel.basic_publish(EXCHANGE, "from.amqp", b"x", given)
        return [reader.answer() for reader in readers]

    same(publish)


def test_an_amqp_service_answers_an_mqtt_request(same):
    def ask(side):
        asker = side.connected("asker")
        asker.subscribe(("answers/asker", 1))
        with side.channel() as channel:
            queue = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_bind(queue, EXCHANGE, "questions")
            asker.publish("questions", b"?", ResponseTopic="answers/asker", CorrelationData=b"7")
            _, _, _, question, _ = get(channel, queue)
            answer = properties(correlation_id=question["correlation_id"], delivery_mode=2)
            channel.basic_publish(EXCHANGE, question["headers"]["x-reply-to-topic"], b"!", answer)
        return asker.answer()

    assert same(ask)["CorrelationData"] == b"7"


# Without `durable` of exclusive queues: RabbitMQ declares them durable, although they are deleted with their connection.
KEYS = ("name", "type", "auto_delete", "exclusive", "arguments")


def subscribed(side, name, expiry):
    client = side.connected(name, SessionExpiryInterval=expiry)
    client.subscribe(("zero/+", 0))
    client.subscribe(("one", 1))
    return client, [f"mqtt-subscription-{name}qos{qos}" for qos in (0, 1)]


def bound(side, queue):
    """A queue's bindings; RabbitMQ stores the subscription's options in their arguments."""
    bindings = side.http.get(path("queues", "/", queue, "bindings"))
    return sorted((binding["source"], binding["routing_key"]) for binding in bindings)


@pytest.mark.parametrize("expiry", [0, LONG_TIME, 0xFFFFFFFF])
def test_the_queues_of_a_session_are_declared_alike(same, expiry):
    keys = (*KEYS, "durable") if expiry else KEYS

    def look(side):
        client, names = subscribed(side, f"queues-{expiry}", expiry)
        shown = [(side.queue(name, keys), bound(side, name)) for name in names]
        client.disconnect()
        # Deleted, or without a consumer.
        for name in names:
            side.eventually(name, keys, (lambda found: found is None) if expiry == 0 else (lambda found: found is not None))
        return shown + [side.queue(name, keys) for name in names]

    same(look)


def test_the_queues_of_a_session_that_ends_with_its_connection_are_its_own(same):
    def try_all(side):
        _, names = subscribed(side, "own", 0)
        refusals = []
        for name in names:
            for attempt in ("queue_purge", "queue_delete", "basic_get"):
                with side.channel() as channel, pytest.raises(ChannelClosedByBroker) as refused:
                    getattr(channel, attempt)(name)
                refusals.append((attempt, refused.value.reply_code, refused.value.reply_text))
        return refusals

    same(try_all)


def test_those_of_a_persistent_session_are_open_to_all(same):
    def bind(side):
        client, names = subscribed(side, "persistent", LONG_TIME)
        with side.channel() as channel:
            channel.queue_bind(names[1], "amq.direct", "k.z")
            channel.basic_publish("amq.direct", "k.z", b"1", properties(delivery_mode=2))
            channel.basic_publish("", names[1], b"2", properties(delivery_mode=2))
        return client.answer(), client.answer()

    same(bind)


def test_messages_of_both_qualities_wait_for_a_persistent_session(same):
    def stay_away(side):
        name = "away"
        client, names = subscribed(side, name, LONG_TIME)
        client.disconnect()
        client.until("")
        writer = side.connected("writes")
        for body in (b"1", b"2"):
            for topic in ("zero/x", "one"):
                for qos in (0, 1):
                    writer.publish(topic, body, qos)
        back = side.mqtt5()
        answer = back.connect(name, clean=False, SessionExpiryInterval=LONG_TIME)
        packets = [back.answer() for _ in range(8)]
        return answer["session"], sorted((packet["topic"], packet["qos"], packet["dup"], packet["body"]) for packet in packets)

    assert same(stay_away)[0] == 1


def test_a_session_lasts_as_long_as_its_client_last_said(same):
    def expire(side):
        client, names = subscribed(side, "expires", LONG_TIME)
        client.disconnect(SessionExpiryInterval=1)
        for name in names:
            side.eventually(name, KEYS, lambda found: found is None)
        return side.mqtt5().connect("expires", clean=False)["session"]

    assert same(expire) == 0


def test_unacknowledged_messages_come_again(same):
    def leave(side):
        client, _ = subscribed(side, "again", LONG_TIME)
        side.connected("writes").publish("one", b"1")
        first = client.answer()
        client.close()
        back = side.connected("again", clean=False, SessionExpiryInterval=LONG_TIME)
        return first, back.answer()

    same(leave)


RETAINED = {
    "QoS 1": {},
    "QoS 0": {"qos": 0},
    "properties": {"ContentType": "t", "UserProperty": ("a", "b"), "ResponseTopic": "r", "CorrelationData": b"\xff"},
}  # fmt: skip


@pytest.mark.parametrize("options", RETAINED.values(), ids=RETAINED)
@pytest.mark.parametrize("how", [0, 1, 1 | AS_PUBLISHED, 1 | NEVER_RETAINED])
def test_a_retained_message_is_delivered_alike(same, options, how):
    def retain(side):
        writer = side.connected("retains")
        writer.publish("kept", b"x", retain=True, **options)
        # At QoS 0 nothing else shows that the message was retained.
        writer.ping()
        reader = side.connected("reads-retained")
        reader.subscribe(("kept", how))
        packets = reader.ping() if how & NEVER_RETAINED else [reader.answer()]
        writer.publish("kept", b"", retain=True)
        return packets

    same(retain)


def test_retained_messages_come_to_new_subscriptions_if_asked_for(same):
    def subscribe(side):
        side.connected("retains").publish("kept/new", b"x", retain=True)
        reader = side.connected("reads-new")
        reader.subscribe(("kept/new", IF_NEW))
        packets = [reader.answer()]
        reader.subscribe(("kept/new", IF_NEW))
        packets += reader.ping()
        reader.subscribe(("kept/new", 0))
        return [*packets, reader.answer()]

    same(subscribe)


WILLS = {
    "QoS 1": (1, {}, 0),
    "QoS 0": (0, {}, 0),
    "properties": (1, {"ContentType": "t", "UserProperty": ("a", "b"), "ResponseTopic": "r", "CorrelationData": b"c"}, 0),
    "no delay without a session": (1, {"WillDelayInterval": LONG_TIME}, 0),
}  # fmt: skip


@pytest.mark.parametrize(("qos", "own", "expiry"), WILLS.values(), ids=WILLS)
def test_a_will_is_published_alike(same, qos, own, expiry):
    def die(side):
        reader = side.connected("heir")
        reader.subscribe(("will/x", 1))
        with side.channel() as channel:
            queue = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_bind(queue, EXCHANGE, "will.x")
            side.connected("dies", will=("will/x", b"bye", qos, False, own), SessionExpiryInterval=expiry).close()
            return reader.answer(), get(channel, queue)

    same(die)


@pytest.mark.parametrize(("delay", "expiry"), [(1, LONG_TIME), (LONG_TIME, 1)])
def test_a_delayed_will_reaches_mqtt_clients_alike(same, delay, expiry):
    def die(side):
        reader = side.connected("heir")
        reader.subscribe(("will/x", 1))
        own = {"WillDelayInterval": delay}
        side.connected("dies-late", will=("will/x", b"bye", 1, False, own), SessionExpiryInterval=expiry).close()
        answer = reader.answer()
        side.connected("dies-late")
        return answer

    same(die)


@pytest.mark.parametrize("clean", [True, False])
def test_clients_of_3_1_1_are_answered_alike(same, clean):
    def connect(side):
        client, answer = side.mqtt3("older", clean=clean)
        answers = [answer]
        for qos in (0, 1):
            client.subscribe(f"older/{qos}", qos)
            answers.append(client.packet())
        client.publish("older/1", b"x", 1, 5)
        packets = sorted([client.packet(), client.packet()], key=lambda packet: packet[0])
        return answers, packets, [side.queue(f"mqtt-subscription-olderqos{qos}", KEYS) for qos in (0, 1)]

    answers, packets, _ = same(connect)
    assert [kind for kind, _ in answers[1:]] == [SUBACK, SUBACK] and packets[1][0] == PUBACK


@pytest.mark.parametrize("asked", [{"password": "wrong"}, {"user": "nobody"}, {"user": "nowhere:guest"}, {"name": "", "clean": False}], ids=str)
def test_clients_of_3_1_1_are_refused_alike(same, asked):
    def connect(side):
        client, answer = side.mqtt3(**{"name": "older", **asked})
        return answer, client.packet()

    same(connect)


def test_those_without_permission_are_refused_alike(same):
    everything = {"configure": ".*", "write": ".*", "read": ".*"}

    def subscribe(side):
        for step in [
            ("users/limited", {"password": "x", "tags": ""}),
            (path("permissions", "/", "limited"), everything),
            (path("topic-permissions", "/", "limited"), {"exchange": EXCHANGE, "write": "^ok", "read": "^ok"}),
        ]:
            assert side.http.status("PUT", *step) == 201
        options = {"user": "limited", "password": "x"}
        answers = [side.connected("limited", **options).subscribe((topic, 1)) for topic in ("ok/x", "no/x")]
        older, _ = side.mqtt3("limited-older", **options)
        older.subscribe("no/x", 1)
        answers.append(older.packet())
        for permission in ("configure", "read"):
            assert side.http.status("PUT", path("permissions", "/", "limited"), {**everything, permission: "^$"}) == 204
            answers.append(side.connected("limited", **options).subscribe(("ok/x", 1)))
        assert side.http.status("DELETE", path("permissions", "/", "limited")) == 204
        answers.append(without(side.mqtt5().connect("limited", **options)))
        assert side.http.status("DELETE", "users/limited") == 204
        return answers

    same(subscribe)


def test_no_session_lasts_longer_than_the_operator_allows(tmp_path):
    def connect(side):
        answers = [without(side.mqtt5().connect("lasts", SessionExpiryInterval=expiry)) for expiry in (4, 5, 6, 0xFFFFFFFF)]
        older, _ = side.mqtt3("older", clean=False)
        older.subscribe("t", 1)
        older.packet()
        return answers, side.queue("mqtt-subscription-olderqos1", KEYS)

    with both(tmp_path, longest_session=5) as (ours, theirs):
        outcome = connect(theirs)
        assert connect(ours) == outcome
    assert outcome[1]["arguments"] == {"x-expires": 5000}
