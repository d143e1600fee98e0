"""A confirmed persistent message in a durable queue outlives kill -9; an acked one does not come back (B3)."""

import json
import os
import subprocess
import threading
import time

import pika
import pytest

from harness.amqp import connect
from harness.drivers import TESTS
from harness.instances import leveret
from harness.patience import PATIENCE

PERSISTENT = pika.BasicProperties(delivery_mode=2)
# Messages that a client publishes or acknowledges before the broker is killed.
ENOUGH = 300
# So that a machine that is busy does not fail a test.


def declare(server, *queues, **arguments):
    with connect(server) as connection:
        for queue in queues:
            connection.channel().queue_declare(queue, durable=True, arguments=arguments)


def drain(server, queue):
    """All messages of a queue in order: body, redelivered flag and properties."""
    found = []
    with connect(server) as connection:
        channel = connection.channel()
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            method, properties, body = got
            found.append((body, method.redelivered, properties))
    return found


def body_of(number):
    return f"{number}:".ljust(200 + number % 7 * 300, "x").encode()


def numbers_in(found):
    """The numbers of messages; asserts that their bodies are complete."""
    numbers = [int(body.split(b":")[0]) for body, _, _ in found]
    for number, (body, _, properties) in zip(numbers, found):
        assert body == body_of(number)
        assert (properties.delivery_mode, properties.message_id) == (2, str(number))
    return numbers


@pytest.fixture
def state(tmp_path):
    """Starts servers one after the other on the same data directory."""

    def start(*flags):
        return leveret(tmp_path / f"run{len(list(tmp_path.glob('run*')))}", "--data-dir", str(tmp_path / "data"), *flags)

    return start


class Synchronous(threading.Thread):
    """Publishes messages one at a time, each after the confirm of the previous one, until the connection is lost."""

    def __init__(self, server, queue):
        super().__init__()
        self.uri, self.queue, self.confirmed = server.uri, queue, []
        self.enough = threading.Event()

    def run(self):
        try:
            channel = pika.BlockingConnection(pika.URLParameters(self.uri)).channel()
            channel.confirm_delivery()
            while True:
                number = len(self.confirmed)
                properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
                channel.basic_publish("", self.queue, body_of(number), properties)
                self.confirmed.append(number)
                if number == ENOUGH:
                    self.enough.set()
        except (pika.exceptions.AMQPError, OSError):
            pass


def test_messages_confirmed_to_a_synchronous_publisher_survive_kill_9(state):
    with state() as server:
        declare(server, "a", "b")
        publishers = [Synchronous(server, queue) for queue in ("a", "b")]
        for publisher in publishers:
            publisher.start()
        assert all(publisher.enough.wait(PATIENCE) for publisher in publishers)
        server.kill()
        for publisher in publishers:
            publisher.join(PATIENCE)
    with state() as server:
        for publisher in publishers:
            numbers = numbers_in(drain(server, publisher.queue))
            # The one in flight may be there or not; all earlier ones are, once and in order.
            assert numbers == list(range(len(numbers)))
            assert len(publisher.confirmed) <= len(numbers) <= len(publisher.confirmed) + 1
        server.stop()


def test_messages_confirmed_to_a_pipelining_publisher_survive_kill_9(state):
    with state() as server:
        declare(server, "q")
        argv = ["node", TESTS / "amqplib" / "until_killed.js", server.uri, "q", "500"]
        publisher = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        try:
            assert publisher.stdout.readline() == "publishing\n"
            with connect(server) as connection:
                channel = connection.channel()
                deadline = time.monotonic() + PATIENCE
                while channel.queue_declare("q", passive=True).method.message_count < 20 * ENOUGH:
                    assert time.monotonic() < deadline
            server.kill()
            output, _ = publisher.communicate(timeout=PATIENCE)
        finally:
            publisher.kill()
    told = json.loads(output)
    assert len(told["confirmed"]) > ENOUGH
    with state() as server:
        numbers = numbers_in(drain(server, "q"))
        assert numbers == list(range(len(numbers))), "each once, in order, without a gap"
        assert set(told["confirmed"]) <= set(numbers) and len(numbers) <= told["sent"]
        server.stop()


