"""Memory of what there may be very many of: an idle durable queue stays under 1 KiB, and a ready transient message of 16 bytes
under 100 bytes, where a machine with nothing else to do measures them for docs/benchmarks.md; the output tells how much it is:

    LEVERET_QUEUES=100000 LEVERET_MESSAGES=5000000 make scenarios ARGS="-rP blackbox/memory_cost.py"

Otherwise each may take twice as much.
"""

import os
import struct
import time

import pytest

from harness.child import resident_bytes
from harness.instances import leveret
from harness.leveret import binary
from harness.metrics import wait_until
from harness.wire import BASIC_PUBLISH, BODY, HEADER, METHOD, QUEUE_DECLARE_OK, Wire, frame, publish_arguments, queue_declare

QUEUES = int(os.environ.get("LEVERET_QUEUES", "30000"))
MESSAGES = int(os.environ.get("LEVERET_MESSAGES", "1000000"))
# Created before the measurement: one-time allocations are not part of a queue's or a message's cost.
FIRST = 1000
FIGURES = bool({"LEVERET_QUEUES", "LEVERET_MESSAGES"} & set(os.environ))
SLACK = 1 if FIGURES else 2
QUEUE_ALLOWED, MESSAGE_ALLOWED = 1024 * SLACK, 100 * SLACK
PASSIVE, DURABLE, NO_WAIT = 1, 2, 16
STEP = 10_000
# The allocator returns most of the free memory within this time.
SECONDS = 8 if FIGURES else 0


@pytest.fixture(scope="module", autouse=True)
def _release_build():
    if b"jemalloc" not in binary().read_bytes():
        pytest.skip("a build without jemalloc has another allocator, with other sizes")


def declare_durable(wire, first, last):
    for step in range(first, last, STEP):
        numbers = range(step, min(step + STEP, last))
        wire.send(b"".join(queue_declare(f"queue.{number}", DURABLE | NO_WAIT) for number in numbers))
        # Answered once everything before it is on disk.
        wire.send(queue_declare(f"queue.{numbers[-1]}", DURABLE))
        wire.expect(QUEUE_DECLARE_OK)


def publish(wire, queue, count):
    """Publishes small transient messages, and waits until they are ready."""
    method = struct.pack(">HH", *BASIC_PUBLISH) + publish_arguments("", queue)
    # Transient: delivery mode 1.
    header = struct.pack(">HHQHB", 60, 0, 16, 1 << 12, 1)
    message = frame(METHOD, 1, method) + frame(HEADER, 1, header) + frame(BODY, 1, b"sixteen bytes!!!")
    for step in range(0, count, STEP):
        wire.send(message * min(STEP, count - step))
    wire.send(queue_declare(queue, PASSIVE))
    answer = wire.expect(QUEUE_DECLARE_OK)
    return struct.unpack(">I", answer[-8:-4])[0]


def settled_bytes(pid):
    """The minimum of the resident memory over some seconds when figures are measured; otherwise the current value."""
    least = resident_bytes(pid)
    for _ in range(SECONDS):
        time.sleep(1)
        least = min(least, resident_bytes(pid))
    return least


def expect_small(server, before, count, what, allowed):
    """Waits until each object takes no more than is allowed: the allocator returns free memory with a delay."""
    each = float("inf")

    def is_small():
        nonlocal each
        each = (settled_bytes(server.pid) - before) / count
        return each < allowed

    try:
        wait_until(is_small)
    finally:
        print(f"{count} {what}: {each:.1f} bytes each, of {allowed}")


def test_an_idle_durable_queue_stays_small(tmp_path):
    with leveret(tmp_path) as server, Wire(server.port).handshake() as wire:
        wire.open_channel()
        declare_durable(wire, 0, FIRST)
        before = settled_bytes(server.pid)
        declare_durable(wire, FIRST, FIRST + QUEUES)
        expect_small(server, before, QUEUES, "idle durable queues", QUEUE_ALLOWED)
        server.stop()


def test_a_ready_message_of_16_bytes_stays_small(tmp_path):
    with leveret(tmp_path) as server, Wire(server.port).handshake() as wire:
        wire.open_channel()
        wire.send(queue_declare("benchmark", 0))
        wire.expect(QUEUE_DECLARE_OK)
        publish(wire, "benchmark", FIRST)
        before = settled_bytes(server.pid)
        assert publish(wire, "benchmark", MESSAGES) == FIRST + MESSAGES
        expect_small(server, before, MESSAGES, "ready messages of 16 bytes", MESSAGE_ALLOWED)
        server.stop()
