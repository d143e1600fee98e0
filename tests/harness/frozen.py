"""Stops a process, as a machine without CPU time for it would."""

import contextlib
import signal
from pathlib import Path

from harness.metrics import wait_until


@contextlib.contextmanager
def frozen(child):
    """Stops a child for the length of a `with`. The block begins once every thread of the child has stopped: until the
    signal has reached them all, the child may still answer."""
    child.send(signal.SIGSTOP)
    try:
        wait_until(lambda: all(is_stopped(thread) for thread in Path(f"/proc/{child.pid}/task").iterdir()))
        yield
    finally:
        child.send(signal.SIGCONT)


def is_stopped(thread):
    """Whether a thread is stopped (proc(5), stat). The name in brackets before the state may contain any character."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True
