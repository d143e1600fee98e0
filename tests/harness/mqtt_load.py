"""A load of MQTT clients whose packets are of one size, so that a client of a few lines is fast enough to find the server's limit."""

import contextlib
import select
import time

from harness.mqtt_wire import CONNACK, PUBLISH, SUBACK, MqttWire, encoded, text

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
