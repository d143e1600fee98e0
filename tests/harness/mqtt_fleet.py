"""MQTT clients with persistent sessions that account for every acknowledged message while servers are killed and restarted.

Each client publishes numbered messages, alternately at QoS 1 and 2, to the topic that the next client has subscribed to.
A client that loses its server connects to another one, and resends its unacknowledged messages there with the same packet
identifiers.
"""

import asyncio
import collections
import contextlib
import struct
import threading
from dataclasses import dataclass

from harness import mqtt5_wire
from harness.mqtt_wire import CONNACK, CONNECT, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, SUBSCRIBE, WITH_LOGIN
from harness.mqtt_wire import encoded, text, varint
from harness.patience import PATIENCE

# Protocol levels.
V311, V5 = 4, 5
# Unacknowledged messages of a client, of the 65,535 allowed.
WINDOW = 4
# Messages of each client per round; the fault occurs halfway.
WORK = 5 * WINDOW
# Seconds between connection attempts while no server is reachable.
REST = 0.2
EXPIRY = 3600
# The property identifier in CONNECT.
SESSION_EXPIRY = 0x11
# Reason codes: errors begin here, and packet identifier not found.
FAILURE, UNKNOWN_ID = 0x80, 0x92


@dataclass
class Sent:
    """An unacknowledged message. PUBREC sets `released`; `again` is set once the message was written to a connection that
    was lost."""

    body: bytes
    qos: int
    released: bool = False
    again: bool = False


class Fleet:
    """`ports` are the servers' ports. The clients run in one thread until `finish`."""

    def __init__(self, ports, count):
        self.ports = ports
        # The name of the current fault, if there is one.
        self.troubled = None
        # `under_way` is set, to let the fault begin, after `until_under_way` more acknowledgements.
        self.under_way, self.until_under_way = threading.Event(), 0
        # Acknowledged bodies with their recipients; bodies that may arrive twice, with the fault during which they were in
        # flight; and protocol violations that clients observed.
        self.acknowledged, self.excused, self.faults = {}, {}, []
        self.clients = [FleetClient(self, number, V5 if number % 2 else V311) for number in range(count)]
        self.loop, self.tasks = asyncio.new_event_loop(), []
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.call(lambda: self.tasks.extend(self.loop.create_task(client.run()) for client in self.clients))
        self.wait_until(lambda client: client.subscribed)

    def topic(self, number):
        """The topic of a client; numbers wrap around."""
        return f"fleet/{number % len(self.clients)}"

    def go_on(self, count=WINDOW):
        """Waits until this many more messages of each client are acknowledged."""
        self.call(self.add_work, count)
        self.wait_until(lambda client: client.is_idle())

    def add_work(self, count):
        for client in self.clients:
            client.work += count
            client.wake.set()

    @contextlib.contextmanager
    def trouble(self, name):
        """Until the block ends and all messages in flight are acknowledged, messages may arrive twice. The fault begins
        while messages are in flight."""
        self.under_way.clear()
        self.call(self.begin_trouble, name)
        assert self.under_way.wait(PATIENCE), self.faults
        yield
        self.go_on()
        self.call(self.end_trouble)

    def begin_trouble(self, name):
        self.troubled = name
        for client in self.clients:
            for sent in client.unacknowledged.values():
                self.excuse(sent.body)
        self.add_work(WORK)
        # Once half of them are acknowledged.
        self.until_under_way = WORK * len(self.clients) // 2

    def excuse(self, body):
        if self.troubled:
            self.excused[body] = self.troubled

    def acknowledge(self, body, number):
        self.acknowledged[body] = number
        self.until_under_way -= 1
        if self.until_under_way == 0:
            self.under_way.set()

    def end_trouble(self):
        self.troubled = None

    def received(self):
        """For each client, its received bodies with the number of copies and the number without DUP."""
        return [(client.came, client.came_new) for client in self.clients]

    def wait_for(self, expected):
        """Waits until each client has received its expected set of bodies."""
        self.wait_until(lambda client: expected[client.number] <= client.came.keys(), strict=False)

    def finish(self):
        async def end():
            for task in self.tasks:
                task.cancel()
            await asyncio.wait(self.tasks)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(PATIENCE)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE)
        self.loop.close()

    def call(self, function, *arguments):
        self.loop.call_soon_threadsafe(function, *arguments)

    def wait_until(self, holds, strict=True):
        """Waits until the condition holds for every client; if strict, fails after a timeout."""

        async def all_of_them():
            for client in self.clients:
                while not holds(client):
                    client.changed.clear()
                    await client.changed.wait()

        waiting = asyncio.run_coroutine_threadsafe(all_of_them(), self.loop)
        try:
            waiting.result(2 * PATIENCE)
        except TimeoutError:
            waiting.cancel()
            waits = [f"{client.number}: {client.state}" for client in self.clients if not holds(client)]
            assert not strict, f"waited in vain for {len(waits)} clients: {waits[:10]} {self.faults[:10]}"


