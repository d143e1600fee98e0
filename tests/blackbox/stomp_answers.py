"""STOMP clients get the same from Leveret, also in front of a RabbitMQ without STOMP, as from RabbitMQ's adapter: the same
tests for all, with stomp.py and on the wire."""

import contextlib

import pika
import pytest

from harness.mqtt_broker import Broker
from harness.patience import PATIENCE
from harness.stomp_client import Client, StompWire

VERSIONS = ["1.0", "1.1", "1.2"]


@pytest.fixture(scope="module", params=["leveret", "rabbitmq", "proxy", "proxy4"])
def server(request, tmp_path_factory):
    server = Broker(request.param, tmp_path_factory.mktemp("stomp"))
    yield server
    server.stop()


@pytest.fixture
def clients(server):
    """Creates clients, and closes them at the end."""
    with contextlib.ExitStack() as stack:

        def make(version="1.2", **options):
            client = Client(server.stomp, version, **options)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def amqp(server):
    connection = pika.BlockingConnection(pika.URLParameters(server.server.uri))
    yield connection.channel()
    connection.close()


@pytest.fixture
def name(request):
    """A name for the test."""
    return "q-" + "".join(character if character.isalnum() else "-" for character in request.node.name)


def from_amqp(channel, queue_name):
    """The queue's next message, waiting for it."""
    for method, properties, body in channel.consume(queue_name, auto_ack=True, inactivity_timeout=PATIENCE):
        assert method, "nothing came"
        channel.cancel()
        return method, properties, body
    return None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_message_arrives_with_its_headers(clients, name, version):
    client = clients(version)
    client.subscribe(f"/queue/{name}")
    headers = {
        "content-type": "text/plain",
        "persistent": "true",
        "priority": "5",
        "correlation-id": "c-1",
        "expiration": "60000",
        "amqp-message-id": "m-1",
        "timestamp": "1700000000",
        "type": "greeting",
        "app-id": "tests",
        "user-id": "guest",
        "custom": "a b",
    }
    if version != "1.0":
        headers["escaped"] = "a:b\\c\nd"
    client.do("send", f"/queue/{name}", "hällo", headers=headers)
    frame = client.message()
    assert frame.body == "hällo"
    assert {key: frame.headers.get(key) for key in headers} == headers
    assert (frame.headers["destination"], frame.headers["subscription"]) == (f"/queue/{name}", "1")
    assert frame.headers["redelivered"] == "false"
    assert frame.headers["message-id"].startswith("T_1@@session-")
    assert ("ack" in frame.headers) is False


def test_bytes_arrive_as_they_are(server, name):
    wire = StompWire(server.stomp)
    assert wire.connect()[0] == "CONNECTED"
    wire.send(f"SUBSCRIBE\nid:1\ndestination:/queue/{name}\n\n")
    body = "a\0b\nc\0\0"
    wire.send(f"SEND\ndestination:/queue/{name}\ncontent-length:{len(body)}\n\n{body}")
    assert wire.frame()[2] == body
    wire.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["client", "client-individual"])
def test_unacknowledged_stomp_messages_are_redelivered(clients, name, version, mode):
    sender, first = clients(), clients(version)
    for number in range(3):
        sender.send(f"/queue/{name}", str(number))
    first.subscribe(f"/queue/{name}", ack=mode)
    frames = [first.message() for _ in range(3)]
    assert [frame.body for frame in frames] == ["0", "1", "2"]
    first.acknowledge(frames[1])
    first.do("disconnect")
    second = clients(version)
    second.subscribe(f"/queue/{name}")
    left = ["2"] if mode == "client" else ["0", "2"]
    again = [second.message() for _ in left]
    assert [(frame.body, frame.headers["redelivered"]) for frame in again] == [(body, "true") for body in left]


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_nack_gives_back_or_drops(clients, name, version):
    client = clients(version)
    client.subscribe(f"/queue/{name}", ack="client-individual")
    client.send(f"/queue/{name}", "x")
    client.acknowledge(client.message(), "nack")
    again = client.message()
    assert again.headers["redelivered"] == "true"
    client.acknowledge(again, "nack", requeue="false")
    client.send(f"/queue/{name}", "y")
    assert client.message().body == "y"


