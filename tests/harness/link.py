"""`leveret bench link`: a link to a server with added latency, controlled by commands."""

import subprocess

from harness.child import Child, clean_environment
from harness.leveret import binary
from harness.patience import PATIENCE


class Link:
    """A link to a port of this machine, reachable at `address` until it is stopped. `flags` are those of the command."""

    def __init__(self, log, port, *flags):
        argv = [binary(), "bench", "link", "--to", f"127.0.0.1:{port}", *flags]
        self.child = Child(argv, log, env=clean_environment(), stdin=subprocess.PIPE)
        self.address = self.child.wait_line(r"listening on tcp://(\S+)").group(1)
        self.orders = 0

    def order(self, words):
        """Sends a command and waits until it has taken effect."""
        self.child.process.stdin.write(f"{words}\n")
        self.child.process.stdin.flush()
        self.orders += 1
        with self.child.changed:
            assert self.child.changed.wait_for(lambda: self.child.lines.count("done") == self.orders, PATIENCE)

    def stop(self):
        self.child.kill()
