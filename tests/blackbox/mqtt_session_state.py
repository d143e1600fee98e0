"""In front of RabbitMQ the state of a persistent session is stored like its messages: a client that moves to another
Leveret, or whose Leveret was killed, finds its subscriptions with their options, and its QoS 2 messages are published
once."""

import contextlib
from contextlib import closing

import pika
import pytest

from harness.metrics import wait_until
from harness.mqtt5_wire import Mqtt5Wire
from harness.mqtt_broker import listening
from harness.mqtt_client import V5, V311, MqttClient
from harness.mqtt_pool import MqttPool, fixture_of
from harness.mqtt_wire import PUBREL
from harness.patience import PATIENCE

NO_SUBSCRIPTION, NOT_AUTHORIZED, UNAVAILABLE, IDENTIFIER_NOT_FOUND = 0x11, 0x87, 0x88, 0x92
NO_LOCAL, RETAIN_AS_PUBLISHED = 4, 8
# The maximum number of records that a Leveret leaves in a state queue.
MAX_RECORDS = 256


class Cluster(MqttPool):
    """`ports` are the MQTT ports of two Leverets, `servers`."""

    def __init__(self, version, directory):
        super().__init__(version, directory)
        self.count = 0
        try:
            self.servers = [self.server, self.another("other")]
            self.ports = [listening(server, "mqtt", "mqtt") for server in self.servers]
        except BaseException:
            self.stop()
            raise

    @contextlib.contextmanager
    def victim(self):
        """Another Leveret that may be killed, and its port."""
        self.count += 1
        server = self.another(f"victim{self.count}")
        try:
            yield server, listening(server, "mqtt", "mqtt")
        finally:
            server.child.kill()

    def queues(self, name):
        """A client's queues, by the suffixes of their names."""
        return {kind for kind in ("qos0", "qos1", "qos2") if self.exists(f"mqtt-subscription-{name}{kind}")}

    def exists(self, queue):
        with self.channel() as channel:
            try:
                channel.queue_declare(queue, passive=True)
            except pika.exceptions.ChannelClosedByBroker as closed:
                assert closed.reply_code == 404
                return False
            return True

    def records(self, name):
        """The number of messages in a state queue."""
        lines = self.rabbitmq.control("list_queues", "name", "messages").splitlines()
        return int(dict(line.split("\t") for line in lines)[f"mqtt-subscription-{name}qos2"])

    @contextlib.contextmanager
    def listener(self, pattern):
        """Yields a function that publishes a marker and returns the payloads of all messages before it."""
        # A long test does not answer heartbeats.
        parameters = pika.URLParameters(f"{self.rabbitmq.uri}/?heartbeat=0")
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            queue = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_bind(queue, "amq.topic", pattern)

            def heard():
                channel.basic_publish("amq.topic", pattern.replace("#", "last"), b"last")
                bodies = (body for _, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE))
                return list(iter(lambda: next(bodies), b"last"))

            yield heard

    def stop(self):
        try:
            for server in self.servers[1:]:
                server.child.kill()
        finally:
            super().stop()


cluster = fixture_of(Cluster)


@contextlib.contextmanager
def session(port, name, clean=False, expiry=3600, **options):
    """An MQTT 5.0 client with a persistent session; its CONNACK is `connack`."""
    with closing(Mqtt5Wire(port)) as wire:
        wire.connack = wire.connect(name, clean=clean, SessionExpiryInterval=expiry, **options)
        assert wire.connack["reason"] == 0
        yield wire


def receive(wire, body, packet_id=1, dup=False, topic="once/a"):
    """Publishes at QoS 2, up to PUBREC."""
    answer = wire.publish(topic, body, 2, packet_id, dup=dup)
    assert answer == {"packet": "PUBREC", "id": packet_id, "reason": 0}


def complete(wire, packet_id=1, reason=0):
    wire.ack(PUBREL, packet_id)
    assert wire.answer() == {"packet": "PUBCOMP", "id": packet_id, "reason": reason}


