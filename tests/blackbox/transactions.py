"""A transaction's messages are routed when they are published, and a full queue fails the commit."""

import contextlib

import pika
import pytest

from harness.amqp import connect
from harness.metrics import wait_until

TARGETS = ["rabbitmq", "leveret", "rabbitmq4", "leveret4"]
QUEUE, OTHER, EXCHANGE = "transactions", "transactions-other", "transactions-exchange"
REPLIES = "amq.rabbitmq.reply-to"


@pytest.fixture
def observer(target):
    with contextlib.closing(connect(target)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE)
        channel.queue_declare(OTHER)
        channel.exchange_declare(EXCHANGE, "fanout")
        yield channel
        with contextlib.closing(connect(target)) as last:
            channel = last.channel()
            channel.queue_delete(QUEUE)
            channel.queue_delete(OTHER)
            channel.exchange_delete(EXCHANGE)


@pytest.fixture
def channel(target):
    connection = connect(target)
    channel = connection.channel()
    channel.tx_select()
    yield channel
    with contextlib.suppress(pika.exceptions.ConnectionWrongStateError):
        connection.close()


def publish(channel, *published, **options):
    """Returns once the server has routed the messages: it answers in order."""
    for exchange, key, body in published:
        channel.basic_publish(exchange, key, body, **options)
    channel.exchange_declare("amq.fanout", passive=True)


def drain(channel, queue):
    return list(iter(lambda: channel.basic_get(queue, auto_ack=True)[2], None))


def comes(channel, queue, bodies):
    """Waits, because RabbitMQ answers a commit before its messages are in the queues."""
    wait_until(lambda: channel.queue_declare(queue, passive=True).method.message_count == len(bodies))
    assert drain(channel, queue) == bodies


def test_bindings_that_change_before_the_commit_change_no_route(observer, channel):
    observer.queue_bind(QUEUE, EXCHANGE)
    publish(channel, (EXCHANGE, "", b"before"))
    observer.queue_unbind(QUEUE, EXCHANGE)
    observer.queue_bind(OTHER, EXCHANGE)
    channel.tx_commit()
    comes(observer, QUEUE, [b"before"])
    # Routes of a finished transaction are not reused.
    publish(channel, (EXCHANGE, "", b"after"))
    channel.tx_commit()
    comes(observer, OTHER, [b"after"])
    assert drain(observer, QUEUE) == []


def test_messages_for_an_exchange_that_is_deleted_before_the_commit_arrive(observer, channel):
    observer.queue_bind(QUEUE, EXCHANGE)
    publish(channel, ("", QUEUE, b"0"), (EXCHANGE, "", b"3"))
    observer.exchange_delete(EXCHANGE)
    publish(channel, ("", QUEUE, b"4"))
    channel.tx_commit()
    comes(observer, QUEUE, [b"0", b"3", b"4"])
    observer.exchange_declare(EXCHANGE, "fanout")


def test_messages_unroutable_at_publish_are_returned_despite_new_bindings(observer, channel):
    returned = []
    channel.add_on_return_callback(lambda _channel, _method, _properties, body: returned.append(body))
    publish(channel, (EXCHANGE, "", b"lost"), mandatory=True)
    observer.queue_bind(QUEUE, EXCHANGE)
    channel.connection.process_data_events(0)
    assert returned == []
    channel.tx_commit()
    channel.connection.process_data_events(0)
    assert returned == [b"lost"]
    publish(channel, (EXCHANGE, "", b"routed"), mandatory=True)
    channel.tx_commit()
    comes(observer, QUEUE, [b"routed"])


@pytest.mark.parametrize("arguments", [{"x-queue-type": "quorum"}, {"x-queue-type": "classic"}], ids=lambda given: given["x-queue-type"])
def test_a_queue_that_is_declared_again_before_the_commit_gets_the_messages(observer, channel, target_name, arguments):
    declare = {"durable": True, "arguments": arguments}
    observer.queue_delete(QUEUE)
    observer.queue_declare(QUEUE, **declare)
    observer.queue_bind(QUEUE, EXCHANGE)
    publish(channel, (EXCHANGE, "", b"bound"), ("", QUEUE, b"direct"), ("", OTHER, b"elsewhere"))
    observer.queue_delete(QUEUE)
    observer.queue_declare(QUEUE, **declare)
    if target_name == "rabbitmq4" and arguments["x-queue-type"] == "classic":
        # Intended (docs/compatibility.md).
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            channel.tx_commit()
    else:
        channel.tx_commit()
        comes(observer, QUEUE, [b"bound", b"direct"])
    comes(observer, OTHER, [b"elsewhere"])


def test_a_commit_that_a_full_queue_refuses_in_part_closes_the_channel(observer, channel):
    observer.queue_delete(QUEUE)
    observer.queue_declare(QUEUE, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    observer.basic_publish("", OTHER, b"acked")
    wait_until(lambda: observer.queue_declare(OTHER, passive=True).method.message_count == 1)
    channel.basic_ack(channel.basic_get(OTHER)[0].delivery_tag)
    publish(channel, ("", QUEUE, b"taken"), ("", QUEUE, b"refused"), ("", OTHER, b"elsewhere"))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.tx_commit()
    assert (closed.value.reply_code, closed.value.reply_text) == (406, "PRECONDITION_FAILED - partial tx completion")
    comes(observer, QUEUE, [b"taken"])
    comes(observer, OTHER, [b"elsewhere"])


def test_a_request_keeps_its_reply_queue_until_the_commit(observer, channel):
    tag = channel.basic_consume(REPLIES, lambda *_: None, auto_ack=True)
    publish(channel, ("", QUEUE, b"request"), properties=pika.BasicProperties(reply_to=REPLIES))
    channel.basic_cancel(tag)
    channel.tx_commit()
    wait_until(lambda: observer.queue_declare(QUEUE, passive=True).method.message_count == 1)
    assert observer.basic_get(QUEUE, auto_ack=True)[1].reply_to.startswith(REPLIES + ".")


def test_a_mandatory_reply_to_a_requester_that_has_gone_is_returned_by_3_10_alone(observer, target, target_name):
    with contextlib.closing(connect(target)) as requester:
        asking = requester.channel()
        asking.basic_consume(REPLIES, lambda *_: None, auto_ack=True)
        asking.basic_publish("", QUEUE, b"request", pika.BasicProperties(reply_to=REPLIES))
        wait_until(lambda: observer.queue_declare(QUEUE, passive=True).method.message_count == 1)
    reply_to = observer.basic_get(QUEUE, auto_ack=True)[1].reply_to
    returned = []
    observer.add_on_return_callback(lambda _channel, _method, _properties, body: returned.append(body))
    observer.basic_publish("", reply_to, b"reply", mandatory=True)
    observer.basic_publish("", "transactions-missing", b"marker", mandatory=True)
    wait_until(lambda: observer.connection.process_data_events(0) or b"marker" in returned)
    assert returned == ([b"marker"] if target_name.endswith("4") else [b"reply", b"marker"])
