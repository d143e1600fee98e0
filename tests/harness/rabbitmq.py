"""Debian's RabbitMQ as a child process on ports and in folders of its own, its port mapper included."""

import os
import random
import socket

from harness.child import Child, clean_environment

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
PORTS = (10_000, 32_000)
CREDENTIALS = "guest:guest"
# What Leveret has built in and RabbitMQ has as a plug-in.
PLUGINS = "rabbitmq_consistent_hash_exchange"
READY = r"Starting broker\.\.\. completed"


class RabbitMq:
    def __init__(self, folder, *settings, plugins=PLUGINS):
        self.folder = folder
        self.port, mapper_port, distribution_port = free_ports(3)
        for short in ("home", "mnesia", "log"):
            (folder / short).mkdir(parents=True)
        (folder / "plugins").write_text(f"[{plugins}].\n")
        lines = [f"listeners.tcp.1 = 127.0.0.1:{self.port}", *settings]
        (folder / "rabbitmq.conf").write_text("".join(f"{line}\n" for line in lines))
        env = clean_environment(
            # The Erlang cookie is made in here, so that no other node is known or disturbed.
            HOME=str(folder / "home"),
            ERL_EPMD_PORT=str(mapper_port),
            ERL_EPMD_ADDRESS="127.0.0.1",
            # Without its shell wrapper the server itself gets our signals.
            RUNNING_UNDER_SYSTEMD="true",
            RABBITMQ_NODENAME=f"leveret-{os.getpid()}-{self.port}@localhost",
            RABBITMQ_DIST_PORT=str(distribution_port),
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}",
            RABBITMQ_MNESIA_BASE=str(folder / "mnesia"),
            RABBITMQ_LOG_BASE=str(folder / "log"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(folder / "plugins"),
            RABBITMQ_CONFIG_FILE=str(folder / "rabbitmq.conf"),
            RABBITMQ_CONF_ENV_FILE="/dev/null",
        )
        # A port mapper of our own, started first: one that the server starts would outlive it.
        self.mapper = Child(["epmd"], folder / "epmd.log", env=env)
        self.server = Child([SERVER], folder / "server.log", env=env)
        try:
            self.server.wait_line(READY)
        except BaseException:
            self.stop()
            raise

    @property
    def uri(self):
        return f"amqp://{CREDENTIALS}@127.0.0.1:{self.port}"

    @property
    def pid(self):
        return self.server.pid

    def check(self):
        assert self.server.running(), self.server.tail()

    def tail(self):
        logs = sorted((self.folder / "log").glob("*.log"), key=lambda log: log.stat().st_size)
        return "\n".join(logs[-1].read_text(errors="replace").splitlines()[-20:]) if logs else self.server.tail()

    def stop(self):
        try:
            self.server.stop()
        finally:
            self.mapper.kill()


def free_ports(count):
    """Ports that nobody listens on, for servers that cannot be asked to choose one themselves. They lie below those that
    the system gives to connections, so that none of them is taken before its server has it."""
    sockets = []
    try:
        while len(sockets) < count:
            each = socket.socket()
            try:
                each.bind(("127.0.0.1", random.randrange(*PORTS)))
                sockets.append(each)
            except OSError:
                each.close()
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
