"""With `compatibility = "4"` STOMP clients get the same as from RabbitMQ 4.3.6."""

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from harness.beside import next_message, same, sides
from harness.releases import missing

# Fixtures of these tests.
__all__ = ["same", "sides"]
pytestmark = pytest.mark.skipif(missing("4") is not None, reason=f"no RabbitMQ 4: {missing('4')}")

# Headers that vary by server or delivery.
VARYING = {"server", "session", "message-id", "ack", "timestamp"}
# Intended differences (docs/compatibility.md).
OF_THE_FRAME = {"receipt-id", "receipt", "content-length", "transaction"}


def comparable(frame):
    """A frame without the varying headers."""
    command, headers, body = frame
    kept = {name: value for name, value in headers.items() if name not in VARYING}
    if command == "ERROR":
        kept = {name: value for name, value in kept.items() if name != "receipt-id"}
    return command, kept, body


def get(channel, queue):
    _, properties, body = next_message(channel, queue)
    values = {name: value for name, value in vars(properties).items() if value is not None}
    headers = {name: value for name, value in values.pop("headers", {}).items() if name not in OF_THE_FRAME}
    return values, headers, body


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"version": "1.0"},
        {"version": "1.0,1.1"},
        {"version": "2.0"},
        {"passcode": "wrong"},
        {"login": "nobody"},
        {"host": "nowhere"},
        {"more": "heart-beat:1000,2000\n"},
    ],
    ids=str,
)
def test_a_connect_is_answered_alike(same, asked):
    same(lambda side: comparable(side.stomp(**asked)[1]))


KEYS = ("type", "durable", "auto_delete", "exclusive", "arguments")
HEADERS = [
    "", "x-queue-type:classic\n", "durable:false\n", "durable:false\nexclusive:false\nauto-delete:false\n", "auto-delete:true\n",
    "durable:true\nauto-delete:false\n", "exclusive:true\n", "persistent:false\n", "x-message-ttl:60000\n", "x-expires:60000\n",
    "x-max-length:5\n", "x-max-priority:0\n",
]  # fmt: skip


@pytest.mark.parametrize("headers", HEADERS, ids=repr)
@pytest.mark.parametrize("destination", ["/queue/%s", "/topic/%s", "/exchange/amq.direct/%s"])
def test_a_subscription_declares_the_same_queue(same, destination, headers):
    if destination.startswith("/exchange") and "durable:true" in headers:
        pytest.skip("it is durable here (docs/compatibility.md)")

    def subscribe(side):
        name = f"declared-{destination[1]}-{HEADERS.index(headers)}"
        client, _ = side.stomp()
        named = "" if destination.startswith("/queue") else f"x-queue-name:{name}\n"
        client.send(f"SUBSCRIBE\nid:1\nreceipt:r\ndestination:{destination % name}\n{named}{headers}\n")
        answer = comparable(client.frame())
        shown = side.eventually(name, KEYS, lambda found: found is not None)
        client.send("UNSUBSCRIBE\nid:1\nreceipt:s\n\n")
        client.frame()
        side.http.status("DELETE", f"queues/%2F/{name}")
        return answer, shown

    same(subscribe)


def test_a_quorum_queue_is_declared_alike(same):
    def send(side):
        client, _ = side.stomp()
        client.send("SEND\ndestination:/queue/replicated\nx-queue-type:quorum\nreceipt:r\n\nx")
        answer = comparable(client.frame())
        client.send("SUBSCRIBE\ndestination:/topic/t\nid:1\nx-queue-name:refused\nx-queue-type:quorum\n\n")
        return answer, side.eventually("replicated", KEYS, lambda found: found is not None), comparable(client.frame())

    same(send)


def test_a_transient_subscription_is_its_connections_own(same):
    def disturb(side):
        client, _ = side.stomp()
        client.send("SUBSCRIBE\ndestination:/topic/own\nid:1\nx-queue-name:own\nreceipt:r\n\n")
        client.frame()
        with side.channel() as channel, pytest.raises(ChannelClosedByBroker) as refused:
            channel.queue_declare("own", passive=True)
        return refused.value.reply_code, refused.value.reply_text

    assert same(disturb)[0] == 405


SENT = [
    "", "persistent:true\n", "persistent:false\n", "x-own:1\n", "reply-to:/reply-queue/r\n",
    "content-type:t\ncontent-encoding:e\npriority:3\ncorrelation-id:c\nexpiration:3600000\namqp-message-id:m\ntimestamp:5\ntype:k\n"
    "user-id:guest\napp-id:a\n",
]  # fmt: skip


@pytest.mark.parametrize("headers", SENT, ids=repr)
def test_amqp_clients_see_a_stomp_message_alike(same, headers):
    def send(side):
        client, _ = side.stomp()
        with side.channel() as channel:
            queue = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_bind(queue, "amq.topic", "from.stomp")
            client.send(f"SEND\ndestination:/topic/from.stomp\n{headers}\nx")
            return get(channel, queue)

    same(send)


@pytest.mark.parametrize("headers", ["user-id:other\n", "expiration:x\n", "CC:x\n"])
def test_a_message_is_refused_in_the_same_words(same, headers):
    def send(side):
        client, _ = side.stomp()
        client.send(f"SEND\ndestination:/topic/t\n{headers}\nx")
        return comparable(client.frame())

    assert same(send)[0] == "ERROR"


