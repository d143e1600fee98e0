"""Retained messages on very many topics, and for comparison the cost of one queue per topic in RabbitMQ."""

import contextlib
import struct
import time

import pika

from harness.mqtt_wire import CONNACK, PUBACK, PUBLISH, SUBACK, MqttWire, encoded, text

BODY = b'{"temperature": 21.5, "unit": "C"}'
RETAIN, QOS_1 = 1, 2
# Unacknowledged messages at a time.
WINDOW = 1_000
RECEIVE_BYTES = 1 << 20
# Collects garbage before memory is measured.
COLLECT_GARBAGE = "lists:foreach(fun erlang:garbage_collect/1, erlang:processes())."


def topic(number):
    """All topics have the same length, so that messages can be counted by their bytes."""
    return f"site/{number % 100:03}/device/{number:07}/state"


@contextlib.contextmanager
def session(port, name):
    with contextlib.closing(MqttWire(port)) as wire:
        wire.connect(name)
        assert wire.packet() == (CONNACK, b"\0\0")
        yield wire


def retain(port, topics):
    """Returns the seconds until all are acknowledged."""
    with session(port, "publisher") as wire:
        begun = time.perf_counter()
        for first in range(0, topics, WINDOW):
            some = range(first, min(first + WINDOW, topics))
            # Packet identifiers begin with 1.
            packets = (text(topic(number)) + struct.pack(">H", number - first + 1) + BODY for number in some)
            wire.send(b"".join(encoded(PUBLISH, packet, RETAIN | QOS_1) for packet in packets))
            for number in some:
                assert wire.expect(PUBACK) == number - first + 1
        return time.perf_counter() - begun


def first_client(port, topics):
    """Seconds from the first client's connection to a server until it receives the message retained last."""
    begun = time.perf_counter()
    with session(port, "first") as wire:
        wire.subscribe(topic(topics - 1), 0)
        assert wire.packet() == (SUBACK, b"\0\1\0")
        assert wire.packet() == (PUBLISH, text(topic(topics - 1)) + BODY)
        return time.perf_counter() - begun


def all_of_them(port, topics):
    """Seconds until a new subscriber to all topics has all messages."""
    with session(port, "everything") as wire:
        begun = time.perf_counter()
        wire.subscribe("#", 0)
        left = len(encoded(SUBACK, b"\0\1\0")) + topics * len(encoded(PUBLISH, text(topic(0)) + BODY, RETAIN))
        while left > 0:
            received = wire.socket.recv(RECEIVE_BYTES)
            assert received, "the subscriber was closed"
            left -= len(received)
        assert left == 0, "more than was retained"
        return time.perf_counter() - begun


def queues(rabbitmq, count):
    """Declares a durable queue for each topic and publishes one message to it."""
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.uri)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(count):
            name = f"retained.{topic(number)}"
            channel.queue_declare(name, durable=True, arguments={"x-max-length": 1})
            channel.basic_publish("", name, BODY, pika.BasicProperties(delivery_mode=2))


def memory(server):
    """Resident memory of a server in bytes."""
    if hasattr(server, "control"):
        server.control("eval", COLLECT_GARBAGE)
    with open(f"/proc/{server.pid}/status") as status:
        [line] = [line for line in status if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024
