"""A disposable copy of this machine, for tests that change the whole system, such as installing a package: writes go to an
overlay, and it has its own processes and network. Needs root."""

import functools
import itertools
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
mount -t tmpfs none {directory}
mkdir {directory}/written {directory}/work {directory}/root
mount -t overlay overlay -o lowerdir=/,upperdir={directory}/written,workdir={directory}/work {directory}/root
mount -t proc proc {directory}/root/proc
mount --rbind /dev {directory}/root/dev
for each in run tmp; do mount -t tmpfs none {directory}/root/$each; done
chmod 1777 {directory}/root/tmp
mkdir -p {directory}/root{checkout}
mount --bind {checkout} {directory}/root{checkout}
mount -o remount,bind,ro {directory}/root{checkout}
ip link set lo up
touch {directory}/ready
{go_on}
"""
# Numbers the copies made by this process.
numbers = itertools.count()

WITHOUT_SERVICES = "exec sleep infinity"

# systemd has its own control groups and starts none of its units but the journal, because others change the kernel's settings
# and devices, which belong to the host. The copy becomes the root of its namespaces, because a chroot has no user namespaces
# (unshare(2)).
WITH_SYSTEMD = """
mkdir {directory}/groups
mount -t cgroup2 none {directory}/groups
mkdir {directory}/groups/{group}
echo $$ >{directory}/groups/{group}/cgroup.procs
cd {directory}/root
rm -rf lib/systemd/system/*.wants/* etc/systemd/system/*.wants usr/sbin/policy-rc.d
mkdir -p etc/systemd/system/sysinit.target.wants
ln -s /lib/systemd/system/systemd-journald.service etc/systemd/system/sysinit.target.wants/
mount -t sysfs -o ro none sys
exec unshare --cgroup sh -ec "mount -t cgroup2 none sys/fs/cgroup
pivot_root . .
umount --lazy .
touch {moved}
exec env --ignore-environment container=leveret {path} /lib/systemd/systemd --system --unit=basic.target --log-target=journal --show-status=no"
"""
MOVED = "/run/leveret-tests"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Removes the control groups from within, once the kernel has ended the last process in them.
LEAVE = """
mount -t cgroup2 none {directory}
until find {directory}/{group} -depth -type d -exec rmdir {{}} + 2>{directory}.left; do sleep 0.05; done
"""


# Running as root is not enough: a container may lack the right to mount file systems or to make control groups.
PROBE = "mount -t tmpfs none /mnt"
PROBE_SYSTEMD = "mount -t cgroup2 none /mnt && rmdir $(mktemp -d /mnt/leveret-tests.XXXXXX) && test -x /lib/systemd/systemd"


@functools.cache
def why_impossible(probe):
    """Why this machine cannot be copied; empty if it can."""
    try:
        done = subprocess.run([*SPACES, "sh", "-c", probe], capture_output=True, text=True, timeout=PATIENCE)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def needed_for(what, systemd=False):
    """Skips the test where this machine cannot be copied, unless make package-test asks for it."""
    if reason := why_impossible(PROBE) or systemd and why_impossible(PROBE_SYSTEMD):
        leave = pytest.fail if os.environ.get("LEVERET_PACKAGE_TEST") else pytest.skip
        leave(f"{what} takes a copy of this machine, which takes root: {reason}")


class Machine:
    """A copy of the machine; leaving the `with` removes it completely."""

    go_on = WITHOUT_SERVICES

    def __init__(self, directory):
        self.directory = directory
        self.group = f"leveret-tests-{os.getpid()}-{next(numbers)}"
        directory.mkdir(parents=True)
        prepare = PREPARE.format(directory=directory, checkout=ROOT, go_on=self.go_on.format(directory=directory, group=self.group, moved=MOVED, path=PATH))
        self.holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *SPACES, "--kill-child", "sh", "-c", prepare],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self.await_that(self.is_up)
        except BaseException:
            self.__exit__()
            raise

    def await_that(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.holder.poll() is None, self.holder.stderr.read()
            assert time.monotonic() < deadline, "the copy of this machine has not come up"
            time.sleep(0.02)

    def is_up(self):
        return self.init and self.root.with_name("ready").exists()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.holder.kill()
        self.holder.wait()

    @property
    def init(self):
        """The copy's init process, by its id on the host."""
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text().split()
        return int(children[0]) if children else None

    @property
    def root(self):
        """The copy's root directory as seen from the host; it is mounted only in the copy's namespaces."""
        return Path(f"/proc/{self.holder.pid}/root{self.directory}/root")

    @property
    def enter(self):
        """The command prefix that enters the copy's file system, within its namespaces."""
        return ["chroot", str(self.directory / "root")]

    def path(self, inside):
        """The host's path of a path in the copy."""
        return self.root / str(inside).lstrip("/")

    def argv(self, *command, env=None):
        """The command line that runs a command in the copy."""
        settings = [f"{key}={value}" for key, value in (env or {}).items()]
        return ["nsenter", "--target", str(self.init), "--mount", "--pid", "--net", "--ipc", "--uts"] + [
            *[*self.enter, "env", "--ignore-environment", PATH, "LANG=C.UTF-8", "HOME=/root"],
            *["DEBIAN_FRONTEND=noninteractive", *settings, *map(str, command)],
        ]

    def run(self, *command, env=None, check=True, stdin=None):
        """Runs a command until it exits; returns its output."""
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


class MachineWithSystemd(Machine):
    """A copy whose init is systemd. It starts only the services that a test asks for."""

    go_on = WITH_SYSTEMD
    enter = ()

    @property
    def root(self):
        return Path(f"/proc/{self.holder.pid}/root")

    def is_up(self):
        return self.init and self.path(MOVED).exists() and self.run("systemctl", "is-active", "basic.target", check=False).stdout == "active\n"

    def __exit__(self, *_):
        super().__exit__()
        script = LEAVE.format(directory=self.directory, group=self.group)
        subprocess.run(["unshare", "--mount", "sh", "-ec", script], check=True, timeout=PATIENCE)


class Manager:
    """The receiving side of sd_notify(3): what a service reports about itself."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Addressed through its directory: a socket's name has at most 107 bytes (unix(7)), and a test's directory is often
        # longer.
        directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        try:
            self.socket.bind(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
        finally:
            os.close(directory)
        os.chmod(path, 0o777)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def heard(self, seconds=PATIENCE):
        """The next message, as a dictionary; fails after a timeout."""
        self.socket.settimeout(seconds)
        text = self.socket.recv(4096).decode()
        return dict(line.split("=", 1) for line in text.split("\n") if line)

    def wait(self, key, seconds=PATIENCE):
        """The next message with this key; skips the others."""
        deadline = time.monotonic() + seconds
        while True:
            message = self.heard(max(deadline - time.monotonic(), 0.01))
            if key in message:
                return message
