"""Killed under load while journal segments are retired: confirmed messages survive, acknowledged ones do not come back (B3)."""

import threading

import pika

from harness.amqp import connect
from harness.instances import restartable
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE

PERSISTENT = pika.BasicProperties(delivery_mode=2)
QUEUES = ("a", "b", "c")
# Large enough to fill the journal's four segments of 64 MiB quickly, after which the first is retired.
BODY = 512 * 1024
LIVES = 2


def body_of(number):
    return (b"%d:" % number).ljust(BODY, b"%d" % (number % 10))


def number_of(body):
    number = int(body.split(b":", 1)[0])
    assert body == body_of(number)
    return number


class Client(threading.Thread):
    """Repeats an operation until its connection is lost."""

    def __init__(self, server, queue):
        super().__init__(daemon=True)
        self.server, self.queue = server, queue

    def run(self):
        try:
            channel = connect(self.server).channel()
            channel.confirm_delivery()
            while True:
                self.act(channel)
        except (pika.exceptions.AMQPError, OSError):
            pass


class Publisher(Client):
    def __init__(self, server, queue, first):
        super().__init__(server, queue)
        self.next = first

    def act(self, channel):
        channel.basic_publish("", self.queue, body_of(self.next), PERSISTENT)
        self.next += 1


class Consumer(Client):
    """Acknowledges; an ack is on disk once a later publish is confirmed."""

    def __init__(self, server, queue):
        super().__init__(server, queue)
        self.acked, self.sure = set(), set()

    def act(self, channel):
        method, _, body = channel.basic_get(self.queue)
        if method is None:
            return
        channel.basic_ack(method.delivery_tag)
        self.acked.add(number_of(body))
        # On the same channel, so that the ack was processed before.
        channel.basic_publish("", "markers", b"", PERSISTENT)
        self.sure = set(self.acked)


def has_retired(directory):
    """Whether the journal has reached its maximum, and its oldest segment has been retired."""
    moved = any((directory / "queues").glob("*/*.segment"))
    numbers = [int(file.stem, 16) for file in (directory / "journal").glob("*.segment")]
    return moved and max(numbers) - 4 > min(numbers) > 1


def test_nothing_confirmed_is_lost_while_segments_retire(tmp_path):
    first = dict.fromkeys(QUEUES, 0)
    acked, sure = ({queue: set() for queue in QUEUES} for _ in range(2))
    for life in range(LIVES):
        with restartable(tmp_path) as server:
            channel = connect(server).channel()
            for queue in (*QUEUES, "markers"):
                channel.queue_declare(queue, durable=True)
            publishers = [Publisher(server, queue, first[queue]) for queue in QUEUES]
            consumers = [Consumer(server, queue) for queue in QUEUES[1:]]
            begun = metric(server, "leveret_store_journal_bytes_total")
            for client in publishers + consumers:
                client.start()
            wait_until(lambda: metric(server, "leveret_store_journal_bytes_total") > begun + (160 << 20))
            wait_until(lambda: has_retired(tmp_path / "data"))
            server.kill()
            for client in publishers + consumers:
                client.join(PATIENCE)
        for consumer in consumers:
            acked[consumer.queue] |= consumer.acked
            sure[consumer.queue] |= consumer.sure
        with restartable(tmp_path) as server:
            for publisher in publishers:
                found = peek(server, publisher.queue)
                told = f"life {life}, queue {publisher.queue}"
                assert found == sorted(set(found)), f"{told}: each once and in order"
                confirmed = set(range(publisher.next))
                assert confirmed - acked[publisher.queue] <= set(found), f"{told}: confirmed and lost"
                assert not sure[publisher.queue] & set(found), f"{told}: acked and back"
                assert set(found) - confirmed <= {publisher.next}, f"{told}: never published"
                # The one in flight when the server was killed may be there.
                first[publisher.queue] = max(publisher.next, *(number + 1 for number in found or [0]))
                acked[publisher.queue] |= set(range(first[publisher.queue])) - set(found)
            server.kill()


def peek(server, queue):
    """The numbers of all messages in order, without acknowledging them."""
    connection = connect(server)
    channel = connection.channel()
    numbers = []
    while (got := channel.basic_get(queue))[0] is not None:
        numbers.append(number_of(got[2]))
    connection.close()
    return numbers
