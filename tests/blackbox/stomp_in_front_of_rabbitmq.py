"""STOMP clients in front of a RabbitMQ without STOMP, 3.10.8 and 4.3.6: they log in there, share its connections, and
survive its restarts; with stomp.py, stompjs, and on the wire."""

import contextlib
import itertools
import json
import subprocess

import pika
import pytest
from harness.child import peak_resident_bytes
from harness.ctl import Ctl
from harness.instances import leveret
from harness.leveret import ROOT
from harness.metrics import wait_until
from harness.mqtt_broker import ANY, listening
from harness.patience import PATIENCE
from harness.stomp_client import EVERYTHING, Client, StompWire
from harness.upstreams import upstream

# A fixture of these tests.
__all__ = ["upstream"]
STOMPJS = ROOT / "tests" / "websocket" / "stomp_client.mjs"


@pytest.fixture(scope="module")
def pool(tmp_path_factory, upstream):
    flags = ["--upstream", f"amqp://127.0.0.1:{upstream.port}", "--stomp", ANY, "--web-stomp", ANY, "--ws", ANY]
    with leveret(tmp_path_factory.mktemp("leveret"), *flags) as server:
        server.stomp = listening(server, "stomp", "stomp")
        yield server
        server.stop()


@pytest.fixture
def clients(pool):
    """Creates clients, and closes them at the end."""
    with contextlib.ExitStack() as stack:

        def make(**options):
            client = Client(pool.stomp, **options)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def amqp(upstream):
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(upstream.uri))) as connection:
        yield connection.channel()


@pytest.fixture
def name(request):
    """A queue for the test."""
    return "q-" + "".join(character if character.isalnum() else "-" for character in request.node.name)


def connections(upstream):
    return [line for line in upstream.control("list_connections", "name").splitlines() if "127.0.0.1" in line]


def test_many_clients_share_a_few_connections(upstream, clients, amqp, name):
    everyone = [clients() for _ in range(50)]
    for number, client in enumerate(everyone):
        client.subscribe(f"/queue/{name}-{number % 5}")
    for number, client in enumerate(everyone):
        client.send(f"/queue/{name}-{number % 5}", str(number))
    # The upstream chooses which of a queue's ten consumers gets it.
    wait_until(lambda: sum(client.heard() for client in everyone) == len(everyone))
    # A few connections, even under load.
    assert len(connections(upstream)) < len(everyone) / 2
    # The receipt comes after all deliveries.
    for client in everyone:
        client.do("unsubscribe", "1")
    got = [client.message().body for client in everyone for _ in range(client.heard())]
    assert sorted(got, key=int) == [str(number) for number in range(50)]
    assert all(amqp.queue_declare(f"{name}-{number}", passive=True).method.message_count == 0 for number in range(5))


def test_messages_are_acknowledged_upstream_once_they_are_sent(amqp, clients, name):
    client = clients()
    client.subscribe(f"/queue/{name}")
    for number in range(500):
        client.connection.send(f"/queue/{name}", str(number))
    assert [client.message().body for _ in range(500)] == [str(number) for number in range(500)]
    client.do("disconnect")
    wait_until(lambda: amqp.queue_declare(name, passive=True).method.consumer_count == 0)
    assert amqp.queue_declare(name, passive=True).method.message_count == 0


def test_the_clients_own_rights_are_those_it_has_upstream(upstream, pool, clients, name):
    upstream.control("add_user", "reader", "secret")
    upstream.control("set_permissions", "reader", "", "", ".*")
    clients().send(f"/queue/{name}", "x")
    reader = clients(user="reader", password="secret")
    reader.subscribe(f"/amq/queue/{name}")
    assert reader.message().body == "x"
    wire = StompWire(pool.stomp)
    assert wire.connect(login="reader", passcode="secret")[0] == "CONNECTED"
    wire.send(f"SEND\ndestination:/exchange/amq.direct/{name}\nreceipt:r\n\nx")
    command, headers, body = wire.frame()
    assert (command, headers["message"]) == ("ERROR", "access_refused")
    assert "access to exchange 'amq.direct' in vhost '/' refused for user 'reader'" in body
    # Only the offending client's connection was closed.
    clients().send(f"/queue/{name}", "y")
    assert reader.message().body == "y"
    upstream.control("delete_user", "reader")


