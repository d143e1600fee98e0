"""Connections that close before they send a byte leave nothing behind: memory is where it was. LEVERET_ABANDONED says how
many there are at a time (make capacity)."""

import os
import socket

from harness.child import resident_bytes
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE
from harness.process import descriptors
from harness.websocket import WebSocketWire

COUNT = int(os.environ.get("LEVERET_ABANDONED", "5000"))
SPARE = 256
ROUNDS = 3
# Source addresses, so that ports suffice.
SOURCES = 8
# What an allocator may keep, whatever the number: far less than each of them took.
ALLOWED_BYTES = 4 << 20


def abandon(port, count):
    """Connects `count` times, all open at once, and closes all."""
    sockets = []
    for number in range(count):
        source = (f"127.0.0.{2 + number % SOURCES}", 0)
        sockets.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE, source_address=source))
    for each in sockets:
        each.close()


def gone(server, count):
    """Waits until that many connections have been closed."""
    wait_until(lambda: metric(server, "rabbitmq_connections_closed_total") == count)


def test_connections_that_send_nothing_leave_memory_where_it_was(tmp_path):
    with descriptors(COUNT + SPARE) as most, leveret(tmp_path, "--ws", "127.0.0.1:0", "--log", "warn") as server:
        count = min(COUNT, most - SPARE)
        # What is allocated once, whatever the number of connections, is no leak.
        for _ in range(20):
            with WebSocketWire(server.ws_port) as warm_up:
                warm_up.handshake().open_channel()
        gone(server, 20)
        before = resident_bytes(server.pid)
        for rounds in range(1, ROUNDS + 1):
            abandon(server.ws_port, count)
            gone(server, 20 + rounds * count)
        # The allocator gives back what was in use at once, a moment later.
        wait_until(lambda: resident_bytes(server.pid) - before < ALLOWED_BYTES)
        with WebSocketWire(server.ws_port) as wire:
            wire.handshake().open_channel()
        server.stop()
