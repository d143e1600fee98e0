"""Loads of MQTT clients whose packets are of one size, so that a client of a few lines is fast enough to find the server's limit."""

import contextlib
import select
import socket
import struct
import threading
import time

from harness.mqtt_wire import CONNACK, PUBACK, PUBLISH, SUBACK, MqttWire, encoded, text

TOPIC = "load/a"
BODY = b"x" * 16
# Python allocates all of it for each call: a megabyte takes it ten microseconds, which for 10,000 subscribers are longer than what the
# server has to do, and this much less than one.
RECEIVE_BYTES = 1 << 16


def session(stack, port, name, qos=None):
    """A client, which has subscribed if it has a quality of service for that."""
    wire = stack.enter_context(contextlib.closing(MqttWire(port)))
    wire.connect(name)
    assert wire.packet() == (CONNACK, b"\0\0")
    if qos is not None:
        wire.subscribe(TOPIC, qos)
        assert wire.packet() == (SUBACK, b"\0\1" + bytes([qos]))
    return wire


def fan_out(port, subscribers, rounds):
    """Seconds from a message to its last subscriber, for each of so many messages."""
    size = len(encoded(PUBLISH, text(TOPIC) + BODY))
    with contextlib.ExitStack() as stack:
        sockets = {}
        for number in range(subscribers):
            wire = session(stack, port, f"fan-{number}", 0)
            wire.socket.setblocking(False)
            sockets[wire.socket.fileno()] = wire.socket
        poll = stack.enter_context(contextlib.closing(select.epoll(subscribers)))
        for descriptor in sockets:
            poll.register(descriptor, select.EPOLLIN)
        publisher = session(stack, port, "publisher")
        seconds = []
        for _ in range(rounds):
            begun = time.perf_counter()
            publisher.publish(TOPIC, BODY, 0, 0)
            missing = subscribers * size
            while missing:
                for descriptor, _ in poll.poll():
                    received = sockets[descriptor].recv(RECEIVE_BYTES)
                    assert received, "a subscriber was closed"
                    missing -= len(received)
            seconds.append(time.perf_counter() - begun)
        return seconds


def throughput(port, seconds, window):
    """Messages a second of QoS 1 from one client to another, with so many unacknowledged at a time."""
    with contextlib.ExitStack() as stack:
        subscriber, publisher = session(stack, port, "subscriber", 1), session(stack, port, "publisher")
        size = len(encoded(PUBLISH, text(TOPIC) + b"\0\1" + BODY, 2))
        # Where its packet identifier is in a message.
        at = size - len(BODY) - 2
        head, tail = encoded(PUBLISH, text(TOPIC) + b"\0\1" + BODY, 2)[:at], BODY
        packets = [head + struct.pack(">H", number) + tail for number in range(1, window + 1)]
        received = 0

        def receive():
            nonlocal received
            unread = b""
            # Until the socket is shut down.
            while data := subscriber.socket.recv(RECEIVE_BYTES):
                unread += data
                whole = len(unread) - len(unread) % size
                numbers = [unread[start : start + 2] for start in range(at, whole, size)]
                subscriber.send(b"".join(b"\x40\2" + number for number in numbers))
                received += len(numbers)
                unread = unread[whole:]

        def publish():
            # The answers come in the order of the messages.
            number = unanswered = 0
            while True:
                some = packets[number : number + window - unanswered]
                number = (number + len(some)) % window
                unanswered += len(some)
                publisher.send(b"".join(some))
                data = publisher.socket.recv(RECEIVE_BYTES)
                while len(data) % 4:
                    data += publisher.socket.recv(RECEIVE_BYTES)
                if not data:
                    return
                assert data[:2] == bytes([PUBACK << 4, 2]), data[:4]
                unanswered -= len(data) // 4

        threads = [threading.Thread(target=work, daemon=True) for work in (receive, publish)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        before, begun = received, time.perf_counter()
        time.sleep(seconds)
        rate = (received - before) / (time.perf_counter() - begun)
        for wire in (publisher, subscriber):
            wire.socket.shutdown(socket.SHUT_RD)
        for thread in threads:
            thread.join()
        return rate
