"""RabbitMQ 4's x-local-random exchanges route each message to one random queue; so does Leveret with that compatibility."""

import collections
import uuid

import pika
import pytest

from harness.patience import PATIENCE

TARGETS = ["rabbitmq4", "leveret4"]
KIND = "x-local-random"
MESSAGES = 3_000


@pytest.fixture
def name():
    """An unused exchange name: RabbitMQ deletes exclusive queues some time after their connection closes."""
    return f"chosen-at-random-{uuid.uuid4()}"


@pytest.fixture
def queues(name):
    return [f"{name}-{number}" for number in range(3)]


@pytest.fixture
def channel(target, name, queues):
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", target.port, blocked_connection_timeout=PATIENCE))
    channel = connection.channel()
    channel.exchange_declare(name, KIND, auto_delete=True)
    for queue in queues:
        channel.queue_declare(queue, exclusive=True)
    yield channel
    connection.close()


def refused(channel, call, *arguments):
    """The code and text with which a call closes its channel."""
    own = channel.connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        getattr(own, call)(*arguments)
    return closed.value.reply_code, closed.value.reply_text


def test_each_message_goes_to_one_queue_regardless_of_its_key(channel, name, queues):
    for queue in queues:
        channel.queue_bind(queue, name, "")
    channel.confirm_delivery()
    for number in range(MESSAGES):
        key, headers = f"key {number % 2}", {"CC": ["another"]} if number % 5 == 0 else {}
        channel.basic_publish(name, key, b"", pika.BasicProperties(headers=headers), mandatory=True)
    counts = [channel.queue_declare(queue, passive=True).method.message_count for queue in queues]
    assert sum(counts) == MESSAGES
    # Fifteen standard deviations around a third.
    assert all(600 <= count <= 1_400 for count in counts), counts


def test_a_queue_that_is_unbound_gets_nothing_more(channel, name, queues):
    channel.queue_bind(queues[0], name, "")
    channel.queue_bind(queues[1], name, "")
    channel.queue_unbind(queues[0], name, "")
    channel.confirm_delivery()
    for _ in range(100):
        channel.basic_publish(name, "", b"")
    counts = collections.Counter({queue: channel.queue_declare(queue, passive=True).method.message_count for queue in queues})
    assert +counts == {queues[1]: 100}


def test_a_message_is_unroutable_without_a_queue(channel, name):
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(name, "", b"", mandatory=True)


def test_only_classic_queues_are_bound_and_without_a_key(channel, name, queues):
    quorum = name + "-quorum"
    channel.queue_declare(quorum, durable=True, arguments={"x-queue-type": "quorum"})
    try:
        assert refused(channel, "queue_bind", queues[0], name, "k") == (406, "PRECONDITION_FAILED - Non empty binding 'k' key not permitted")
        wrong_type = "PRECONDITION_FAILED - Queue type rabbit_quorum_queue not valid for this exchange type"
        assert refused(channel, "queue_bind", quorum, name, "") == (406, wrong_type)
        assert refused(channel, "exchange_bind", "amq.fanout", name, "") == (406, "PRECONDITION_FAILED - Destination not found")
        text = "PRECONDITION_FAILED - Non empty binding 'k' key not permitted"
        assert refused(channel, "exchange_bind", "amq.fanout", name, "k") == (406, text)
    finally:
        channel.queue_delete(quorum)
