"""A process takes over from a pool with a spool, whose directory only one process can use, while the link to the broker is
stalled: publishers continue at the new process, no confirmed message is lost, and the order is kept."""

import contextlib
import threading

import pika
import pytest
from harness.instances import leveret
from harness.metrics import wait_until
from harness.own_rabbitmq import link
from harness.ports import free_ports
from harness.spool import spooling, waiting

# Fixtures of these tests.
__all__ = ["link"]

QUEUE = "takeover-spool"
PUBLISHERS = 3
PERSISTENT = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)


@pytest.fixture
def broker(tmp_path):
    # Without heartbeats the stall is not detected.
    with leveret(tmp_path / "broker", "--heartbeat", "0") as broker:
        yield broker
        broker.stop()


@pytest.fixture
def direct(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        yield channel


class Publisher(threading.Thread):
    """Publishes numbers one at a time, each until it is confirmed, and reconnects when it is closed."""

    def __init__(self, uri, name, over):
        super().__init__()
        self.uri, self.name, self.over, self.confirmed = uri, name, over, 0
        self.start()

    def run(self):
        while not self.over.is_set():
            with contextlib.suppress(pika.exceptions.AMQPError), pika.BlockingConnection(pika.URLParameters(self.uri)) as client:
                channel = client.channel()
                channel.confirm_delivery()
                while not self.over.is_set():
                    channel.basic_publish("", QUEUE, f"{self.name} {self.confirmed}", PERSISTENT)
                    self.confirmed += 1

    def goes_on(self):
        """Waits until some more messages are confirmed."""
        before = self.confirmed
        wait_until(lambda: self.confirmed > before + 20)


def arrived(channel):
    """The numbers in the order of their first arrival, by publisher."""
    bodies = []
    while (got := channel.basic_get(QUEUE, auto_ack=True))[0] is not None:
        bodies.append(got[2].decode())
    numbers = {}
    for body in dict.fromkeys(bodies):
        name, number = body.split()
        numbers.setdefault(name, []).append(int(number))
    return numbers


def test_an_upgrade_does_not_wait_for_an_upstream_that_stands_still(tmp_path, direct, link):
    amqp, http = free_ports(2)
    # Timeouts far longer than the test.
    patient = ["--drain-timeout", "1h", "--upstream-heartbeat", "0"]
    flags = ["--amqp", f"127.0.0.1:{amqp}", "--http", f"127.0.0.1:{http}", *patient]
    over = threading.Event()
    with spooling(tmp_path, link.url, *flags) as before:
        publishers = [Publisher(before.uri, f"p{number}", over) for number in range(PUBLISHERS)]
        try:
            for publisher in publishers:
                publisher.goes_on()
            link.flows.clear()
            for publisher in publishers:
                publisher.goes_on()
            with spooling(tmp_path, link.url, *flags, "--take-over") as after:
                assert before.child.wait() == 0
                for publisher in publishers:
                    publisher.goes_on()
                over.set()
                for publisher in publishers:
                    publisher.join()
                link.flows.set()
                count = lambda: direct.queue_declare(QUEUE, passive=True).method.message_count
                wait_until(lambda: count() >= sum(publisher.confirmed for publisher in publishers))
                wait_until(lambda: waiting(after) == 0)
                numbers = arrived(direct)
                for publisher in publishers:
                    came = numbers[publisher.name]
                    assert came == list(range(len(came))) and len(came) >= publisher.confirmed
                after.kill()
        finally:
            over.set()
            link.flows.set()
