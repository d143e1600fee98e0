"""RabbitMQ as a child process with its own ports, directories and port mapper (epmd); and a cluster of such servers."""

import contextlib
import os
import secrets
import signal
import subprocess

from harness.child import Child, clean_environment
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.rabbitmqctl import Rabbitmqctl
from harness.releases import release

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
TOOLS = "/usr/lib/rabbitmq/bin"
# A start takes about five seconds, many times that on a busy machine.
START_SECONDS = CONTROL_SECONDS = 2 * PATIENCE
CREDENTIALS = "guest:guest"
# Plugins whose features Leveret has built in.
PLUGINS = "rabbitmq_consistent_hash_exchange"
ADD_USER = """
    rabbit_auth_backend_internal:exists(<<"{0}">>) orelse rabbit_auth_backend_internal:add_user(<<"{0}">>, <<"{0}">>, <<"tests">>),
    rabbit_auth_backend_internal:set_permissions(<<"{0}">>, <<"{1}">>, <<".*">>, <<".*">>, <<".*">>, <<"tests">>).
"""
# Idle Erlang schedulers sleep at once, as in RabbitMQ 4: those of 3.10 spin for a while first, which takes CPU time from other
# tests.
NO_BUSY_WAIT = "+sbwt none +sbwtdcpu none +sbwtdio none"
# Follows "Starting broker... ", unless something else was printed in between.
BOOT_COMPLETED = r"completed with \d+ plugins"


