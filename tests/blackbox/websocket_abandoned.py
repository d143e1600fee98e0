"""Connections that close before they send a byte leak nothing: memory returns to its previous level. LEVERET_ABANDONED is
the number of concurrent ones (make capacity)."""

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
# Several source addresses, because of the number of ports.
SOURCES = 8
# Bytes that the allocator may retain, independent of the number: far less than all connections took.
ALLOWED_BYTES = 4 << 20


def abandon(port, count):
    """Opens `count` connections concurrently, and closes all."""
    sockets = []
    for number in range(count):
        source = (f"127.0.0.{2 + number % SOURCES}", 0)
        sockets.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE, source_address=source))
    for each in sockets:
        each.close()


def gone(server, count):
    """Waits until this many connections have been closed."""
    wait_until(lambda: metric(server, "rabbitmq_connections_closed_total") == count)


def test_connections_that_send_nothing_leave_memory_where_it_was(tmp_path):
    with descriptors(COUNT + SPARE) as most, leveret(tmp_path, "--ws", "127.0.0.1:0", "--log", "warn") as server:
        count = min(COUNT, most - SPARE)
        # One-time allocations are no leak.
        for _ in range(20):
            with WebSocketWire(server.ws_port) as warm_up:
                warm_up.handshake().open_channel()
        gone(server, 20)
        before = resident_bytes(server.pid)
        for rounds in range(1, ROUNDS + 1):
            abandon(server.ws_port, count)
            gone(server, 20 + rounds * count)
        # The allocator returns freed memory with a delay.
        wait_until(lambda: resident_bytes(server.pid) - before < ALLOWED_BYTES)
        with WebSocketWire(server.ws_port) as wire:
            wire.handshake().open_channel()
        server.stop()
