"""A server whose program is replaced while it runs, and clients that come all the while."""

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


class Knock(Wire):
    """A client, and whether anybody has answered it."""

    is_answered = False

    def _receive(self):
        data = super()._receive()
        self.is_answered = True
        return data


@contextlib.contextmanager
def knocking(port):
    """Clients that connect, log in, and leave, one after the other, for the length of a `with`. Yields who was served, what
    went wrong for others, and what no client may meet."""
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
                # A broker that ends closes a client in the middle of its login, with 320 or without a word, and one that it has
                # accepted in this moment. Those that come later wait, so that no caller is dropped twice.
                is_closed = isinstance(trouble, (Closed, BrokenPipeError)) or "320" in str(trouble)
                is_answered = client is not None and client.is_answered
                if not is_closed or not (is_answered or may_be_dropped):
                    refusals.append(repr(trouble))
                may_be_dropped = may_be_dropped and is_answered

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
        """Returns once some more have been served."""
        count = len(self.served)
        wait_until(lambda: len(self.served) > count + 4)


def flags(amqp, http, *more):
    return "--amqp", f"127.0.0.1:{amqp}", "--http", f"127.0.0.1:{http}", *more


@contextlib.contextmanager
def replaceable(tmp_path, *more, **options):
    """A server whose program is a file of its own, so that another can take its place on the disk; and clients of it."""
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
    """The processes of a program."""
    found = []
    for path in Path("/proc").glob("[0-9]*/exe"):
        with contextlib.suppress(OSError):
            if path.readlink() == program:
                found.append(int(path.parent.name))
    return found


def kill_all(program):
    """Ends successors as well: they are no children of the tests, which would end with these."""
    end_processes(running(program))


def replace(program):
    """Another file, as package managers write it: the running one stays as it is."""
    shutil.copy(program, program.with_suffix(".new"))
    program.with_suffix(".new").replace(program)
