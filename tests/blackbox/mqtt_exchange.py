"""A configured MQTT exchange (`mqtt_exchange`), on the embedded broker and in front of RabbitMQ: all MQTT messages are
published to it and delivered from it only, and clients are refused while it is missing."""

import contextlib
import re

import pika
import pytest

from harness.leveret import Leveret, run
from harness.mqtt5_wire import Mqtt5Wire
from harness.mqtt_broker import ANY, listening
from harness.mqtt_client import V5, V311, MqttClient, persistent_session
from harness.mqtt_pool import MqttPool
from harness.patience import PATIENCE
from harness.releases import RELEASES, missing
from harness.stomp_client import Client

VERSIONS = [V311, V5]
EVENTS = ("--mqtt-exchange", "events")
WARNING = "mqtt_exchange does not exist: MQTT clients cannot"
NOT_RETAINED = "MQTT messages not retained"
WRONG = 0x83


class Site:
    """A Leveret with MQTT and STOMP, and an AMQP address of its broker: RabbitMQ's, or its own. `native` is RabbitMQ's MQTT
    port."""

    def __init__(self, kind, directory):
        self.kind, self.directory, self.count = kind, directory, 0
        self.pool = None
        if kind == "leveret":
            self.server = self.again(*EVENTS)
            self.native = None
        else:
            settings = ["mqtt.exchange = events"]
            self.pool = MqttPool(kind, directory, *EVENTS, "--stomp", ANY, settings=settings)
            self.server, self.native = self.pool.server, self.pool.native
        self.mqtt = listening(self.server, "mqtt", "mqtt")

    def again(self, *flags):
        """Another Leveret with these flags, in front of the same RabbitMQ or with the same data directory."""
        self.count += 1
        name, flags = f"run{self.count}", (*flags, "--stomp", ANY)
        if self.pool:
            return self.pool.another(name, flags)
        return Leveret(self.directory / name, "--mqtt", ANY, "--data-dir", str(self.directory / "data"), *flags)

    @contextlib.contextmanager
    def channel(self):
        uri = self.pool.rabbitmq.uri if self.pool else self.server.uri
        with pika.BlockingConnection(pika.URLParameters(uri)) as connection:
            yield connection.channel()

    def declare(self):
        with self.channel() as channel:
            channel.exchange_declare("events", "topic", durable=True)

    def publish(self, exchange, key, body):
        with self.channel() as channel:
            channel.confirm_delivery()
            channel.basic_publish(exchange, key, body)

    def client(self, name, version=V311, **options):
        return MqttClient(self.mqtt, name, version, **options)

    def says(self, words):
        """Waits until the log has these words, and asserts that it has them once."""
        self.server.child.wait_line(re.escape(words))
        assert self.server.child.output().count(words) == 1

    def stop(self):
        try:
            self.server.stop()
        finally:
            self.server.child.kill()
            if self.pool:
                self.pool.rabbitmq.stop()


@pytest.fixture(scope="module", params=["leveret", *RELEASES])
def site(request, tmp_path_factory):
    """With the exchange."""
    if request.param in RELEASES and (reason := missing(request.param)):
        pytest.skip(reason)
    site = Site(request.param, tmp_path_factory.mktemp("site"))
    try:
        site.declare()
        yield site
    finally:
        site.stop()


@pytest.fixture(params=["leveret", *RELEASES])
def bare(request, tmp_path):
    """Without the exchange."""
    if request.param in RELEASES and (reason := missing(request.param)):
        pytest.skip(reason)
    site = Site(request.param, tmp_path)
    try:
        yield site
    finally:
        site.stop()


