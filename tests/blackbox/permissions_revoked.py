"""A revoked permission is refused at once, with the protocol's error; remaining permissions still work.

RabbitMQ caches permissions on a channel until it has been idle for a while, so an operation that it has already allowed
is retried after increasing pauses. Leveret's broker must refuse the first attempt.
"""

import contextlib
import itertools
import queue
import time

import pika
import pika.exceptions
import pytest

from harness.ctl import Ctl
from harness.mqtt_broker import SERVED, Broker
from harness.mqtt_client import REFUSED, V5, V311, MqttClient
from harness.patience import PATIENCE
from harness.stomp_client import Client, StompWire
from harness.targets import BROKER, POOL, release_of

# Names that the client keeps access to, and names it loses access to.
GRANTED, REVOKED = "kept", "taken"
ONLY_KEPT = f"^({GRANTED}|amq)"
NAMES = itertools.count(1)
# In front of an upstream (docs/compatibility.md).
REMEMBERED = "RabbitMQ's channel remembers for a while that its user might publish to a topic"
EXCEPTIONS = {
    "an_mqtt_publisher_is_cut_off": REMEMBERED,
    "an_mqtt_5_publisher_gets_a_refusal_each_time": REMEMBERED,
    "an_mqtt_5_publisher_at_qos_0_is_refused_by_a_disconnect[proxy": "for now: DISCONNECT has no reason string, without which paho tells no reason",
}


class User:
    """A user with all permissions; each test creates its own, so that tests share servers."""

    def __init__(self, control, name, vhost="/"):
        self.control, self.name, self.vhost = control, name, vhost

    def permit(self, configure, write=None, read=None):
        self.control("set_permissions", "-p", self.vhost, self.name, configure, write or configure, read or configure)

    def permit_topics(self, write, read):
        self.control("set_topic_permissions", "-p", self.vhost, self.name, "amq.topic", write, read)

    def login(self):
        return {"user": self.name, "password": self.name}


def user_of(server, vhost="/"):
    """Creates a user of a RabbitMQ or a Leveret, with permissions in this virtual host; its password equals its name."""
    name = f"revoked-{next(NAMES)}"
    if hasattr(server, "control"):
        server.add_user(name, vhost)
        return User(server.control, name, vhost)
    user = User(Ctl(server.http), name)
    user.control("add_user", name, LEVERET_CTL_NEW_PASSWORD=name)
    user.permit(".*")
    return user


def until_refused(is_refused, remembered):
    """Repeats an operation until it is refused, with increasing pauses for RabbitMQ's cache; only once if nothing is cached."""
    pause, deadline = 0.5, time.monotonic() + PATIENCE
    while not is_refused():
        assert remembered, "permitted although it was revoked"
        assert time.monotonic() < deadline, "permitted for ever"
        time.sleep(pause)
        pause *= 1.5


# AMQP, at both brokers and through the pool.


@pytest.fixture
def user(targets, target_name):
    return user_of(targets[POOL.get(target_name, target_name)])


@pytest.fixture
def connect(target, user):
    """Opens connections of the user, or of guest, which go at the end of the test."""
    with contextlib.ExitStack() as stack:

        def connect(name=user.name):
            credentials = pika.PlainCredentials(name, name)
            parameters = pika.URLParameters(target.uri)
            parameters.credentials = credentials
            parameters.blocked_connection_timeout = PATIENCE
            connection = pika.BlockingConnection(parameters)
            stack.callback(lambda: connection.is_open and connection.close())
            return connection

        yield connect


@pytest.fixture
def names(connect, user):
    """Creates this user's queues and fanout exchanges, granted and revoked; yields a function that maps the names to them."""
    own = lambda name: f"{name}-{user.name}"
    channel = connect("guest").channel()
    for name in (GRANTED, REVOKED):
        channel.queue_declare(own(name), durable=True)
        channel.exchange_declare(own(name), "fanout", durable=True)
        channel.queue_bind(own(name), own(name))
    yield own
    for name in (GRANTED, REVOKED):
        channel.queue_delete(own(name))
        channel.exchange_delete(own(name))


def confirming(connection):
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def refusal(operation, *arguments, **options):
    """The code and text with which the channel is closed; `None` if it is not."""
    try:
        operation(*arguments, **options)
    except pika.exceptions.ChannelClosedByBroker as closed:
        return closed.reply_code, closed.reply_text
    return None


