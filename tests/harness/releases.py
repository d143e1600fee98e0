"""The RabbitMQ releases that tests run: Debian's package, and that of Debian testing in a directory (tests/rabbitmq4.sh)."""

import os
from dataclasses import dataclass
from pathlib import Path

from harness.leveret import ROOT

DIRECTORY = ROOT / ".cache" / "rabbitmq4" / "usr"


@dataclass(frozen=True)
class Release:
    """`inside` is the command prefix that runs in the release's namespace; `usr` is the directory mounted there as /usr."""

    name: str
    inside: tuple = ()
    usr: Path = Path("/usr")


# The directory is mounted over /usr for the command alone; other users than root need a user namespace for that.
USER = () if os.geteuid() == 0 else ("--user", "--map-root-user")
INSIDE = ("unshare", *USER, "--mount", "/bin/sh", "-c", 'mount --bind "$0" /usr && exec "$@"', str(DIRECTORY))

# The release that the embedded broker is compatible with by default.
TAKEN_AFTER = "3.10"
RELEASES = {"3.10": Release("3.10"), "4": Release("4", INSIDE, DIRECTORY)}


def missing(name):
    """Why this release cannot run here; `None` if it can."""
    reason = DIRECTORY.parent / "missing"
    return reason.read_text().strip() if name == "4" and reason.exists() else None


def release(name=None):
    """The release of this name; by default the upstream of pools, which is LEVERET_RABBITMQ or the newest one installed."""
    newest = "3.10" if missing("4") else "4"
    return RELEASES[name or os.environ.get("LEVERET_RABBITMQ", newest)]
