"""Very many clients of the proxy that consume without reading: the memory of their pending deliveries is bounded in total,
clients that read are served, and no message is lost."""

import contextlib
import struct

import pika

from harness.child import peak_resident_bytes, resident_bytes
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.wire import BODY, METHOD, Wire, short_string

MIB = 1 << 20
SLOW = 250
BUDGET = MIB
# 64 times one client's budget, whatever the number of clients.
TOTAL = 64 * MIB
# For each client, whose connection ends up dedicated: one read.
READ = 256 << 10
# The memory of the connections themselves, and fragmentation.
SLACK = 64 * MIB
SIZE = 64 << 10
# More for each client than its budget and the socket's buffers.
MESSAGES = 6 * MIB // SIZE
EXCHANGE = "slow-consumers"
DELIVER, QOS, QOS_OK = (60, 60), (60, 10), (60, 11)
CONSUME, CONSUME_OK = (60, 20), (60, 21)


def queue_of(number):
    return f"{EXCHANGE}-{number}"


@contextlib.contextmanager
def queues(rabbitmq):
    """A channel to RabbitMQ, and a queue for each slow client, which outlives the move of its consumer."""
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.uri)) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "fanout")
        for number in range(SLOW):
            channel.queue_declare(queue_of(number))
            channel.queue_bind(queue_of(number), EXCHANGE)
        yield channel
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.uri)) as connection:
        channel = connection.channel()
        channel.exchange_delete(EXCHANGE)
        for number in range(SLOW):
            channel.queue_delete(queue_of(number))


def consumer(server, queue):
    """Consumes with a prefetch, so that it shares its upstream connection, without reading."""
    wire = Wire(server.port).handshake()
    wire.open_channel()
    wire.send_method(1, QOS, struct.pack(">IHB", 0, MESSAGES, 0))
    wire.expect(QOS_OK)
    arguments = struct.pack(">H", 0) + short_string(queue) + short_string("c") + b"\x00" + struct.pack(">I", 0)
    wire.send_method(1, CONSUME, arguments)
    wire.expect(CONSUME_OK)
    return wire


def bodies(wire):
    """The bodies of deliveries, without end."""
    got = b""
    while True:
        kind, _, payload = wire.read_frame()
        if kind == METHOD:
            assert struct.unpack(">HH", payload[:4]) == DELIVER, payload
            got = b""
        elif kind == BODY:
            got += payload
            if len(got) == SIZE:
                yield got


class Quick:
    """Publishes messages to its own queue and reads them, one at a time."""

    def __init__(self, server):
        self.connection = pika.BlockingConnection(pika.URLParameters(server.uri))
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=10)
        # Not exclusive, so that its consumer can share a connection.
        self.queue = self.channel.queue_declare(f"{EXCHANGE}-quick", auto_delete=True).method.queue
        self.deliveries = self.channel.consume(self.queue)
        self.count = 0

    def round_trip(self):
        self.count += 1
        self.channel.basic_publish("", self.queue, str(self.count).encode())
        method, _, body = next(self.deliveries)
        assert (int(body), method.redelivered) == (self.count, False)
        self.channel.basic_ack(method.delivery_tag)


def test_buffers_of_all_slow_consumers_are_bounded_and_readers_are_served(targets, tmp_path):
    upstream = targets.upstream.uri.replace("guest:guest@", "")
    flags = ["--upstream", upstream, "--upstream-consumer-budget", str(BUDGET), "--log", "error"]
    # No client may be closed for not reading, however long the test takes.
    flags += ["--write-timeout", "10m"]
    with leveret(tmp_path, *flags) as server, queues(targets.upstream) as feeding:
        quick = Quick(server)
        quick.round_trip()
        slow = [consumer(server, queue_of(number)) for number in range(SLOW)]
        before = resident_bytes(server.pid)
        for number in range(MESSAGES):
            feeding.basic_publish(EXCHANGE, "", struct.pack(">I", number).ljust(SIZE, b"."))

        def all_moved():
            feeding.connection.process_data_events()
            quick.round_trip()
            waiting = metric(server, "leveret_upstream_unread_bytes")
            assert waiting <= TOTAL + SLOW * READ, waiting
            return metric(server, "leveret_upstream_moved_channels_total") == SLOW

        wait_until(all_moved)
        peak = peak_resident_bytes(server.pid) - before
        print(f"peak {peak / MIB:.0f} MiB more, {metric(server, 'leveret_upstream_unread_bytes') / MIB:.0f} MiB wait")
        assert peak < TOTAL + SLOW * READ + SLACK

        # A client that begins to read gets all messages; those unacknowledged when its consumer moved come twice.
        expected, got = set(range(MESSAGES)), set()
        for body in bodies(slow[0]):
            got.add(struct.unpack(">I", body[:4])[0])
            if got == expected:
                break
        quick.round_trip()
        for wire in slow:
            wire.close()
        wait_until(lambda: metric(server, "leveret_upstream_unread_bytes") < SIZE)
        quick.round_trip()
        quick.connection.close()
        server.stop()
