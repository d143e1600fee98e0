"""A throw-away copy of this machine: its file system with everything written elsewhere, its own processes and network.

For what changes a whole system, such as installing a package. It takes root.
"""

import functools
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from harness.child import clean_environment
from harness.leveret import ROOT
from harness.patience import PATIENCE

COMMAND_SECONDS = PATIENCE

SPACES = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork"]

# Writes go to memory. What is mounted below / is not part of the copy, but for the devices and the checkout.
PREPARE = """
set -e
mount -t tmpfs none {folder}
mkdir {folder}/written {folder}/work {folder}/root
mount -t overlay overlay -o lowerdir=/,upperdir={folder}/written,workdir={folder}/work {folder}/root
mount -t proc proc {folder}/root/proc
mount --rbind /dev {folder}/root/dev
for each in run tmp; do mount -t tmpfs none {folder}/root/$each; done
chmod 1777 {folder}/root/tmp
mkdir -p {folder}/root{checkout}
mount --bind {checkout} {folder}/root{checkout}
mount -o remount,bind,ro {folder}/root{checkout}
ip link set lo up
touch {folder}/ready
exec sleep infinity
"""


@functools.cache
def why_impossible():
    """What keeps this machine from being copied; nothing if that works. A container's root may be no more than a name."""
    try:
        probe = [*SPACES, "mount", "-t", "tmpfs", "none", "/mnt"]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=PATIENCE)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def needed_for(what):
    """Leaves the test out where this machine cannot be copied, unless it is just these tests that are asked for (make package-test)."""
    if reason := why_impossible():
        leave = pytest.fail if os.environ.get("LEVERET_PACKAGE_TEST") else pytest.skip
        leave(f"{what} takes a copy of this machine, which takes root: {reason}")


class Machine:
    """Usable in a `with`; everything of it is gone afterwards."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        self.holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *SPACES, "--kill-child"]
            + ["sh", "-c", PREPARE.format(folder=folder, checkout=ROOT)],
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + PATIENCE
        # The file is in the copy's own mount, so it is looked for through its process.
        while not (self.init and Path(f"/proc/{self.init}/root{folder}/ready").exists()):
            assert self.holder.poll() is None, self.holder.stderr.read()
            assert time.monotonic() < deadline, "the copy of this machine has not come up"
            time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.holder.kill()
        self.holder.wait()

    @property
    def init(self):
        """Its first process, as it is numbered here."""
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def path(self, inside):
        """Where a path of the copy is found from outside."""
        return Path(f"/proc/{self.init}/root{self.folder}/root") / str(inside).lstrip("/")

    def argv(self, *command, env=None):
        """The command line that runs a command there."""
        settings = [f"{key}={value}" for key, value in (env or {}).items()]
        return ["nsenter", "--target", str(self.init), "--mount", "--pid", "--net", "--ipc", "--uts"] + [
            *["chroot", str(self.folder / "root"), "env", "--ignore-environment"],
            *["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root"],
            *["DEBIAN_FRONTEND=noninteractive", *settings, *map(str, command)],
        ]

    def run(self, *command, env=None, check=True, stdin=None):
        """Runs a command to its end; returns what it printed."""
        done = subprocess.run(
            self.argv(*command, env=env),
            env=clean_environment(),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        if check:
            assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done


class Manager:
    """The end of a service manager (sd_notify(3)): what a service tells about itself."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # By way of its folder: the name of a socket has 107 bytes at most (unix(7)), and those of a test's folders are long.
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        try:
            self.socket.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
        finally:
            os.close(folder)
        os.chmod(path, 0o777)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def heard(self, seconds=PATIENCE):
        """The next message, as a dictionary; the test fails when none comes."""
        self.socket.settimeout(seconds)
        text = self.socket.recv(4096).decode()
        return dict(line.split("=", 1) for line in text.split("\n") if line)

    def wait(self, key, seconds=PATIENCE):
        """The next message that has this key; others are skipped."""
        deadline = time.monotonic() + seconds
        while True:
            message = self.heard(max(deadline - time.monotonic(), 0.01))
            if key in message:
                return message