def test_prefetch_count_holds_messages_back(clients, name):
    client = clients()
    for number in range(5):
        client.send(f"/queue/{name}", str(number))
    client.subscribe(f"/queue/{name}", ack="client-individual", prefetch_count="2")
    frames = [client.message(), client.message()]
    # A third message would come before the receipt of a later request.
    client.send(f"/queue/{name}", "5")
    assert client.heard() == 0
    client.acknowledge(frames[0])
    assert client.message().body == "2"


def test_a_transaction_is_all_or_nothing(clients, name):
    client = clients()
    client.subscribe(f"/queue/{name}")
    for end in ("abort", "commit"):
        client.do("begin", f"t-{end}")
        for number in range(3):
            client.connection.send(f"/queue/{name}", f"{end} {number}", transaction=f"t-{end}")
        client.send(f"/queue/{name}", f"before {end}")
        assert client.message().body == f"before {end}"
        client.do(end, f"t-{end}")
    client.send(f"/queue/{name}", "last")
    assert [client.message().body for _ in range(4)] == ["commit 0", "commit 1", "commit 2", "last"]


def test_acknowledgements_wait_for_their_transaction(clients, name):
    client, other = clients(), clients()
    client.send(f"/queue/{name}", "x")
    client.subscribe(f"/queue/{name}", ack="client")
    frame = client.message()
    client.do("begin", "t")
    client.connection.ack(frame.headers["ack"], transaction="t")
    client.do("commit", "t")
    client.do("disconnect")
    other.send(f"/queue/{name}", "y")
    other.subscribe(f"/queue/{name}")
    assert other.message().body == "y"


def test_topics_and_exchanges_route(clients, amqp, name):
    client = clients()
    client.subscribe(f"/topic/{name}.*.end", id="topic")
    client.subscribe(f"/exchange/amq.direct/{name}", id="direct")
    client.subscribe("/exchange/amq.fanout", id="fanout")
    routes = {"topic": f"/topic/{name}.middle.end", "direct": f"/exchange/amq.direct/{name}", "fanout": "/exchange/amq.fanout"}
    # A second copy would come before anything else for the subscription.
    for body in ("first", "second"):
        for id, destination in routes.items():
            client.send(destination, body)
            frame = client.message()
            assert (frame.headers["subscription"], frame.headers["destination"], frame.body) == (id, destination, body)


def test_a_request_is_answered_through_a_temporary_queue(clients, amqp, name):
    asker, answerer = clients(), clients()
    answerer.subscribe(f"/queue/{name}")
    asker.connection.send(f"/queue/{name}", "question", headers={"reply-to": "/temp-queue/answers"})
    question = answerer.message()
    reply_to = question.headers["reply-to"]
    assert reply_to.startswith("/reply-queue/amq.gen-")
    answerer.send(reply_to, "answer")
    answer = asker.message()
    assert (answer.body, answer.headers["subscription"]) == ("answer", "/temp-queue/answers")
    # The same reply queue serves the next request, and an AMQP client's answer.
    asker.connection.send(f"/queue/{name}", "again", headers={"reply-to": "/temp-queue/answers"})
    assert answerer.message().headers["reply-to"] == reply_to
    amqp.basic_publish("", reply_to.removeprefix("/reply-queue/"), b"by amqp")
    assert asker.message().body == "by amqp"


@pytest.mark.parametrize("named", [False, True])
def test_a_durable_subscription_outlives_its_connection_until_it_is_ended(clients, name, named):
    headers = {"durable": "true", "auto_delete": "false"}
    if named:
        headers["x_queue_name"] = f"{name}-own"
    first = clients()
    first.subscribe(f"/topic/{name}", id="sub", **headers)
    first.do("disconnect")
    clients().send(f"/topic/{name}", "meanwhile", persistent="true")
    second = clients()
    second.subscribe(f"/topic/{name}", id="sub", **headers)
    assert second.message().body == "meanwhile"
    ending = {key.replace("_", "-"): value for key, value in headers.items()}
    second.do("unsubscribe", "sub", headers=ending)
    clients().send(f"/topic/{name}", "too late", persistent="true")
    third = clients()
    third.subscribe(f"/topic/{name}", id="sub", **headers)
    third.send(f"/topic/{name}", "anew")
    assert third.message().body == "anew"
    third.do("unsubscribe", "sub", headers=ending)


