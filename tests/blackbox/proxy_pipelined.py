"""A client that pipelines methods gets each answer once and in order, and no other client loses a connection.

In front of each release: RabbitMQ itself answers basic.consume and basic.cancel after later methods, not at all if the
channel is closed meanwhile, and a basic.cancel before the consume-ok with 541 (3.10.8).
"""

import itertools
import struct

import pytest

from harness.metrics import metric
from harness.upstreams import pool, upstream  # noqa: F401
from harness.wire import (
    BODY,
    CHANNEL_OPEN,
    CHANNEL_OPEN_OK,
    HEADER,
    METHOD,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    Wire,
    content_header,
    frame,
    long_string,
    publish_arguments,
    short_string,
)

QUEUE_DELETE, QUEUE_DELETE_OK = (50, 40), (50, 41)
QOS, QOS_OK = (60, 10), (60, 11)
CONSUME, CONSUME_OK = (60, 20), (60, 21)
CANCEL, CANCEL_OK = (60, 30), (60, 31)
PUBLISH, DELIVER, ACK = (60, 40), (60, 60), (60, 80)
GET, GET_EMPTY = (60, 70), (60, 72)
RECOVER, RECOVER_OK = (60, 110), (60, 111)
SELECT, SELECT_OK = (85, 10), (85, 11)
TX_SELECT, TX_SELECT_OK = (90, 10), (90, 11)
DURABLE, EXCLUSIVE = 2, 4
NO_WAIT_CONSUME = 8
LOST = "leveret_upstream_connections_lost_total"

numbers = itertools.count()


def method(ids, arguments=b"", channel=1):
    return frame(METHOD, channel, struct.pack(">HH", *ids) + arguments)


def declare(queue, bits=0, channel=1):
    return method(QUEUE_DECLARE, b"\0\0" + short_string(queue) + bytes([bits]) + long_string(b""), channel)


def delete(queue):
    return method(QUEUE_DELETE, b"\0\0" + short_string(queue) + b"\0")


def qos(count, channel=1):
    return method(QOS, struct.pack(">IHB", 0, count, 0), channel)


def consume(queue, tag, bits=0):
    return method(CONSUME, b"\0\0" + short_string(queue) + short_string(tag) + bytes([bits]) + long_string(b""))


def cancel(tag, no_wait=False):
    return method(CANCEL, short_string(tag) + bytes([no_wait]))


def publish(key, channel=1):
    content = frame(HEADER, channel, content_header(1)) + frame(BODY, channel, b"x")
    return method(PUBLISH, publish_arguments("", key), channel) + content


def answers(wire, until, channel=1):
    """The methods up to this one, with their channels."""
    got = []
    while not got or got[-1] != (until, channel):
        kind, number, payload = wire.read_frame()
        if kind == METHOD:
            got.append((struct.unpack(">HH", payload[:4]), number))
    return got


def on(channel, *methods):
    return [(ids, channel) for ids in methods]


@pytest.fixture
def queue(upstream):  # noqa: F811
    name = f"pipelined.{next(numbers)}"
    with Wire(upstream.port).handshake() as wire:
        wire.open_channel()
        wire.send(declare(name, DURABLE))
        wire.expect(QUEUE_DECLARE_OK)
        yield name
        wire.send(delete(name))
        wire.expect(QUEUE_DELETE_OK)


@pytest.fixture
def wire(pool):  # noqa: F811
    """A client of the pool; asserts at the end that no shared connection was lost."""
    before = metric(pool, LOST)
    with Wire(pool.port).handshake() as wire:
        wire.open_channel()
        yield wire
    assert metric(pool, LOST) == before


def expect_deliveries(wire, queue, channel=1):
    """Publishes on a channel, and expects the delivery to its own consumer."""
    wire.send(publish(queue, channel))
    assert answers(wire, DELIVER, channel) == on(channel, DELIVER)


def test_a_consume_in_flight_is_answered_when_its_channel_moves(wire, queue):
    wire.send(qos(5) + consume(queue, "t") + declare("", EXCLUSIVE) + qos(6))
    assert answers(wire, QUEUE_DECLARE_OK) == on(1, QOS_OK, CONSUME_OK, QUEUE_DECLARE_OK)
    wire.expect(QOS_OK)
    expect_deliveries(wire, queue)


