"""Leveret is killed repeatedly under load while the link to the broker flaps: no confirmed message is lost, a channel's
messages to one destination arrive in order, and duplicates have the same id."""

import collections
import contextlib
import os
import random
import threading

import pika
import pytest
from harness.metrics import wait_until
from harness.own_rabbitmq import broker, link
from harness.spool import spooling, waiting

# Fixtures of these tests.
__all__ = ["broker", "link"]

QUEUES = ["kills-0", "kills-1"]
PUBLISHERS = 3
CHANNELS = 2
# Unconfirmed messages of a channel.
WINDOW = 40
LIVES = 2
# `LEVERET_SPOOL_ROUNDS=30` for a thorough run; `LEVERET_SPOOL_SEED` is the seed of the first round, later rounds count up.
ROUNDS = int(os.environ.get("LEVERET_SPOOL_ROUNDS", "3"))
SEED = int(os.environ.get("LEVERET_SPOOL_SEED", "1"))
PERSISTENT = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)


@pytest.fixture(autouse=True)
def queues(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        for queue in QUEUES:
            direct.channel().queue_delete(queue)
            direct.channel().queue_declare(queue, durable=True)


class PublishingChannel:
    """A channel in confirm mode. Each body has the channel's name, and a number that counts up per queue."""

    def __init__(self, client, name):
        self.name = name
        self.open, self.tag = collections.OrderedDict(), 0
        self.next = dict.fromkeys(QUEUES, 0)
        # The number after the last confirmed one, by queue.
        self.confirmed = dict.fromkeys(QUEUES, 0)
        self.impl = client.channel()._impl
        self.impl.confirm_delivery(ack_nack_callback=self.answered, callback=lambda _: None)

    def publish(self, queue):
        self.tag += 1
        number = self.next[queue]
        self.next[queue] += 1
        self.open[self.tag] = (queue, number)
        self.impl.basic_publish("", queue, f"{self.name} {number}".encode(), PERSISTENT)

    def answered(self, frame):
        method = frame.method
        assert isinstance(method, pika.spec.Basic.Ack), method
        tags = [tag for tag in self.open if tag <= method.delivery_tag] if method.multiple else [method.delivery_tag]
        for tag in tags:
            queue, number = self.open.pop(tag)
            self.confirmed[queue] = max(self.confirmed[queue], number + 1)


class Publisher(threading.Thread):
    """A connection with several channels, until its server is killed."""

    def __init__(self, server, name, seed):
        super().__init__()
        self.client = pika.BlockingConnection(pika.URLParameters(server.uri))
        self.channels = [PublishingChannel(self.client, f"{name}.{number}") for number in range(CHANNELS)]
        self.rng = random.Random(seed)
        self.start()

    def run(self):
        with contextlib.suppress(pika.exceptions.AMQPError):
            while True:
                for channel in self.channels:
                    while len(channel.open) < WINDOW and self.rng.random() < 0.9:
                        channel.publish(self.rng.choice(QUEUES))
                self.client.process_data_events(0.01)


class FlappingLink(threading.Thread):
    """Cuts, freezes, closes and restores a link in turn until it is stopped."""

    def __init__(self, link, seed):
        super().__init__()
        self.link, self.rng = link, random.Random(seed)
        self.end, self.losses = threading.Event(), 0
        self.start()

    def run(self):
        while not self.end.is_set():
            fault = self.rng.choice(["cut", "frozen", "refused", "silent", "none"])
            if fault == "frozen":
                self.link.flows.clear()
            self.link.refuses = fault == "refused"
            if fault in ("cut", "refused", "silent"):
                lose = self.link.close if fault == "silent" else self.link.cut
                lose()
                self.losses += 1
            self.end.wait(self.rng.uniform(0.005, 0.1))
            self.restore()

    def restore(self):
        self.link.refuses = False
        self.link.flows.set()
        self.link.reopen()

    def stop(self):
        self.end.set()
        self.join()


def live(server, link, names, seed):
    """Runs a server under load and kills it; returns its publishers' channels, and how often the link was lost."""
    publishers = [Publisher(server, name, f"{seed} {name}") for name in names]
    flapping = FlappingLink(link, seed)
    channels = [channel for publisher in publishers for channel in publisher.channels]
    enough = random.Random(seed).randrange(50, 1500)
    wait_until(lambda: sum(sum(channel.confirmed.values()) for channel in channels) >= enough)
    server.kill()
    flapping.stop()
    for publisher in publishers:
        publisher.join()
    return channels, flapping.losses


class Arrived:
    """Messages from the broker's queues: the bodies in order, and the id of each."""

    def __init__(self):
        self.bodies, self.ids = {queue: [] for queue in QUEUES}, {}

    def take(self, broker):
        with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
            channel = direct.channel()
            for queue in QUEUES:
                count = channel.queue_declare(queue, passive=True).method.message_count
                for _ in range(count):
                    _, properties, body = channel.basic_get(queue, auto_ack=True)
                    name = properties.headers["x-leveret-spool-id"]
                    assert self.ids.setdefault((queue, body), name) == name, "another id for the same message"
                    self.bodies[queue].append(body)

    def check(self, channels, losses):
        assert len(set(self.ids.values())) == len(self.ids), "the same id for different messages"
        for queue in QUEUES:
            counts = collections.Counter(self.bodies[queue])
            assert all(count <= 1 + losses for count in counts.values()), "nothing was lost in between"
            firsts = [body.decode().rsplit(" ", 1) for body in counts]
            for channel in channels:
                numbers = [int(number) for name, number in firsts if name == channel.name]
                assert numbers == list(range(len(numbers))), f"{channel.name} in {queue}: not in order, or with gaps"
                assert len(numbers) >= channel.confirmed[queue], f"{channel.name} in {queue}: confirmed messages are lost"


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_kill_9_under_load_on_a_flapping_link_loses_nothing_confirmed_and_keeps_the_order(tmp_path, broker, link, seed):
    channels, losses, arrived = [], 0, Arrived()
    for life in range(LIVES):
        with spooling(tmp_path, link.url) as server:
            names = [f"{life}.{number}" for number in range(PUBLISHERS)]
            ours, lost = live(server, link, names, f"{seed} {life}")
            channels += ours
            # The kill loses the connections as well.
            losses += lost + 1
    with spooling(tmp_path, link.url) as server:
        # The forwarder learns the password from a client.
        with pika.BlockingConnection(pika.URLParameters(server.uri)):
            wait_until(lambda: waiting(server) == 0)
        arrived.take(broker)
        server.stop()
    arrived.check(channels, losses)
    confirmed = sum(sum(channel.confirmed.values()) for channel in channels)
    total = sum(map(len, arrived.bodies.values()))
    print(f"{confirmed} confirmed, {len(arrived.ids)} arrived, {total - len(arrived.ids)} of them again, {losses} losses")
