"""A server whose binary is replaced while it runs, and clients that keep connecting."""

import contextlib
import shutil
import threading
from pathlib import Path
from typing import NamedTuple

from harness.instances import leveret
from harness.leveret import binary
from harness.metrics import wait_until
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.process import end_processes
from harness.wire import Closed, Wire


# The pause of each of the clients that keep connecting.
KNOCK_SECONDS = 0.01


class Knock(Wire):
    """A client, and whether a server has answered it."""

    is_answered = False

    def _receive(self):
        data = super()._receive()
        self.is_answered = True
        return data


@contextlib.contextmanager
def knocking(port):
    """Clients that connect, log in and disconnect, one after the other, for the length of a `with`. Yields the clients
    served, the tolerated failures, and the failures that no client may see."""
    over, served, troubles, refusals = threading.Event(), [], [], []

    def knock():
        may_be_dropped = True
        while not over.is_set():
            client = None
            try:
                with Knock(port) as client:
                    client.handshake()
                served.append(1)
            except Exception as trouble:  # noqa: BLE001: whatever a client meets
                troubles.append(repr(trouble))
                # A broker that shuts down closes a client in the middle of its login, with 320 or without a close method, and
                # one that it accepted just then. Later clients wait, so no client is dropped twice in a row.
                is_closed = isinstance(trouble, (Closed, BrokenPipeError)) or "320" in str(trouble)
                is_answered = client is not None and client.is_answered
                if not is_closed or not (is_answered or may_be_dropped):
                    refusals.append(repr(trouble))
                may_be_dropped = may_be_dropped and is_answered
            # Without pauses they would take most of the machine's CPU time.
            over.wait(KNOCK_SECONDS)

    clients = [threading.Thread(target=knock) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        yield Callers(served, troubles, refusals)
    finally:
        over.set()
        for client in clients:
            client.join(PATIENCE)


class Callers(NamedTuple):
    served: list
    troubles: list
    refusals: list

    def go_on(self):
        """Returns once some more clients were served."""
        count = len(self.served)
        wait_until(lambda: len(self.served) > count + 4)


def flags(amqp, http, *more):
    return "--amqp", f"127.0.0.1:{amqp}", "--http", f"127.0.0.1:{http}", *more


@contextlib.contextmanager
def replaceable(tmp_path, *more, **options):
    """A server with its own copy of the binary, so that another can replace it on disk; and clients that connect to it."""
    program = tmp_path / "leveret"
    shutil.copy(binary(), program)
    amqp, http = free_ports(2)
    with leveret(tmp_path / "server", *flags(amqp, http, *more), program=program, **options) as server:
        try:
            with knocking(amqp) as callers:
                callers.go_on()
                yield server, program, callers
        finally:
            server.kill()
            kill_all(program)


def running(program):
    """The processes that run a program."""
    found = []
    for path in Path("/proc").glob("[0-9]*/exe"):
        with contextlib.suppress(OSError):
            if path.readlink() == program:
                found.append(int(path.parent.name))
    return found


def kill_all(program):
    """Also ends successors: they are not children of the tests, which would be killed with them."""
    end_processes(running(program))


def replace(program):
    """Replaces the file as package managers do: the running process keeps the old one."""
    shutil.copy(program, program.with_suffix(".new"))
    program.with_suffix(".new").replace(program)
