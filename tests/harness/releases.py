"""The releases of RabbitMQ that tests run: Debian's own, and Debian testing's in a directory (tests/rabbitmq4.sh)."""

import os
from dataclasses import dataclass
from pathlib import Path

from harness.leveret import ROOT

DIRECTORY = ROOT / ".cache" / "rabbitmq4" / "usr"


@dataclass(frozen=True)
class Release:
    """`inside` is what a command of it begins with, and `usr` what it sees as /usr."""

    name: str
    inside: tuple = ()
    usr: Path = Path("/usr")


# What is in the directory takes the place of /usr, for the command alone; who is not root is so in there.
USER = () if os.geteuid() == 0 else ("--user", "--map-root-user")
INSIDE = ("unshare", *USER, "--mount", "/bin/sh", "-c", 'mount --bind "$0" /usr && exec "$@"', str(DIRECTORY))

# The release whose answers the embedded broker gives, and is compared with.
TAKEN_AFTER = "3.10"
RELEASES = {"3.10": Release("3.10"), "4": Release("4", INSIDE, DIRECTORY)}


def missing(name):
    """Why this release can't be run here; `None` if it can."""
    reason = DIRECTORY.parent / "missing"
    return reason.read_text().strip() if name == "4" and reason.exists() else None


def release(name=None):
    """That of this name; otherwise the one behind pools: which LEVERET_RABBITMQ names, or the newest that can be run."""
    newest = "3.10" if missing("4") else "4"
    return RELEASES[name or os.environ.get("LEVERET_RABBITMQ", newest)]
