"""`leveret ctl` against a server of either kind, and a RabbitMQ with its management API."""

import json

from harness.leveret import run
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.rabbitmq import PLUGINS, RabbitMq
from harness.releases import TAKEN_AFTER


# What a server may take for one command, on a disk that is slow as well.
ANSWER_SECONDS = 2 * PATIENCE


class Ctl:
    """The command line for one server; as guest unless `as_user` says otherwise."""

    def __init__(self, url, user="guest", password="guest"):
        self.url = url
        self.env = {"LEVERET_CTL_URL": url, "LEVERET_CTL_USER": user, "LEVERET_CTL_PASSWORD": password}

    def as_user(self, user, password):
        return Ctl(self.url, user, password)

    def raw(self, *arguments, **env):
        """(exit code, standard output, standard error)."""
        return run("ctl", "--timeout", int(ANSWER_SECONDS), *arguments, env=self.env | env, seconds=ANSWER_SECONDS + PATIENCE)

    def __call__(self, *arguments, **env):
        """What a command that does well prints."""
        code, out, error = self.raw(*arguments, **env)
        assert (code, error) == (0, ""), f"{arguments}: {code} {error} {out}"
        return out

    def rows(self, *arguments):
        """A list in its quiet form: rows of columns, sorted."""
        return sorted(line.split("\t") for line in self("--quiet", *arguments).splitlines())

    def json(self, *arguments):
        return json.loads(self("--format", "json", *arguments))

    def fails(self, *arguments, code=1, **env):
        """The one line that a command which does not do well says."""
        actual, out, error = self.raw(*arguments, **env)
        assert (actual, out) == (code, ""), f"{arguments}: {actual} {out} {error}"
        [line] = error.splitlines()
        return line.removeprefix("leveret: ")


def managed_rabbitmq(directory, version=TAKEN_AFTER):
    """A RabbitMQ whose `http` is its management API."""
    [port] = free_ports(1)
    settings = (
        f"management.tcp.port = {port}",
        "management.tcp.ip = 127.0.0.1",
        # Counts are told as of the last time; by default that is up to five seconds ago.
        "collect_statistics_interval = 500",
        # It gives up after a minute otherwise, which on a slow disk is too soon for a virtual host's end.
        *(f"management.tcp.{timeout}_timeout = {int(ANSWER_SECONDS * 1000)}" for timeout in ("idle", "inactivity", "request")),
    )
    server = RabbitMq(directory, *settings, plugins=f"{PLUGINS},rabbitmq_management", version=version)
    server.http = f"http://127.0.0.1:{port}"
    return server
