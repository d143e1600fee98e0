"""A storm of connections that are opened and dropped, at every port, costs a bystander no confirm and leaves nothing behind."""

import contextlib
import os
import socket
import struct
import threading
from pathlib import Path

import pika

from harness.child import resident_bytes
from harness.instances import leveret
from harness.metrics import wait_until
from harness.mqtt_broker import ANY, listening
from harness.patience import PATIENCE
from harness.wire import PROTOCOL_HEADER

STORMS = 3
CONNECTIONS = 2000
# The bytes sent before a connection is dropped: none, the beginning of its protocol, or garbage.
WORDS = {
    "amqp": [b"", PROTOCOL_HEADER[:5], PROTOCOL_HEADER, b"GET / HTTP/1.1\r\n\r\n"],
    "mqtt": [b"", b"\x10\x10\x00\x04MQTT", b"\x10\xff\xff\xff\x7f", PROTOCOL_HEADER],
    "stomp": [b"", b"CONNECT\naccept-version:1.2\n", b"CONNECT\n\n\0", b"\x10\x00"],
    "http": [b"", b"GET /healthz HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", PROTOCOL_HEADER],
}
# The maximum growth of memory from the first storm to the last, as a factor: one-time allocations are no leak.
ALLOWED_GROWTH = 1.5
# Source addresses, without 127.0.0.1: a closed connection occupies its port for a while, and other tests need those.
SOURCES = 8
RESET = struct.pack("ii", 1, 0)


def storm(port, words, problems):
    """Opens connections one after the other and drops each, every second one with a reset."""
    try:
        for number in range(CONNECTIONS):
            source = (f"127.0.0.{2 + number % SOURCES}", 0)
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE, source_address=source) as client:
                if number % 2:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                # It may have been refused already.
                with contextlib.suppress(ConnectionError):
                    client.sendall(words[number // 2 % len(words)])
    except OSError as problem:
        problems.append(problem)


def sockets(server):
    """The server's open sockets. Its open files vary with the messages."""
    count = 0
    for descriptor in Path(f"/proc/{server.pid}/fd").iterdir():
        # It may be closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(descriptor).startswith("socket:")
    return count


def test_a_bystander_has_every_message_confirmed_and_nothing_is_left_of_the_storm(tmp_path):
    # The connections must not be closed by the handshake timeout.
    flags = ("--mqtt", ANY, "--stomp", ANY, "--handshake-timeout", "10m", "--log", "error")
    with leveret(tmp_path, *flags) as server:
        ports = {
            "amqp": server.port,
            "mqtt": listening(server, "mqtt", "mqtt"),
            "stomp": listening(server, "stomp", "stomp"),
            "http": int(server.http.rpartition(":")[2]),
        }
        parameters = pika.URLParameters(f"{server.uri}/?heartbeat=0&blocked_connection_timeout={PATIENCE}")
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("bystander", durable=True)
            open_before = sockets(server)
            confirmed, memory = 0, []
            for _ in range(STORMS):
                problems = []
                threads = [threading.Thread(target=storm, args=(ports[name], WORDS[name], problems)) for name in ports]
                for thread in threads:
                    thread.start()
                before = confirmed
                while confirmed == before or any(thread.is_alive() for thread in threads):
                    # Returns once the message is confirmed.
                    channel.basic_publish("", "bystander", b"%d" % confirmed, pika.BasicProperties(delivery_mode=2))
                    confirmed += 1
                assert problems == []
                wait_until(lambda: sockets(server) <= open_before)
                memory.append(resident_bytes(server.pid))
                for number in range(before, confirmed):
                    assert channel.basic_get("bystander", auto_ack=True)[2] == b"%d" % number
        print(f"{confirmed} confirmed beside {STORMS * len(ports) * CONNECTIONS} connections; bytes: {memory}")
        wait_until(lambda: resident_bytes(server.pid) < memory[0] * ALLOWED_GROWTH)
        server.stop()