def test_a_consume_in_flight_is_answered_when_another_channel_has_the_client_move(wire, queue):
    second = method(CHANNEL_OPEN, short_string(""), 2) + declare("", EXCLUSIVE, 2)
    # The second declaration, on the first channel, makes the consumer move.
    wire.send(qos(5) + consume(queue, "t") + second + declare(queue, DURABLE))
    got = answers(wire, QUEUE_DECLARE_OK)
    if (QUEUE_DECLARE_OK, 2) not in got:
        got += answers(wire, QUEUE_DECLARE_OK, 2)
    assert [each for each in got if each[1] == 1] == on(1, QOS_OK, CONSUME_OK, QUEUE_DECLARE_OK)
    assert [each for each in got if each[1] == 2] == on(2, CHANNEL_OPEN_OK, QUEUE_DECLARE_OK)
    expect_deliveries(wire, queue)


def test_a_cancel_in_flight_is_answered_when_its_channel_moves(wire, queue):
    wire.send(qos(5) + consume(queue, "t"))
    assert answers(wire, CONSUME_OK) == on(1, QOS_OK, CONSUME_OK)
    wire.send(cancel("t") + declare("", EXCLUSIVE) + qos(6))
    assert answers(wire, QUEUE_DECLARE_OK) == on(1, CANCEL_OK, QUEUE_DECLARE_OK)
    wire.expect(QOS_OK)


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_p2_a_consumer_may_be_cancelled_before_its_answer_has_come(wire, queue, own):
    if own:
        wire.send(declare("", EXCLUSIVE))
        wire.expect(QUEUE_DECLARE_OK)
    wire.send(qos(5) + consume(queue, "t") + cancel("t") + consume(queue, "t") + qos(6))
    assert answers(wire, CANCEL_OK) == on(1, QOS_OK, CONSUME_OK, CANCEL_OK)
    assert answers(wire, QOS_OK) == on(1, CONSUME_OK, QOS_OK)
    expect_deliveries(wire, queue)


def test_p2_a_consumer_may_be_cancelled_before_its_answer_has_come_without_one(wire, queue):
    wire.send(consume(queue, "t") + cancel("t", no_wait=True) + consume(queue, "t", NO_WAIT_CONSUME) + cancel("t") + qos(6))
    assert answers(wire, QOS_OK) == on(1, CONSUME_OK, CANCEL_OK, QOS_OK)


def test_answers_come_in_the_order_of_their_methods(wire, queue):
    wire.send(
        qos(5)
        + consume(queue, "a")
        + consume(queue, "b")
        + declare(queue, DURABLE)
        + cancel("a")
        + cancel("unknown")
        + method(SELECT, b"\0")
        + publish("nowhere")
        + qos(6)
        + method(GET, b"\0\0" + short_string(queue) + b"\1")
        + method(RECOVER, b"\1")
        + consume(queue, "c")
        + declare("", EXCLUSIVE)
    )
    got = answers(wire, QUEUE_DECLARE_OK) + answers(wire, QUEUE_DECLARE_OK)
    wanted = [QOS_OK, CONSUME_OK, CONSUME_OK, QUEUE_DECLARE_OK, CANCEL_OK, CANCEL_OK, SELECT_OK]
    wanted += [QOS_OK, GET_EMPTY, RECOVER_OK, CONSUME_OK, QUEUE_DECLARE_OK]
    assert [each for each in got if each[0] != ACK] == on(1, *wanted)
    assert got.count((ACK, 1)) == 1


def test_a_message_behind_a_consumer_that_is_made_and_cancelled_goes_out(wire, queue):
    wire.send(method(SELECT, b"\0") + qos(5) + consume(queue, "t") + cancel("t") + publish(queue))
    assert answers(wire, ACK) == on(1, SELECT_OK, QOS_OK, CONSUME_OK, CANCEL_OK, ACK)


def test_a_transaction_behind_a_consume_is_begun_when_its_channel_moves(wire, queue):
    wire.send(qos(5) + consume(queue, "t") + method(TX_SELECT) + declare(queue, DURABLE))
    assert answers(wire, QUEUE_DECLARE_OK) == on(1, QOS_OK, CONSUME_OK, TX_SELECT_OK, QUEUE_DECLARE_OK)
