"""RabbitMQ is stopped, or killed, and started again under load behind the proxy: its clients do not notice (P7)."""

import collections
import contextlib
import signal
import threading
import time

import pika
import pytest
from harness.instances import leveret
from harness.lending import borrow
from harness.patience import PATIENCE

PUBLISHERS = 50
CONSUMERS = 10
# Confirms that each publisher must receive before and after the outage.
ENOUGH = 10
PERSISTENT = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)


def queue_of(number):
    return f"outage-{number % CONSUMERS}"


class Load:
    """Confirming publishers and acknowledging consumers, each with its own connection and thread."""

    def __init__(self, uri):
        self.parameters = pika.URLParameters(uri)
        self.changed = threading.Condition()
        self.confirmed = collections.defaultdict(int)
        # For each body, the redelivered flags of its deliveries.
        self.seen = collections.defaultdict(list)
        self.errors = []
        self.publishing = True
        self.consuming = True
        work = [(self.publish, number) for number in range(PUBLISHERS)]
        work += [(self.consume, number) for number in range(CONSUMERS)]
        self.threads = [threading.Thread(target=self.run, args=each, daemon=True) for each in work]
        for thread in self.threads:
            thread.start()

    def run(self, work, number):
        try:
            connection = pika.BlockingConnection(self.parameters)
            work(connection, number)
            connection.close()
        except Exception as error:  # Any error of a client fails the test.
            with self.changed:
                self.errors.append(f"{work.__name__} {number}: {error!r}")
                self.changed.notify_all()

    def publish(self, connection, number):
        channel = connection.channel()
        channel.confirm_delivery()
        while self.publishing:
            body = f"{number}:{self.confirmed[number]}"
            channel.basic_publish("", queue_of(number), body, PERSISTENT, mandatory=True)
            with self.changed:
                self.confirmed[number] += 1
                self.changed.notify_all()

    def consume(self, connection, number):
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)

        def take(channel, method, _properties, body):
            with self.changed:
                self.seen[body.decode()].append(method.redelivered)
                self.changed.notify_all()
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume(queue_of(number), take)
        while self.consuming:
            connection.process_data_events(time_limit=0.2)

    def wait_until(self, so):
        with self.changed:
            assert self.changed.wait_for(lambda: self.errors or so(), PATIENCE), "waited in vain"
            assert not self.errors

    def go_on(self, count):
        """Waits until each publisher has received this many more confirms."""
        with self.changed:
            goals = {number: self.confirmed[number] + count for number in range(PUBLISHERS)}
        self.wait_until(lambda: all(self.confirmed[number] >= goal for number, goal in goals.items()))

    def finish(self):
        self.publishing = False
        for thread in self.threads[:PUBLISHERS]:
            thread.join(PATIENCE)
        expected = {f"{number}:{n}" for number in range(PUBLISHERS) for n in range(self.confirmed[number])}
        self.wait_until(lambda: expected <= self.seen.keys())
        self.consuming = False
        for thread in self.threads:
            thread.join(PATIENCE)
        assert not self.errors


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_p7_a_broker_restart_is_not_an_outage_for_clients(tmp_path, how):
    broker = borrow()
    try:
        with contextlib.closing(pika.BlockingConnection(pika.URLParameters(broker.uri))) as connection:
            for number in range(CONSUMERS):
                connection.channel().queue_declare(queue_of(number), durable=True)
        with leveret(tmp_path, "--upstream", broker.uri.replace("guest:guest@", "")) as server:
            load = Load(server.uri)
            load.go_on(ENOUGH)
            broker.end(how)
            broker.start()
            load.go_on(ENOUGH)
            load.finish()
            unmarked = collections.Counter(
                body.split(":")[0] for body, marks in load.seen.items() for mark in marks[1:] if not mark
            )
            # A publisher has one message in flight at a time; only that one may be resent.
            assert all(count <= 1 for count in unmarked.values()), unmarked
            server.stop()
    finally:
        broker.stop()


def test_p7_clients_are_closed_when_an_outage_exceeds_the_limit(tmp_path):
    broker = borrow()
    try:
        upstream = broker.uri.replace("guest:guest@", "")
        with leveret(tmp_path, "--upstream", upstream, "--upstream-outage-max", "1s") as server:
            connection = pika.BlockingConnection(pika.URLParameters(server.uri))
            channel = connection.channel()
            channel.queue_declare("outage", durable=True)
            channel.basic_consume("outage", lambda *_: None)
            broker.server.process.kill()
            began = time.monotonic()
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
                while time.monotonic() < began + PATIENCE:
                    connection.process_data_events(time_limit=1)
            assert closed.value.reply_code == 320
            assert "waited 1s in vain" in closed.value.reply_text
            server.stop()
    finally:
        broker.stop()
