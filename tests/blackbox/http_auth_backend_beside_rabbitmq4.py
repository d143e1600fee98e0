"""RabbitMQ 4 with its plugin and Leveret use the same HTTP auth service: both send the same requests, and clients get the
same answers."""

import pika
import pika.exceptions
import pytest

from harness.http_auth_backend import http_auth_backend
from harness.leveret import Leveret
from harness.management import Management
from harness.mqtt_broker import listening
from harness.mqtt_client import V311, MqttClient
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq
from harness.releases import missing
from harness.stomp_client import StompWire

ANY = "127.0.0.1:0"
PLUGINS = "rabbitmq_auth_backend_http,rabbitmq_mqtt,rabbitmq_stomp,rabbitmq_management"
pytestmark = pytest.mark.skipif(missing("4") is not None, reason=f"no RabbitMQ 4: {missing('4')}")


class Side:
    def __init__(self, service, server, mqtt, stomp, http):
        self.service, self.server, self.mqtt, self.stomp, self.http = service, server, mqtt, stomp, http

    def connect(self, user="alice", password="secret", vhost="/"):
        login = pika.PlainCredentials(user, password)
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.server.port, vhost, login))


@pytest.fixture(scope="module", params=["get", "post"])
def sides(request, tmp_path_factory):
    method = request.param
    with http_auth_backend() as ours, http_auth_backend() as theirs:
        mqtt, stomp, http = free_ports(3)
        settings = [
            *theirs.settings(method), f"mqtt.listeners.tcp.1 = 127.0.0.1:{mqtt}", f"stomp.listeners.tcp.1 = 127.0.0.1:{stomp}",
            f"management.tcp.port = {http}", "management.tcp.ip = 127.0.0.1",
        ]  # fmt: skip
        rabbitmq = RabbitMq(tmp_path_factory.mktemp("rabbitmq"), *settings, plugins=PLUGINS, version="4")
        flags = ("--mqtt", ANY, "--stomp", ANY, "--compatibility", "4", *ours.flags(auth_http_method=method))
        leveret = Leveret(tmp_path_factory.mktemp("leveret"), *flags)
        try:
            yield [
                Side(ours, leveret, listening(leveret, "mqtt", "mqtt"), listening(leveret, "stomp", "stomp"), Management(leveret, leveret.http)),
                Side(theirs, rabbitmq, mqtt, stomp, Management(rabbitmq, f"http://127.0.0.1:{http}")),
            ]
        finally:
            leveret.stop()
            rabbitmq.stop()


@pytest.fixture
def same(sides):
    """Runs an action on both servers; compares the results and the auth requests, the latter as mapped by `known`."""

    def compare(action, refuses=lambda kind, fields: False, own_order=False, known=lambda question: question):
        outcomes, asked = [], []
        for side in sides:
            side.service.take()
            side.service.refuses = refuses
            outcomes.append(action(side))
            questions = [known((kind, dict(fields))) for kind, fields in side.service.take()]
            questions = [question for question in questions if question]
            asked.append(sorted(questions, key=str) if own_order else questions)
        assert outcomes[0] == outcomes[1]
        assert asked[0] == asked[1]
        return outcomes[0], asked[0]

    return compare


def closed(channel, action):
    """The error that closes the channel, or `None`."""
    try:
        action(channel)
    except pika.exceptions.ChannelClosedByBroker as refusal:
        return refusal.reply_code, refusal.reply_text
    return None


def on_channel(*actions, **login):
    """Runs each action on its own channel of one connection."""

    def act(side):
        with side.connect(**login) as connection:
            outcomes = []
            for action in actions:
                channel = connection.channel()
                channel.confirm_delivery()
                outcomes.append(closed(channel, action))
            return outcomes

    return act


def login_outcome(side, **login):
    try:
        side.connect(**login).close()
    except pika.exceptions.ProbableAuthenticationError:
        return "not authenticated"
    except pika.exceptions.ProbableAccessDeniedError:
        return "no access"
    return None


@pytest.mark.parametrize("login", [
    {}, {"password": "wrong"}, {"user": "nobody"}, {"password": "a b+c&d=e%ü/?"}, {"vhost": "missing"}, {"user": "ü #"},
], ids=str)  # fmt: skip
def test_a_login_is_asked_about_alike(same, login):
    _, asked = same(lambda side: login_outcome(side, **login))
    assert asked, "somebody was asked"


def test_a_virtual_host_that_is_refused_stays_closed(same):
    outcome, _ = same(login_outcome, lambda kind, fields: kind == "vhost")
    assert outcome == "no access"