class FleetClient:
    def __init__(self, fleet, number, version):
        self.fleet, self.number, self.version = fleet, number, version
        self.turn = number
        # Messages still to be published.
        self.work = 0
        self.published = 0
        # By packet identifier, in the order of the first publish.
        self.unacknowledged = {}
        self.free_ids = collections.deque(range(1, WINDOW + 1))
        self.came, self.came_new = collections.Counter(), collections.Counter()
        self.subscribed = False
        self.highest_qos = 2
        self.state = "new"
        # `wake` is set when there is something to write, `changed` when the state visible to the fleet changes.
        self.wake, self.changed = asyncio.Event(), asyncio.Event()

    def is_idle(self):
        return self.work == 0 and not self.unacknowledged

    async def run(self):
        while True:
            # Its own server first; the other one while that is down.
            port = self.fleet.ports[self.turn % len(self.fleet.ports)]
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    await self.converse(reader, writer)
                finally:
                    writer.close()
            except (OSError, asyncio.IncompleteReadError) as problem:
                self.state = f"{port}: {problem!r}"
            for sent in self.unacknowledged.values():
                sent.again = True
            self.turn += 1
            await asyncio.sleep(REST)

    async def converse(self, reader, writer):
        writer.write(self.connect())
        kind, _, answer = await packet(reader)
        assert kind == CONNACK, kind
        present, reason = answer[0], answer[1]
        if reason:
            self.state = f"refused with {reason:#x}"
            return
        self.state = "connected"
        if self.version == V5:
            self.highest_qos = mqtt5_wire.properties_of(CONNACK, answer[2:])[0].get("MaximumQoS", 2)
        if not present:
            if self.subscribed:
                self.fault("its session is gone")
            writer.write(self.subscribe())
        for packet_id, sent in self.unacknowledged.items():
            writer.write(encoded(PUBREL, number(packet_id)) if sent.released else self.publish(packet_id, sent))
        publishing = asyncio.ensure_future(self.publish_on(writer))
        try:
            while True:
                self.handle(writer, *await packet(reader))
                self.changed.set()
        finally:
            publishing.cancel()

    def connect(self):
        properties = properties_of(struct.pack(">BI", SESSION_EXPIRY, EXPIRY)) if self.version == V5 else b""
        # No clean start and no keep alive.
        head = text("MQTT") + struct.pack(">BBH", self.version, WITH_LOGIN, 0) + properties
        return encoded(CONNECT, head + text(f"fleet-{self.number}") + text("guest") + text("guest"))

    def subscribe(self):
        options = text(self.fleet.topic(self.number)) + bytes([1])
        return encoded(SUBSCRIBE, number(1) + (b"\0" if self.version == V5 else b"") + options)

    def publish(self, packet_id, sent):
        head = text(self.fleet.topic(self.number + 1)) + number(packet_id) + (b"\0" if self.version == V5 else b"")
        return encoded(PUBLISH, head + sent.body, sent.qos << 1 | (8 if sent.again else 0))

    async def publish_on(self, writer):
        """Publishes while there is work and a free packet identifier."""
        while True:
            self.wake.clear()
            while self.work and self.free_ids and self.subscribed:
                self.work -= 1
                self.published += 1
                qos = min(1 + self.published % 2, self.highest_qos)
                sent = Sent(b"mqtt %d %d at %d" % (self.number, self.published, qos), qos)
                packet_id = self.free_ids.popleft()
                self.unacknowledged[packet_id] = sent
                self.fleet.excuse(sent.body)
                writer.write(self.publish(packet_id, sent))
            await writer.drain()
            await self.wake.wait()

    def handle(self, writer, kind, flags, body):
        if kind == PUBLISH:
            self.handle_message(writer, flags, body)
        elif kind == SUBACK:
            if body[-1] != 1:
                self.fault(f"subscription answered with {body[-1]:#x}")
            self.subscribed = True
            self.wake.set()
        elif kind in (PUBACK, PUBREC, PUBCOMP):
            (packet_id,) = struct.unpack(">H", body[:2])
            self.handle_acknowledgement(writer, kind, packet_id, body[2] if len(body) > 2 else 0)
        else:
            self.state = f"told {kind}: {body!r}"

    def handle_message(self, writer, flags, body):
        (size,) = struct.unpack(">H", body[:2])
        rest = body[2 + size :]
        packet_id, rest = rest[:2], rest[2:]
        if flags >> 1 & 3 != 1:
            self.fault(f"a message at QoS {flags >> 1 & 3}")
            return
        payload = rest[1 + rest[0] :] if self.version == V5 else rest
        self.came[payload] += 1
        if not flags & 8:
            self.came_new[payload] += 1
        writer.write(encoded(PUBACK, packet_id))

    def handle_acknowledgement(self, writer, kind, packet_id, reason):
        sent = self.unacknowledged.get(packet_id)
        if sent is None:
            self.fault(f"{kind} for {packet_id}, which is free")
            return
        if reason >= FAILURE and not (kind == PUBCOMP and reason == UNKNOWN_ID and sent.again):
            # RabbitMQ rejects what it cannot store while a queue has no leader; the client publishes another message instead.
            if sent.body not in self.fleet.excused:
                self.fault(f"{kind} with {reason:#x} for {sent.body}")
            self.work += 1
        elif kind == PUBREC:
            sent.released = True
            writer.write(encoded(PUBREL, number(packet_id)))
            return
        else:
            if (kind == PUBACK) != (sent.qos == 1):
                self.fault(f"{kind} for a message of QoS {sent.qos}")
            self.fleet.acknowledge(sent.body, (self.number + 1) % len(self.fleet.clients))
        del self.unacknowledged[packet_id]
        self.free_ids.append(packet_id)
        self.wake.set()

    def fault(self, what):
        self.fleet.faults.append(f"client {self.number}: {what}")


async def packet(reader):
    """Kind, flags, and the bytes after the length."""
    head = (await reader.readexactly(1))[0]
    size = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return head >> 4, head & 15, await reader.readexactly(size)


def number(value):
    return struct.pack(">H", value)


def properties_of(data):
    return varint(len(data)) + data
