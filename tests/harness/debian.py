"""The Debian package of the program under test, and messages that outlive what is done with it."""

import os
import subprocess

from harness.child import clean_environment
from harness.leveret import ROOT, binary
from harness.patience import PATIENCE

BUILD_SECONDS = 2 * PATIENCE


def build(directory, revision, program=None):
    """Builds the package of a program, by default the one under test; returns its path."""
    argv = [ROOT / "packaging" / "build-deb.sh", program or binary(), directory, revision]
    env = clean_environment(COMPRESSION="none")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=BUILD_SECONDS)
    assert done.returncode == 0, done.stderr
    return directory / os.path.basename(done.stdout.strip())


def two_revisions(directory):
    """The package twice, the second as its next revision."""
    return [build(directory, revision) for revision in ("1", "2")]


def bring(machine, packages):
    """Puts the packages into the machine's /tmp."""
    for package in packages:
        subprocess.run(["cp", str(package), machine.path("/tmp")], check=True)


def install(machine, package, *flags):
    """With documents, which images for containers are without (dpkg.cfg.d/docker, excludes)."""
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
    """How many messages there are."""
    return python(machine, "print(queue.method.message_count)").strip()
