"""The five client drivers: long-lived processes that run scenarios by name and exchange lines of JSON."""

import json
import os
import re
import secrets
import select
import subprocess
import sys
from pathlib import Path

from harness.leveret import ROOT
from harness.patience import PATIENCE

TESTS = ROOT / "tests"
CACHE = ROOT / ".cache"
# Server properties that Leveret adds to RabbitMQ's.
OURS = {"implementation", "implementation_version"}

COMMANDS = {
    "pika": [sys.executable, TESTS / "pika" / "driver.py"],
    "amqplib": ["node", TESTS / "amqplib" / "driver.js"],
    "java": ["java", "-cp", f"{CACHE}/java/classes:{CACHE}/java/dependency/*", "Driver"],
    "go": [CACHE / "go" / "scenarios"],
    "lapin": [Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "lapin-scenarios"],
}

# Programs that hold one connection open and publish each line of their input on it.
HOLDING = {
    "java": [*COMMANDS["java"][:-1], "Holding"],
    "go": [CACHE / "go" / "holding"],
}


class Driver:
    def __init__(self, client, directory):
        self.errors = directory / f"{client}.log"
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *map(str, COMMANDS[client])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors.open("w"),
            start_new_session=True,
        )
        self.scenarios = self._read()["scenarios"]

    def observe(self, scenario, uri):
        """Runs a scenario; returns the client's observations, without the names generated for this run."""
        # Short, because the longest error text has little space left in its 255 bytes.
        prefix = secrets.token_hex(4) + "."
        request = {"scenario": scenario, "uri": uri, "prefix": prefix}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        answer = self._read()
        assert answer["scenario"] == scenario
        assert answer["ok"], answer.get("error")
        observed = normalised(answer["observed"], prefix)
        # lapin does not expose the server properties.
        if scenario == "connect" and "properties" in observed:
            observed["properties"] = [name for name in observed["properties"] if name not in OURS]
        return observed

    def _read(self):
        # A driver has the same timeout as the tests, and reports what it waited for.
        ready, _, _ = select.select([self.process.stdout], [], [], 2 * PATIENCE)
        line = self.process.stdout.readline() if ready else None
        if not line:
            self.stop()
            problem = "said nothing in time" if line is None else "ended"
            raise AssertionError(f"the driver {problem}:\n{self.errors.read_text()[-4000:]}")
        return json.loads(line)

    def running(self):
        return self.process.poll() is None

    def stop(self):
        self.process.kill()
        self.process.wait()


class Drivers:
    """One driver for each client, started on first use and restarted if it has exited."""

    def __init__(self, directory):
        self.directory = directory
        self.started = {}

    def __getitem__(self, client):
        driver = self.started.get(client)
        if driver is None or not driver.running():
            driver = self.started[client] = Driver(client, self.directory)
        return driver

    def stop(self):
        for driver in self.started.values():
            driver.stop()


def normalised(value, prefix):
    """The value without the run's prefix, and with `*` for the random part of generated names."""
    if isinstance(value, dict):
        return {key: normalised(inner, prefix) for key, inner in value.items()}
    if isinstance(value, list):
        return [normalised(inner, prefix) for inner in value]
    if isinstance(value, str):
        return re.sub(r"^amq\.gen-[A-Za-z0-9_-]{22}$", "amq.gen-*", value.replace(prefix, ""))
    return value
