"""The access log, as a test reads it."""

import json

from harness.metrics import wait_until


class Log:
    """The lines of an access log, as they come."""

    def __init__(self, path):
        self.path = path

    def flags(self, form="json"):
        return ["--access-log", self.path, "--access-log-format", form]

    def entries(self, **fields):
        """Those with these fields."""
        # The last line may be half written.
        entries = map(json.loads, self.path.read_text().rpartition("\n")[0].splitlines())
        return [entry for entry in entries if fields.items() <= entry.items()]

    def wait(self, **fields):
        """The only entry with these fields."""
        wait_until(lambda: self.entries(**fields))
        [entry] = self.entries(**fields)
        return entry
