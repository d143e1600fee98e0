"""MQTT 3.1.1 byte by byte, for protocol errors and incomplete exchanges that no client library sends."""

import socket
import struct

from harness.patience import PATIENCE

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK = range(1, 10)
# The fixed flags of these packet types.
FLAGS = {PUBREL: 2, SUBSCRIBE: 2}
CLEAN = 0x02
WITH_LOGIN = 0xC0


class MqttWire:
    """A socket that sends and reads packets."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.unread = b""

    def send(self, data):
        self.socket.sendall(data)

    def send_packet(self, kind, body, flags=None):
        self.send(encoded(kind, body, flags))

    def connect(self, name, clean=True, user="guest", password="guest"):
        flags = WITH_LOGIN | (CLEAN if clean else 0)
        head = text("MQTT") + bytes([4, flags]) + struct.pack(">H", 60)
        self.send_packet(CONNECT, head + text(name) + text(user) + text(password))

    def publish(self, topic, body, qos, packet_id, dup=False):
        number = struct.pack(">H", packet_id) if qos else b""
        self.send_packet(PUBLISH, text(topic) + number + body, flags=qos << 1 | (8 if dup else 0))

    def ack(self, kind, packet_id):
        self.send_packet(kind, struct.pack(">H", packet_id))

    def subscribe(self, topic, qos):
        self.send_packet(SUBSCRIBE, struct.pack(">H", 1) + text(topic) + bytes([qos]))

    def packet(self):
        """The next packet: (kind, bytes after its length); `None` at the end of the stream."""
        head = self.take(1)
        if head is None:
            return None
        size, shift = 0, 0
        while True:
            (byte,) = self.take(1)
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return head[0] >> 4, self.take(size)

    def expect(self, kind):
        """Reads the next packet, an acknowledgement of this kind; returns its packet identifier."""
        came, body = self.packet()
        assert came == kind, (came, body)
        return struct.unpack(">H", body[:2])[0]

    def message(self):
        """Reads the next packet, a PUBLISH: (packet identifier, payload)."""
        kind, body = self.packet()
        assert kind == PUBLISH, (kind, body)
        return of_publish(body)

    def take(self, count):
        while len(self.unread) < count:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self.unread += data
        taken, self.unread = self.unread[:count], self.unread[count:]
        return taken

    def close(self):
        self.socket.close()


def encoded(kind, body, flags=None):
    """A packet; `flags` default to the fixed flags of its type."""
    return bytes([kind << 4 | (FLAGS.get(kind, 0) if flags is None else flags)]) + varint(len(body)) + body


def of_publish(body):
    """Packet identifier and payload of a PUBLISH of QoS 1 or 2."""
    (size,) = struct.unpack(">H", body[:2])
    rest = body[2 + size :]
    return struct.unpack(">H", rest[:2])[0], rest[2:]


def text(value):
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def varint(number):
    data = b""
    while True:
        number, low = divmod(number, 128)
        if not number:
            return data + bytes([low])
        data += bytes([low | 128])
