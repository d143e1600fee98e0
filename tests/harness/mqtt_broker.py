"""Leveret and RabbitMQ with MQTT and STOMP listeners over TCP and WebSocket, and the pool in front of a RabbitMQ without
these plugins."""

import contextlib
import os
import secrets
import signal

import pika
import pytest

from harness.instances import leveret
from harness.lending import borrow
from harness.leveret import Leveret
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq
from harness.releases import TAKEN_AFTER, missing
from harness.targets import POOL, RABBITMQ, missing_target

ANY = "127.0.0.1:0"
FLAGS = ("--mqtt", ANY, "--web-mqtt", ANY, "--stomp", ANY, "--web-stomp", ANY, "--ws", ANY)
# The embedded broker, and the pool in front of each RabbitMQ.
SERVED = ["leveret", *POOL]
PLUGINS = "rabbitmq_mqtt,rabbitmq_web_mqtt,rabbitmq_stomp,rabbitmq_web_stomp"
# Virtual hosts are created in batches, because each rabbitmqctl command takes a second.
VHOSTS = 10
MAKE_VHOSTS = """
    [begin
        rabbit_vhost:add(Name, <<"tests">>),
        rabbit_auth_backend_internal:set_permissions(<<"guest">>, Name, <<".*">>, <<".*">>, <<".*">>, <<"tests">>)
    end || Name <- [%s]].
"""
UNUSED_VHOSTS = {}
"""By node."""


class Broker:
    """A server that speaks all protocols: `kind` is leveret, rabbitmq, or one of the pools. With `targets`, a pool uses the
    shared RabbitMQ, where its MQTT clients have their own virtual host; otherwise it has its own RabbitMQ."""

    def __init__(self, kind, directory, *flags, targets=None):
        self.kind, self.directory = kind, directory
        self.upstream = None
        self.vhost = "/"
        if kind == "leveret":
            self.start(*flags)
        elif kind in POOL:
            if targets is None:
                version = RABBITMQ[POOL[kind]]
                if reason := missing(version):
                    pytest.skip(reason)
                self.upstream = borrow(version=version)
                upstream = ["--upstream", f"amqp://127.0.0.1:{self.upstream.port}"]
            else:
                upstream, self.vhost = shared(kind, targets)
            self.start(*upstream, *flags)
        else:
            self.mqtt, self.web_mqtt, self.stomp, self.web_stomp = free_ports(4)
            settings = [
                f"mqtt.listeners.tcp.1 = 127.0.0.1:{self.mqtt}",
                f"stomp.listeners.tcp.1 = 127.0.0.1:{self.stomp}",
                f"web_mqtt.tcp.port = {self.web_mqtt}",
                f"web_stomp.tcp.port = {self.web_stomp}",
                # The default, text frames, fails the WebSocket when a payload is not UTF-8.
                "web_stomp.ws_frame = binary",
            ]
            self.server = RabbitMq(directory, *settings, plugins=PLUGINS, version=TAKEN_AFTER)

    def start(self, *flags):
        self.flags = flags
        self.server = Leveret(self.directory, *FLAGS, *flags)
        self.mqtt, self.stomp = self.port("mqtt", "mqtt"), self.port("stomp", "stomp")
        self.web_mqtt, self.web_stomp = self.port("web-mqtt", "ws"), self.port("web-stomp", "ws")

    def kill(self):
        """Kills Leveret and restarts it."""
        self.server.kill()
        self.start(*self.flags)

    def port(self, name, scheme):
        """The port of one of Leveret's listeners."""
        return listening(self.server, name, scheme)

    @property
    def uri(self):
        """The AMQP URI of the MQTT clients' virtual host."""
        return in_vhost(self.server.uri, self.vhost)

    def channel(self):
        return channel_of(self)

    def stop(self):
        self.server.stop()
        if self.upstream:
            self.upstream.stop()


def shared(kind, targets):
    """The flags of a pool in front of the shared RabbitMQ, and the virtual host of its MQTT clients."""
    if reason := missing_target(kind):
        pytest.skip(reason)
    rabbitmq = targets[POOL[kind]]
    vhost = new_vhost(rabbitmq)
    return ["--upstream", f"amqp://127.0.0.1:{rabbitmq.port}", "--mqtt-vhost", vhost], vhost


def new_vhost(rabbitmq):
    """A virtual host that no test has used."""
    unused = UNUSED_VHOSTS.setdefault(rabbitmq.node, [])
    if not unused:
        unused += [f"mqtt-{rabbitmq.node}-{secrets.token_hex(4)}" for _ in range(VHOSTS)]
        names = ",".join(f'<<"{name}">>' for name in unused)
        rabbitmq.control("eval", MAKE_VHOSTS % names)
    return unused.pop()


def in_vhost(uri, vhost):
    return uri if vhost == "/" else f"{uri}/{vhost}"


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
    """A server with MQTT and a data directory that tests kill and restart: the embedded broker, or a pool in front of the
    shared RabbitMQ."""

    def __init__(self, directory, *flags, kind="leveret", targets=None):
        self.kind, self.directory, self.flags, self.vhost = kind, directory, flags, "/"
        if kind in POOL:
            upstream, self.vhost = shared(kind, targets)
            self.flags = (*upstream, *flags)
        self.start()

    def start(self):
        self.context = leveret(self.directory, "--mqtt", ANY, *self.flags)
        self.server = self.context.__enter__()
        self.port = listening(self.server, "mqtt", "mqtt")

    @property
    def uri(self):
        """The AMQP URI of the MQTT clients' virtual host."""
        return in_vhost(self.server.uri, self.vhost)

    def kill(self):
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.child.wait()
        self.context.__exit__(None, None, None)
        self.start()

    def stop(self):
        self.server.stop()
        self.context.__exit__(None, None, None)