def refused(which, kind, own, user, target_name):
    text = f"{access(which, target_name)} to {kind} '{own(REVOKED)}' in vhost '/' refused for user '{user.name}'"
    return 403, f"ACCESS_REFUSED - {text}"


def access(which, server):
    """RabbitMQ 4 names the refused permission."""
    return f"{which} access" if release_of(server) == "4" else "access"


def test_a_publish_after_revocation_is_refused_and_others_continue(connect, names, user, target_name):
    connection = connect()
    publisher, bystander = confirming(connection), confirming(connection)
    beside = confirming(connect())
    for channel in (publisher, bystander, beside):
        channel.basic_publish(names(REVOKED), "", b"permitted")
        channel.basic_publish(names(GRANTED), "", b"permitted")
    user.permit(ONLY_KEPT)
    answers = []

    def is_refused():
        # On Leveret this also shows that a remaining permission still works on the same channel.
        publisher.basic_publish(names(GRANTED), "", b"permitted")
        answers.append(refusal(publisher.basic_publish, names(REVOKED), "", b"revoked"))
        return answers[-1] is not None

    until_refused(is_refused, remembered=target_name not in BROKER)
    assert answers[-1] == refused("write", "exchange", names, user, target_name)
    # An unused channel is refused at once, also on RabbitMQ; the pool's channel may have been another client's before.
    anew = lambda: refusal(confirming(connection).basic_publish, names(REVOKED), "", b"revoked") is not None
    until_refused(anew, remembered=target_name in POOL)
    for channel in (bystander, beside, confirming(connection)):
        channel.basic_publish(names(GRANTED), "", b"permitted")


def test_a_consumer_keeps_its_deliveries_and_gets_no_other(connect, names, user, target_name):
    connection = connect()
    channel, got = connection.channel(), []
    for name in (GRANTED, REVOKED):
        channel.basic_consume(names(name), lambda ch, method, _, body: (got.append(body), ch.basic_ack(method.delivery_tag)))
    user.permit(ONLY_KEPT)
    # Read permission is checked when a consumer begins: existing consumers' deliveries and acks continue, on both brokers.
    outside = confirming(connect("guest"))
    for body in (b"1", b"2"):
        for name in (REVOKED, GRANTED):
            outside.basic_publish("", names(name), body)
    deadline = time.monotonic() + PATIENCE
    while len(got) < 4:
        assert time.monotonic() < deadline, got
        connection.process_data_events(1)
    assert sorted(got) == [b"1", b"1", b"2", b"2"]
    for operation in ("basic_consume", "basic_get"):
        fresh = connection.channel()
        # RabbitMQ's cache has no entry for an operation that was not done on this channel, or on a reused channel of the pool.
        arguments = (names(REVOKED), lambda *_: None) if operation == "basic_consume" else (names(REVOKED),)
        assert refusal(getattr(fresh, operation), *arguments) == refused("read", "queue", names, user, target_name)
    fresh = connection.channel()
    assert refusal(fresh.queue_purge, names(REVOKED)) == refused("read", "queue", names, user, target_name)
    configuring = refused("configure", "queue", names, user, target_name)
    assert refusal(connection.channel().queue_delete, names(REVOKED)) == configuring
    assert connection.channel().basic_get(names(GRANTED)) == (None, None, None)
    channel.close()
    # No message is requeued: all were acknowledged.
    assert outside.basic_get(names(REVOKED)) == (None, None, None)


def test_a_user_without_any_permission_is_refused_on_each_channel_and_stays_connected(connect, names, user, target_name):
    if target_name in POOL:
        pytest.skip("the pool may need one more connection to the virtual host, which RabbitMQ refuses with 530")
    connection = connect()
    confirming(connection).basic_publish(names(REVOKED), "", b"permitted")
    user.control("clear_permissions", user.name)
    configuring = refused("configure", "queue", names, user, target_name)
    for _ in range(3):
        assert refusal(connection.channel().queue_declare, names(REVOKED), durable=True) == configuring
    assert connection.is_open
    user.permit(".*")
    confirming(connection).basic_publish(names(REVOKED), "", b"permitted again")


# MQTT and STOMP, at both brokers and through the pool.


@pytest.fixture(scope="module", params=["rabbitmq", *SERVED])
def broker(request, tmp_path_factory, targets):
    broker = Broker(request.param, tmp_path_factory.mktemp("broker"), targets=targets)
    yield broker
    broker.stop()


@pytest.fixture
def member(broker, targets):
    if broker.kind in POOL:
        return user_of(targets[POOL[broker.kind]], broker.vhost)
    return user_of(broker.server)


