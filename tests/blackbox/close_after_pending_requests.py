"""A client's requests before its close are completed when close-ok arrives, even with nowait or unread answers: the next
client may rely on them."""

import pytest
from harness.amqp import connect
from pika import spec
from pika.exceptions import ChannelClosedByBroker

ROUNDS = 40
DELETIONS = {"exchange": spec.Exchange.Delete, "queue": spec.Queue.Delete}


@pytest.fixture
def prefix(request):
    return request.node.name


def close(client, channel, number):
    """Closes the channel or the connection."""
    if number % 2:
        channel.close()
    client.close()


@pytest.mark.parametrize("nowait", [True, False])
@pytest.mark.parametrize("kind", DELETIONS)
def test_an_object_that_was_deleted_without_waiting_for_an_answer_is_gone(target, prefix, kind, nowait):
    with connect(target) as watcher:
        for number in range(ROUNDS):
            name = f"{prefix}{number}"
            getattr(watcher.channel(), f"{kind}_declare")(name)
            client = connect(target)
            channel = client.channel()
            channel._impl._send_method(DELETIONS[kind](**{kind: name}, nowait=nowait))
            close(client, channel, number)
            with pytest.raises(ChannelClosedByBroker) as refused:
                getattr(watcher.channel(), f"{kind}_declare")(name, passive=True)
            assert refused.value.reply_code == 404


def test_a_binding_that_was_made_without_an_answer_routes(target, prefix):
    with connect(target) as watcher:
        channel = watcher.channel()
        channel.confirm_delivery()
        channel.queue_declare(prefix)
        for number in range(ROUNDS):
            key = f"{prefix}{number}"
            client = connect(target)
            binding = client.channel()
            binding._impl._send_method(spec.Queue.Bind(queue=prefix, exchange="amq.direct", routing_key=key, nowait=True))
            close(client, binding, number)
            channel.basic_publish("amq.direct", key, b"", mandatory=True)
        channel.queue_delete(prefix)
