"""Fakes for commands of a page that tests cannot run, such as systemctl: a function of the test answers for them."""

import concurrent.futures
import json
import os
import shlex
import signal
import socket
import sys
import threading
import traceback

from harness.leveret import Leveret
from harness.patience import PATIENCE
from harness.process import end_processes
from harness.upgrading import kill_all, running

CALL = """
import json, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("\\0" + sys.argv[1])
    connection.sendall(json.dumps(sys.argv[2:]).encode() + b"\\n")
    problem = connection.makefile().read()
sys.exit(problem or 0)
"""

# A child is killed when the thread that started it exits (PR_SET_PDEATHSIG); this thread lives as long as the tests.
WORKER = concurrent.futures.ThreadPoolExecutor(1)


class StandIn:
    """A fake command on a reader's PATH, for the length of a `with`: calls `function` with its arguments; an exception
    becomes the command's failure."""

    def __init__(self, reader, name, function):
        self.function = function
        self.socket = socket.socket(socket.AF_UNIX)
        # An abstract socket name (unix(7)): the path of a test's directory is often longer than a socket's path may be.
        address = f"leveret-tests-stand-in-{os.getpid()}-{self.socket.fileno()}"
        self.socket.bind("\0" + address)
        self.socket.listen()
        call = shlex.join([sys.executable, "-c", CALL, address])
        reader.command(name, f'exec {call} "$@"')
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        # close() alone does not wake the thread.
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.socket.close()

    def _serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rw") as stream:
                try:
                    WORKER.submit(self.function, *json.loads(stream.readline())).result()
                except Exception:
                    stream.write(traceback.format_exc())


class Service:
    """A server that the fake `systemctl` starts, stops and reloads: `flags` are used at each start; `directory` holds its
    output. A reload needs a `program` of its own, which was replaced on disk."""

    def __init__(self, directory, *flags):
        self.directory, self.flags = directory, flags
        self.program = None
        self.server = None
        self.starts = 0

    def __call__(self, action, unit):
        assert unit == "leveret" and action in ("start", "stop", "restart", "reload")
        if action == "reload":
            self.server.child.send(signal.SIGHUP)
            assert self.server.child.process.wait(PATIENCE) == 0
            return self.server
        if action != "start":
            self._stop()
        if action != "stop":
            self.starts += 1
            self.server = Leveret(self.directory / f"run{self.starts}", *self.flags, program=self.program)
        return self.server

    @property
    def process(self):
        """The main process: the one that was started, or its successor."""
        others = [process for process in running(self.program) if process != self.server.pid]
        return others[0] if others else self.server.pid

    def _stop(self):
        if self.server.child.running():
            self.server.stop()
        if self.program:
            end_processes(running(self.program), signal.SIGTERM)

    def __enter__(self):
        self("start", "leveret")
        return self

    def __exit__(self, *_):
        self.server.child.kill()
        if self.program:
            kill_all(self.program)
