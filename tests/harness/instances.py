"""Leveret instances for a single test, when it would disturb others or needs an empty data directory."""

import contextlib

from harness.leveret import Leveret
from harness.ports import free_ports


@contextlib.contextmanager
def leveret(directory, *flags, **options):
    """A server for the length of a `with`; killed at the end if it is still running."""
    server = Leveret(directory, *flags, **options)
    try:
        yield server
    finally:
        server.child.kill()


def replaceable(directory, *flags):
    """A server that another one can replace at the same address: its port stays reserved while neither listens."""
    [port] = free_ports(1)
    return leveret(directory, *flags, amqp=f"127.0.0.1:{port}")


def restartable(tmp_path, *flags):
    """Starts servers one after the other on the same data directory; each has its own directory for output."""
    run = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
    return leveret(run, "--data-dir", str(tmp_path / "data"), *flags)
