"""The Debian package under a real systemd, as init of a copy of this machine: tests what the unit promises."""

import contextlib
import os
import re
import subprocess
import time

import pytest

from harness.child import clean_environment
from harness.debian import bring, install, publish, published, two_revisions
from harness.leveret import OPTIONAL_LISTENERS, ROOT
from harness.machine import MachineWithSystemd, needed_for
from harness.patience import PATIENCE

SERVICE = "leveret.service"
# Each test boots a system, minutes in all, and the package's other tests cover most of this.
pytestmark = pytest.mark.skipif("LEVERET_PACKAGE_TEST" not in os.environ, reason="make package-test")
BEHIND_PORT = 5679
OTHERS_OFF = [word for name in (*OPTIONAL_LISTENERS, "--http") for word in (name, "off")]
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
    await_that(machine, lambda: process(machine) != first)
    assert published(machine) == "1"

    machine.run("dpkg", "--no-triggers", "--remove", "leveret")
    assert machine.run("systemctl", "is-active", SERVICE, check=False).stdout == "inactive\n"
    assert machine.run("pgrep", "--exact", "leveret", check=False).stdout == ""


def test_an_upgrade_keeps_the_clients_of_a_pool_and_a_stop_lets_the_new_process_drain(machine, packages):
    install_package(machine, packages[0])
    behind = f"127.0.0.1:{BEHIND_PORT}"
    machine.run("systemd-run", "--unit=behind", "leveret", "serve", "--amqp", behind, "--data-dir", "off", *OTHERS_OFF)
    with machine.path("/etc/leveret/leveret.toml").open("a") as settings:
        settings.write(f'\nupstream = "amqp://{behind}"\n')
    # The watchdog messages come from the new process afterwards.
    override(machine, "soon", "[Service]\nWatchdogSec=5s\n")
    machine.run("systemctl", "restart", SERVICE)
    first = process(machine)
    with script(machine, STAYING, "5673") as client:
        assert client.stdout.readline() == "is there\n"
        install_package(machine, packages[1])
        await_that(machine, lambda: process(machine) not in (first, "0") and not is_running(machine, first))
        assert client.communicate("go on\n", PATIENCE)[0] == "the same channel\n"
    pinged = shown(machine, "WatchdogTimestampMonotonic")
    await_that(machine, lambda: shown(machine, "WatchdogTimestampMonotonic") != pinged)
    assert shown(machine, "ActiveState", "NRestarts") == ["active", "0"]
    machine.run("systemctl", "stop", SERVICE)
    assert shown(machine, "ActiveState", "Result", "ExecMainStatus") == ["inactive", "success", "0"]


@pytest.mark.parametrize("kept", ["a socket unit", "the descriptor store"])
def test_nobody_is_refused_while_the_service_restarts(machine, packages, kept):
    install_package(machine, packages[0])
    if kept == "a socket unit":
        machine.run("systemctl", "stop", SERVICE)
        machine.path("/etc/systemd/system/leveret.socket").write_text("[Socket]\nListenStream=127.0.0.1:5672\n")
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "start", "leveret.socket")
    else:
        override(machine, "kept", "[Service]\nFileDescriptorStoreMax=64\n")
        machine.run("systemctl", "restart", SERVICE)
    with script(machine, KNOCKING, "5672") as client:
        # With a socket unit the first connection starts the service.
        assert client.stdout.readline() == "served\n"
        before = process(machine)
        machine.run("systemctl", "restart", SERVICE)
        assert process(machine) != before
        machine.run("kill", "-KILL", process(machine))
        await_that(machine, lambda: shown(machine, "NRestarts", "ActiveState") == ["1", "active"])
        assert client.communicate("over\n", PATIENCE)[0] == "refused: 0\n"


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
    override(machine, "soon", "[Service]\nWatchdogSec=5s\n")
    machine.run("systemctl", "restart", SERVICE)
    hangs = process(machine)
    machine.run("kill", "-STOP", hangs)
    await_that(machine, lambda: shown(machine, "ActiveState") == ["active"] and process(machine) not in (hangs, "0"))
    assert "Watchdog timeout" in machine.run("journalctl", "--unit", SERVICE).stdout


def test_the_process_has_no_rights_beyond_its_directories(machine, packages):
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


def override(machine, name, text):
    """Adds a drop-in to the service."""
    directory = machine.path("/etc/systemd/system/leveret.service.d")
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.conf").write_text(text)
    machine.run("systemctl", "daemon-reload")


@contextlib.contextmanager
def script(machine, text, *arguments):
    """Runs a Python script that exchanges lines with the test."""
    argv = machine.argv(ROOT / ".cache" / "venv" / "bin" / "python", "-c", text, *arguments)
    with subprocess.Popen(argv, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


STAYING = """
import sys
import pika
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(sys.argv[1]), heartbeat=0))
channel = connection.channel()
channel.confirm_delivery()
channel.queue_declare("stays", durable=True)
print("is there", flush=True)
sys.stdin.readline()
channel.basic_publish("", "stays", b"the same channel")
print(channel.basic_get("stays")[2].decode())
"""

KNOCKING = """
import socket, sys, threading
over, served, refused = threading.Event(), threading.Event(), []
def knock():
    while not over.is_set():
        try:
            with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as client:
                client.sendall(b"AMQP" + bytes([0, 0, 9, 1]))
                # What one process that ends has accepted is closed.
                if client.recv(1):
                    served.set()
        except ConnectionRefusedError as trouble:
            refused.append(trouble)
        except ConnectionError:
            pass
client = threading.Thread(target=knock)
client.start()
served.wait()
print("served", flush=True)
sys.stdin.readline()
over.set()
client.join()
print("refused:", len(refused))
"""


def is_running(machine, process):
    return machine.path(f"/proc/{process}").exists()


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
