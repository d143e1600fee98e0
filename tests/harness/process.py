"""What the kernel reports about a server's process."""

import contextlib
import os
import re
import resource
import select
import signal
from pathlib import Path

from harness.patience import PATIENCE


@contextlib.contextmanager
def descriptors(count):
    """Raises the open file limit of this process and its new children to `count`, or to the hard limit, for the length of a
    `with`; yields the limit."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = max(limit, min(count, most))
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    try:
        yield allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def reset_peak_memory(server):
    """Resets what `peak_resident_bytes` reports (proc(5), clear_refs)."""
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")


def bytes_written(server):
    """Bytes that the server has had written to the disk, dirty pages included."""
    text = Path(f"/proc/{server.pid}/io").read_text()
    return int(re.search(r"^write_bytes: (\d+)", text, re.MULTILINE).group(1))


def end_processes(pids, number=signal.SIGKILL):
    """Ends processes that are not children of the tests. Their sockets and files are closed once this returns: a process
    that is being killed has no command line and no program in /proc any more, but may still hold these."""
    with contextlib.ExitStack() as stack:
        ending = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                ending.append((pid, os.pidfd_open(pid)))
                stack.callback(os.close, ending[-1][1])
                signal.pidfd_send_signal(ending[-1][1], number)
        for pid, descriptor in ending:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            assert poll.poll(PATIENCE * 1000), f"process {pid} still ran after {PATIENCE} s"