def test_the_queue_of_a_durable_subscription_is_named_as_by_rabbitmq(clients, amqp, name):
    client = clients()
    client.subscribe("/topic/some.key", id="sub-1", durable="true", auto_delete="false")
    # The same queue name on both, so a client that migrates finds its messages.
    amqp.queue_declare("stomp-subscription-BUlbAj-4NUmOdmGDz4TT6w", passive=True)
    client.do("unsubscribe", "sub-1", headers={"durable": "true"})


@pytest.mark.parametrize(
    ("headers", "declared"),
    [
        ({}, {"durable": True}),
        ({"auto_delete": "true"}, {"durable": True, "auto_delete": True}),
        ({"durable": "false", "exclusive": "false"}, {"auto_delete": True}),
        ({"durable": "false", "exclusive": "false", "auto_delete": "false"}, {}),
        (
            {"x_message_ttl": "60000", "x_max_length": "10", "x_dead_letter_exchange": "amq.fanout"},
            {
                "durable": True,
                "arguments": {"x-message-ttl": 60000, "x-max-length": 10, "x-dead-letter-exchange": "amq.fanout"},
            },
        ),
    ],
)
def test_headers_decide_the_properties_of_the_declared_queue(clients, amqp, name, headers, declared):
    client = clients()
    client.subscribe(f"/queue/{name}", **headers)
    # An inequivalent declaration is refused.
    amqp.queue_declare(name, **declared)
    client.do("unsubscribe", "1")
    amqp.queue_delete(name)


def test_stomp_subscribers_receive_amqp_messages_with_their_properties(clients, amqp, name):
    amqp.queue_declare(name)
    client = clients()
    client.subscribe(f"/amq/queue/{name}")
    properties = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="identity",
        headers={"text": "a:b\nc", "number": 5},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="some.queue",
        expiration="60000",
        message_id="m",
        timestamp=1700000000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    amqp.basic_publish("", name, b"by amqp", properties)
    frame = client.message()
    expected = {
        "content-type": "text/plain",
        "content-encoding": "identity",
        "text": "a:b\nc",
        "number": "5",
        "persistent": "true",
        "priority": "3",
        "correlation-id": "c",
        "reply-to": "/reply-queue/some.queue",
        "expiration": "60000",
        "amqp-message-id": "m",
        "timestamp": "1700000000",
        "type": "t",
        "user-id": "guest",
        "app-id": "a",
        "destination": f"/queue/{name}",
    }
    assert {key: frame.headers.get(key) for key in expected} == expected
    assert frame.body == "by amqp"


def test_amqp_consumers_receive_stomp_messages_with_their_headers(clients, amqp, name):
    amqp.queue_declare(name, durable=True)
    headers = {
        "content-type": "application/json",
        "content-encoding": "identity",
        "persistent": "true",
        "priority": "3",
        "correlation-id": "c",
        "reply-to": "/queue/answers",
        "expiration": "60000",
        "amqp-message-id": "m",
        "timestamp": "1700000000",
        "type": "t",
        "user-id": "guest",
        "app-id": "a",
        "x-own": "a:b\nc",
    }
    clients().do("send", f"/queue/{name}", '{"n": 1}', headers=headers)
    method, properties, body = from_amqp(amqp, name)
    assert (method.exchange, method.routing_key, body) == ("", name, b'{"n": 1}')
    assert (properties.content_type, properties.content_encoding) == ("application/json", "identity")
    assert (properties.delivery_mode, properties.priority, properties.timestamp) == (2, 3, 1700000000)
    assert (properties.correlation_id, properties.reply_to) == ("c", "/queue/answers")
    assert (properties.expiration, properties.message_id, properties.type) == ("60000", "m", "t")
    assert (properties.user_id, properties.app_id) == ("guest", "a")
    assert properties.headers["x-own"] == "a:b\nc"


