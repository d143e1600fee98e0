"""Programs of three clients that publish numbered messages, each on one connection, and say when these are confirmed."""

import subprocess
import sys

from harness.drivers import CACHE, TESTS

COMMANDS = {
    "pika": [sys.executable, TESTS / "pika" / "confirmed_publisher.py"],
    "java": ["java", "-cp", f"{CACHE}/java/classes:{CACHE}/java/dependency/*", "ConfirmedPublisher"],
    "php": ["php", TESTS / "php" / "confirmed_publisher.php"],
}


class NotConnected(Exception):
    """The program has ended with an error."""


class ConfirmedPublisher:
    """An exchange, a routing key, the range of the numbers and the user id, which may be empty, a line; so many words back."""

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
        """Publishes, without waiting."""
        self.process.stdin.write(f"{exchange}\t{key}\t{numbers.start}\t{numbers.stop}\t{user_id}\n")
        self.process.stdin.flush()

    def confirmed(self):
        """Waits until that is confirmed."""
        self._expect("confirmed")

    def publish(self, key, numbers, exchange="", user_id=""):
        self.send(key, numbers, exchange, user_id)
        self.confirmed()

    def close(self):
        """Lets the program close its connection and end."""
        rest, _ = self.process.communicate()
        assert self.process.returncode == 0, rest