def test_operations_are_asked_about_alike(same):
    same(on_channel(
        lambda channel: channel.exchange_declare("t", "topic"),
        lambda channel: channel.exchange_declare("d", "direct", arguments={"alternate-exchange": "t"}),
        lambda channel: channel.exchange_declare("d", passive=True),
        lambda channel: channel.queue_declare("q", arguments={"x-dead-letter-exchange": "d"}),
        lambda channel: channel.queue_declare("q", passive=True),
        lambda channel: channel.queue_bind("q", "t", "a.#"),
        lambda channel: channel.queue_bind("q", "d", "k"),
        lambda channel: channel.exchange_bind("d", "t", "b"),
        lambda channel: channel.basic_publish("t", "a.b", b"x"),
        lambda channel: channel.basic_publish("t", "a.c", b"x", pika.BasicProperties(headers={"CC": ["copied"], "BCC": ["blind"]})),
        lambda channel: channel.basic_publish("d", "k", b"x"),
        lambda channel: channel.basic_publish("", "q", b"x"),
        lambda channel: channel.basic_get("q", auto_ack=True),
        lambda channel: channel.basic_consume("q", lambda *_: None),
        lambda channel: channel.queue_purge("q"),
        lambda channel: channel.queue_unbind("q", "t", "a.#"),
        lambda channel: channel.exchange_unbind("d", "t", "b"),
        lambda channel: channel.queue_delete("q"),
        lambda channel: channel.exchange_delete("d"),
        lambda channel: channel.exchange_delete("t"),
    ), known=once())  # fmt: skip


def once():
    """RabbitMQ repeats on each channel what Leveret asks once per connection."""
    seen = [set(), set()]
    turn = {"side": -1}

    def first(question):
        kind, fields = question
        if kind == "user":
            turn["side"] += 1
        mark = (kind, *sorted(fields.items()))
        if mark in seen[turn["side"]]:
            return None
        seen[turn["side"]].add(mark)
        return question

    return first


@pytest.mark.parametrize("refused", ["configure queue q", "write exchange amq.direct", "read queue amq.gen", "write topic", "read topic"])
def test_refusals_read_alike(same, refused):
    def refuses(kind, fields):
        if kind not in ("resource", "topic"):
            return False
        return f"{fields['permission']} {fields['resource']} {fields['name']}".startswith(refused)

    def act(side):
        outcomes = []
        with side.connect() as connection:
            queue = connection.channel().queue_declare("", exclusive=True).method.queue
            actions = [
                lambda channel: channel.queue_declare("q", exclusive=True),
                lambda channel: channel.basic_publish("amq.direct", "k", b""),
                lambda channel: channel.basic_get(queue),
                lambda channel: channel.basic_publish("amq.topic", "k", b""),
                lambda channel: channel.queue_bind(queue, "amq.topic", "k"),
            ]
            for action in actions:
                channel = connection.channel()
                channel.confirm_delivery()
                outcome = closed(channel, action)
                outcomes.append(outcome and (outcome[0], outcome[1].replace(queue, "QUEUE")))
        return outcomes

    # The names of server-named queues differ.
    outcome, _ = same(act, refuses, known=lambda question: None)
    assert len([refusal for refusal in outcome if refusal]) == 1


def test_a_server_named_queue_is_asked_about_by_its_name(sides):
    for side in sides:
        side.service.refuses = lambda kind, fields: False
        with side.connect() as connection:
            queue = connection.channel().queue_declare("", exclusive=True).method.queue
        assert ("configure", queue) in [(fields["permission"], fields["name"]) for _, fields in side.service.take("resource")]


def test_tags_from_the_service_have_the_same_effect_as_in_rabbitmq(same):
    same(lambda side: login_outcome(side, user="admin"))
    same(lambda side: [side.http.status("GET", "whoami", user=f"{user}:secret") for user in ("alice", "manager", "admin")],
         known=lambda question: question if question[0] == "user" else None)  # fmt: skip


def test_an_mqtt_client_is_asked_about_alike(same):
    def act(side):
        client = MqttClient(side.mqtt, "beside", V311, user="alice", password="secret")
        outcome = [client.subscribe([("news/#", 1)])]
        client.publish("news/today", b"hello")
        outcome.append(client.message().payload)
        client.close()
        return outcome

    # Leveret first asks whether the queue may be bound, and asks only once what the connection already knows.
    same(act, own_order=True, known=once())


def test_an_mqtt_client_is_refused_alike(same):
    def act(side):
        client = MqttClient(side.mqtt, "beside", V311, user="alice", password="secret")
        return client.subscribe([("forbidden", 1)])

    same(act, lambda kind, fields: fields.get("routing_key") == "forbidden", known=lambda question: None)
    same(lambda side: MqttClient(side.mqtt, "beside", V311, user="alice", password="wrong").reason.value)


def test_a_stomp_client_is_asked_about_alike(same):
    def act(side):
        wire = StompWire(side.stomp)
        outcome = [wire.connect(login="alice", passcode="secret")[0]]
        wire.send("SUBSCRIBE\nid:1\ndestination:/queue/stomp\nreceipt:s\n\n", "SEND\ndestination:/queue/stomp\n\nhello")
        outcome += [wire.frame()[0], wire.frame()[0]]
        wire.send("DISCONNECT\nreceipt:d\n\n")
        outcome.append(wire.frame()[0])
        return outcome

    same(act, own_order=True, known=once())
