"""A load generator that accounts for every message (tests/go/load): its clients must not notice the test's faults."""

import contextlib
import json
import subprocess

from harness.child import Child
from harness.drivers import CACHE
from harness.patience import PATIENCE

# Longer than the load generator's own timeout, whose error says what it waited for.
ANSWER_SECONDS = 2 * PATIENCE


class Load:
    """By default 200 publishers with confirms and 50 consumers; `options` change that."""

    def __init__(self, directory, uri, **options):
        flags = [f"-{name.replace('_', '-')}={value}" for name, value in {"uri": uri, "patience": f"{PATIENCE}s", **options}.items()]
        self.child = Child([CACHE / "go" / "load", *flags], directory / "load.log", stdin=subprocess.PIPE)
        self.answers = 0
        self.answer()

    def ask(self, command):
        self.child.process.stdin.write(command + "\n")
        self.child.process.stdin.flush()
        return self.answer()

    def answer(self):
        """The answer to the last command; fails if a client reported an error."""
        self.answers += 1
        with self.child.changed:
            came = self.child.changed.wait_for(
                lambda: len(self.child.lines) >= self.answers or self.child.ended, ANSWER_SECONDS
            )
            assert came and len(self.child.lines) >= self.answers, self.child.tail()
            line = self.child.lines[self.answers - 1]
        answer = json.loads(line)
        assert not answer["errors"], "\n".join(answer["errors"][:10])
        return answer

    def go_on(self, count=10):
        """Waits until each publisher has received this many more confirms."""
        self.ask(f"go-on {count}")

    @contextlib.contextmanager
    def trouble(self, after=10):
        """Until the block ends and each publisher has received some more confirms, messages in flight may be delivered
        twice."""
        self.ask("trouble")
        yield
        self.go_on(after)
        self.ask("calm")

    def finish(self):
        """Ends the load; returns the accounts of its messages."""
        accounts = self.ask("finish")["accounts"]
        self.child.wait()
        return accounts
