"""AMQP 0-9-1 by hand: valid and invalid frames on a plain socket."""

import socket
import struct

from harness.leveret import CREDENTIALS
from harness.patience import PATIENCE

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE

CONNECTION_START, CONNECTION_START_OK = (10, 10), (10, 11)
CONNECTION_TUNE, CONNECTION_TUNE_OK = (10, 30), (10, 31)
CONNECTION_OPEN, CONNECTION_OPEN_OK = (10, 40), (10, 41)
CONNECTION_CLOSE, CONNECTION_CLOSE_OK = (10, 50), (10, 51)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
CHANNEL_CLOSE = (20, 40)
QUEUE_DECLARE, QUEUE_DECLARE_OK = (50, 10), (50, 11)
BASIC_QOS, BASIC_QOS_OK = (60, 10), (60, 11)
BASIC_CONSUME, BASIC_CONSUME_OK = (60, 20), (60, 21)
BASIC_PUBLISH = (60, 40)
# The maximum body size of a frame in `publish_frames`.
PIECE = 100_000


class Closed(Exception):
    """The peer closed the TCP connection."""


class Wire:
    """One TCP connection. Sends only what the test asks for."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def send_method(self, channel, method, arguments=b""):
        self.send(frame(METHOD, channel, struct.pack(">HH", *method) + arguments))

    def read(self, count):
        while len(self.pending) < count:
            self.pending += self._receive()
        data, self.pending = self.pending[:count], self.pending[count:]
        return data

    def _receive(self):
        try:
            data = self.socket.recv(65536)
        except ConnectionError as problem:
            raise Closed from problem
        if not data:
            raise Closed
        return data

    def read_frame(self):
        """(type, channel, payload) of the next frame."""
        kind, channel, size = struct.unpack(">BHI", self.read(7))
        payload = self.read(size)
        assert self.read(1)[0] == FRAME_END
        return kind, channel, payload

    def expect(self, method):
        """The arguments of the next method, which must be this one; skips heartbeats."""
        kind, channel, payload = self.read_frame()
        while kind == HEARTBEAT:
            kind, channel, payload = self.read_frame()
        got = struct.unpack(">HH", payload[:4])
        if got == CONNECTION_CLOSE != method:
            raise AssertionError(f"the server closed the connection: {close_of(payload[4:])}")
        assert (kind, got) == (METHOD, method), (kind, channel, got)
        return payload[4:]

    def handshake(self, credentials=CREDENTIALS, vhost="/", frame_max=131072, heartbeat=0, properties=b""):
        """Opens the connection, up to connection.open-ok. `properties` is the content of the client-properties table."""
        self.start(credentials, properties)
        self.expect(CONNECTION_TUNE)
        self.send_open(vhost, frame_max, heartbeat)
        self.expect(CONNECTION_OPEN_OK)
        return self

    def start(self, credentials=CREDENTIALS, properties=b""):
        """Sends the protocol header, waits for connection.start, and sends the login."""
        self.send(PROTOCOL_HEADER)
        self.expect(CONNECTION_START)
        self.send_login(credentials, properties)

    def send_login(self, credentials=CREDENTIALS, properties=b""):
        response = "\0" + credentials.replace(":", "\0", 1)
        arguments = long_string(properties) + short_string("PLAIN") + long_string(response.encode()) + short_string("en_US")
        self.send_method(0, CONNECTION_START_OK, arguments)

    def send_open(self, vhost="/", frame_max=131072, heartbeat=0):
        """Sends connection.tune-ok and connection.open."""
        self.send_method(0, CONNECTION_TUNE_OK, struct.pack(">HIH", 2047, frame_max, heartbeat))
        self.send_method(0, CONNECTION_OPEN, short_string(vhost) + short_string("") + b"\x00")

    def send_close(self):
        """connection.close, without waiting for the answer."""
        self.send_method(0, CONNECTION_CLOSE, struct.pack(">H", 200) + short_string("goodbye") + struct.pack(">HH", 0, 0))

    def open_channel(self, channel=1):
        self.send_method(channel, CHANNEL_OPEN, short_string(""))
        self.expect(CHANNEL_OPEN_OK)

    def declare(self, queue, flags=0):
        """Declares a queue without arguments on channel 1; returns its number of ready messages."""
        self.send(queue_declare(queue, flags))
        return struct.unpack(">I", self.expect(QUEUE_DECLARE_OK)[-8:-4])[0]

    def qos(self, prefetch):
        """Sets the prefetch of each later consumer."""
        self.send_method(1, BASIC_QOS, struct.pack(">IHB", 0, prefetch, 0))
        self.expect(BASIC_QOS_OK)

    def consume(self, queue, no_ack=True, channel=1):
        arguments = struct.pack(">H", 0) + short_string(queue) + short_string("") + bytes([2 * no_ack]) + long_string(b"")
        self.send_method(channel, BASIC_CONSUME, arguments)
        self.expect(BASIC_CONSUME_OK)

    def delivered_body(self):
        """The body of the next delivery."""
        assert self.read_frame()[0] == METHOD
        kind, _, header = self.read_frame()
        assert kind == HEADER
        size = struct.unpack(">Q", header[4:12])[0]
        body = b""
        while len(body) < size:
            body += self.read_frame()[2]
        return body

    def connection_error(self):
        """The code and text of the server's connection.close; asserts that the connection ends after it."""
        answer = close_of(self.expect(CONNECTION_CLOSE))
        self.send_method(0, CONNECTION_CLOSE_OK)
        self.expect_end()
        return answer

    def expect_end(self):
        """Reads until the peer closes the connection; returns the number of bytes received."""
        count = len(self.pending)
        try:
            while True:
                count += len(self._receive())
        except Closed:
            return count


def frame(kind, channel, payload):
    return frame_announcing(kind, channel, len(payload)) + payload + bytes([FRAME_END])


def frame_announcing(kind, channel, size):
    """A frame's header (seven bytes), which announces its size."""
    return struct.pack(">BHI", kind, channel, size)


def queue_declare(queue, flags=0):
    """A frame that declares a queue without arguments on channel 1."""
    arguments = struct.pack(">H", 0) + short_string(queue) + bytes([flags]) + long_string(b"")
    return frame(METHOD, 1, struct.pack(">HH", *QUEUE_DECLARE) + arguments)


def publish_frames(key, body):
    """Frames that publish a message through the default exchange on channel 1."""
    method = frame(METHOD, 1, struct.pack(">HH", *BASIC_PUBLISH) + publish_arguments("", key))
    pieces = [body[start : start + PIECE] for start in range(0, len(body), PIECE)]
    return method + frame(HEADER, 1, content_header(len(body))) + b"".join(frame(BODY, 1, piece) for piece in pieces)


def publish_arguments(exchange, key):
    return struct.pack(">H", 0) + short_string(exchange) + short_string(key) + b"\x00"


def content_header(size):
    """The payload of a content header without properties."""
    return struct.pack(">HHQH", 60, 0, size, 0)


def close_of(arguments):
    code, size = struct.unpack(">HB", arguments[:3])
    return code, arguments[3 : 3 + size].decode()


def short_string(text):
    data = text.encode()
    return bytes([len(data)]) + data


def long_string(data):
    return struct.pack(">I", len(data)) + data