def test_after_kill_9_acked_messages_are_gone_and_unacked_redelivered(state):
    count, prefetch = 3 * ENOUGH, 50
    with state() as server:
        declare(server, "q")
        connection = connect(server)
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(count):
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        channel.basic_qos(prefetch_count=prefetch)
        taken = []
        for method, _, body in channel.consume("q"):
            taken.append(int(body))
            if len(taken) > ENOUGH:
                break
            channel.basic_ack(method.delivery_tag)
        # Once this later message is confirmed, the acks before it are on disk, too.
        channel.basic_publish("", "q", b"%d" % count, PERSISTENT)
        other = connection.channel()
        other.confirm_delivery()
        other.basic_publish("", "q", b"%d" % (count + 1), PERSISTENT)
        server.kill()
    with state() as server:
        found = drain(server, "q")
        # pika had taken the last one from its own buffer, but not acknowledged it.
        assert [int(body) for body, _, _ in found] == list(range(ENOUGH, count + 2))
        redelivered = [int(body) for body, redelivered, _ in found if redelivered]
        assert redelivered == list(range(ENOUGH, ENOUGH + prefetch))
        server.stop()


def test_a_committed_transaction_and_a_purge_outlive_kill_9(state):
    with state() as server:
        declare(server, "q", "purged")
        channel = connect(server).channel()
        channel.basic_publish("", "purged", b"gone", PERSISTENT)
        channel.tx_select()
        for number in range(10):
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        channel.tx_commit()
        method, _, _ = channel.basic_get("q")
        channel.basic_ack(method.delivery_tag)
        channel.tx_commit()
        channel.basic_publish("", "q", b"never committed", PERSISTENT)
        assert channel.queue_purge("purged").method.message_count == 1
        server.kill()
    with state() as server:
        assert [body for body, _, _ in drain(server, "q")] == [b"%d" % number for number in range(1, 10)]
        assert drain(server, "purged") == []
        server.stop()


def test_messages_come_back_into_all_their_queues_and_only_persistent_ones(state):
    with state() as server:
        channel = connect(server).channel()
        channel.confirm_delivery()
        for queue in ("one", "two"):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.fanout")
        large = os.urandom(3_000_000)
        properties = pika.BasicProperties(
            delivery_mode=2, headers={"BCC": ["nobody"], "n": 1}, content_type="text/plain", priority=4, timestamp=7
        )
        channel.basic_publish("amq.fanout", "some.key", large, properties)
        channel.basic_publish("amq.fanout", "some.key", b"transient")
        channel.basic_publish("amq.fanout", "some.key", b"", PERSISTENT)
        server.kill()
    with state() as server:
        for queue in ("one", "two"):
            (first, _, properties), (second, _, _) = drain(server, queue)
            assert (first == large, second) == (True, b"")
            assert (properties.headers, properties.content_type) == ({"n": 1}, "text/plain")
            assert (properties.priority, properties.timestamp) == (4, 7)
        server.stop()
    with state() as server:
        assert drain(server, "one") == drain(server, "two") == []
        server.stop()


def test_confirms_go_on_across_many_crashes(state):
    """Each run publishes and consumes some messages, and is killed."""
    published, expected = 0, set()
    for life in range(4):
        with state() as server:
            connection = connect(server)
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            for _ in range(50):
                channel.basic_publish("", "q", b"%d" % published, PERSISTENT)
                expected.add(published)
                published += 1
            for _ in range(30):
                method, _, body = channel.basic_get("q")
                assert int(body) == min(expected), f"life {life}"
                channel.basic_ack(method.delivery_tag)
                expected.remove(int(body))
            channel.basic_publish("", "q", b"%d" % published, PERSISTENT)
            expected.add(published)
            published += 1
            server.kill()
    with state() as server:
        assert [int(body) for body, _, _ in drain(server, "q")] == sorted(expected)
        server.stop()


def test_a_drain_waits_for_confirms_and_a_clean_stop_loses_nothing(state):
    with state() as server:
        declare(server, "q")
        channel = connect(server).channel()
        for number in range(1000):
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        # Without confirms: everything before the answer was received.
        assert channel.queue_declare("q", passive=True).method.message_count == 1000
        server.stop()
    with state() as server:
        assert len(drain(server, "q")) == 1000
        server.stop()