def test_a_stream_is_read_from_where_the_client_asks(upstream, amqp, clients, name):
    amqp.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    amqp.confirm_delivery()
    for number in range(5):
        amqp.basic_publish("", name, str(number))
    for offset, first in [("first", 0), ("offset=3", 3)]:
        client = clients()
        client.subscribe(f"/amq/queue/{name}", ack="client", x_stream_offset=offset, prefetch_count="10")
        assert [client.message().body for _ in range(5 - first)] == [str(number) for number in range(first, 5)]


@pytest.mark.parametrize("path", ["web", "ws"])
def test_stompjs_has_the_same_conversation_as_with_the_broker(pool, name, path):
    url = f"ws://127.0.0.1:{listening(pool, 'web-stomp', 'ws')}/ws" if path == "web" else f"ws://127.0.0.1:{pool.ws_port}/ws/stomp"
    argv = ["node", "--no-warnings", "--experimental-websocket", STOMPJS, url, name]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == EVERYTHING


def test_operators_see_the_clients(pool, clients):
    client = clients()
    client.subscribe("/queue/seen")
    ctl = Ctl(pool.http)
    found = [row for row in ctl.json("list_connections", "protocol", "user") if row["protocol"] == "STOMP 1.2"]
    assert found and {row["user"] for row in found} == {"guest"}


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_clients_outlive_a_restart_of_the_upstream(upstream, pool, clients, name, how):
    subscriber, publisher = clients(), clients()
    subscriber.subscribe(f"/queue/{name}", ack="client-individual", prefetch_count="10")
    publisher.send(f"/queue/{name}", "before", persistent="true")
    held = subscriber.message()
    assert held.body == "before"
    if how == "stop":
        upstream.control("stop")
        upstream.server.wait(PATIENCE)
    else:
        upstream.end()
    # Answered once the upstream is reachable again.
    publisher.connection.send(f"/queue/{name}", "meanwhile", headers={"persistent": "true", "receipt": "m"})
    newcomer = StompWire(pool.stomp)
    newcomer.send("CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n")
    upstream.start()
    assert publisher.get("receipt") == "m"
    got = [subscriber.message() for _ in range(2)]
    assert {frame.body for frame in got} == {"before", "meanwhile"}
    again = next(frame for frame in got if frame.body == "before")
    assert again.headers["redelivered"] == "true"
    # The delivery from before the outage is void.
    subscriber.acknowledge(held)
    for frame in got:
        subscriber.acknowledge(frame)
    publisher.send(f"/queue/{name}", "after", persistent="true")
    assert subscriber.message().body == "after"
    assert publisher.heard("error") == subscriber.heard("error") == 0
    answer = newcomer.frame()
    assert answer is None or answer[0] == "CONNECTED", "an outage is no refusal"


def test_a_client_connecting_without_an_upstream_is_closed_without_error(tmp_path):
    flags = ["--upstream", "amqp://127.0.0.1:1", "--stomp", ANY, "--upstream-arrival-max", "0s"]
    with leveret(tmp_path, *flags) as server:
        wire = StompWire(listening(server, "stomp", "stomp"))
        assert wire.connect() is None
        server.stop()


def subscriptions(upstream):
    """The upstream queues of subscriptions: their messages, consumers, and bindings."""
    listed = upstream.control("list_queues", "name", "consumers", "messages").splitlines()
    queues = [line.split("\t") for line in listed if line.startswith("stomp-subscription-")]
    bound = upstream.control("list_bindings", "source_name", "destination_name", "routing_key").splitlines()
    return queues, [line for line in bound if line.startswith("amq.topic\tstomp-subscription-")]


def test_subscribers_of_topics_share_one_queue(upstream, pool, clients, amqp):
    everyone = [clients() for _ in range(40)]
    for number, client in enumerate(everyone):
        client.subscribe(f"/topic/shared.{number % 4}", id="exact")
        client.subscribe("/topic/shared.#", id="all")
    queues, bindings = subscriptions(upstream)
    assert len(queues) == 1 and queues[0][1] == "1", queues
    assert len(bindings) == 5, bindings
    amqp.confirm_delivery()
    for number in range(4):
        amqp.basic_publish("amq.topic", f"shared.{number}", f"to {number}", pika.BasicProperties(headers={"n": number}))
    for number, client in enumerate(everyone):
        got = [client.message() for _ in range(5)]
        by_id = {id: [frame.body for frame in got if frame.headers["subscription"] == id] for id in ("exact", "all")}
        assert by_id == {"exact": [f"to {number % 4}"], "all": [f"to {one}" for one in range(4)]}
        assert {frame.headers["destination"] for frame in got} == {f"/topic/shared.{one}" for one in range(4)}
        assert len({frame.headers["message-id"] for frame in got}) == 5
    everyone[0].do("unsubscribe", "all")
    everyone[1].send("/topic/shared.9", "later")
    assert everyone[1].message().body == "later"
    # The first message to arrive is for the remaining subscription.
    everyone[1].send("/topic/shared.0", "last")
    assert everyone[0].message().body == "last"
    wait_until(lambda: all(queue[2] == "0" for queue in subscriptions(upstream)[0]))


