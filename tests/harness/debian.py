"""The Debian package of the program under test, and messages that must survive its upgrades."""

import os
import subprocess

from harness.child import clean_environment
from harness.leveret import ROOT, binary
from harness.patience import PATIENCE

BUILD_SECONDS = 2 * PATIENCE


def build(directory, revision, program=None):
    """Builds the package of a program, by default the one under test; returns the package's path."""
    argv = [ROOT / "packaging" / "build-deb.sh", program or binary(), directory, revision]
    env = clean_environment(COMPRESSION="none")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=BUILD_SECONDS)
    assert done.returncode == 0, done.stderr
    return directory / os.path.basename(done.stdout.strip())


def two_revisions(directory):
    """Builds the package twice, the second time with the next revision."""
    return [build(directory, revision) for revision in ("1", "2")]


def bring(machine, packages):
    """Copies the packages to the machine's /tmp. Installing one there does not index all manual pages, which would take longer
    than everything else."""
    machine.path("/var/lib/man-db/auto-update").unlink(missing_ok=True)
    for package in packages:
        subprocess.run(["cp", str(package), machine.path("/tmp")], check=True)


def install(machine, package, *flags):
    """Installs a package with its documentation, which container images exclude (dpkg.cfg.d/docker)."""
    machine.run("dpkg", "--path-include=/usr/share/*", *flags, "--install", f"/tmp/{package.name}")


CLIENT = """
import pika
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1"))
channel = connection.channel()
queue = channel.queue_declare("kept", durable=True)
{}
connection.close()
"""
PUBLISH = """
channel.confirm_delivery()
channel.basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=2))
"""


def python(machine, script):
    return machine.run(ROOT / ".cache" / "venv" / "bin" / "python", "-c", CLIENT.format(script)).stdout


def publish(machine):
    python(machine, PUBLISH)


def published(machine):
    """The number of messages in the queue."""
    return python(machine, "print(queue.method.message_count)").strip()
