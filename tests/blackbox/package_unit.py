"""The Debian package under a real systemd, the first process of a copy of this machine: what the unit promises holds."""

import os
import re
import subprocess
import time

import pytest

from harness.debian import bring, install, publish, published, two_revisions
from harness.machine import MachineWithSystemd, needed_for
from harness.patience import PATIENCE

SERVICE = "leveret.service"
# Each test starts a system: minutes in all, in which most of what they show has been shown by the other tests of the package.
pytestmark = pytest.mark.skipif("LEVERET_PACKAGE_TEST" not in os.environ, reason="make package-test")
HEALTH = {"LEVERET_CONFIG": "/etc/leveret/leveret.toml"}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The package twice, the second as its next revision."""
    needed_for("a systemd of its own", systemd=True)
    return two_revisions(tmp_path_factory.mktemp("packages"))


@pytest.fixture
def machine(tmp_path, packages):
    """A copy of this machine with a systemd, and the packages in its /tmp."""
    with MachineWithSystemd(tmp_path / "machine") as machine:
        bring(machine, packages)
        yield machine


def test_it_serves_once_it_is_installed_and_until_it_is_removed(machine, packages):
    install_package(machine, packages[0])
    assert shown(machine, "ActiveState", "SubState", "Type", "NRestarts") == ["active", "running", "notify", "0"]
    assert machine.run("systemctl", "is-enabled", SERVICE).stdout == "enabled\n"
    machine.run("leveret", "health", "--ready", env=HEALTH)
    publish(machine)
    first = process(machine)

    install_package(machine, packages[1])
    assert process(machine) != first, "an upgrade starts the new version"
    assert published(machine) == "1"

    machine.run("dpkg", "--no-triggers", "--remove", "leveret")
    assert machine.run("systemctl", "is-active", SERVICE, check=False).stdout == "inactive\n"
    assert machine.run("pgrep", "--exact", "leveret", check=False).stdout == ""


def test_an_upgrade_starts_nothing_that_the_administrator_has_stopped_for_good(machine, packages):
    install_package(machine, packages[0])
    machine.run("systemctl", "disable", "--now", "--quiet", SERVICE)
    install_package(machine, packages[1])
    assert machine.run("systemctl", "is-enabled", SERVICE, check=False).stdout == "disabled\n"
    assert machine.run("systemctl", "is-active", SERVICE, check=False).stdout == "inactive\n"


def test_a_reload_keeps_the_process_and_a_stop_ends_it_well(machine, packages):
    install_package(machine, packages[0])
    before = process(machine)
    machine.run("systemctl", "reload", SERVICE)
    assert process(machine) == before
    machine.run("leveret", "health", "--ready", env=HEALTH)
    machine.run("systemctl", "stop", SERVICE)
    assert shown(machine, "ActiveState", "Result", "ExecMainStatus") == ["inactive", "success", "0"]
    assert "shutting down" in machine.run("journalctl", "--unit", SERVICE, "--output", "cat").stdout


def test_a_process_that_is_killed_comes_back_with_its_messages(machine, packages):
    install_package(machine, packages[0])
    publish(machine)
    machine.run("kill", "-KILL", process(machine))
    await_that(machine, lambda: shown(machine, "NRestarts", "ActiveState") == ["1", "active"])
    assert published(machine) == "1"


def test_a_process_that_hangs_is_started_anew(machine, packages):
    install_package(machine, packages[0])
    folder = machine.path("/etc/systemd/system/leveret.service.d")
    folder.mkdir()
    (folder / "soon.conf").write_text("[Service]\nWatchdogSec=5s\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", SERVICE)
    hangs = process(machine)
    machine.run("kill", "-STOP", hangs)
    await_that(machine, lambda: shown(machine, "ActiveState") == ["active"] and process(machine) not in (hangs, "0"))
    assert "Watchdog timeout" in machine.run("journalctl", "--unit", SERVICE).stdout


def test_the_process_has_no_rights_beyond_its_folders(machine, packages):
    install_package(machine, packages[0])
    pid = process(machine)
    status = dict(re.findall(r"^(\w+):\s+(.*)$", machine.run("cat", f"/proc/{pid}/status").stdout, re.MULTILINE))
    user = machine.run("id", "--user", "leveret").stdout.strip()
    assert status["Uid"].split() == [user] * 4
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}

    def may_write(path):
        inside = ["nsenter", "--target", pid, "--mount", "setpriv", "--reuid", user, "--regid", user, "--clear-groups"]
        return machine.run(*inside, "touch", f"{path}/file", check=False).returncode == 0

    written = {path: may_write(path) for path in ("/var/lib/leveret", "/var/log/leveret", "/run/leveret", "/tmp", "/etc/leveret", "/home", "/var/tmp")}
    assert {path for path, may in written.items() if may} == {"/var/lib/leveret", "/var/log/leveret", "/run/leveret", "/tmp", "/var/tmp"}
    assert not machine.path("/tmp/file").exists(), "its /tmp is its own"


def install_package(machine, package):
    """Without the index of man pages, which takes most of the time."""
    install(machine, package, "--no-triggers")


def shown(machine, *names):
    """Properties of the service."""
    argv = ["systemctl", "show", SERVICE, *(f"--property={name}" for name in names)]
    values = dict(line.split("=", 1) for line in machine.run(*argv).stdout.splitlines())
    return [values[name] for name in names]


def process(machine):
    return shown(machine, "MainPID")[0]


def await_that(machine, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, machine.run("systemctl", "status", SERVICE, check=False).stdout
        time.sleep(0.05)