@contextlib.contextmanager
def listening_queue(site, exchange, key):
    """Returns a function that returns the bodies in a queue bound to this exchange, up to a marker message."""
    with site.channel() as channel:
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, exchange, key)

        def bodies():
            channel.basic_publish("", queue, b"end")
            taken = (body for _, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE))
            return list(iter(lambda: next(taken), b"end"))

        yield bodies


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_messages_go_and_come_by_the_exchange_alone(site, version, qos):
    name = f"alone{version}{qos}"
    with (
        listening_queue(site, "events", f"{name}.#") as by_events,
        listening_queue(site, "amq.topic", f"{name}.#") as by_topic,
        site.client(name, version) as live,
        site.client(f"{name}kept", version, **persistent_session(version)) as persistent,
    ):
        for client in (live, persistent):
            assert client.subscribe(f"{name}/+", qos) == [qos]
        site.publish("amq.topic", f"{name}.a", b"from elsewhere")
        site.publish("events", f"{name}.a", b"from AMQP")
        live.publish(f"{name}/b", b"from MQTT", 1)
        for client in (live, persistent):
            messages = [(message.topic, message.payload) for message in client.take(2)]
            assert messages == [(f"{name}/a", b"from AMQP"), (f"{name}/b", b"from MQTT")]
        assert by_events() == [b"from AMQP", b"from MQTT"]
        assert by_topic() == [b"from elsewhere"]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_offline_session_queues_messages_of_the_configured_exchange(site, version):
    name = f"away{version}"
    with site.client(name, version, **persistent_session(version)) as client:
        client.subscribe(f"{name}/#", 1)
    site.publish("amq.topic", f"{name}.a", b"from elsewhere")
    site.publish("events", f"{name}.a", b"from AMQP")
    with site.client(name, version, **persistent_session(version)) as client:
        assert client.session_present
        assert client.message().payload == b"from AMQP"
        client.unsubscribe(f"{name}/#")
        site.publish("events", f"{name}.a", b"unbound")
        client.subscribe(f"{name}/end", 1)
        client.publish(f"{name}/end", b"end")
        assert client.message().payload == b"end"


def test_shared_subscriptions_are_of_the_exchange(site):
    with contextlib.closing(Mqtt5Wire(site.mqtt)) as member:
        member.connect("member")
        assert member.subscribe(("$share/group/shared/#", 1))["reasons"] == [1]
        site.publish("amq.topic", "shared.a", b"from elsewhere")
        site.publish("events", "shared.a", b"from AMQP")
        assert member.answer()["body"] == b"from AMQP"


@pytest.mark.parametrize("version", VERSIONS)
def test_wills_go_by_the_exchange(site, version):
    topic = f"will/{version}"
    with listening_queue(site, "events", topic.replace("/", ".")) as by_events, site.client(f"reader{version}", version) as reader:
        reader.subscribe(topic, 1)
        site.client(f"dying{version}", version, will=(topic, b"last words", 1)).vanish()
        assert reader.message().payload == b"last words"
        assert by_events() == [b"last words"]


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_are_retained_that_go_by_the_exchange(site, version):
    topic = f"retained/{version}"
    with listening_queue(site, "events", topic.replace("/", ".")) as by_events, site.client("writer", version) as writer:
        writer.publish(topic, b"state", 1, retain=True)
        assert by_events() == [b"state"]
    with site.client("later", version) as later:
        later.subscribe(topic, 1)
        message = later.message()
        assert (message.payload, message.retain) == (b"state", True)


def test_entries_that_came_by_another_exchange_are_not_retained(site):
    if not site.pool:
        pytest.skip("the embedded broker has no log")
    other = site.again()
    try:
        # The other Leveret's clients use amq.topic, and their messages are in the same retained stream.
        with MqttClient(listening(other, "mqtt", "mqtt"), "elsewhere") as client:
            client.publish("foreign/a", b"x", 1, retain=True)
            client.subscribe("foreign/#", 1)
            assert client.message().payload == b"x"
        with site.client("here") as client:
            client.subscribe([("foreign/#", 1), ("foreign-end", 1)])
            client.publish("foreign-end", b"end")
            assert client.message().topic == "foreign-end"
        other.stop()
    finally:
        other.child.kill()


def test_topics_of_stomp_stay_those_of_amq_topic(site):
    port = listening(site.server, "stomp", "stomp")
    with contextlib.closing(Client(port)) as stomp, site.client("beside") as client:
        stomp.subscribe("/topic/stomp.a", id="a")
        client.subscribe("stomp/a", 1)
        site.publish("events", "stomp.a", b"of MQTT")
        site.publish("amq.topic", "stomp.a", b"of STOMP")
        assert stomp.message().body == "of STOMP"
        assert client.message().payload == b"of MQTT"


