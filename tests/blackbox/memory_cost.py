"""Memory of what there may be very many of: an idle durable queue stays under 1 KiB, and a ready transient message of 16 bytes
under 100 bytes. The output tells how much it is, here of as many as docs/benchmarks.md has:

    LEVERET_QUEUES=100000 LEVERET_MESSAGES=5000000 make scenarios ARGS="-rP blackbox/memory_cost.py"
"""

import os
import struct
import time

import pytest

from harness.child import resident_bytes
from harness.instances import leveret
from harness.leveret import binary
from harness.wire import BASIC_PUBLISH, BODY, HEADER, METHOD, QUEUE_DECLARE_OK, Wire, frame, publish_arguments, queue_declare

QUEUES = int(os.environ.get("LEVERET_QUEUES", "30000"))
MESSAGES = int(os.environ.get("LEVERET_MESSAGES", "1000000"))
# Declared, and published, before the measurement: what is allocated once is no queue's, and no message's.
FIRST = 1000
QUEUE_ALLOWED, MESSAGE_ALLOWED = 1024, 100
PASSIVE, DURABLE, NO_WAIT = 1, 2, 16
STEP = 10_000
SECONDS = 8


@pytest.fixture(scope="module", autouse=True)
def _release_build():
    if b"jemalloc" not in binary().read_bytes():
        pytest.skip("a build without jemalloc has another allocator, with other sizes")


def declare_durable(wire, first, last):
    for step in range(first, last, STEP):
        numbers = range(step, min(step + STEP, last))
        wire.send(b"".join(queue_declare(f"queue.{number}", DURABLE | NO_WAIT) for number in numbers))
        # The answer comes when all before it is on disk.
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
    """The least resident memory of some seconds, over which the allocator returns what is free."""
    least = resident_bytes(pid)
    for _ in range(SECONDS):
        time.sleep(1)
        least = min(least, resident_bytes(pid))
    return least


def test_an_idle_durable_queue_stays_under_1_kib(tmp_path):
    with leveret(tmp_path) as server, Wire(server.port).handshake() as wire:
        wire.open_channel()
        declare_durable(wire, 0, FIRST)
        before = settled_bytes(server.pid)
        declare_durable(wire, FIRST, FIRST + QUEUES)
        each = (settled_bytes(server.pid) - before) / QUEUES
        print(f"{QUEUES} idle durable queues: {each:.0f} bytes each")
        server.stop()
    assert each < QUEUE_ALLOWED


def test_a_ready_message_of_16_bytes_stays_under_100_bytes(tmp_path):
    with leveret(tmp_path) as server, Wire(server.port).handshake() as wire:
        wire.open_channel()
        wire.send(queue_declare("benchmark", 0))
        wire.expect(QUEUE_DECLARE_OK)
        publish(wire, "benchmark", FIRST)
        before = settled_bytes(server.pid)
        assert publish(wire, "benchmark", MESSAGES) == FIRST + MESSAGES
        each = (settled_bytes(server.pid) - before) / MESSAGES
        print(f"{MESSAGES} ready messages of 16 bytes: {each:.1f} bytes each")
        server.stop()
    assert each < MESSAGE_ALLOWED