def test_a_topic_that_a_user_may_not_read_is_refused_to_that_user_alone(upstream, pool, clients):
    upstream.control("add_user", "half", "secret")
    upstream.control("set_permissions", "half", ".*", ".*", ".*")
    upstream.control("set_topic_permissions", "half", "amq.topic", ".*", "^mine")
    other = clients(user="half", password="secret")
    other.subscribe("/topic/mine.a")
    wire = StompWire(pool.stomp)
    assert wire.connect(login="half", passcode="secret")[0] == "CONNECTED"
    wire.send("SUBSCRIBE\nid:1\ndestination:/topic/yours.a\nreceipt:r\n\n")
    command, headers, body = wire.frame()
    assert (command, headers["message"]) == ("ERROR", "access_refused"), body
    assert "access to topic 'yours.a' in exchange 'amq.topic' in vhost '/' refused for user 'half'" in body
    clients().send("/topic/mine.a", "x")
    assert other.message().body == "x"
    upstream.control("delete_user", "half")


def test_subscribers_of_topics_outlive_a_restart_of_the_upstream(upstream, clients):
    subscriber, publisher = clients(), clients()
    subscriber.subscribe("/topic/restarted")
    publisher.send("/topic/restarted", "before")
    assert subscriber.message().body == "before"
    upstream.end()
    upstream.start()
    # Messages published before the queue is bound again are unroutable, as without a subscriber.
    numbers = itertools.count(1)

    def is_heard():
        publisher.send("/topic/restarted", f"after {next(numbers)}")
        return subscriber.heard()

    wait_until(is_heard)
    assert subscriber.message().body.startswith("after")
    assert subscriber.heard("error") == 0


def test_a_subscriber_of_a_topic_that_does_not_read_is_closed_and_holds_up_nobody(pool, clients, amqp):
    # More than the sockets' buffers and the client's own queue hold.
    count, body = 400, "x" * 100_000
    slow, other = StompWire(pool.stomp), clients()
    assert slow.connect()[0] == "CONNECTED"
    slow.send("SUBSCRIBE\nid:1\ndestination:/topic/flood\nreceipt:r\n\n")
    assert slow.frame()[0] == "RECEIPT"
    other.subscribe("/topic/flood")
    for _ in range(count):
        amqp.basic_publish("amq.topic", "flood", body)
        assert len(other.message().body) == len(body)
    frames = []
    while frame := slow.frame():
        frames.append(frame)
    assert len(frames) < count
    command, headers, _ = frames[-1]
    assert (command, headers["message"]) == ("ERROR", "Client too slow")
    assert {frame[0] for frame in frames[:-1]} == {"MESSAGE"}


def pipelined(pool, *frames):
    """A connection that has sent all of these frames at once."""
    wire = StompWire(pool.stomp)
    assert wire.connect()[0] == "CONNECTED"
    wire.send(*frames)
    return wire


def subscribe(id, destination, more=""):
    return f"SUBSCRIBE\nid:{id}\ndestination:{destination}\n{more}\n"


def receipts(wire, count):
    got = []
    while len(got) < count:
        command, headers, body = wire.frame()
        assert command in ("RECEIPT", "MESSAGE"), (headers, body)
        got += [headers["receipt-id"]] if command == "RECEIPT" else []
    return got


def test_pipelined_frames_are_answered_in_order(pool, amqp, name):
    amqp.queue_declare(name)
    queue = f"/amq/queue/{name}"
    ask = f"SEND\ndestination:/queue/{name}-asked\nreply-to:/temp-queue/a\nreceipt:ask\n\nx"
    wire = pipelined(pool, subscribe(1, queue), ask, subscribe(2, queue, "receipt:two\n"))
    assert receipts(wire, 2) == ["ask", "two"]
    wire = pipelined(pool, subscribe(1, queue), "UNSUBSCRIBE\nid:1\n\n", subscribe(1, queue, "receipt:again\n"))
    assert receipts(wire, 1) == ["again"]
    wire.send(f"SEND\ndestination:/queue/{name}\n\nx")