def test_a_subscription_cancelled_by_the_server_gets_an_error(server, clients, amqp, name):
    client = clients()
    client.subscribe(f"/queue/{name}", id="gone")
    amqp.queue_delete(name)
    frame = client.get("error")
    assert (frame.headers["message"], frame.headers["subscription"]) == ("Server cancelled subscription", "gone")
    assert frame.body == (
        'The server has canceled a subscription.\nNo more messages will be delivered for "id=\'gone\'".\n'
    )
    if server.kind != "rabbitmq":
        # RabbitMQ does not redeclare the queue (docs/compatibility.md).
        client.subscribe(f"/queue/{name}", id="gone")
    client.send(f"/queue/{name}-other", "x")
    client.subscribe(f"/queue/{name}-other", id="other")
    assert client.message().body == "x"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("how", ["ack", "nack"])
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_message_of_a_cancelled_subscription_may_be_acknowledged(server, clients, amqp, name, version, how, comes_back):
    if how == "nack" and version == "1.0":
        pytest.skip("1.0 has no NACK")
    if server.kind == "rabbitmq":
        pytest.skip("RabbitMQ answers with an ERROR (docs/compatibility.md)")
    client = clients(version)
    client.subscribe(f"/queue/{name}", id="gone", ack="client-individual")
    client.subscribe(f"/queue/{name}-other", id="other", ack="client-individual")
    client.send(f"/queue/{name}", "lost")
    lost = client.message()
    amqp.queue_delete(name)
    assert client.get("error").headers["subscription"] == "gone"
    if comes_back:
        client.subscribe(f"/queue/{name}", id="gone", ack="client-individual")
    # Waits for the receipt.
    client.acknowledge(lost, how)
    for destination in [f"/queue/{name}-other", *([f"/queue/{name}"] if comes_back else [])]:
        client.send(destination, destination)
        message = client.message()
        assert message.body == destination
        client.acknowledge(message)
    assert not client.heard("error")


@pytest.mark.parametrize(
    ("frame", "message", "body"),
    [
        ("FOO\n\n", "Bad command", 'Could not interpret command "FOO"\n'),
        ("SEND\n\nx", "Missing destination", "\"SEND\" must include a 'destination' header\n"),
        ("SEND\ndestination:/nowhere/x\n\nx", "Unknown destination", "'/nowhere/x' is not a valid destination.\n"),
        ("SEND\ndestination:/queue/a/b\n\nx", "Invalid destination", "'/a/b' is not a valid queue destination\n"),
        ("SEND\ndestination:/temp-queue/a\n\nx", "Invalid destination", "'/temp-queue/a' is not a valid destination for 'SEND'\n"),
        ("SEND\ndestination:/queue/a\nmessage-id:1\n\nx", "Invalid header", "'message-id' is not allowed on 'SEND'.\n"),
        ("SEND\ndestination:/exchange/missing/k\n\nx", "not_found", "NOT_FOUND - no exchange 'missing' in vhost '/'"),
        ("SEND\ndestination:/queue/a\ntransaction:t\n\nx", "Bad transaction", 'Invalid transaction identifier: "t"\n'),
        ("SUBSCRIBE\nid:1\ndestination:/amq/queue/missing\n\n", "not_found", "NOT_FOUND - no queue 'missing' in vhost '/'"),
        ("SUBSCRIBE\nid:1\ndestination:/exchange/missing/k\n\n", "not_found", "NOT_FOUND - no exchange 'missing' in vhost '/'"),
        ("SUBSCRIBE\ndestination:/topic/a\ndurable:true\n\n", "Missing Header", "Header 'id' is required for durable subscriptions"),
        ("UNSUBSCRIBE\nid:1\n\n", "No subscription found", "UNSUBSCRIBE must refer to an existing subscription.\n"),
        ("UNSUBSCRIBE\n\n", "Missing destination or id", "UNSUBSCRIBE must include a 'destination' or 'id' header"),
        ("UNSUBSCRIBE\nid:/temp-queue/a\n\n", "Invalid id", "UNSUBSCRIBE 'id' may not start with /temp-queue/\n"),
        ("ACK\n\n", "Missing header", '"ACK" must include the "id" header\n'),
        ("ACK\nid:nonsense\n\n", "Invalid header", '"ACK" must include a valid "id" header\n'),
        ("COMMIT\n\n", "Missing transaction", "\"COMMIT\" must include a 'transaction' header\n"),
        ("COMMIT\ntransaction:t\n\n", "Bad transaction", 'Invalid transaction identifier: "t"\n'),
    ],
)
def test_errors_explain(server, frame, message, body):
    wire = StompWire(server.stomp)
    assert wire.connect()[0] == "CONNECTED"
    wire.send(frame)
    command, headers, told = wire.frame()
    assert (command, headers["message"], told[: len(body)]) == ("ERROR", message, body)
    assert (headers["content-type"], headers["version"]) == ("text/plain", "1.0,1.1,1.2")
    wire.close()