@pytest.mark.parametrize(
    "destination", ["/exchange/nope/k", "/exchange/amq.rabbitmq.trace/k", "/foo", "", "/topic/", "/temp-queue/x", "/queue/a/b"]
)
def test_a_destination_is_refused_in_the_same_words(same, destination):
    def send(side):
        client, _ = side.stomp()
        client.send(f"SEND\ndestination:{destination}\n\nx")
        return comparable(client.frame())

    assert same(send)[0] == "ERROR"


def test_stomp_clients_see_an_amqp_message_alike(same):
    def publish(side):
        client, _ = side.stomp()
        client.send("SUBSCRIBE\ndestination:/topic/to.stomp\nid:1\nreceipt:r\n\n")
        client.frame()
        with side.channel() as channel:
            for given in [
                pika.BasicProperties(delivery_mode=2, content_type="t", correlation_id="c", reply_to="r", expiration="3600000"),
                pika.BasicProperties(priority=1, message_id="m", type="k", app_id="a", headers={"s": "v", "i": 1, "l": [1], "d": {"a": 1}}),
            ]:
                channel.basic_publish("amq.topic", "to.stomp", b"x", given)
        return comparable(client.frame()), comparable(client.frame())

    same(publish)


def test_a_nack_is_no_failure_and_a_closed_connection_is(same):
    """Quorum queues count these for their delivery limit."""

    def return_it(side):
        with side.channel() as channel:
            channel.queue_declare("counted", durable=True, arguments={"x-queue-type": "quorum"})
            channel.basic_publish("", "counted", b"x")
        frames = []
        for _ in range(2):
            client, _ = side.stomp()
            client.send("SUBSCRIBE\ndestination:/amq/queue/counted\nid:1\nack:client-individual\n\n")
            frame = client.frame()
            client.send(f"NACK\nid:{frame[1]['ack']}\n\n")
            frames += [comparable(frame), comparable(client.frame())]
            client.close()
        return frames

    last = same(return_it)[-1][1]
    assert (last["x-acquired-count"], last["x-delivery-count"]) == ("3", "1")


def test_a_transaction_is_routed_by_its_commit(same):
    """Unlike in AMQP."""

    def commit(side):
        client, _ = side.stomp()
        with side.channel() as channel:
            before, after = (channel.queue_declare("", exclusive=True).method.queue for _ in range(2))
            channel.queue_bind(before, "amq.topic", "in.transaction")
            client.send("BEGIN\ntransaction:t\n\n")
            client.send("SEND\ndestination:/topic/in.transaction\ntransaction:t\n\nrouted late")
            client.send("SEND\ndestination:/topic/other\nreceipt:behind\n\n")
            answers = [comparable(client.frame())]
            channel.queue_unbind(before, "amq.topic", "in.transaction")
            channel.queue_bind(after, "amq.topic", "in.transaction")
            client.send("COMMIT\ntransaction:t\nreceipt:committed\n\n")
            answers.append(comparable(client.frame()))
            body = next_message(channel, after)[2]
            channel.cancel()
            return answers, body, channel.queue_declare(before, passive=True).method.message_count

    assert same(commit)[1:] == (b"routed late", 0)


def test_stomp_clients_see_an_mqtt_message_alike(same):
    def publish(side):
        client, _ = side.stomp()
        client.send("SUBSCRIBE\ndestination:/topic/from.mqtt\nid:1\nreceipt:r\n\n")
        client.frame()
        writer = side.connected("to-stomp")
        options = {"ResponseTopic": "a/b", "CorrelationData": b"c", "ContentType": "t", "MessageExpiryInterval": 3600}
        assert writer.publish("from/mqtt", b"x", UserProperty=("u", "v"), **options)["packet"] == "PUBACK"
        return comparable(client.frame())

    same(publish)


@pytest.mark.parametrize("persistent", ["", "persistent:true\n", "persistent:false\n"])
def test_mqtt_clients_see_a_stomp_message_alike(same, persistent):
    def send(side):
        reader = side.connected("from-stomp")
        reader.subscribe(("from/stomp", 1))
        client, _ = side.stomp()
        client.send(f"SEND\ndestination:/topic/from.stomp\n{persistent}x-own:1\ncorrelation-id:c\nreply-to:/topic/r\n\nb")
        return reader.answer()

    same(send)


def test_a_subscription_may_have_a_priority(same):
    def subscribe(side):
        clients = []
        for header in ("", "x-priority:9\n", "x-priority:-2\n"):
            client, _ = side.stomp()
            client.send(f"SUBSCRIBE\nid:1\nreceipt:r\ndestination:/queue/ranked\nack:client-individual\n{header}\n")
            assert client.frame()[0] == "RECEIPT"
            clients.append(client)
        got = []
        for number in range(3):
            clients[0].send(f"SEND\ndestination:/queue/ranked\n\n{number}")
            got.append(clients[1].frame()[2])
        side.http.status("DELETE", "queues/%2F/ranked")
        return got

    assert same(subscribe) == ["0", "1", "2"]


def test_a_priority_that_is_no_number_is_refused(same):
    def subscribe(side):
        client, _ = side.stomp()
        client.send("SUBSCRIBE\nid:1\ndestination:/queue/unranked\nx-priority:high\n\n")
        return client.frame()[0]

    assert same(subscribe) == "ERROR"
