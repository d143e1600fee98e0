"""The Debian package: built, installed, started as its unit says, upgraded, removed and purged, in a copy of this machine."""

import re
import shlex
import subprocess

import pytest

from harness.child import Child, clean_environment
from harness.debian import bring, install, publish, published, two_revisions
from harness.machine import Machine, Manager, needed_for

UNIT = "/lib/systemd/system/leveret.service"
CONFFILE = "/etc/leveret/leveret.toml"


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The package twice, the second time with the next revision."""
    needed_for("installing a package")
    return two_revisions(tmp_path_factory.mktemp("packages"))


@pytest.fixture
def machine(tmp_path, packages):
    """A copy of this machine, and the packages in its /tmp."""
    with Machine(tmp_path / "machine") as machine:
        bring(machine, packages)
        yield machine


def test_it_is_installed_started_upgraded_removed_and_purged(machine, packages):
    first, second = packages
    before = named_leveret(machine)
    install(machine, first)
    assert status(machine) == "install ok installed"
    machine.run("systemd-analyze", "verify", "--man=no", UNIT)
    with running(machine) as service:
        machine.run("leveret", "health", "--ready", env=settings(machine))
        publish(machine)
        service.stop()

    # The administrator's changes and the messages survive the upgrade.
    machine.run("sh", "-c", f"echo 'heartbeat = 17' >>{CONFFILE}")
    install(machine, second, "--force-confdef", "--force-confold")
    assert machine.run("dpkg-query", "--show", "--showformat", "${Version}", "leveret").stdout.endswith("-2")
    assert "heartbeat = 17" in machine.path(CONFFILE).read_text()
    with running(machine) as service:
        assert published(machine) == "1"
        service.stop()

    machine.run("dpkg", "--remove", "leveret")
    assert status(machine) == "deinstall ok config-files"
    assert not machine.path("/usr/bin/leveret").exists() and not machine.path(UNIT).exists()
    assert machine.path(CONFFILE).exists(), "the administrator's settings stay until a purge"
    assert any(machine.path("/var/lib/leveret").iterdir()), "messages stay until a purge"

    machine.run("dpkg", "--purge", "leveret")
    for path in (CONFFILE, "/etc/leveret", "/var/lib/leveret", "/var/log/leveret"):
        assert not machine.path(path).exists(), path
    assert named_leveret(machine) == before


def test_a_purge_keeps_files_added_by_the_administrator(machine, packages):
    install(machine, packages[0])
    machine.path("/etc/leveret/key.pem").write_text("secret")
    machine.run("dpkg", "--purge", "leveret")
    assert machine.run("ls", "/etc/leveret").stdout.split() == ["key.pem"]
    assert machine.run("dpkg-query", "--show", "leveret", check=False).returncode != 0, "and the purge is whole"


def test_it_can_be_installed_again_after_a_removal_and_after_a_purge(machine, packages):
    for how in ("--remove", "--purge"):
        install(machine, packages[0])
        with running(machine) as service:
            service.stop()
        machine.run("dpkg", how, "leveret")
    install(machine, packages[0])
    assert status(machine) == "install ok installed"


def test_installed_files_have_the_intended_owners_and_modes(machine, packages):
    install(machine, packages[0])
    for path, owner in {
        "/usr/bin/leveret": "root root 755",
        CONFFILE: "root leveret 640",
        "/etc/leveret": "root leveret 750",
        "/var/lib/leveret": "leveret leveret 700",
        UNIT: "root root 644",
    }.items():
        assert machine.run("stat", "--format", "%U %G %a", path).stdout.strip() == owner, path
    account = machine.run("getent", "passwd", "leveret").stdout.strip().split(":")
    assert account[-1] == "/usr/sbin/nologin"
    assert machine.run("dpkg", "--verify", "leveret").stdout == ""
    sums = machine.path("/var/lib/dpkg/info/leveret.md5sums").read_text()
    assert " usr/bin/leveret\n" in sums and " etc/" not in sums, "a conffile may be changed"


def test_man_pages_and_completions_come_along(machine, packages):
    install(machine, packages[0])
    page = machine.run("sh", "-c", "zcat /usr/share/man/man1/leveret-serve.1.gz | man --local-file - | col -b").stdout
    assert "--max-message-size" in page
    assert machine.path("/usr/share/man/man1/leveret-ctl-list_queues.1.gz").exists()
    script = "source /usr/share/bash-completion/completions/leveret; complete -p leveret"
    assert "_leveret" in machine.run("bash", "-c", script).stdout
    assert machine.run("leveret", "config", "check", "--config", CONFFILE).stdout == ""


def test_the_unit_keeps_the_service_in_bounds(machine, packages):
    install(machine, packages[0])
    done = machine.run("systemd-analyze", "security", "--offline=true", "--no-pager", "leveret.service")
    [level] = re.findall(r"Overall exposure level for leveret.service: ([\d.]+)", done.stdout)
    assert float(level) <= 2.5, done.stdout


def named_leveret(machine):
    """Files with leveret in the name; a checkout or its tools may be there without the package."""
    found = machine.run("find", "/etc", "/usr", "/lib", "/var", "-xdev", "-iname", "*leveret*", check=False).stdout
    return {line for line in found.splitlines() if not line.startswith(("/var/lib/dpkg", "/var/cache"))}


def status(machine):
    return machine.run("dpkg-query", "--show", "--showformat", "${Status}", "leveret").stdout


def unit(machine, key):
    return re.findall(rf"^{key}=(.*)$", machine.path(UNIT).read_text(), re.MULTILINE)


def settings(machine):
    return {"LEVERET_CONFIG": CONFFILE}


class running:
    """Runs the service's command as its unit says, without systemd: user, state directory, and readiness."""

    def __init__(self, machine):
        self.machine = machine

    def __enter__(self):
        [command], [user], [group] = (unit(self.machine, key) for key in ("ExecStart", "User", "Group"))
        self.manager = Manager(self.machine.path("/run/notify"))
        env = {"STATE_DIRECTORY": f"/var/lib/{unit(self.machine, 'StateDirectory')[0]}", "NOTIFY_SOCKET": "/run/notify"}
        drop = ["setpriv", "--reuid", user, "--regid", group, "--init-groups", "--no-new-privs"]
        argv = self.machine.argv(*drop, *shlex.split(command), env=env)
        self.child = Child(argv, self.machine.directory.parent / "service.log", env=clean_environment())
        try:
            self.manager.wait("READY")
        except TimeoutError:
            self.child.kill()
            raise AssertionError(self.child.tail()) from None
        return self

    def stop(self):
        """As systemd would; the signal goes to the program itself, not to its wrapper."""
        self.machine.run("pkill", "-TERM", "--exact", "leveret")
        assert self.manager.wait("STOPPING")
        assert self.child.wait() == 0, self.child.tail()

    def __exit__(self, *_):
        self.child.kill()
        self.manager.socket.close()
        self.machine.path("/run/notify").unlink()
