"""Leveret and RabbitMQ, each with its ports of MQTT and STOMP, over TCP and WebSocket; and the pool in front of RabbitMQ with those that it serves."""

import contextlib
import os
import signal

import pika
import pytest

from harness.instances import leveret
from harness.leveret import Leveret
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq
from harness.releases import TAKEN_AFTER, missing
from harness.targets import POOL, RABBITMQ

ANY = "127.0.0.1:0"
FLAGS = ("--mqtt", ANY, "--web-mqtt", ANY, "--stomp", ANY, "--web-stomp", ANY, "--ws", ANY)
# The protocols whose sessions end at the pool.
POOL_FLAGS = ("--stomp", ANY, "--web-stomp", ANY, "--ws", ANY)
PLUGINS = "rabbitmq_mqtt,rabbitmq_web_mqtt,rabbitmq_stomp,rabbitmq_web_stomp"


class Broker:
    """A server that speaks everything: `kind` is leveret, rabbitmq, or one of the pools in front of a RabbitMQ without plug-ins."""

    def __init__(self, kind, folder, *flags):
        self.kind = kind
        self.upstream = None
        if kind == "leveret":
            self.server = Leveret(folder, *FLAGS, *flags)
            self.mqtt, self.stomp = self.port("mqtt", "mqtt"), self.port("stomp", "stomp")
            self.web_mqtt, self.web_stomp = self.port("web-mqtt", "ws"), self.port("web-stomp", "ws")
        elif kind in POOL:
            version = RABBITMQ[POOL[kind]]
            if reason := missing(version):
                pytest.skip(reason)
            self.upstream = RabbitMq(folder / "upstream", version=version)
            self.server = Leveret(folder, "--upstream", f"amqp://127.0.0.1:{self.upstream.port}", *POOL_FLAGS, *flags)
            self.stomp, self.web_stomp = self.port("stomp", "stomp"), self.port("web-stomp", "ws")
        else:
            self.mqtt, self.web_mqtt, self.stomp, self.web_stomp = free_ports(4)
            settings = [
                f"mqtt.listeners.tcp.1 = 127.0.0.1:{self.mqtt}",
                f"stomp.listeners.tcp.1 = 127.0.0.1:{self.stomp}",
                f"web_mqtt.tcp.port = {self.web_mqtt}",
                f"web_stomp.tcp.port = {self.web_stomp}",
                # As text, its default, bytes that are no UTF-8 fail the WebSocket.
                "web_stomp.ws_frame = binary",
            ]
            self.server = RabbitMq(folder, *settings, plugins=PLUGINS, version=TAKEN_AFTER)

    def port(self, name, scheme):
        """Where a listener of Leveret's is."""
        return listening(self.server, name, scheme)

    def channel(self):
        return channel_of(self.server)

    def stop(self):
        self.server.stop()
        if self.upstream:
            self.upstream.stop()


@contextlib.contextmanager
def channel_of(server):
    """An AMQP channel with confirms, for the length of a `with`."""
    with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def listening(server, name, scheme):
    return int(server.child.wait_line(rf"^{name} +listening on {scheme}://127\.0\.0\.1:(\d+)").group(1))


class KilledServer:
    """A server with MQTT on a data folder, which can be killed and started again."""

    def __init__(self, folder, *flags):
        self.folder, self.flags = folder, flags
        self.start()

    def start(self):
        self.context = leveret(self.folder, "--mqtt", ANY, *self.flags)
        self.server = self.context.__enter__()
        self.port = listening(self.server, "mqtt", "mqtt")

    def kill(self):
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.child.wait()
        self.context.__exit__(None, None, None)
        self.start()

    def stop(self):
        self.server.stop()
        self.context.__exit__(None, None, None)