def test_rabbitmqs_own_listener_with_the_same_exchange_has_the_same_messages_and_sessions(site):
    if not site.pool:
        pytest.skip("there is no listener of RabbitMQ's")
    with MqttClient(site.native, "native") as native, site.client("ours") as ours:
        for client in (native, ours):
            client.subscribe("both/#", 1)
        for client in (native, ours):
            client.publish("both/a", b"x")
        assert [client.message().payload for client in (native, native, ours, ours)] == [b"x"] * 4
    for turn, port in enumerate((site.mqtt, site.native, site.mqtt)):
        with MqttClient(port, "wanderer", keep=True) as wanderer:
            assert wanderer.session_present == (turn > 0)
            if turn == 0:
                wanderer.subscribe("way/#", 1)
            else:
                assert wanderer.message().payload == str(turn - 1).encode()
        site.publish("events", "way.a", str(turn).encode())


def ends(port, name, act, expected):
    """Connects with MQTT 5.0, performs an action, and expects the connection to close with this reason."""
    with contextlib.closing(Mqtt5Wire(port)) as wire:
        assert wire.connect(name, SessionExpiryInterval=0)["reason"] == 0
        answer = act(wire)
        # The embedded broker answers first.
        if answer["packet"] in ("SUBACK", "PUBACK"):
            assert answer.get("reason", WRONG) == WRONG and answer.get("reasons", [WRONG]) == [WRONG]
            answer = wire.answer()
        assert answer["packet"] == "DISCONNECT"
        assert (answer["reason"], answer["ReasonString"]) == (WRONG, expected)


def test_clients_are_disconnected_while_the_exchange_is_missing_and_the_log_says_so_once(bare):
    words = "the exchange of MQTT clients does not exist"
    for qos in (0, 1):
        for options in ({}, {"keep": True}):
            with bare.client(f"subscriber{qos}{len(options)}", **options) as client:
                client.client.subscribe("a/b", qos)
                assert client.gone.wait(PATIENCE)
            with bare.client(f"publisher{qos}{len(options)}", **options) as client:
                client.client.publish("a/b", b"x", qos)
                assert client.gone.wait(PATIENCE)
        ends(bare.mqtt, f"five{qos}", lambda wire, qos=qos: wire.subscribe(("a/b", qos)), words)
    ends(bare.mqtt, "five", lambda wire: wire.publish("a/b", b"x", 1), words)
    ends(bare.mqtt, "group", lambda wire: wire.subscribe(("$share/group/a/b", 1)), words)
    bare.client("dying", will=("a/b", b"x", 1)).vanish()
    bare.says(WARNING)
    if bare.pool:
        bare.says(NOT_RETAINED)
    bare.declare()
    with bare.client("later") as client:
        assert client.subscribe("a/b", 1) == [1]
        client.publish("a/b", b"x")
        assert client.message().payload == b"x"
    bare.says(WARNING)


def test_subscribers_are_disconnected_once_the_exchange_is_found_missing(bare):
    bare.declare()
    with bare.client("before") as before:
        before.subscribe("a/b", 1)
        with bare.channel() as channel:
            channel.exchange_delete("events")
        with bare.client("after") as after:
            after.client.subscribe("a/c", 0)
            assert after.gone.wait(PATIENCE)
        if bare.pool:
            # Its key cannot be bound again.
            assert before.gone.wait(PATIENCE)
    bare.says(WARNING)


def test_a_session_from_before_the_setting_was_changed_keeps_its_bindings(bare):
    """As documented in docs/mqtt-and-stomp.md."""
    bare.declare()
    with bare.client("before", **persistent_session(V311)) as client:
        client.subscribe("a/b", 1)
    bare.server.stop()
    bare.server = bare.again("--mqtt-exchange", "amq.topic")
    bare.mqtt = listening(bare.server, "mqtt", "mqtt")
    with bare.client("before", **persistent_session(V311)) as client:
        assert client.session_present
        bare.publish("events", "a.b", b"earlier")
        assert client.message().payload == b"earlier"
        client.subscribe("a/b", 1)
        bare.publish("amq.topic", "a.b", b"present")
        assert client.message().payload == b"present"
        bare.publish("events", "a.b", b"still")
        assert client.message().payload == b"still"


def test_a_name_that_no_exchange_has_is_refused(tmp_path):
    file = tmp_path / "leveret.toml"
    file.write_text('mqtt_exchange = ""')
    for words in (("--mqtt-exchange", "x" * 256), ("--config", file)):
        code, _, told = run("serve", "--amqp", ANY, *words)
        assert code == 2 and "must be the name of an exchange" in told, told
