"""A process that is stopped, as one is whose machine has no time for it."""

import contextlib
import signal
from pathlib import Path

from harness.metrics import wait_until


@contextlib.contextmanager
def frozen(child):
    """Stops a child for the length of a `with`. When it begins, none of the child's threads runs any more: the signal alone
    is on its way for a while, in which the child may still answer."""
    child.send(signal.SIGSTOP)
    try:
        wait_until(lambda: all(is_stopped(thread) for thread in Path(f"/proc/{child.pid}/task").iterdir()))
        yield
    finally:
        child.send(signal.SIGCONT)


def is_stopped(thread):
    """Whether a thread is stopped, by proc(5), stat; the name in brackets before its state may contain anything."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True
