"""Very many durable queues and bindings are back soon after a kill; LEVERET_QUEUES and LEVERET_BINDINGS say how many, and the
output how soon, the best of three starts:

    LEVERET_QUEUES=100000 LEVERET_BINDINGS=1000000 make scenarios ARGS="-rP blackbox/durable_bindings.py"
"""

import contextlib
import os
import random
import struct
import time

import pika

from harness.child import resident_bytes
from harness.instances import restartable
from harness.wire import METHOD, QUEUE_DECLARE_OK, Wire, frame, queue_declare, short_string

BINDINGS = int(os.environ.get("LEVERET_BINDINGS", "20000"))
QUEUES = int(os.environ.get("LEVERET_QUEUES", "100"))
STARTS = 3
PROBES = 200
QUEUE_BIND = (50, 20)
DURABLE, NO_WAIT = 2, 1
# Pipelined binds per answer.
STEP = 10_000
# Pipelined declarations per answer: few enough for the sockets' buffers in both directions.
ANSWERED = 1000


def method(number, arguments):
    return frame(METHOD, 1, struct.pack(">HH", *number) + b"\0\0" + arguments)


def bind(number):
    names = short_string(queue_of(number)) + short_string("amq.direct") + short_string(key_of(number))
    return method(QUEUE_BIND, names + bytes([NO_WAIT]) + b"\0\0\0\0")


def key_of(number):
    return f"key.{number}"


def queue_of(number):
    return f"queue.{number % QUEUES}"


@contextlib.contextmanager
def started(directory, taken):
    """A server on the existing data; appends to `taken` the seconds until it listened."""
    begun = time.monotonic()
    with restartable(directory) as server:
        taken.append(time.monotonic() - begun)
        yield server


def test_many_durable_bindings_are_back_after_a_kill(tmp_path):
    with restartable(tmp_path) as server:
        begun = time.monotonic()
        with Wire(server.port).handshake() as wire:
            wire.open_channel()
            for first in range(0, QUEUES, ANSWERED):
                numbers = range(first, min(first + ANSWERED, QUEUES))
                wire.send(b"".join(queue_declare(queue_of(number), DURABLE) for number in numbers))
                for _ in numbers:
                    wire.expect(QUEUE_DECLARE_OK)
            for first in range(0, BINDINGS, STEP):
                binds = b"".join(bind(number) for number in range(first, min(first + STEP, BINDINGS)))
                # The declaration is answered once everything before it is on disk.
                wire.send(binds + queue_declare(f"step.{first}", DURABLE))
                wire.expect(QUEUE_DECLARE_OK)
        print(f"{QUEUES} durable queues and {BINDINGS} bindings made in {time.monotonic() - begun:.1f} s")
        server.kill()
    taken = []
    for _ in range(STARTS - 1):
        with started(tmp_path, taken) as server:
            server.kill()
    with started(tmp_path, taken) as server:
        size = (tmp_path / "data" / "definitions.redb").stat().st_size
        told = f"{size / 2**20:.0f} MiB on disk, {resident_bytes(server.pid) / 2**20:.0f} MiB in memory"
        print(f"{QUEUES} durable queues and {BINDINGS} bindings were back after {min(taken):.2f} s ({told})")
        connection = pika.BlockingConnection(pika.URLParameters(server.uri))
        channel = connection.channel()
        channel.confirm_delivery()
        for number in {0, BINDINGS - 1, *random.Random(1).sample(range(BINDINGS), min(PROBES, BINDINGS))}:
            channel.basic_publish("amq.direct", key_of(number), b"%d" % number, mandatory=True)
            method, _, body = channel.basic_get(queue_of(number), auto_ack=True)
            assert method and int(body) == number
        connection.close()
        server.stop()