def test_subscriptions_go_along_with_their_options(cluster):
    name = "options"
    with session(cluster.ports[0], name) as client:
        assert "MaximumQoS" not in client.connack
        assert client.subscribe(("live/+", 0), ("kept/#", 1), SubscriptionIdentifier=[7])["reasons"] == [0, 1]
        assert client.subscribe(("mine", 1 | NO_LOCAL | RETAIN_AS_PUBLISHED), SubscriptionIdentifier=[8])["reasons"] == [1]
        assert client.subscribe(("gone", 0))["reasons"] == [0]
        assert client.unsubscribe("gone")["reasons"] == [0]
    for port in (cluster.ports[1], cluster.ports[0], cluster.ports[1]):
        with session(port, name) as client, MqttClient(cluster.ports[0], "writer") as writer:
            assert client.connack["session"] == 1
            # The live subscription is restored after CONNACK, so the message may have to be published more than once.
            writer.publish("kept/a", b"kept")
            wanted = {"kept": ("kept/a", 1, [7])}
            assert seen(client) == wanted["kept"]
            client.socket.settimeout(0.2)
            while True:
                writer.publish("live/a", b"live", 1)
                with contextlib.suppress(TimeoutError):
                    assert seen(client) == ("live/a", 0, [7])
                    break
            client.socket.settimeout(PATIENCE)
            # Its own message does not come back; other clients' messages do.
            client.send_packet(3, b"\0\x04mine\0\x05\0own", flags=2)
            packets = client.until("PUBACK")
            assert not [packet for packet in packets if packet["topic"] == "mine"]
            writer.publish("mine", b"other")
            while (got := seen(client)) != ("mine", 1, [8]):
                assert got == ("live/a", 0, [7])
            answer = client.unsubscribe("gone")
            while answer["packet"] == "PUBLISH":
                assert answer["topic"] == "live/a"
                answer = client.answer()
            assert answer["reasons"] == [NO_SUBSCRIPTION]


def seen(client):
    """Topic, QoS and identifiers of the next message, which it acknowledges."""
    message = client.answer()
    if message["qos"]:
        client.ack(4, message["id"])
    return message["topic"], message["qos"], message["SubscriptionIdentifier"]


def test_a_qos_2_message_unreleased_at_a_server_kill_is_published_once(cluster):
    name = "killed"
    with cluster.listener("once.#") as heard:
        with cluster.victim() as (server, port), session(port, name) as client:
            receive(client, b"x")
            server.child.kill()
        with session(cluster.ports[1], name) as client:
            assert client.connack["session"] == 1
            receive(client, b"x", dup=True)
            complete(client)
            complete(client, reason=IDENTIFIER_NOT_FOUND)
        assert heard() == [b"x"]


def test_another_message_with_the_identifier_of_an_unreleased_one_is_no_duplicate(cluster):
    name = "reuse"
    with cluster.listener("once.#") as heard:
        with cluster.victim() as (server, port), session(port, name) as client:
            for packet_id in range(1, 5):
                receive(client, b"%d" % packet_id, packet_id)
            server.child.kill()
        with session(cluster.ports[1], name) as client:
            # Without DUP it is always a new message.
            receive(client, b"1", 1)
            receive(client, b"other", 2, dup=True)
            receive(client, b"3", 3, dup=True, topic="once/b")
            receive(client, b"4", 4, dup=True)
            for packet_id in range(1, 5):
                complete(client, packet_id)
        assert heard() == [b"1", b"2", b"3", b"4", b"1", b"other", b"3"]


def test_identifiers_are_used_again_on_the_way_to_another_server_and_back(cluster):
    name = "traveller"
    with cluster.listener("once.#") as heard:
        for stay in range(6):
            with session(cluster.ports[stay % 2], name) as client:
                assert client.connack["session"] == (stay > 0)
                if stay:
                    # The last PUBREC may have been lost; PUBREL was not sent.
                    receive(client, b"last of %d" % (stay - 1), 2, dup=True)
                    complete(client, 2)
                receive(client, b"first of %d" % stay, 1, dup=stay > 2)
                complete(client, 1)
                receive(client, b"last of %d" % stay, 2)
        assert heard() == [b"%s of %d" % (which, stay) for stay in range(6) for which in (b"first", b"last")]


def test_released_identifiers_are_free_after_a_server_was_killed(cluster):
    name = "released"
    with cluster.listener("once.#") as heard:
        for _ in range(3):
            with cluster.victim() as (server, port), session(port, name) as client:
                # Like a message published to a server that was killed before it arrived.
                receive(client, b"same", dup=True)
                complete(client)
                server.child.kill()
        assert heard() == [b"same"] * 3


def test_many_unreleased_messages_are_a_short_log(cluster):
    name, count = "many", 400
    with cluster.listener("once.#") as heard:
        with cluster.victim() as (server, port), session(port, name) as client:
            for packet_id in range(1, count + 1):
                receive(client, b"%d" % packet_id, packet_id)
            assert cluster.records(name) <= MAX_RECORDS
            server.child.kill()
        with session(cluster.ports[0], name) as client:
            for packet_id in range(1, count + 1):
                receive(client, b"%d" % packet_id, packet_id, dup=True)
                complete(client, packet_id)
            wait_until(lambda: cluster.records(name) <= MAX_RECORDS / 2)
        with session(cluster.ports[1], name) as client:
            complete(client, 1, reason=IDENTIFIER_NOT_FOUND)
        assert heard() == [b"%d" % packet_id for packet_id in range(1, count + 1)]


