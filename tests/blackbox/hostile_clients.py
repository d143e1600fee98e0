"""S1 and S2: many hostile clients from several addresses, one kind of abuse after the other: memory stays bounded, and
well-behaved clients are served meanwhile. `make hostile` uses as many clients as the descriptor limit allows."""

import json
import os
import struct
import subprocess

import pika
import pytest

from harness.child import Child, peak_resident_bytes, resident_bytes
from harness.drivers import CACHE
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE, TEST_SECONDS
from harness.process import descriptors
from harness.wire import BASIC_PUBLISH, BODY, HEADER, METHOD, Wire, content_header, frame, publish_arguments

TARGETS = ["leveret", "proxy"]
# Clients of each kind, all at the same time.
CLIENTS = int(os.environ.get("LEVERET_HOSTILE", "300"))
pytestmark = pytest.mark.timeout(0 if "LEVERET_HOSTILE" in os.environ else TEST_SECONDS)
# Other open files of a process, including upstream connections.
SPARE = 3000
# The worst kinds send 64 KiB that cannot be judged yet, or fill the outbox; plus what is allocated once.
ALLOWED_BYTES_EACH = 96 << 10
ALLOWED_BYTES = 256 << 20
# A wave connects, or gives up, within the timeout of the client program.
SIEGE_SECONDS = 2 * PATIENCE
KINDS = 10
# Far fewer than the hostile clients: none of these abuses may occupy a dedicated one, and clients that need one still get it.
UPSTREAM_CONNECTIONS = 100
CONFIRM_SELECT, CONFIRM_SELECT_OK, BASIC_ACK = (85, 10), (85, 11), (60, 80)


def round_trip(server):
    with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_publish("", queue, b"x" * 10_000)
        assert len(channel.basic_get(queue, auto_ack=True)[2]) == 10_000


def publish_in_pieces(server):
    """A message whose body has three frames, each in several TCP segments."""
    with Wire(server.port) as publisher:
        publisher.handshake().open_channel()
        publisher.send_method(1, CONFIRM_SELECT, b"\x00")
        publisher.expect(CONFIRM_SELECT_OK)
        publish = struct.pack(">HH", *BASIC_PUBLISH) + publish_arguments("amq.fanout", "")
        message = frame(METHOD, 1, publish) + frame(HEADER, 1, content_header(12_000))
        message += frame(BODY, 1, b"x" * 4000) * 3
        for start in range(0, len(message), 3000):
            publisher.send(message[start : start + 3000])
            # Once this is answered, everything sent before has arrived and was read as far as it will be.
            with Wire(server.port) as other:
                other.handshake()
        publisher.expect(BASIC_ACK)


def test_memory_stays_bounded_and_others_are_served(targets, tmp_path, target_name):
    upstream = []
    if target_name == "proxy":
        upstream = ["--upstream", targets.upstream.uri.replace("guest:guest@", "")]
        upstream += ["--upstream-connections-total", UPSTREAM_CONNECTIONS]
    # Long timeouts, so that all clients of a kind are connected at the same time.
    flags = ["--handshake-timeout", "10m", "--max-connections", "unlimited", "--log", "error"]
    with descriptors(CLIENTS + SPARE), leveret(tmp_path, *upstream, *flags) as server:
        round_trip(server)
        connection = pika.BlockingConnection(pika.URLParameters(server.uri))
        connection.channel().queue_declare("hostile")
        connection.close()
        before = resident_bytes(server.pid)
        argv = [CACHE / "go" / "hostile", "-server", server.address, "-count", CLIENTS]
        hostile = Child(argv, tmp_path / "hostile.log", stdin=subprocess.PIPE)
        try:
            for number in range(KINDS):
                wave = json.loads(nth_line(hostile, number))
                round_trip(server)
                if wave["kind"] == "stops in a message":
                    publish_in_pieces(server)
                grown = (resident_bytes(server.pid) - before) >> 10
                print(f"{target_name}: {wave['kind']}: {wave['up']} up, {wave['ended']} ended; {grown} KiB more")
                hostile.process.stdin.write("on\n")
                hostile.process.stdin.flush()
        finally:
            hostile.kill()
        # The server notices a closed client when it writes to it, after the client's earlier requests.
        wait_until(lambda: metric(server, "rabbitmq_connections") <= 1, SIEGE_SECONDS)
        round_trip(server)
        peak = peak_resident_bytes(server.pid)
        print(f"{target_name}: peak {peak >> 20} MiB, {(peak - before) // CLIENTS} bytes each")
        server.stop()
    assert peak - before < ALLOWED_BYTES + CLIENTS * ALLOWED_BYTES_EACH


def nth_line(child, number):
    with child.changed:
        came = child.changed.wait_for(lambda: len(child.lines) > number or child.ended, SIEGE_SECONDS)
        assert came and len(child.lines) > number, child.tail()
        return child.lines[number]
