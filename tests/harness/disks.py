"""Test disks: a small one that really fills up, one that fails on demand, and a slow one."""

import os
import subprocess
from pathlib import Path

from harness.preload import preloaded

MEBIBYTE = 1 << 20


def slow_disk():
    """Environment that makes a process's disk LEVERET_SLOW_DISK times slower; empty if that is not set."""
    factor = os.environ.get("LEVERET_SLOW_DISK")
    return {"LD_PRELOAD": str(preloaded("failing_disk")), "SLOW_DISK": factor} if factor else {}


def disk_without_preallocation():
    """Environment that makes fallocate(2) fail for a process, as on ext3 and on NFS before 4.2."""
    return {"LD_PRELOAD": str(preloaded("failing_disk")), "NO_FALLOCATE": "1"}


class NoNamespaces(Exception):
    """This system has no mount namespaces."""


class SmallDisk:
    """A tmpfs in its own mount namespace, which disappears when the test run is killed."""

    def __init__(self, directory, mebibytes):
        directory.mkdir()
        users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        script = 'mount -t tmpfs -o "size=$1m" leveret-test "$2" && echo mounted && exec cat'
        argv = ["unshare", *users, "--mount", "--propagation", "private", "sh", "-c", script, "-", str(mebibytes), directory]
        self.holder = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if self.holder.stdout.readline() != "mounted\n":
            _, error = self.holder.communicate()
            raise NoNamespaces(error.strip())
        self.directory = Path(f"/proc/{self.holder.pid}/root{directory}")
        self.filler = self.directory / "filler"
        self.environment = {}

    def fail(self, leave=0):
        """Fills the free space, except for `leave` bytes."""
        with self.filler.open("ab", buffering=0) as filler:
            for step in (MEBIBYTE, 4096):
                try:
                    while self.free_bytes() > leave + step:
                        filler.write(b"x" * step)
                    if leave == 0:
                        filler.write(b"x" * step)
                except OSError:
                    pass

    def free_bytes(self):
        room = os.statvfs(self.directory)
        return room.f_bavail * room.f_frsize

    def mend(self):
        self.filler.unlink()

    def remove(self):
        self.holder.communicate()


class FailingDisk:
    """An ordinary directory; writes or syncs in it fail for a process with this environment."""

    def __init__(self, directory, fault):
        directory.mkdir()
        self.directory, self.fault, self.switch = directory, fault, directory / "fault"
        self.environment = {"LD_PRELOAD": str(preloaded("failing_disk")), "FAILING_DISK": str(self.switch)}

    @classmethod
    def without_room(cls, directory):
        return cls(directory, "w")

    @classmethod
    def that_cannot_sync(cls, directory):
        return cls(directory, "s")

    def fail(self):
        # An empty file means no fault.
        self.switch.write_text(self.fault)

    def mend(self):
        self.switch.unlink()

    def remove(self):
        pass
