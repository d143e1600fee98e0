"""Publisher programs for three client libraries: each publishes numbered messages on one connection and reports their
confirms."""

import subprocess
import sys

from harness.drivers import CACHE, TESTS

COMMANDS = {
    "pika": [sys.executable, TESTS / "pika" / "confirmed_publisher.py"],
    "java": ["java", "-cp", f"{CACHE}/java/classes:{CACHE}/java/dependency/*", "ConfirmedPublisher"],
    "php": ["php", TESTS / "php" / "confirmed_publisher.php"],
}


class NotConnected(Exception):
    """The program exited with an error."""


class ConfirmedPublisher:
    """Takes lines of exchange, routing key, first and last number, and user id (which may be empty); reports confirms."""

    def __init__(self, client, uri):
        argv = ["setpriv", "--pdeathsig", "KILL", "--", *map(str, COMMANDS[client]), uri]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._expect("connected")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def _expect(self, word):
        line = self.process.stdout.readline().strip()
        if line != word:
            rest, _ = self.process.communicate()
            raise NotConnected(f"{line}\n{rest}")

    def send(self, key, numbers, exchange="", user_id=""):
        """Publishes without waiting for confirms."""
        self.process.stdin.write(f"{exchange}\t{key}\t{numbers.start}\t{numbers.stop}\t{user_id}\n")
        self.process.stdin.flush()

    def confirmed(self):
        """Waits for the confirms."""
        self._expect("confirmed")

    def publish(self, key, numbers, exchange="", user_id=""):
        self.send(key, numbers, exchange, user_id)
        self.confirmed()

    def close(self):
        """Has the program close its connection and exit."""
        rest, _ = self.process.communicate()
        assert self.process.returncode == 0, rest