@pytest.mark.parametrize("version", [V311, V5])
def test_a_clean_start_and_the_end_of_a_session_leave_no_queue(cluster, version):
    name, kept = f"clean{version}", {"keep": True, "expiry": 3600 if version == V5 else None}
    for last in (0, 1):
        with MqttClient(cluster.ports[0], name, version, **kept) as client:
            assert client.subscribe([("a/live", 0), ("a/kept", 1)]) == [0, 1]
            client.publish("a/live", b"x", 2)
        assert cluster.queues(name) == {"qos1", "qos2"}
        with MqttClient(cluster.ports[last], name, version) as client:
            assert not client.session_present and not cluster.queues(name)
    with session(cluster.ports[0], name) as client:
        client.subscribe(("a/live", 0))
        receive(client, b"x")
        client.disconnect(SessionExpiryInterval=0)
        assert client.answer() is None
    wait_until(lambda: not cluster.queues(name))
    with session(cluster.ports[0], name, expiry=1) as client:
        client.subscribe(("a/live", 0))
    # Any declaration of the queue would keep it alive.
    wait_until(lambda: f"mqtt-subscription-{name}qos" not in cluster.rabbitmq.control("list_queues", "name"))


def test_a_session_of_plain_subscriptions_needs_no_second_queue(cluster):
    name = "plain"
    with session(cluster.ports[0], name) as client:
        assert client.subscribe(("plain/#", 1))["reasons"] == [1]
        # Its own message is delivered to it.
        assert {client.publish("plain/a", b"x", 1)["packet"], client.answer()["packet"]} == {"PUBACK", "PUBLISH"}
        assert cluster.queues(name) == {"qos1"}
        assert client.subscribe(("other", 0))["reasons"] == [0]
        assert cluster.queues(name) == {"qos1", "qos2"}


def test_session_changes_made_at_rabbitmqs_own_listener_are_kept(cluster):
    name = "native"
    with MqttClient(cluster.ports[0], name, keep=True) as client:
        assert client.subscribe([("n/live", 0), ("n/a", 1), ("n/b", 1)]) == [0, 1, 1]
    with MqttClient(cluster.native, name, keep=True) as client:
        # RabbitMQ 3.10 only unbinds what was subscribed to on the same connection.
        assert client.subscribe("n/a", 1) == [1]
        client.unsubscribe("n/a")
    with MqttClient(cluster.ports[1], name, keep=True) as client, MqttClient(cluster.ports[0], "writer") as writer:
        assert client.session_present
        writer.publish("n/a", b"a")
        writer.publish("n/b", b"b")
        assert client.message().payload == b"b"
    # A clean start there deletes the session with all its state.
    with MqttClient(cluster.native, name):
        pass
    with MqttClient(cluster.ports[0], name, keep=True) as client:
        assert not client.session_present
        assert not cluster.queues(name)


def test_a_user_without_permission_for_the_records_has_no_quality_2_and_keeps_its_subscriptions(cluster):
    rules = {"limited": "^(mqtt-subscription-.*|amq\\.topic)$", "full": "^(mqtt-subscription-.*|amq\\.topic|amq\\.default)$"}
    for user, write in rules.items():
        cluster.rabbitmq.control("add_user", user, user)
        cluster.rabbitmq.control("set_permissions", user, "^mqtt-subscription-", write, "^(mqtt-subscription-.*|amq\\.topic)$")
        with session(cluster.ports[0], user, user=user, password=user) as client:
            assert client.subscribe((f"{user}/live", 0), (f"{user}/kept", 1))["reasons"] == [0, 1]
            answer = client.publish("elsewhere", b"x", 2, 5)
            assert answer["reason"] == (NOT_AUTHORIZED if user == "limited" else 0)
            assert client.publish(f"{user}/live", b"x", 1)["packet"] in ("PUBACK", "PUBLISH")
            assert cluster.queues(user) == ({"qos1"} if user == "limited" else {"qos1", "qos2"})
    cluster.servers[0].child.wait_line("the upstream refuses the state queue of a session.*")


def test_foreign_messages_in_the_session_state_queue_do_no_harm(cluster):
    name = "hostile"
    with session(cluster.ports[0], name) as client:
        client.subscribe(("h/kept", 1), SubscriptionIdentifier=[5])
        receive(client, b"x")
    with cluster.channel() as channel:
        for body in (b"", b"\1", b"\1\0" + b"\xff" * 100, b"hello" * 10_000, *(b"%d" % number for number in range(600))):
            channel.basic_publish("", f"mqtt-subscription-{name}qos2", body)
    with session(cluster.ports[1], name) as client, MqttClient(cluster.ports[0], "writer") as writer:
        assert client.connack["session"] == 1
        writer.publish("h/kept", b"x")
        assert seen(client) == ("h/kept", 1, [5])
        receive(client, b"x", dup=True)
        complete(client)
    wait_until(lambda: cluster.records(name) < 10)


