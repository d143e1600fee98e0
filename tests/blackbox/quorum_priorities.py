"""RabbitMQ 4's quorum queues deliver by priority, and requeued messages first; so does Leveret with that compatibility."""

import contextlib

import pika
import pytest

from harness.instances import restartable
from harness.metrics import wait_until
from harness.patience import PATIENCE

TARGETS = ["rabbitmq4", "leveret4"]
QUORUM = {"x-queue-type": "quorum"}
# A missing priority counts as 4, and any above 31 as 31.
PUBLISHED = [0, 1, 3, 4, None, 5, 4, 9, 31, 32, 255, 30, None]
DELIVERED = [31, 32, 255, 30, 9, 5, 4, None, 4, None, 3, 1, 0]


@contextlib.contextmanager
def channel_of(server):
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port, blocked_connection_timeout=PATIENCE))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        # The server may have stopped.
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


@pytest.fixture
def channel(target):
    with channel_of(target) as channel:
        yield channel


@pytest.fixture
def queue(channel):
    """A queue for each test; further ones are `queue` with a suffix."""
    name = "quorum-priorities"
    yield name
    with channel_of_same_server(channel) as another:
        for each in [name, name + "-dead"]:
            another.queue_delete(each)


def channel_of_same_server(channel):
    # A refusal may have closed the test's channel.
    return contextlib.closing(channel.connection.channel())


def publish(channel, queue, *priorities):
    for priority in priorities:
        channel.basic_publish("", queue, str(priority).encode(), pika.BasicProperties(priority=priority, delivery_mode=2))


def drain(channel, queue):
    got = iter(lambda: channel.basic_get(queue, auto_ack=True)[2], None)
    return [body.decode() for body in got]


def take(channel, queue, count):
    taken = [channel.basic_get(queue) for _ in range(count)]
    return {body.decode(): method.delivery_tag for method, _, body in taken}


def wait_for_count(channel, queue, wanted):
    """RabbitMQ requeues and drops messages a little later than it answers the next request."""
    wait_until(lambda: channel.queue_declare(queue, passive=True).method.message_count == wanted)


def test_the_highest_priority_comes_first(channel, queue):
    channel.queue_declare(queue, durable=True, arguments=QUORUM)
    publish(channel, queue, *PUBLISHED)
    assert drain(channel, queue) == [str(priority) for priority in DELIVERED]


def test_requeued_messages_come_first_in_the_order_of_their_return(channel, queue):
    channel.queue_declare(queue, durable=True, arguments=QUORUM)
    publish(channel, queue, 1, 9, 5, 2)
    tags = take(channel, queue, 3)
    assert list(tags) == ["9", "5", "2"]
    for body in ["2", "9"]:
        channel.basic_nack(tags[body])
    publish(channel, queue, 31)
    channel.basic_reject(tags["5"])
    wait_for_count(channel, queue, 5)
    assert drain(channel, queue) == ["2", "9", "5", "31", "1"]


def test_a_consumer_with_prefetch_1_gets_the_first_message_each_time(channel, queue):
    channel.queue_declare(queue, durable=True, arguments=QUORUM)
    publish(channel, queue, 1, 9, 5)
    channel.basic_qos(prefetch_count=1)
    seen = []
    for method, _, body in channel.consume(queue, inactivity_timeout=PATIENCE):
        assert method, "nothing was delivered"
        seen.append(body.decode())
        if len(seen) == 1:
            publish(channel, queue, 31)
            channel.basic_nack(method.delivery_tag)
        else:
            channel.basic_ack(method.delivery_tag)
        if len(seen) == 5:
            break
    assert seen == ["9", "9", "31", "5", "1"]


def test_a_full_queue_drops_the_next_message_to_be_delivered(channel, queue):
    dead = queue + "-dead"
    channel.queue_declare(dead)
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(queue, durable=True, arguments={**QUORUM, **letters, "x-max-length": 2})
    publish(channel, queue, 9, 1, 5, 31, None)
    wait_for_count(channel, dead, 3)
    assert (drain(channel, queue), drain(channel, dead)) == (["None", "1"], ["9", "31", "5"])


def test_the_number_of_priorities_is_not_for_the_client_to_choose(channel, queue):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refusal:
        channel.queue_declare(queue, durable=True, arguments={**QUORUM, "x-max-priority": 10})
    of = f"queue '{queue}' in vhost '/' of queue type rabbit_quorum_queue"
    assert refusal.value.args == (406, f"PRECONDITION_FAILED - invalid arg 'x-max-priority' for {of}")


def test_a_restart_keeps_the_order(tmp_path):
    """Of Leveret alone."""
    with restartable(tmp_path, "--compatibility", "4") as server, channel_of(server) as channel:
        channel.queue_declare("q", durable=True, arguments=QUORUM)
        publish(channel, "q", *PUBLISHED)
        assert list(take(channel, "q", 5)) == ["31", "32", "255", "30", "9"]
        server.stop()
    with restartable(tmp_path, "--compatibility", "4") as server:
        with channel_of(server) as channel:
            publish(channel, "q", 31)
            wanted = [str(priority) for priority in DELIVERED]
            # Those that had been delivered come before the new one.
            assert drain(channel, "q") == wanted[:5] + ["31"] + wanted[5:]
        server.stop()
