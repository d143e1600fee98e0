"""Leveret instances of a test's own, for what would disturb the others or must start from nothing."""

import contextlib

from harness.leveret import Leveret


@contextlib.contextmanager
def leveret(folder, *flags, **options):
    """A server for the length of a `with`; it is killed at the end should the test have left it running."""
    server = Leveret(folder, *flags, **options)
    try:
        yield server
    finally:
        server.child.kill()


def restartable(tmp_path, *flags):
    """A server on a data folder that the one before it left, with a folder of its own for its output."""
    run = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
    return leveret(run, "--data-dir", str(tmp_path / "data"), *flags)
