"""Leveret instances of a test's own, for what would disturb the others or must start from nothing."""

import contextlib

from harness.leveret import Leveret
from harness.ports import free_ports


@contextlib.contextmanager
def leveret(directory, *flags, **options):
    """A server for the length of a `with`; it is killed at the end should the test have left it running."""
    server = Leveret(directory, *flags, **options)
    try:
        yield server
    finally:
        server.child.kill()


def replaceable(directory, *flags):
    """A server whose place another one takes at the same address: at a port that no connection is given while neither listens."""
    [port] = free_ports(1)
    return leveret(directory, *flags, amqp=f"127.0.0.1:{port}")


def restartable(tmp_path, *flags):
    """A server on a data directory that the one before it left, with a directory of its own for its output."""
    run = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
    return leveret(run, "--data-dir", str(tmp_path / "data"), *flags)