def test_an_immediately_ended_subscription_does_not_affect_other_clients(pool, clients, amqp, name):
    for one in "ab":
        amqp.queue_declare(f"{name}-{one}")
    other = clients()
    other.subscribe(f"/queue/{name}-other", ack="client-individual", prefetch_count="5")
    other.send(f"/queue/{name}-other", "held")
    held = other.message()
    for _ in range(5):
        gone = "UNSUBSCRIBE\nid:0\nreceipt:u\n\n"
        last = subscribe(1, f"/amq/queue/{name}-b", "receipt:s\n")
        wire = pipelined(pool, subscribe(0, f"/amq/queue/{name}-a"), gone, last)
        assert receipts(wire, 2) == ["u", "s"]
    other.acknowledge(held)
    other.send(f"/queue/{name}-other", "next")
    assert other.message().body == "next"


def test_subscriptions_to_topics_that_are_sent_at_once_are_all_answered(pool, clients):
    clients().subscribe("/topic/bound.already")
    wire = pipelined(pool, subscribe(1, "/topic/new.one", "receipt:1\n"), subscribe(2, "/topic/bound.already", "receipt:2\n"))
    assert receipts(wire, 2) == ["1", "2"]
    wire.send("SEND\ndestination:/topic/new.one\n\na", "SEND\ndestination:/topic/bound.already\n\nb")
    assert {wire.frame()[2] for _ in range(2)} == {"a", "b"}


def test_a_topic_gets_messages_routed_by_other_exchanges_and_keys(clients, amqp, name):
    amqp.exchange_declare(f"{name}-into", "fanout")
    amqp.exchange_bind("amq.topic", f"{name}-into", "by.binding")
    amqp.exchange_declare(f"{name}-alternate", "direct", arguments={"alternate-exchange": "amq.topic"})
    client = clients()
    for id in ("by.binding", "by.alternate", "by.cc"):
        client.subscribe(f"/topic/{id}", id=id)
    amqp.basic_publish(f"{name}-into", "by.binding", b"1")
    amqp.basic_publish(f"{name}-alternate", "by.alternate", b"2")
    amqp.basic_publish("amq.topic", "elsewhere", b"3", pika.BasicProperties(headers={"CC": ["by.cc"]}))
    got = {frame.headers["subscription"]: frame.body for frame in (client.message() for _ in range(3))}
    assert got == {"by.binding": "1", "by.alternate": "2", "by.cc": "3"}


def test_a_disconnect_hands_out_nothing_that_is_not_acknowledged(pool, amqp, name):
    amqp.queue_declare(name, durable=True)
    amqp.confirm_delivery()
    for number in range(1000):
        amqp.basic_publish("", name, str(number))
    wire = pipelined(pool, subscribe(1, f"/queue/{name}"), "DISCONNECT\nreceipt:d\n\n")
    got = 0
    while frame := wire.frame():
        got += frame[0] == "MESSAGE"
    wait_until(lambda: amqp.queue_declare(name, passive=True).method.message_count == 1000 - got)


def test_a_client_that_does_not_read_leaves_its_messages_upstream(pool, amqp, name):
    body = "x" * 50_000
    amqp.queue_declare(name, durable=True)
    for _ in range(1000):
        amqp.basic_publish("", name, body)
    amqp.queue_declare(name, passive=True)
    amqp.queue_declare(f"{name}-other", durable=True)
    before = peak_resident_bytes(pool.pid)
    wire = pipelined(pool, subscribe(1, f"/queue/{name}", "ack:client\n"))
    # Each receipt makes the session check for work.
    for number in range(300):
        wire.send(f"SEND\ndestination:/queue/{name}-other\nreceipt:{number}\n\nx")
    wait_until(lambda: amqp.queue_declare(f"{name}-other", passive=True).method.message_count == 300)
    assert peak_resident_bytes(pool.pid) - before < 1000 * len(body) / 2
    amqp.queue_delete(name)


def test_a_temporary_queue_has_a_name_that_fits(pool, name):
    wire = pipelined(pool, f"SEND\ndestination:/queue/{name}\nreply-to:/temp-queue/{'n' * 243}\n\nx")
    command, headers, _ = wire.frame()
    assert (command, headers["message"]) == ("ERROR", "Invalid header")