@pytest.mark.parametrize(
    ("login", "body"),
    [
        ({"passcode": "wrong"}, "Access refused for user 'guest'\n"),
        ({"login": "nobody"}, "Access refused for user 'nobody'\n"),
        ({"host": "nowhere"}, "Virtual host 'nowhere' access denied"),
    ],
)
def test_logins_are_refused_in_the_same_words(server, login, body):
    wire = StompWire(server.stomp)
    command, headers, told = wire.connect(**login)
    # RabbitMQ 4 has no line end after its text.
    expected = body.rstrip("\n") if server.kind == "proxy4" else body
    assert (command, headers["message"], told) == ("ERROR", "Bad CONNECT", expected)
    wire.close()


def test_versions_are_negotiated(server):
    for accepted, chosen in [("1.0,1.1,1.2", "1.2"), ("1.1,1.0", "1.1"), ("1.0", "1.0")]:
        wire = StompWire(server.stomp)
        command, headers, _ = wire.connect(accepted, more="heart-beat:0,5000\n")
        assert (command, headers["version"], headers["heart-beat"]) == ("CONNECTED", chosen, "5000,0")
        assert headers["session"].startswith("session-")
        wire.close()
    wire = StompWire(server.stomp)
    command, headers, body = wire.connect("3.0")
    assert (command, headers["message"], body) == ("ERROR", "Version mismatch", "Supported versions are 1.0,1.1,1.2\n")
    wire.close()


def test_heart_beats_come(server):
    wire = StompWire(server.stomp)
    wire.connect(more="heart-beat:0,1000\n")
    wire.unread = b""
    assert wire.read() and wire.unread.strip(b"\n") == b""
    wire.close()


def test_a_subscription_that_is_there_already_is_refused(server, name):
    wire = StompWire(server.stomp)
    wire.connect()
    subscribe = f"SUBSCRIBE\nid:1\ndestination:/queue/{name}\n\n"
    wire.send(subscribe, subscribe)
    command, headers, body = wire.frame()
    assert (command, headers["message"]) == ("ERROR", "Duplicated subscription identifier")
    assert body == "A subscription identified by 'T_1' already exists."
    assert wire.frame() is None
    wire.close()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_a_line_behind_the_headers_of_connect_is_no_body(server, end):
    wire = StompWire(server.stomp)
    wire.send(f"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n{end}")
    assert wire.frame()[0] == "CONNECTED"
    wire.send("DISCONNECT\nreceipt:r\n\n\n")
    assert wire.frame()[:1] == ("RECEIPT",)


@pytest.mark.parametrize("how", ["ACK", "NACK"])
def test_a_message_is_acknowledged_in_1_1_by_its_identifier_alone(server, name, how):
    wire = StompWire(server.stomp)
    assert wire.connect("1.1")[0] == "CONNECTED"
    wire.send(f"SUBSCRIBE\nid:1\ndestination:/queue/{name}-{how}\nack:client-individual\nreceipt:s\n\n")
    assert wire.frame()[0] == "RECEIPT"
    for subscription in ("", "subscription:1\n", "subscription:other\n"):
        wire.send(f"SEND\ndestination:/queue/{name}-{how}\n\nx")
        command, headers, _ = wire.frame()
        assert command == "MESSAGE"
        wire.send(f"{how}\n{subscription}message-id:{headers['message-id']}\nrequeue:false\nreceipt:a\n\n")
        assert wire.frame()[0] == "RECEIPT", subscription


@pytest.mark.parametrize("durable", ["", "durable:true\n"])
def test_the_receipt_of_a_subscription_comes_before_its_messages(server, name, durable):
    wire = StompWire(server.stomp)
    assert wire.connect()[0] == "CONNECTED"
    queue_name = f"/queue/{name}"
    for number in range(20):
        wire.send(f"SEND\ndestination:{queue_name}\n{durable}receipt:m\n\n{number}")
        assert wire.frame()[0] == "RECEIPT"
        wire.send(f"SUBSCRIBE\nid:{number}\ndestination:{queue_name}\n{durable}receipt:s\n\n")
        assert [wire.frame()[0] for _ in range(2)] == ["RECEIPT", "MESSAGE"]
        wire.send(f"UNSUBSCRIBE\nid:{number}\nreceipt:u\n\n")
        assert wire.frame()[0] == "RECEIPT"