def test_a_queue_that_nobody_consumes_has_all_messages_of_its_session(cluster):
    name, queued, rounds = "returned", 20, 20
    with session(cluster.ports[0], name) as client, MqttClient(cluster.ports[0], "writer") as writer:
        assert client.subscribe(("returned/#", 1))["reasons"] == [1]
        receive(client, b"x")
        for number in range(queued):
            writer.publish("returned/a", b"%d" % number, 1)
    left = lambda kind: cluster.left(f"mqtt-subscription-{name}{kind}")
    records = left("qos2")
    for number in range(rounds):
        with session(cluster.ports[number % 2], name) as client:
            assert [int(client.answer()["body"]) for _ in range(queued)] == list(range(queued))
        assert (left("qos1"), left("qos2")) == (queued, records)


def test_messages_in_flight_at_a_session_takeover_are_published_once(cluster):
    name = "busy"
    with cluster.listener("once.#") as heard:
        sent = 0
        for turn in range(4):
            with session(cluster.ports[turn % 2], name) as client:
                # The last answers of the earlier connection were never read.
                for packet_id in range(1, 21):
                    if turn:
                        receive(client, b"%d" % (sent - 20 + packet_id), packet_id, dup=True)
                        complete(client, packet_id)
                for packet_id in range(1, 21):
                    sent += 1
                    body = b"\0\x06once/a" + packet_id.to_bytes(2, "big") + b"\0" + b"%d" % sent
                    client.send_packet(3, body, flags=4)
                client.answer()
        with session(cluster.ports[0], name) as client:
            for packet_id in range(1, 21):
                receive(client, b"%d" % (sent - 20 + packet_id), packet_id, dup=True)
        assert sorted(map(int, heard())) == list(range(1, sent + 1))


def test_the_state_survives_a_restart_of_rabbitmq(cluster):
    name = "restart"
    with session(cluster.ports[0], name) as client:
        client.subscribe(("r/kept", 1), SubscriptionIdentifier=[9])
        receive(client, b"x", 1)
        receive(client, b"y", 2)
        complete(client, 2)
    cluster.rabbitmq.end()
    cluster.rabbitmq.start()
    wait_until(lambda: answers(cluster.ports[1]))
    with cluster.listener("once.#") as heard:
        with session(cluster.ports[1], name) as client, MqttClient(cluster.ports[1], "writer") as writer:
            assert client.connack["session"] == 1
            receive(client, b"x", 1, dup=True)
            receive(client, b"y", 2, dup=True)
            complete(client, 1)
            writer.publish("r/kept", b"x")
            assert seen(client) == ("r/kept", 1, [9])
        assert heard() == [b"y"], "the identifier of y was free"


def answers(port):
    with closing(Mqtt5Wire(port)) as wire:
        return wire.connect("anybody")["reason"] == 0


def test_a_restart_of_rabbitmq_while_messages_are_under_way_loses_none(cluster):
    name, count = "outage", 300
    with cluster.channel() as channel:
        channel.queue_declare("outage", durable=True)
        channel.queue_bind("outage", "amq.topic", "outage.#")
    with MqttClient(cluster.ports[0], name, V5, keep=True, expiry=3600) as client:
        assert client.subscribe("outage/other", 0) == [0]
        infos = []
        for number in range(count):
            infos.append(client.client.publish("outage/a", b"%d" % number, 2))
            if number == count // 2:
                infos[count // 4].wait_for_publish(PATIENCE)
                cluster.rabbitmq.end()
        cluster.rabbitmq.start()
        for info in infos:
            info.wait_for_publish(PATIENCE)
        assert all(info.is_published() for info in infos) and not client.gone.is_set()
    with cluster.channel() as channel:
        channel.basic_publish("", "outage", b"last")
        bodies = (body for _, _, body in channel.consume("outage", auto_ack=True, inactivity_timeout=PATIENCE))
        numbers = [int(body) for body in iter(lambda: next(bodies), b"last")]
        channel.queue_delete("outage")
    assert set(numbers) == set(range(count))
    # At most the unconfirmed ones are duplicated when RabbitMQ is killed: paho has 20 in flight.
    assert len(numbers) <= count + 20
    with session(cluster.ports[1], name) as client, cluster.listener("once.#") as heard:
        assert client.connack["session"] == 1
        receive(client, b"after", 1)
        complete(client)
        assert heard() == [b"after"]
