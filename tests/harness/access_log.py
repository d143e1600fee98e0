"""Reads the access log in tests."""

import json

from harness.metrics import wait_until


class Log:
    """The entries of an access log, including those written later."""

    def __init__(self, path):
        self.path = path

    def flags(self, form="json"):
        return ["--access-log", self.path, "--access-log-format", form]

    def entries(self, **fields):
        """The entries with these fields."""
        # The server may still be writing the last line.
        entries = map(json.loads, self.path.read_text().rpartition("\n")[0].splitlines())
        return [entry for entry in entries if fields.items() <= entry.items()]

    def wait(self, **fields):
        """Waits for the only entry with these fields."""
        wait_until(lambda: self.entries(**fields))
        [entry] = self.entries(**fields)
        return entry
