"""A pool with a spool in front of a broker, and what operators see of it."""

from harness.ctl import Ctl
from harness.instances import leveret
from harness.metrics import metric

RULE = '{exchange = ".*"}'


def spooling(directory, upstream, *flags, rule=RULE, data=None, env=None):
    """A pool with a spool, which finds again what the one before it on `directory` left."""
    run = directory / f"run{len(list(directory.glob('run*')))}"
    data = str(data or directory / "data")
    return leveret(run, "--upstream", upstream, "--spool", rule, "--data-dir", data, *flags, env=env or {})


def waits_for(server):
    """Why the messages of the only user are not forwarded; `None` if they are."""
    [row] = Ctl(server.http).json("spool", "list", "waits_for")
    return row["waits_for"]


def waiting(server):
    """Messages in the spool, of the only user that has used it."""
    return metric(server, "leveret_spool_messages")


def count(channel, queue):
    """The messages of a queue of the broker."""
    return channel.queue_declare(queue, passive=True).method.message_count


def take(channel, queue):
    """The next message of it, and whether it went through a spool."""
    _, properties, body = channel.basic_get(queue, auto_ack=True)
    return body.decode(), "x-leveret-spool-id" in (properties.headers or {})
