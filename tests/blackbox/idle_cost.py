"""S3: an idle connection holds no buffers: a thousand of them stay within 8 MiB. In front of an upstream each stays within
4 KiB, and within 6 KiB with a channel that has published and its upstream channel, where a machine with nothing else to do measures
them for docs/benchmarks.md:

    LEVERET_IDLE=1000 make scenarios ARGS="-rP blackbox/idle_cost.py"

Otherwise each may take twice as much.
"""

import os
import struct

import pytest

from harness.child import resident_bytes
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.process import descriptors
from harness.wire import BASIC_PUBLISH, HEADER, METHOD, Wire, frame, short_string

CONNECTIONS = int(os.environ.get("LEVERET_IDLE", "1000"))
SLACK = 1 if "LEVERET_IDLE" in os.environ else 2
# Connected before the measurement.
FIRST = 200
ALLOWED_BYTES = CONNECTIONS * (8 << 20) // 1000
# Sockets on both sides, and what else a process has open.
DESCRIPTORS = 2 * (FIRST + CONNECTIONS) + 256
# To the default exchange, for a queue that is not there: RabbitMQ drops it.
MESSAGE = frame(
    METHOD, 1, struct.pack(">HHH", *BASIC_PUBLISH, 0) + short_string("") + short_string("idle-cost-nowhere") + b"\x00"
) + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 0, 0))


def test_s3_a_thousand_idle_connections_stay_under_8_mib(tmp_path):
    with descriptors(DESCRIPTORS), leveret(tmp_path) as server:
        grown = idle(server, lambda wire: None, lambda clients: None)
        server.stop()
    assert grown < ALLOWED_BYTES


@pytest.mark.parametrize("published, allowed_each", [(False, SLACK * (4 << 10)), (True, SLACK * (6 << 10))])
def test_s3_idle_clients_of_an_upstream_stay_small(targets, tmp_path, published, allowed_each):
    upstream = targets.upstream.uri.replace("guest:guest@", "")
    with descriptors(DESCRIPTORS), leveret(tmp_path, "--upstream", upstream) as server:
        sent = lambda: metric(server, "leveret_upstream_sent_messages_total")
        settled = lambda clients: wait_until(lambda: sent() >= published * clients)
        grown = idle(server, publish if published else lambda wire: None, settled)
        server.stop()
    assert grown < CONNECTIONS * allowed_each


def idle(server, use, settled):
    """The resident memory of clients that have used their connection and are idle, once settled."""
    # One-time allocations are not part of an idle connection's cost, and memory freed by the first clients would be reused by
    # the later ones; so the first clients come before the measurement.
    first = connected(server, FIRST, use)
    settled(FIRST)
    before = resident_bytes(server.pid)
    wires = connected(server, CONNECTIONS, use)
    settled(FIRST + CONNECTIONS)
    grown = resident_bytes(server.pid) - before
    # They are open sessions, not just sockets.
    for wire in (wires[0], wires[-1]):
        wire.open_channel(2)
    for wire in first + wires:
        wire.close()
    print(f"{CONNECTIONS} idle connections: {grown} bytes, {grown // CONNECTIONS} each")
    return grown


def connected(server, count, use):
    wires = [Wire(server.port).handshake(heartbeat=600) for _ in range(count)]
    for wire in wires:
        use(wire)
    return wires


def publish(wire):
    wire.open_channel()
    wire.send(MESSAGE)
