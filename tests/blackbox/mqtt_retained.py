"""Retained messages of an acknowledged subscription: kill -9 loses none that the client has not acknowledged."""

import queue

import pytest

from harness.mqtt_broker import SERVED, KilledServer
from harness.mqtt_client import V5, V311, MqttClient
from harness.patience import PATIENCE

# Several times a client's window.
TOPICS = {f"r/{number:03}" for number in range(200)}

# In front of an upstream (docs/compatibility.md).
NOT_AGAIN = "a retained message that waits for a client of a session does not come again after a disconnect"
EXCEPTIONS = {"unacknowledged_retained_messages": NOT_AGAIN, "gets_current_retained_messages": NOT_AGAIN}
# A client may already have received everything when the server is killed.
SOMETIMES = {"in_the_middle": NOT_AGAIN}


class Server(KilledServer):
    """A server that is killed and restarted, and its clients."""

    def client(self, name, version=V311, **options):
        return MqttClient(self.port, name, version, **options)

    def retain(self, topics, body=b"1", qos=2):
        with self.client("writer") as writer:
            for info in [writer.client.publish(topic, body, qos, retain=True) for topic in sorted(topics)]:
                info.wait_for_publish(PATIENCE)


@pytest.fixture(params=SERVED)
def server(request, tmp_path, targets):
    server = Server(tmp_path, kind=request.param, targets=targets)
    yield server
    server.stop()


def come_back(client, server):
    """The same client reconnects, and remembers what it has received."""
    assert client.gone.wait(PATIENCE)
    client.client.loop_stop()
    client.client.connect("127.0.0.1", server.port)
    client.client.loop_start()
    present, _, _ = client.connected.get(timeout=PATIENCE)
    assert present


def rest(client, server, qos=1, topic="z/end"):
    """The messages up to a marker message: pending ones come first."""
    with server.client("ender") as ender:
        ender.publish(topic, qos=qos)
    messages = [client.message()]
    while messages[-1].topic != topic:
        messages.append(client.message())
    return messages[:-1]


@pytest.mark.parametrize("version", [V311, V5])
def test_unacknowledged_retained_messages_are_resent_after_a_kill(server, version):
    server.retain(TOPICS)
    expiry = {"expiry": 3600} if version == V5 else {}
    reader = server.client("reader", version, keep=True, manual_ack=True, **expiry)
    assert reader.subscribe("r/#", 1) == [1]
    assert reader.message().retain
    server.kill()
    assert reader.gone.wait(PATIENCE)
    reader.client.loop_stop()
    with server.client("reader", version, keep=True, **expiry) as reader:
        assert reader.session_present
        messages = reader.take(len(TOPICS))
        assert {message.topic for message in messages} == TOPICS
        assert all(message.retain and message.qos == 1 for message in messages)
        with pytest.raises(queue.Empty):
            reader.messages.get_nowait()
        # Once this is answered, the last acknowledgement was sent.
        reader.subscribe("z/#", 1)
    with server.client("reader", version, keep=True, **expiry) as reader:
        assert rest(reader, server) == [], "all of it was acknowledged"


@pytest.mark.parametrize("qos", [1, 2])
def test_a_kill_in_the_middle_loses_nothing_and_doubles_nothing_at_quality_2(server, qos):
    server.retain(TOPICS)
    reader = server.client("reader", keep=True)
    reader.subscribe([("r/#", qos), ("z/#", qos)])
    topics = [message.topic for message in reader.take(50)]
    server.kill()
    come_back(reader, server)
    topics += [message.topic for message in rest(reader, server, qos)]
    reader.close()
    assert set(topics) == TOPICS
    if qos == 2:
        assert len(topics) == len(TOPICS)


def test_a_session_resumed_after_a_kill_gets_current_retained_messages(server):
    topics = {"r/cleared", "r/replaced", "r/stays"}
    server.retain(topics)
    reader = server.client("reader", keep=True, manual_ack=True)
    reader.subscribe([("r/#", 1), ("z/#", 1)])
    assert {message.topic for message in reader.take(3)} == topics
    server.kill()
    assert reader.gone.wait(PATIENCE)
    reader.client.loop_stop()
    server.retain({"r/replaced"}, b"2")
    server.retain({"r/cleared"}, b"")
    with server.client("reader", keep=True) as reader:
        messages = [(message.topic, message.payload, message.retain) for message in rest(reader, server)]
    retained = {message[:2] for message in messages if message[2]}
    live = [message[:2] for message in messages if not message[2]]
    assert retained == {("r/replaced", b"2"), ("r/stays", b"1")}
    assert live == [("r/replaced", b"2"), ("r/cleared", b"")]
