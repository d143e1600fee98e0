"""Publishers without confirms that never pause, more of them than threads, do not starve others: new clients, health checks
and the HTTP API are served."""

import contextlib
import os
import threading
import urllib.request

import pika
import pytest

from harness.instances import leveret
from harness.patience import PATIENCE
from harness.wire import BASIC_PUBLISH, HEADER, METHOD, Wire, content_header, frame, publish_arguments

EXCHANGE = "busy"
PUBLISHERS = 2 * (os.cpu_count() or 1)
CHUNK_BYTES = 256 * 1024
VISITS = 5


@pytest.fixture
def server(tmp_path):
    with leveret(tmp_path) as server:
        yield server


@pytest.mark.parametrize("queues", [0, 1, 100, 1000], ids=["unroutable", "one queue", "100 queues", "1000 queues"])
def test_a_bystander_is_served_beside_publishers_that_never_stop(server, queues):
    with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "fanout")
        for number in range(queues):
            # Bounds the memory that their messages take.
            channel.queue_declare(f"busy.{number}", arguments={"x-max-length": 10})
            channel.queue_bind(f"busy.{number}", EXCHANGE)
    served = threading.Event()
    with publishing(server.port):
        visitor = threading.Thread(target=visit, args=(server, served), daemon=True)
        visitor.start()
        assert served.wait(PATIENCE), server.tail()


def visit(server, served):
    parameters = pika.URLParameters(f"{server.uri}/?heartbeat=10&blocked_connection_timeout={PATIENCE}")
    for number in range(VISITS):
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.queue_declare(f"visit.{number}")
            channel.basic_publish("", f"visit.{number}", b"hello")
            assert channel.basic_get(f"visit.{number}", auto_ack=True)[2] == b"hello"
        for path in ("/healthz", "/metrics"):
            with urllib.request.urlopen(server.http + path, timeout=PATIENCE) as answer:
                assert answer.status == 200
    served.set()


@contextlib.contextmanager
def publishing(port):
    """Runs publishers until the block ends."""
    method = METHOD, 1, b"".join([bytes([0, BASIC_PUBLISH[0], 0, BASIC_PUBLISH[1]]), publish_arguments(EXCHANGE, "key")])
    message = frame(*method) + frame(HEADER, 1, content_header(0))
    chunk = message * (CHUNK_BYTES // len(message))
    wires = [Wire(port) for _ in range(PUBLISHERS)]
    for wire in wires:
        wire.handshake().open_channel()
        wire.socket.settimeout(None)
    threads = [threading.Thread(target=publish, args=(wire, chunk), daemon=True) for wire in wires]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for wire in wires:
            wire.close()


def publish(wire, chunk):
    # Closed by the test, once it is over.
    with contextlib.suppress(OSError):
        while True:
            wire.send(chunk)
