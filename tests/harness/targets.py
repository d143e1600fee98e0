"""The servers that scenarios run against, each started on first use."""

from harness.leveret import Leveret
from harness.rabbitmq import RabbitMq

NAMES = ["rabbitmq", "leveret", "proxy"]


class Targets:
    def __init__(self, folder):
        self.folder = folder
        self.started = {}

    def __getitem__(self, name):
        if name not in self.started:
            self.started[name] = self._start(name)
        self.started[name].check()
        return self.started[name]

    def _start(self, name):
        folder = self.folder / name
        if name == "rabbitmq":
            return RabbitMq(folder)
        if name == "leveret":
            return Leveret(folder)
        return Leveret(folder, "--upstream", self["rabbitmq"].uri.replace("guest:guest@", ""))

    def stop(self):
        """Stops the last started first, as a proxy goes before its upstream."""
        problems = []
        for target in reversed(self.started.values()):
            try:
                target.stop()
            except AssertionError as problem:
                problems.append(str(problem))
        assert not problems, "\n".join(problems)
