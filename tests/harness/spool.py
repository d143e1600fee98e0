"""A pool with a spool in front of a broker, and its state as operators see it."""

from harness.ctl import Ctl
from harness.instances import leveret
from harness.metrics import metric, wait_until

RULE = '{exchange = ".*"}'


def spooling(directory, upstream, *flags, rule=RULE, data=None, env=None):
    """A pool with a spool that reads what an earlier one left in `directory`."""
    run = directory / f"run{len(list(directory.glob('run*')))}"
    data = str(data or directory / "data")
    return leveret(run, "--upstream", upstream, "--spool", rule, "--data-dir", data, *flags, env=env or {})


def cut_off(server, link):
    """Cuts the upstream off. The pool knows it afterwards: until then it accepts logins that its connections have verified."""
    link.close()
    wait_until(lambda: metric(server, "leveret_upstream_up") == 0)


def waits_for(server):
    """Why the only user's messages are not forwarded; `None` if they are."""
    [row] = Ctl(server.http).json("spool", "list", "waits_for")
    return row["waits_for"]


def waiting(server):
    """Messages in the spool of the only user."""
    return metric(server, "leveret_spool_messages")


def count(channel, queue):
    """The number of messages in a queue of the broker."""
    return channel.queue_declare(queue, passive=True).method.message_count


def take(channel, queue):
    """The queue's next message, and whether it went through a spool."""
    _, properties, body = channel.basic_get(queue, auto_ack=True)
    return body.decode(), "x-leveret-spool-id" in (properties.headers or {})
