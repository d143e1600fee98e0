"""Connections that close before they send a byte leave nothing behind: memory does not grow with how many there have been.
LEVERET_ABANDONED says how many there are at a time (make capacity)."""

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
ROUNDS = 7
# Source addresses, so that ports suffice.
SOURCES = 8
# Of the memory that a round's connections take while they are open, how much more those of the last round may take than those
# of the first: some is an allocator's, which differs from build to build. What each left behind would be there once a round.
ALLOWED = 0.5


def abandon(server, count, before):
    """Connects `count` times, all open at once, and closes all. Returns the server's memory while they were open; `before` is
    how many there have been before."""
    sockets = []
    for number in range(count):
        source = (f"127.0.0.{2 + number % SOURCES}", 0)
        sockets.append(socket.create_connection(("127.0.0.1", server.ws_port), timeout=PATIENCE, source_address=source))
    wait_until(lambda: metric(server, "rabbitmq_connections_opened_total") == before + count)
    memory = resident_bytes(server.pid)
    for each in sockets:
        each.close()
    gone(server, before + count)
    return memory


def gone(server, count):
    """Waits until that many connections have been closed."""
    wait_until(lambda: metric(server, "rabbitmq_connections_closed_total") == count)


def test_connections_that_send_nothing_leave_nothing_behind(tmp_path):
    with descriptors(COUNT + SPARE) as most, leveret(tmp_path, "--ws", "127.0.0.1:0", "--log", "warn") as server:
        count = min(COUNT, most - SPARE)
        # What is allocated once, whatever the number of connections, is no leak.
        for _ in range(20):
            with WebSocketWire(server.ws_port) as warm_up:
                warm_up.handshake().open_channel()
        gone(server, 20)
        before = resident_bytes(server.pid)
        first, *_, last = [abandon(server, count, 20 + done * count) for done in range(ROUNDS)]
        assert last - first < ALLOWED * (first - before), f"from {before} to {first}, and to {last} bytes in the end"
        with WebSocketWire(server.ws_port) as wire:
            wire.handshake().open_channel()
        server.stop()