@pytest.fixture
def mqtt(broker, member, request):
    """Creates clients with the test's user name, and closes them at the end."""
    with contextlib.ExitStack() as stack:

        def make(name, version=V311, **login):
            client = MqttClient(broker.mqtt, f"{name}-{member.name}", version, **(login or member.login()))
            return stack.enter_context(client)

        yield make


@pytest.fixture
def watcher(mqtt, member):
    """guest, subscribed to everything below the user's name."""
    watcher = mqtt("watcher", user="guest", password="guest")
    for name in (GRANTED, REVOKED):
        watcher.subscribe(f"{name}/{member.name}/#", 1)
    return watcher


def test_an_mqtt_subscriber_keeps_its_topics_and_gets_no_other(broker, mqtt, member):
    client, outside = mqtt("client"), mqtt("outside", user="guest", password="guest")
    assert client.subscribe(f"{REVOKED}/{member.name}", 1) == [1]
    member.permit_topics(f"^{GRANTED}", f"^{GRANTED}")
    # Read permission is checked when a subscription begins.
    outside.publish(f"{REVOKED}/{member.name}", b"later")
    assert client.message().payload == b"later"
    assert client.subscribe(f"{GRANTED}/{member.name}", 1) == [1]
    outside.publish(f"{GRANTED}/{member.name}", b"permitted")
    assert client.message().payload == b"permitted"
    if broker.kind == "rabbitmq":
        client.client.subscribe(f"{REVOKED}/{member.name}/more", 1)
        assert client.gone.wait(PATIENCE), "RabbitMQ closes the connection, of which 3.1.1 says nothing"
        return
    assert client.subscribe(f"{REVOKED}/{member.name}/more", 1) == [0x80]
    for body, topic in ((b"refused", f"{REVOKED}/{member.name}/more"), (b"last", f"{GRANTED}/{member.name}")):
        outside.publish(topic, body)
    assert client.message().payload == b"last"


def test_an_mqtt_publisher_is_cut_off_and_nothing_of_it_arrives(broker, mqtt, member, watcher):
    client = mqtt("client")
    client.publish(f"{REVOKED}/{member.name}", b"permitted")
    member.permit_topics(f"^{GRANTED}", f"^{GRANTED}")
    client.publish(f"{GRANTED}/{member.name}", b"permitted")
    # RabbitMQ caches each topic that the client has published to.
    anew = "/anew" if broker.kind == "rabbitmq" else ""
    client.client.publish(f"{REVOKED}/{member.name}{anew}", b"revoked", 1)
    # MQTT 3.1.1 has no other way to refuse (3.3.5).
    assert client.gone.wait(PATIENCE)
    mqtt("another").publish(f"{GRANTED}/{member.name}", b"last")
    assert [message.payload for message in watcher.take(3)] == [b"permitted", b"permitted", b"last"]


@pytest.mark.parametrize("how", ["permissions", "topics"])
@pytest.mark.parametrize("qos", [1, 2])
def test_an_mqtt_5_publisher_gets_a_refusal_each_time_and_continues(broker, mqtt, member, watcher, qos, how):
    if broker.kind == "rabbitmq":
        pytest.skip("this RabbitMQ speaks no MQTT 5")
    client = mqtt("client", V5)
    publish = lambda name, body, **options: client.reason_of(f"{name}/{member.name}", body, **options)
    assert publish(REVOKED, b"permitted", qos=qos) == 0
    if how == "topics":
        member.permit_topics(f"^{GRANTED}", f"^{GRANTED}")
        assert publish(GRANTED, b"permitted", qos=qos) == 0
    else:
        member.permit(".*", f"^{GRANTED}", ".*")
    # The same topic as before, whose route is cached, several times; another topic; and a retained message.
    for name in (REVOKED, REVOKED, f"{REVOKED}/other", REVOKED):
        assert publish(name, b"revoked", qos=qos) == REFUSED[qos]
    assert publish(REVOKED, b"revoked", qos=qos, retain=True) == REFUSED[qos]
    if how == "permissions":
        member.permit(".*")
    assert publish(GRANTED, b"last", qos=qos) == 0
    expected = [b"permitted", *([b"permitted"] if how == "topics" else []), b"last"]
    assert [message.payload for message in watcher.take(len(expected))] == expected
    assert not client.gone.is_set()
    # Nothing was retained either: a new subscription to both topics receives their retained messages.
    client.publish(f"{GRANTED}/{member.name}", b"retained", retain=True)
    late = mqtt("late", user="guest", password="guest")
    late.subscribe([(f"{REVOKED}/{member.name}", 1), (f"{GRANTED}/{member.name}", 1)])
    assert late.message().payload == b"retained"
    assert late.messages.empty()


