"""MQTT 5.0 packet by packet, with every property and reason code of the answers."""

import struct

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from harness import mqtt_wire
from harness.mqtt_wire import CONNACK, CONNECT, PUBACK, PUBCOMP, PUBLISH, SUBACK, SUBSCRIBE, MqttWire, text, varint

UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = range(10, 15)
# Of CONNECT.
WILL, WILL_RETAIN, LOGIN = 0x04, 0x20, 0xC0


class Mqtt5Wire(MqttWire):
    """A socket that sends MQTT 5.0 packets, and reads packets as dictionaries."""

    def connect(self, name, *, clean=True, keep_alive=60, will=None, user="guest", password="guest", **properties):
        """`will` is topic, payload, QoS, whether to retain it, and its properties. Returns the answer."""
        flags = LOGIN | (mqtt_wire.CLEAN if clean else 0)
        payload = text(name)
        if will:
            topic, body, qos, retain, own = will
            flags |= WILL | qos << 3 | (WILL_RETAIN if retain else 0)
            payload += packed(PacketTypes.WILLMESSAGE, own) + text(topic) + struct.pack(">H", len(body)) + body
        head = text("MQTT") + struct.pack(">BBH", 5, flags, keep_alive)
        self.send_packet(CONNECT, head + packed(CONNECT, properties) + payload + text(user) + text(password))
        return self.answer()

    def publish(self, topic, body=b"", qos=1, packet_id=1, retain=False, dup=False, **properties):
        """Returns the answer, unless QoS 0 has none."""
        number = struct.pack(">H", packet_id) if qos else b""
        flags = qos << 1 | (8 if dup else 0) | (1 if retain else 0)
        self.send_packet(PUBLISH, text(topic) + number + packed(PUBLISH, properties) + body, flags)
        return self.answer() if qos else None

    def subscribe(self, *filters, packet_id=1, **properties):
        """Each filter comes with its options byte; returns the answer."""
        listed = b"".join(text(name) + bytes([options]) for name, options in filters)
        self.send_packet(SUBSCRIBE, struct.pack(">H", packet_id) + packed(SUBSCRIBE, properties) + listed)
        return self.answer()

    def unsubscribe(self, *filters, packet_id=1):
        listed = b"".join(text(name) for name in filters)
        self.send_packet(UNSUBSCRIBE, struct.pack(">H", packet_id) + b"\0" + listed, flags=2)
        return self.answer()

    def disconnect(self, reason=0, **properties):
        self.send_packet(DISCONNECT, bytes([reason]) + packed(DISCONNECT, properties))

    def ping(self):
        """Sends a PINGREQ and returns the packets that arrived before its answer; empty if there were none."""
        self.send_packet(PINGREQ, b"")
        return self.until("PINGRESP")

    def until(self, name):
        """The packets up to one of this name, exclusive, or up to the end of the stream, which adds `None`."""
        packets = []
        while (packet := self.answer()) is not None and packet["packet"] != name:
            packets.append(packet)
        return packets if packet else [*packets, None]

    def answer(self):
        """The next packet; `None` at the end of the stream."""
        head = self.take(1)
        if head is None:
            return None
        self.unread = head + self.unread
        return decoded(*self.packet(), head[0] & 15)


def packets(*requests):
    """Joins SUBSCRIBEs (each filter with its options) and UNSUBSCRIBEs (of one or more filters) into one write, with packet
    identifiers from 1."""
    sent = b""
    for number, (names, options) in enumerate(requests, 1):
        names = [names] if isinstance(names, str) else names
        kind = UNSUBSCRIBE if options is None else SUBSCRIBE
        tail = b"" if options is None else bytes([options])
        body = struct.pack(">HB", number, 0) + b"".join(text(name) + tail for name in names)
        sent += bytes([kind << 4 | 2]) + varint(len(body)) + body
    return sent


def decoded(kind, body, flags):
    packet = {"packet": PacketTypes.Names[kind].upper()}
    if kind == CONNACK:
        return packet | {"session": body[0], "reason": body[1]} | properties_of(kind, body[2:])[0]
    if kind == PUBLISH:
        (size,) = struct.unpack(">H", body[:2])
        topic, rest = body[2 : 2 + size].decode(), body[2 + size :]
        packet |= {"topic": topic, "qos": flags >> 1 & 3, "retain": flags & 1, "dup": flags >> 3}
        if packet["qos"]:
            packet["id"], rest = struct.unpack(">H", rest[:2])[0], rest[2:]
        properties, body = properties_of(kind, rest)
        return packet | properties | {"body": body}
    if PUBACK <= kind <= PUBCOMP:
        return packet | {"id": struct.unpack(">H", body[:2])[0]} | reason_of(kind, body[2:])
    if kind in (SUBACK, UNSUBACK):
        properties, reasons = properties_of(kind, body[2:])
        return packet | {"id": struct.unpack(">H", body[:2])[0]} | properties | {"reasons": list(reasons)}
    return packet | (reason_of(kind, body) if kind == DISCONNECT else {})


def reason_of(kind, data):
    """The reason code; it may be absent together with the properties after it."""
    return {"reason": data[0] if data else 0} | (properties_of(kind, data[1:])[0] if data[1:] else {})


def packed(kind, values):
    properties = Properties(kind)
    for name, value in values.items():
        setattr(properties, name, value)
    return properties.pack()


def properties_of(kind, data):
    """Parses properties: a dictionary by name, and the remaining bytes."""
    properties = Properties(kind)
    _, size = properties.unpack(data)
    names = [name.replace(" ", "") for name in properties.names]
    return {name: getattr(properties, name) for name in names if hasattr(properties, name)}, data[size:]
