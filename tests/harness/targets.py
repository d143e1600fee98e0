"""The servers that scenarios run against, each started on first use."""

from harness.leveret import Leveret
from harness.rabbitmq import RabbitMq
from harness.releases import missing, release

# By RabbitMQ release: RabbitMQ itself, the pool in front of it, and the embedded broker with its compatibility.
RABBITMQ = {"rabbitmq": "3.10", "rabbitmq4": "4"}
POOL = {"proxy": "rabbitmq", "proxy4": "rabbitmq4"}
BROKER = {"leveret": "3.10", "leveret4": "4"}
NAMES = ["rabbitmq", "leveret", "proxy", "rabbitmq4", "leveret4", "proxy4"]
# The default of 3.10 and of Leveret; that of RabbitMQ 4 is 16 MiB.
MESSAGE_SIZE = f"max_message_size = {128 << 20}"


def release_of(name):
    """The RabbitMQ release that a target is, has as its upstream, or is compatible with."""
    return (RABBITMQ | BROKER)[POOL.get(name, name)]


def missing_target(name):
    """Why this target cannot run here; `None` if it can."""
    return None if name in BROKER else missing(release_of(name))


class Targets:
    def __init__(self, directory):
        self.directory = directory
        self.started = {}

    def __getitem__(self, name):
        if name not in self.started:
            self.started[name] = self._start(name)
        self.started[name].check()
        return self.started[name]

    @property
    def upstream(self):
        """A RabbitMQ of the release that pool tests run with."""
        return self[next(name for name, version in RABBITMQ.items() if version == release().name)]

    def _start(self, name):
        directory = self.directory / name
        if name in RABBITMQ:
            return RabbitMq(directory, MESSAGE_SIZE, version=release_of(name))
        if name in BROKER:
            return Leveret(directory, "--compatibility", BROKER[name])
        return Leveret(directory, "--upstream", self[POOL[name]].uri.replace("guest:guest@", ""))

    def stop(self):
        """Stops in reverse order of the starts, so that a pool stops before its upstream."""
        problems = []
        for target in reversed(self.started.values()):
            try:
                target.stop()
            except AssertionError as problem:
                problems.append(str(problem))
        assert not problems, "\n".join(problems)
