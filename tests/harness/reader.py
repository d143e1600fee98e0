"""A reader of a page of docs/how-to: a directory with the page's files, in which its commands run as they stand there."""

import os
import shlex
import signal
import subprocess
import types

import pytest

from harness.amqp import connect
from harness.child import Child, clean_environment
from harness.leveret import Leveret, binary
from harness.patience import PATIENCE, TEST_SECONDS

# What a server listens on besides AMQP and HTTP unless told otherwise: the usual ports are not for tests.
OTHER_LISTENERS = ("WS", "MQTT", "STOMP", "WEB_MQTT", "WEB_STOMP")


class Reader:
    """`variables` are those of each command."""

    def __init__(self, directory, **variables):
        self.directory = directory
        self.bin = directory / "bin"
        self.bin.mkdir(parents=True)
        self.variables = variables
        self.children = []
        self.command("leveret", f'exec {shlex.quote(str(binary().resolve()))} "$@"')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.children:
            # Its own processes, such as those of a worker, are in its group; that of one that was waited for may be another's by now.
            if child.running():
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()

    def command(self, name, script):
        """A command that the reader has, as a shell script."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def write(self, name, text):
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def environment(self, variables):
        base = clean_environment()
        return base | {"PATH": f"{self.bin}:{base['PATH']}", "HOME": str(self.directory)} | self.variables | variables

    def run(self, script, code=0, **variables):
        """What a script prints; each of its commands has to do well, unless another exit code is meant."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=self.environment(variables),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TEST_SECONDS,
        )
        assert done.returncode == code, f"{script}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, line, **variables):
        """A command that runs until the test ends it, or the test itself ends."""
        log = self.directory / f"{len(self.children)}.log"
        child = Child(["bash", "-c", f"exec {line.strip()}"], log, env=self.environment(variables), cwd=self.directory)
        self.children.append(child)
        return child

    def serve(self, line, **variables):
        """A server that the command line starts, as it is once it listens."""
        quiet = {f"LEVERET_{name}": "off" for name in OTHER_LISTENERS}
        fixed = {"LEVERET_UPSTREAM_TIMEOUT": f"{PATIENCE}s", "STATE_DIRECTORY": str(self.directory / "state")}
        return Served(self.start(line, **(quiet | fixed | variables)))


class Served(Leveret):
    """A Leveret that was started by a command line of the page's."""

    def __init__(self, child):
        self.child = child
        self.address = child.wait_line(r"^amqp +listening on amqp://([^\s/]+)").group(1)
        self.http = child.wait_line(r"^http +listening on (http://[^\s/]+)").group(1)


# A broker's, as the examples have it.
FIRST_USER = {"LEVERET_DEFAULT_USER": "shop", "LEVERET_DEFAULT_PASSWORD": "shop"}
# A policy with which a queue refuses every message.
FULL = '{"max-length": 0, "overflow": "reject-publish"}'


class Shop:
    """What the examples take for granted, for a `mode`: the user shop, whose password is shop, and a RabbitMQ unless Leveret
    is the broker. `changes` are those of the command line that starts Leveret, `variables` what else it is given."""

    # Those that the examples declare in the RabbitMQ that tests share.
    QUEUES = ("orders", "celery")

    def __init__(self, targets, mode):
        self.variables = {"LEVERET_HTTP": "127.0.0.1:0"}
        self.upstream = None
        if mode == "broker":
            self.changes = {"--upstream amqp://rabbit.example:5672": ""}
            self.variables |= FIRST_USER
            return
        self.changes = {"rabbit.example:5672": f"127.0.0.1:{targets.upstream.port}"}
        self.upstream = targets.upstream
        self.upstream.add_user("shop")

    def __enter__(self):
        self.delete_queues()
        return self

    def __exit__(self, *_):
        self.delete_queues()

    def delete_queues(self):
        if self.upstream:
            with connect(self.upstream) as connection:
                for queue in self.QUEUES:
                    connection.channel().queue_delete(queue)

    @staticmethod
    def at(server):
        """A server as the shop's user reaches it."""
        return types.SimpleNamespace(uri=f"amqp://shop:shop@{server.address}")


@pytest.fixture(params=["pool", "broker"])
def shop(request, targets):
    """In front of a RabbitMQ, and with Leveret as the broker."""
    with Shop(targets, request.param) as shop:
        yield shop
