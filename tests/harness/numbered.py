"""Publishes and consumes numbered messages at hundreds of thousands per second, and detects loss, duplication and
reordering. All messages have frames of equal length, so many of them are written and read with one call; the client is
not the bottleneck."""

import socket
import struct

from harness.wire import BASIC_CONSUME, BASIC_CONSUME_OK, BASIC_PUBLISH, BODY, CONNECTION_CLOSE, HEADER, METHOD, Wire
from harness.wire import frame, publish_arguments, short_string

CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)
BASIC_DELIVER, BASIC_ACK = (60, 60), (60, 80)
PERSISTENT, TRANSIENT = 2, 1
# Messages per write; more are not faster.
BATCH = 100
READ = 1 << 20
TAG = "c"


class Session(Wire):
    """A connection with one channel that reads whole runs of frames."""

    def __init__(self, server):
        super().__init__(server.port)
        self.handshake()
        self.open_channel()

    def call(self, method, arguments, answer):
        self.send_method(1, method, arguments)
        self.expect(answer)

    def whole(self, pattern):
        """Waits for frames that match the pattern; returns the fields of each that has arrived."""
        while len(self.pending) < pattern.size:
            self.pending += self.socket.recv(READ)
        end = len(self.pending) // pattern.size * pattern.size
        runs, self.pending = self.pending[:end], self.pending[end:]
        return pattern.iter_unpack(runs)


class Publisher(Session):
    """Publishes messages of `size` bytes to a queue with confirms; each body begins with its number."""

    # Delivery tag and "multiple" of a basic.ack.
    ACK = struct.Struct(">7xHHQBB")

    def __init__(self, server, queue, size=1024, first=0, mode=PERSISTENT, window=5000):
        super().__init__(server)
        self.call(CONFIRM_SELECT, b"\x00", CONFIRM_SELECT_OK)
        publish = frame(METHOD, 1, struct.pack(">HH", *BASIC_PUBLISH) + publish_arguments("", queue))
        header = frame(HEADER, 1, struct.pack(">HHQHB", 60, 0, size, 0x1000, mode))
        message = publish + header + frame(BODY, 1, bytes(size))
        self.batch = bytearray(message * BATCH)
        number_at = len(message) - size - 1
        self.numbers_at = [number_at + index * len(message) for index in range(BATCH)]
        self.first, self.window = first, window
        # Messages published, and those of them that are confirmed.
        self.published = self.confirmed = 0

    def publish(self, count):
        """Publishes this many more messages; returns with at most `window` of them unconfirmed."""
        end = self.published + count
        while self.published < end:
            here = min(BATCH, end - self.published)
            for at, number in zip(self.numbers_at[:here], range(self.first + self.published, self.first + end)):
                struct.pack_into(">Q", self.batch, at, number)
            self.send(memoryview(self.batch)[: len(self.batch) // BATCH * here])
            self.published += here
            while self.published - self.confirmed > self.window - BATCH:
                self.read_confirms()

    def finish(self):
        """Waits until all messages are confirmed."""
        while self.confirmed < self.published:
            self.read_confirms()

    def read_confirms(self):
        for group, method, tag, multiple, _ in self.whole(self.ACK):
            assert (group, method) == BASIC_ACK
            assert multiple or tag == self.confirmed + 1
            self.confirmed = tag


class Consumer(Session):
    """Consumes and acknowledges the messages of a [`Publisher`]."""

    def __init__(self, server, queue, size=1024, prefetch=2000, property_bytes=1):
        """`property_bytes` is the length of each message's properties without their flags; the default is a delivery mode
        only."""
        super().__init__(server)
        # Method, delivery tag, redelivered, number, and the end of the last frame.
        header = len(frame(HEADER, 1, bytes(14 + property_bytes)))
        between = len(short_string("") + short_string(queue)) + 1 + header + 7
        self.delivery = struct.Struct(f">7xHH{1 + len(TAG)}xQ?{between}xQ{size - 8}xB")
        self.qos(prefetch)
        arguments = struct.pack(">H", 0) + short_string(queue) + short_string(TAG) + b"\x00" + struct.pack(">I", 0)
        self.call(BASIC_CONSUME, arguments, BASIC_CONSUME_OK)

    def consume(self, count):
        """Yields number and "redelivered" of this many messages; a batch is acknowledged when the next one is requested."""
        while count > 0:
            for group, method, tag, redelivered, number, end in self.whole(self.delivery):
                assert ((group, method), end) == (BASIC_DELIVER, 0xCE)
                count -= 1
                yield number, redelivered
                if count == 0:
                    break
            self.send_method(1, BASIC_ACK, struct.pack(">QB", tag, 1))

    def finish(self):
        """Closes the connection once the server has handled the acknowledgements, and ignores deliveries until then."""
        self.send_method(0, CONNECTION_CLOSE, struct.pack(">HBHH", 200, 0, 0, 0))
        self.socket.shutdown(socket.SHUT_WR)
        self.expect_end()
