"""Applications that use a framework to reach a broker: processes that publish and consume all the time.

They print a line of JSON for each numbered message that is confirmed to them, and for each that they receive:

    {"confirmed": 17}    {"received": 17}    {"lost": 18, "error": "…"}

`lost` is a publish that failed and is repeated. Other lines are the framework's own log. While the file `pause` exists,
consumers acknowledge nothing, so that messages pile up.
"""

import contextlib
import os
import re
import signal

from harness.child import Child
from harness.drivers import CACHE, TESTS

DIRECTORY = TESTS / "frameworks"
CELERY = CACHE / "frameworks" / "bin" / "celery"
PYTHON = CACHE / "frameworks" / "bin" / "python"
# Two processes, one for each core of a two-core machine; otherwise Celery's defaults.
WORKER = ["--app", "tasks", "worker", "--concurrency", "2"]

# Halves the start-up time; throughput does not matter here.
JVM = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]

# The processes of each framework, and whether they take server, queue and `pause` as arguments instead of environment
# variables.
COMMANDS = {
    "spring": [["java", *JVM, "-cp", f"{CACHE}/spring/classes:{CACHE}/spring/dependency/*", "Application"]],
    "celery": [[CELERY, *WORKER], [PYTHON, "producer.py"]],
    "bunny": [["ruby", DIRECTORY / "bunny" / "client.rb"]],
    "php": [["php", DIRECTORY / "php" / "publisher.php"], ["php", DIRECTORY / "php" / "consumer.php"]],
    "aio_pika": [[PYTHON, DIRECTORY / "aio_pika" / "client.py"]],
}
TAKES_VARIABLES = {"celery"}
LAST_LINES = 60
REPORT = re.compile(r'\{"(confirmed|received)": ?(\d+)}')


class Client:
    """The processes of one framework, which use one queue, and the message numbers they have reported."""

    def __init__(self, name, uri, directory):
        self.name = name
        directory.mkdir(parents=True)
        self.pause = directory / "pause"
        self.confirmed, self.received = set(), set()
        queue = directory.name
        given = [uri, queue, self.pause]
        variables = dict(zip(["FRAMEWORKS_URI", "FRAMEWORKS_QUEUE", "FRAMEWORKS_PAUSE"], map(str, given), strict=True))
        self.children, self.read = [], []
        for number, command in enumerate(COMMANDS[name]):
            argv = command if name in TAKES_VARIABLES else [*command, *given]
            log = directory / f"{number}.log"
            self.children.append(Child(argv, log, env=os.environ | variables, cwd=DIRECTORY / name))
            self.read.append(0)

    def update(self):
        """Reads the reports since the last call."""
        for index, child in enumerate(self.children):
            lines = child.lines[self.read[index] :]
            self.read[index] += len(lines)
            for line in lines:
                # Processes that share an output may write to the same line.
                for kind, number in REPORT.findall(line):
                    (self.confirmed if kind == "confirmed" else self.received).add(int(number))

    def ended(self):
        """The logs of processes that have exited."""
        return [child.log.name for child in self.children if not child.running()]

    def state(self):
        """For the report of a failed test: exited processes, missing messages, and the end of the framework's log."""
        missing = sorted(self.confirmed - self.received)
        counts = f"{len(self.confirmed)} confirmed, {len(missing)} of them missing: {missing[:20]}"
        lines = [line for child in self.children for line in child.lines if not REPORT.search(line)]
        return "\n".join([f"ended: {self.ended()}; {counts}", *lines[-LAST_LINES:]])

    def kill(self):
        for child in self.children:
            # A worker has child processes in its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
