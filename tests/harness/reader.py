"""Follows a page of docs/how-to: a directory with the page's files, where its commands run unchanged."""

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

# Leveret's default listeners besides AMQP and HTTP, which tests must move from their usual ports.
OTHER_LISTENERS = ("WS", "MQTT", "STOMP", "WEB_MQTT", "WEB_STOMP")


class Reader:
    """`variables` are set for each command."""

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
            # A command's child processes, such as those of a worker, are in its process group. If the process was already
            # reaped, the id may belong to another one.
            if child.running():
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()

    def command(self, name, script):
        """Puts a command, written as a shell script, on the reader's PATH."""
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
        """Runs a script and returns its output; each command must succeed, unless another exit code is expected."""
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
        """A command that runs until the test stops it, or ends."""
        log = self.directory / f"{len(self.children)}.log"
        child = Child(["bash", "-c", f"exec {line.strip()}"], log, env=self.environment(variables), cwd=self.directory)
        self.children.append(child)
        return child

    def serve(self, line, **variables):
        """Starts the server of a command line, and waits until it listens."""
        quiet = {f"LEVERET_{name}": "off" for name in OTHER_LISTENERS}
        fixed = {"LEVERET_UPSTREAM_TIMEOUT": f"{PATIENCE}s", "STATE_DIRECTORY": str(self.directory / "state")}
        return Served(self.start(line, **(quiet | fixed | variables)))


class Served(Leveret):
    """A Leveret started by a command line of the page."""

    def __init__(self, child):
        self.child = child
        self.address = child.wait_line(r"^amqp +listening on amqp://([^\s/]+)").group(1)
        self.http = child.wait_line(r"^http +listening on (http://[^\s/]+)").group(1)


# A broker's user, as in the examples.
FIRST_USER = {"LEVERET_DEFAULT_USER": "shop", "LEVERET_DEFAULT_PASSWORD": "shop"}
# A policy under which a queue rejects every message.
FULL = '{"max-length": 0, "overflow": "reject-publish"}'


class Shop:
    """The setup that the examples assume, for a `mode`: the user shop with password shop, and a RabbitMQ unless Leveret is
    the broker. `changes` edit the command line that starts Leveret; `variables` are its additional environment."""

    # The queues that the examples declare in the shared RabbitMQ.
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
        """Connects to a server as user shop."""
        return types.SimpleNamespace(uri=f"amqp://shop:shop@{server.address}")


@pytest.fixture(params=["pool", "broker"])
def shop(request, targets):
    """With Leveret in front of a RabbitMQ, and as the broker."""
    with Shop(targets, request.param) as shop:
        yield shop