def test_an_mqtt_5_publisher_at_qos_0_is_refused_by_a_disconnect(broker, mqtt, member, watcher):
    if broker.kind == "rabbitmq":
        pytest.skip("this RabbitMQ speaks no MQTT 5")
    client = mqtt("client", V5)
    reasons = queue.Queue()
    on_disconnect = client.client.on_disconnect
    client.client.on_disconnect = lambda *arguments: (reasons.put(arguments[3].value), on_disconnect(*arguments))
    client.publish(f"{REVOKED}/{member.name}", b"permitted", qos=0)
    assert watcher.message().payload == b"permitted"
    member.permit_topics(f"^{GRANTED}", f"^{GRANTED}")
    # Not awaited: the disconnect may come before paho reports that the message was sent.
    client.client.publish(f"{REVOKED}/{member.name}", b"revoked", qos=0)
    assert reasons.get(timeout=PATIENCE) == 0x87
    mqtt("another", V5).publish(f"{GRANTED}/{member.name}", b"last")
    assert watcher.message().payload == b"last"


def test_a_stomp_sender_is_refused_with_an_error_and_others_go_on(broker, member):
    sender, other = Client(broker.stomp, vhost=broker.vhost, **member.login()), Client(broker.stomp, vhost=broker.vhost, **member.login())
    for client in (sender, other):
        client.send(f"/topic/{REVOKED}.{member.name}", "permitted")
    sender.close()
    watcher = Client(broker.stomp, vhost=broker.vhost)
    for number, name in enumerate((GRANTED, REVOKED)):
        watcher.subscribe(f"/topic/{name}.{member.name}", id=str(number))
    wire = StompWire(broker.stomp)
    assert wire.connect(login=member.name, passcode=member.name, host=broker.vhost)[0] == "CONNECTED"
    destination = f"/topic/{REVOKED}.{member.name}"
    send(wire, destination, "permitted")
    assert wire.frame()[0] == "RECEIPT"
    member.permit_topics(f"^{GRANTED}", f"^{GRANTED}")
    answers = []

    def is_refused():
        send(wire, destination, "revoked")
        answers.append(wire.frame())
        return answers[-1][0] == "ERROR"

    until_refused(is_refused, remembered=broker.kind != "leveret")
    _, headers, text = answers[-1]
    assert headers["message"] == "access_refused"
    assert text == (
        f"ACCESS_REFUSED - {access('write', broker.kind)} to topic '{REVOKED}.{member.name}' in exchange 'amq.topic' "
        f"in vhost '{broker.vhost}' refused for user '{member.name}'"
    )
    assert wire.frame() is None
    other.send(f"/topic/{GRANTED}.{member.name}", "still permitted")
    remembered = [answer for answer in answers if answer[0] == "RECEIPT"]
    bodies = [watcher.message().body for _ in range(2 + len(remembered))]
    assert sorted(bodies) == sorted(["permitted", *(["revoked"] * len(remembered)), "still permitted"])
    other.close()
    watcher.close()


def test_a_stomp_subscriber_keeps_its_subscription_and_gets_no_other(broker, member):
    subscriber, outside = Client(broker.stomp, vhost=broker.vhost, **member.login()), Client(broker.stomp, vhost=broker.vhost)
    destination = f"/queue/{REVOKED}-{member.name}"
    subscriber.subscribe(destination)
    member.permit(ONLY_KEPT)
    outside.send(destination, "later")
    assert subscriber.message().body == "later"
    wire = StompWire(broker.stomp)
    wire.connect(login=member.name, passcode=member.name, host=broker.vhost)
    wire.send(f"SUBSCRIBE\nid:1\ndestination:{destination}\n\n")
    command, headers, text = wire.frame()
    assert (command, headers["message"]) == ("ERROR", "access_refused")
    assert text == (
        f"ACCESS_REFUSED - {access('configure', broker.kind)} to queue '{REVOKED}-{member.name}' in vhost '{broker.vhost}' "
        f"refused for user '{member.name}'"
    )
    assert wire.frame() is None
    outside.send(destination, "still")
    assert subscriber.message().body == "still"
    subscriber.close()
    outside.close()


def send(wire, destination, body):
    wire.send(f"SEND\ndestination:{destination}\nreceipt:r\n\n{body}")
