"""`leveret ctl` against Leveret or RabbitMQ, and a RabbitMQ with its management API."""

import json

from harness.lending import borrow_with
from harness.leveret import run
from harness.patience import PATIENCE
from harness.rabbitmq import PLUGINS
from harness.releases import TAKEN_AFTER


# The longest a server may take for one command, even on a slow disk.
ANSWER_SECONDS = 2 * PATIENCE


class Ctl:
    """The command line for one server, as user guest unless `as_user` changes it."""

    def __init__(self, url, user="guest", password="guest"):
        self.url = url
        self.env = {"LEVERET_CTL_URL": url, "LEVERET_CTL_USER": user, "LEVERET_CTL_PASSWORD": password}

    def as_user(self, user, password):
        return Ctl(self.url, user, password)

    def raw(self, *arguments, **env):
        """(exit code, standard output, standard error)."""
        return run("ctl", "--timeout", int(ANSWER_SECONDS), *arguments, env=self.env | env, seconds=ANSWER_SECONDS + PATIENCE)

    def __call__(self, *arguments, **env):
        """The output of a command that must succeed."""
        code, out, error = self.raw(*arguments, **env)
        assert (code, error) == (0, ""), f"{arguments}: {code} {error} {out}"
        return out

    def rows(self, *arguments):
        """The rows of a list in quiet form, sorted."""
        return sorted(line.split("\t") for line in self("--quiet", *arguments).splitlines())

    def json(self, *arguments):
        return json.loads(self("--format", "json", *arguments))

    def fails(self, *arguments, code=1, **env):
        """The single error line of a command that must fail."""
        actual, out, error = self.raw(*arguments, **env)
        assert (actual, out) == (code, ""), f"{arguments}: {actual} {out} {error}"
        [line] = error.splitlines()
        return line.removeprefix("leveret: ")


def managed_rabbitmq(version=TAKEN_AFTER):
    """Borrows a RabbitMQ with the management plugin; `http` is the API's address."""
    settings = (
        "management.tcp.port = {}",
        "management.tcp.ip = 127.0.0.1",
        # RabbitMQ's statistics are as old as this interval; the default is five seconds.
        "collect_statistics_interval = 500",
        # The default timeout of a minute is too short to delete a virtual host on a slow disk.
        *(f"management.tcp.{timeout}_timeout = {int(ANSWER_SECONDS * 1000)}" for timeout in ("idle", "inactivity", "request")),
    )
    server = borrow_with(f"{PLUGINS},rabbitmq_management", *settings, version=version)
    server.http = f"http://127.0.0.1:{server.listeners[0]}"
    return server
