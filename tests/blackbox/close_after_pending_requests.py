"""A client's requests before its close are completed when close-ok arrives, even with nowait or unread answers: the next
client may rely on them."""

import pytest
from harness.amqp import connect
from pika import spec
from pika.exceptions import ChannelClosedByBroker

ROUNDS = 40


@pytest.fixture
def prefix(request):
    return request.node.name


def close(client, channel, number):
    """Closes the channel or the connection."""
    if number % 2:
        channel.close()
    client.close()


@pytest.mark.parametrize("nowait", [True, False])
def test_an_exchange_that_was_deleted_without_waiting_for_an_answer_is_gone(target, prefix, nowait):
    with connect(target) as watcher:
        for number in range(ROUNDS):
            exchange = f"{prefix}{number}"
            watcher.channel().exchange_declare(exchange, "fanout")
            client = connect(target)
            channel = client.channel()
            channel._impl._send_method(spec.Exchange.Delete(exchange=exchange, nowait=nowait))
            close(client, channel, number)
            with pytest.raises(ChannelClosedByBroker) as refused:
                watcher.channel().exchange_declare(exchange, passive=True)
            assert refused.value.reply_code == 404


@pytest.mark.parametrize("nowait", [True, False])
def test_a_queue_that_was_deleted_without_waiting_for_an_answer_is_gone(target, prefix, nowait):
    with connect(target) as watcher:
        for number in range(ROUNDS):
            queue = f"{prefix}{number}"
            watcher.channel().queue_declare(queue)
            client = connect(target)
            channel = client.channel()
            channel._impl._send_method(spec.Queue.Delete(queue=queue, nowait=nowait))
            close(client, channel, number)
            with pytest.raises(ChannelClosedByBroker) as refused:
                watcher.channel().queue_declare(queue, passive=True)
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
