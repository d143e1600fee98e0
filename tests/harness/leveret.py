"""Leveret as a child process, started by its command line."""

import os
import subprocess
import tempfile
from pathlib import Path

from harness.child import Child, clean_environment
from harness.patience import PATIENCE, TEST_SECONDS

ROOT = Path(__file__).resolve().parents[2]
CREDENTIALS = "guest:guest"
# Listeners that are on by default; tests switch them off unless they need them.
OPTIONAL_LISTENERS = ("--ws", "--mqtt", "--stomp", "--web-mqtt", "--web-stomp")


def binary():
    """The program under test; LEVERET_BIN overrides it."""
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "leveret"
    return Path(os.environ.get("LEVERET_BIN", built))


class Leveret:
    """`leveret serve` with these flags. AMQP and HTTP get ports from the system unless a flag sets them. `program` is
    another build; `stderr` is a file that receives standard error."""

    def __init__(self, directory, *flags, env=None, wait=True, amqp="127.0.0.1:0", program=None, stderr=subprocess.STDOUT):
        directory.mkdir(parents=True, exist_ok=True)
        quiet = [word for name in OPTIONAL_LISTENERS if name not in flags for word in (name, "off")]
        fixed = {"--amqp": amqp, "--http": "127.0.0.1:0"}
        addresses = [word for name, address in fixed.items() if name not in flags for word in (name, address)]
        argv = [program or binary(), "serve", *quiet, *addresses, *flags]
        defaults = {"STATE_DIRECTORY": str(directory / "state")}
        if "--upstream" in flags:
            # A broker may take longer than the default of a minute to restart.
            defaults["LEVERET_UPSTREAM_OUTAGE_MAX"] = f"{TEST_SECONDS}s"
        environment = clean_environment(**(defaults | (env or {})))
        self.child = Child(argv, directory / "leveret.log", env=environment, cwd=directory, stderr=stderr)
        if wait:
            try:
                self.address = self.child.wait_line(r"^amqp +listening on amqp://([^\s/]+)").group(1)
                self.http = self.child.wait_line(r"^http +listening on (http://[^\s/]+)").group(1)
            except BaseException:
                self.child.kill()
                raise

    @property
    def uri(self):
        return f"amqp://{CREDENTIALS}@{self.address}"

    @property
    def port(self):
        return int(self.address.rpartition(":")[2])

    @property
    def ws_port(self):
        """The port of `--ws`, if that flag was given."""
        return int(self.child.wait_line(r"^ws +listening on ws://127\.0\.0\.1:(\d+)").group(1))

    @property
    def pid(self):
        return self.child.pid

    def check(self):
        assert self.child.running(), self.child.tail()

    def tail(self):
        return self.child.tail()

    def kill(self):
        """kill -9."""
        self.child.kill()

    def stop(self):
        """Stops the server with SIGTERM, and asserts that it exits with success."""
        code = self.child.stop()
        assert code == 0, f"exit code {code}\n{self.child.tail()}"


def run(*arguments, env=None, cwd=None, seconds=PATIENCE):
    """Runs the program until it exits: (exit code, standard output, standard error)."""
    with tempfile.TemporaryDirectory() as state:
        done = subprocess.run(
            [str(binary()), *map(str, arguments)],
            env=clean_environment(**{"STATE_DIRECTORY": state, **(env or {})}),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    return done.returncode, done.stdout, done.stderr