class RabbitMq:
    """A server. `mapper` is the port mapper that a cluster's nodes share, like the Erlang cookie in `home`. `busy_wait`
    keeps the schedulers' defaults, for measurements."""

    def __init__(
        self, directory, *settings, plugins=PLUGINS, ports=None, mapper=None, home=None, wait=True, version=None, busy_wait=False
    ):
        self.directory = directory
        self.flags = "-kernel inet_dist_use_interface {127,0,0,1}" + ("" if busy_wait else f" {NO_BUSY_WAIT}")
        self.release = release(version)
        self.port, self.distribution_port, *mapper_port = ports or free_ports(3)
        self.node = node_name(self.port)
        self.mapper_is_own = mapper is None
        directory.mkdir(parents=True, exist_ok=True)
        # Started first: a port mapper that the server starts itself would outlive it.
        self.mapper = mapper or PortMapper(directory, *mapper_port)
        self.env = self.prepare(settings, plugins, home or directory / "home")
        self.rabbitmqctl = Rabbitmqctl(directory, f"{TOOLS}/rabbitmqctl", self.release, self.env)
        self.starts = 0
        try:
            self.start(wait)
        except BaseException:
            self.stop()
            raise

    def prepare(self, settings, plugins, home):
        for directory in (home, self.directory / "mnesia", self.directory / "log"):
            directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "plugins").write_text(f"[{plugins}].\n")
        lines = [f"listeners.tcp.1 = 127.0.0.1:{self.port}", *settings]
        (self.directory / "rabbitmq.conf").write_text("".join(f"{line}\n" for line in lines))
        return clean_environment(
            # The Erlang cookie goes here, so that other nodes on this machine are not affected.
            HOME=str(home),
            ERL_EPMD_PORT=str(self.mapper.port),
            ERL_EPMD_ADDRESS="127.0.0.1",
            # Without the shell wrapper, signals go to the server itself.
            RUNNING_UNDER_SYSTEMD="true",
            RABBITMQ_NODENAME=self.node,
            RABBITMQ_DIST_PORT=str(self.distribution_port),
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=self.flags,
            RABBITMQ_MNESIA_BASE=str(self.directory / "mnesia"),
            RABBITMQ_LOG_BASE=str(self.directory / "log"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(self.directory / "plugins"),
            RABBITMQ_CONFIG_FILE=str(self.directory / "rabbitmq.conf"),
            RABBITMQ_CONF_ENV_FILE="/dev/null",
        )

    def start(self, wait=True):
        """Starts the server, or restarts it with the same ports and directories."""
        log = self.directory / ("server.log" if self.starts == 0 else f"server-{self.starts}.log")
        self.starts += 1
        self.server = Child([*self.release.inside, SERVER], log, env=self.env, logs=self.directory / "log")
        if wait:
            self.server.wait_line(BOOT_COMPLETED, START_SECONDS)

    def end(self, how=signal.SIGKILL, is_synced=True):
        """Ends the Erlang VM with a signal. With `is_synced`, the server first syncs its definitions to disk, so it must be
        running."""
        if how == signal.SIGKILL and is_synced:
            # RabbitMQ 3.10 answers a declaration before it is on disk, and sometimes loses one if it is killed soon after.
            self.control("eval", "mnesia:sync_log().")
        self.server.send(how)
        self.server.wait(CONTROL_SECONDS)

    def control(self, *arguments):
        """Runs rabbitmqctl for this node; returns its output."""
        code, printed, error = self.rabbitmqctl.run(self.arguments(arguments), CONTROL_SECONDS)
        assert code == 0, printed + error
        return printed

    def tool(self, name, *arguments):
        """Runs another of RabbitMQ's tools, such as rabbitmq-upgrade; returns its output."""
        argv = [*self.release.inside, f"{TOOLS}/{name}", *self.arguments(arguments)]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=CONTROL_SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def add_user(self, name, vhost="/"):
        """Adds a user with all permissions in this virtual host, and its name as password. One command, because each takes a
        second."""
        self.control("eval", ADD_USER.format(name, vhost))

    def arguments(self, words):
        return ["--quiet", "--node", self.node, *map(str, words)]

    @property
    def uri(self):
        return f"amqp://{CREDENTIALS}@127.0.0.1:{self.port}"

    @property
    def pid(self):
        return self.server.pid

    def check(self):
        assert self.server.running(), self.server.tail()

    def tail(self):
        return self.server.tail()

    def stop(self):
        """Kills the server for good. Its data is not needed, so a graceful shutdown, which takes seconds, is unnecessary."""
        try:
            self.rabbitmqctl.kill()
            self.server.kill()
        finally:
            if self.mapper_is_own:
                self.mapper.stop()


class PortMapper:
    """epmd, through which a cluster's nodes and their tools find each other."""

    def __init__(self, directory, port):
        self.port = port
        env = clean_environment(ERL_EPMD_PORT=str(self.port), ERL_EPMD_ADDRESS="127.0.0.1")
        self.child = Child(["epmd"], directory / "epmd.log", env=env)

    def stop(self):
        self.child.kill()


class Cluster:
    """Several servers that form a cluster."""

    def __init__(self, directory, count=3):
        directory.mkdir(parents=True)
        mapper_port, *ports = free_ports(1 + 2 * count)
        pairs = list(zip(ports[::2], ports[1::2], strict=True))
        settings = ["cluster_formation.peer_discovery_backend = classic_config"]
        settings += [
            f"cluster_formation.classic_config.nodes.{number} = {node_name(port)}"
            for number, (port, _) in enumerate(pairs, 1)
        ]
        self.mapper = PortMapper(directory, mapper_port)
        home = directory / "home"
        home.mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(10))
        cookie.chmod(0o400)
        self.nodes = []
        try:
            for number, pair in enumerate(pairs):
                # With 3.10 the first node forms the cluster and the others join. With RabbitMQ 4, the nodes agree; a first node
                # would wait for the others.
                is_first = number == 0 and release().name == "3.10"
                options = {"ports": pair, "mapper": self.mapper, "home": home, "wait": is_first}
                self.nodes.append(RabbitMq(directory / f"node-{number}", *settings, **options))
            for node in self.nodes:
                node.server.wait_line(BOOT_COMPLETED, START_SECONDS)
        except BaseException:
            self.stop()
            raise

    def stop(self):
        """Stops all nodes, even if stopping one of them fails."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.mapper.stop)
            for node in self.nodes:
                stack.callback(node.stop)


def node_name(port):
    return f"leveret-{os.getpid()}-{port}@localhost"
