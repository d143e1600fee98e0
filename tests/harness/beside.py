"""RabbitMQ 4 and Leveret with `compatibility = "4"` side by side: tests send both the same MQTT and STOMP requests."""

import contextlib
import time

import pytest

from harness.leveret import Leveret
from harness.management import Management, path
from harness.mqtt5_wire import Mqtt5Wire
from harness.mqtt_broker import channel_of, listening
from harness.mqtt_wire import MqttWire
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq
from harness.stomp_client import StompWire

ANY = "127.0.0.1:0"


class Side:
    """One of the two servers. Closing it also closes every client it opened."""

    def __init__(self, kind, directory, longest_session):
        self.kind = kind
        self.front = None
        self.opened = contextlib.ExitStack()
        if kind == "leveret":
            flags = ["--mqtt-session-expiry-max", f"{longest_session}s"] if longest_session else []
            self.server = Leveret(directory, "--mqtt", ANY, "--stomp", ANY, "--compatibility", "4", *flags)
            self.mqtt_port, self.stomp_port = listening(self.server, "mqtt", "mqtt"), listening(self.server, "stomp", "stomp")
            self.http = Management(self.server, self.server.http)
        elif kind == "pool":
            (http,) = free_ports(1)
            settings = [f"management.tcp.port = {http}", "management.tcp.ip = 127.0.0.1"]
            self.server = RabbitMq(directory / "rabbitmq", *settings, plugins="rabbitmq_management", version="4")
            flags = ["--mqtt-session-expiry-max", f"{longest_session}s"] if longest_session else []
            upstream = f"amqp://127.0.0.1:{self.server.port}"
            self.front = Leveret(directory, "--upstream", upstream, "--mqtt", ANY, *flags)
            self.mqtt_port = listening(self.front, "mqtt", "mqtt")
            self.http = Management(self.server, f"http://127.0.0.1:{http}")
        else:
            self.mqtt_port, self.stomp_port, http = free_ports(3)
            settings = [
                f"mqtt.listeners.tcp.1 = 127.0.0.1:{self.mqtt_port}",
                f"stomp.listeners.tcp.1 = 127.0.0.1:{self.stomp_port}",
                f"management.tcp.port = {http}",
                "management.tcp.ip = 127.0.0.1",
            ]
            if longest_session:
                settings.append(f"mqtt.max_session_expiry_interval_seconds = {longest_session}")
            plugins = "rabbitmq_mqtt,rabbitmq_stomp,rabbitmq_management"
            self.server = RabbitMq(directory, *settings, plugins=plugins, version="4")
            self.http = Management(self.server, f"http://127.0.0.1:{http}")

    def mqtt5(self):
        wire = Mqtt5Wire(self.mqtt_port)
        self.opened.callback(wire.close)
        return wire

    def connected(self, name, **options):
        """An MQTT 5.0 client whose CONNECT was accepted."""
        wire = self.mqtt5()
        answer = wire.connect(name, **options)
        assert answer["reason"] == 0, answer
        return wire

    def mqtt3(self, name, **options):
        """An MQTT 3.1.1 client, and the answer to its CONNECT."""
        wire = MqttWire(self.mqtt_port)
        self.opened.callback(wire.close)
        wire.connect(name, **options)
        return wire, wire.packet()

    def stomp(self, **options):
        """A STOMP client, and the answer to its CONNECT."""
        wire = StompWire(self.stomp_port)
        self.opened.callback(wire.close)
        return wire, wire.connect(**options)

    def channel(self):
        return channel_of(self.server)

    def queue(self, name, keys):
        """These keys of a queue in the management API; `None` if the queue does not exist."""
        status, _, body = self.http.ask("GET", path("queues", "/", name))
        return {key: body.get(key) for key in keys} if status == 200 else None

    def eventually(self, name, keys, holds):
        """Like `queue`, but waits until `holds` accepts the result, because RabbitMQ updates its statistics periodically."""
        deadline = time.monotonic() + PATIENCE
        while not holds(shown := self.queue(name, keys)):
            assert time.monotonic() < deadline, shown
            time.sleep(0.1)
        return shown

    def close_clients(self):
        self.opened.close()

    def stop(self):
        self.close_clients()
        if self.front:
            self.front.stop()
        self.server.stop()


@contextlib.contextmanager
def both(directory, longest_session=None, ours="leveret"):
    """With `ours` set to "pool", Leveret runs in front of a RabbitMQ 4 of its own, with MQTT only. `longest_session` limits
    how many seconds an MQTT session outlives its connection; the default is a day."""
    with contextlib.ExitStack() as stack:
        sides = []
        for kind in (ours, "rabbitmq"):
            sides.append(Side(kind, directory / kind, longest_session))
            stack.callback(sides[-1].stop)
        yield sides


def next_message(channel, queue):
    """The queue's next message, by basic.get."""
    message = next(channel.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE))
    assert message[0], "nothing was delivered"
    return message


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    with both(tmp_path_factory.mktemp("both")) as sides:
        yield sides


@pytest.fixture
def same(sides):
    """Runs a step against both servers, asserts that the results are equal, and returns the result."""

    def do(step):
        try:
            ours, theirs = (step(side) for side in sides)
        finally:
            for side in sides:
                side.close_clients()
        assert ours == theirs
        return theirs

    return do
