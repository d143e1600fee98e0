"""What the kernel knows of a server's process."""

import contextlib
import re
import resource
from pathlib import Path


@contextlib.contextmanager
def descriptors(count):
    """Lets this process, and children that it starts meanwhile, open as many descriptors, or what its hard limit allows, for
    the length of a `with`; that is how many."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = max(limit, min(count, most))
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    try:
        yield allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def reset_peak_memory(server):
    """From where `peak_resident_bytes` counts on: proc(5), clear_refs."""
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")


def bytes_written(server):
    """What it has had written to the disk, or will have."""
    text = Path(f"/proc/{server.pid}/io").read_text()
    return int(re.search(r"^write_bytes: (\d+)", text, re.MULTILINE).group(1))
