"""The container image of packaging/build-image.py conforms to the OCI image specification, and runs."""

import hashlib
import io
import json
import os
import struct
import subprocess
import tarfile
from pathlib import Path

import pytest

from harness import image as dockerfile
from harness.child import Child, clean_environment
from harness.layout import MEDIA, build, images
from harness.leveret import ROOT, binary
from harness.machine import Machine, needed_for
from harness.patience import PATIENCE

USER = 10001
X86_64, ARM64, RISCV64 = 62, 183, 243


def test_a_layout_names_contents_by_their_sums_and_holds_no_others(built):
    layout = built
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    seen = set()
    index = json.loads((layout / "index.json").read_text())
    assert (index["schemaVersion"], index["mediaType"]) == (2, f"{MEDIA}.index.v1+json")
    for image in images(layout, seen):
        manifest = image["manifest"]
        assert (manifest["schemaVersion"], manifest["mediaType"]) == (2, f"{MEDIA}.manifest.v1+json")
        assert manifest["config"]["mediaType"] == f"{MEDIA}.config.v1+json"
        sums = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in image["layers"]]
        assert image["config"]["rootfs"] == {"type": "layers", "diff_ids": sums}
        assert len(image["config"]["history"]) == len(sums)
    assert seen == {path.name for path in (layout / "blobs" / "sha256").iterdir()}


def test_its_configuration_is_that_of_the_dockerfile(built):
    [image] = images(built)
    config = image["config"]["config"]
    assert config["User"] == dockerfile.instruction("USER") == f"{USER}:{USER}"
    assert dict(entry.split("=", 1) for entry in config["Env"]) == {"PATH": "/usr/bin", **dockerfile.variables()}
    assert set(config["ExposedPorts"]) == {f"{port}/tcp" for port in dockerfile.instruction("EXPOSE").split()}
    assert set(config["Volumes"]) == {dockerfile.instruction("VOLUME")}
    assert " ".join(config["Entrypoint"] + config["Cmd"]) == dockerfile.command_line()
    assert config["Healthcheck"]["Test"] == ["CMD", *dockerfile.health_check().split()]
    assert config["Healthcheck"]["Timeout"] == 6_000_000_000, "nanoseconds"


def test_the_same_input_gives_the_same_bytes(tmp_path, program, built):
    assert build(tmp_path, program) == (0, f"{tmp_path / built.name}.tar", "")
    assert (tmp_path / f"{built.name}.tar").read_bytes() == built.with_name(f"{built.name}.tar").read_bytes()
    for image in images(built):
        for layer in image["layers"]:
            for member in members(layer):
                assert member.mtime == 0 and (member.uname, member.gname) == ("", "")
                assert (member.uid, member.gid) in ((0, 0), (USER, USER)), member.name


def test_the_archive_is_the_layout_as_one_file(built):
    with tarfile.open(built.with_name(f"{built.name}.tar")) as tar:
        packed = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}
    assert packed == {str(path.relative_to(built)): path.read_bytes() for path in built.rglob("*") if path.is_file()}
    [for_docker] = json.loads(packed["manifest.json"])
    assert all(path in packed for path in [for_docker["Config"], *for_docker["Layers"]])


def test_binaries_for_two_processors_make_one_image_for_both(tmp_path):
    programs = [elf(tmp_path / "one", X86_64), elf(tmp_path / "two", ARM64)]
    assert build(tmp_path / "out", *programs)[0] == 0
    [layout] = (tmp_path / "out").glob("*-image")
    found = {image["platform"]["architecture"]: image for image in images(layout)}
    assert found.keys() == {"amd64", "arm64"}
    for name, image in found.items():
        assert image["config"]["os"] == image["platform"]["os"] == "linux"
        assert image["config"]["architecture"] == name
    [amd64, arm64] = (found[name]["manifest"]["layers"] for name in ("amd64", "arm64"))
    assert amd64[0] == arm64[0] and amd64[1] != arm64[1], "what does not depend on the processor is there once"


@pytest.mark.parametrize(
    "machines, interpreted, verdict",
    [
        ([X86_64], True, "needs shared libraries"),
        ([RISCV64], False, "a processor that this script does not know"),
        ([X86_64, X86_64], False, "there is another binary for amd64"),
        ([None], False, "no 64-bit program"),
    ],
)
def test_a_binary_that_makes_no_image_is_refused_in_a_line(tmp_path, machines, interpreted, verdict):
    programs = [elf(tmp_path / str(number), machine, interpreted) for number, machine in enumerate(machines)]
    code, output, error = build(tmp_path / "out", *programs, flags=())
    assert (code, output) == (1, "") and verdict in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_it_serves_as_a_user_without_rights_on_a_file_system_that_cannot_be_written(tmp_path, program, built):
    needed_for("starting an image")
    [image] = images(built)
    with Machine(tmp_path / "machine") as machine:
        container = Container(machine, image, program, tmp_path)
        try:
            container.child.wait_line("^amqp +listening on amqp://0.0.0.0:5672")
            # Its last listener.
            container.child.wait_line("^http +listening on ")
            assert container.run("leveret", "health", "--ready").stdout == ""
            assert machine.run(ROOT / ".cache" / "venv" / "bin" / "python", "-c", CLIENT).stdout == "hello\n"
            assert machine.run("touch", f"{Container.ROOT}/tmp/file", check=False).returncode != 0
            owners = machine.run("stat", "--format", "%u:%g", *container.processes_directories()).stdout.split()
            assert set(owners) == {f"{USER}:{USER}"}
            # The stop signal of `docker stop` and Kubernetes.
            machine.run("pkill", "-TERM", "--exact", "leveret")
            assert container.child.wait() == 0, container.child.tail()
        finally:
            container.child.kill()


CLIENT = """
import pika
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1"))
channel = connection.channel()
channel.queue_declare("greetings", durable=True)
channel.confirm_delivery()
channel.basic_publish("", "greetings", b"hello", pika.BasicProperties(delivery_mode=2))
print(channel.basic_get("greetings", auto_ack=True)[2].decode())
connection.close()
"""


class Container:
    """The image's process with the usual mounts of a container runtime, in a copy of this machine."""

    ROOT = "/tmp/image"

    def __init__(self, machine, image, program, directory):
        self.machine, self.config = machine, image["config"]["config"]
        root = machine.path(self.ROOT)
        root.mkdir()
        for layer in image["layers"]:
            with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
                tar.extractall(root, filter="fully_trusted", numeric_owner=True)
        volume = next(iter(self.config["Volumes"])).lstrip("/")
        mounts = [f"mount --bind {self.ROOT} {self.ROOT}", f"cd {self.ROOT}", "mount -t proc proc proc", "mount --rbind /dev dev"]
        libraries = ["lib", "lib64", "usr/lib"] if dynamic(program) else []
        mounts += [f"if [ -e /{name} ]; then mount --rbind /{name} {name}; fi" for name in libraries]
        mounts += [f"mount -t tmpfs -o mode=700,uid={USER},gid={USER} none {volume}", "mount -o remount,bind,ro ."]
        for name in ("proc", "dev", *libraries):
            (root / name).mkdir(exist_ok=True)
        machine.run("sh", "-e", "-c", "\n".join(mounts))
        argv = self.argv(*self.config["Entrypoint"], *self.config["Cmd"])
        self.child = Child(argv, directory / "container.log", env=clean_environment())

    def argv(self, *command):
        """The command line of a process in the image: chroot resolves the program inside."""
        enter = ["/usr/sbin/chroot", f"--userspec={self.config['User']}", "--groups=", self.ROOT]
        return self.machine.argv("env", "--ignore-environment", *self.config["Env"], *enter, *command)

    def run(self, *command):
        done = subprocess.run(self.argv(*command), capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done

    def processes_directories(self):
        pids = self.machine.run("pgrep", "--exact", "leveret").stdout.split()
        assert pids
        return [f"/proc/{pid}" for pid in pids]


@pytest.fixture(scope="module")
def program():
    """The binary of `make static` in `make package-test`, else the one under test with this machine's libraries."""
    return Path(os.environ.get("LEVERET_STATIC", binary()))


@pytest.fixture(scope="module")
def built(tmp_path_factory, program):
    """The layout of an image with the program under test."""
    directory = tmp_path_factory.mktemp("image")
    assert build(directory, program)[0] == 0
    [layout] = directory.glob("*-image")
    return layout


def members(layer):
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        return tar.getmembers()


def elf(path, machine, interpreted=False):
    """An ELF header for that processor, with an interpreter if it needs shared libraries; plain text without a processor."""
    if machine is None:
        path.write_text("#!/bin/sh\n")
        return path
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    path.write_bytes(header + struct.pack("<IIQQQQQQ", 3 if interpreted else 1, *[0] * 7))
    return path


def dynamic(program):
    return "INTERP" in subprocess.run(["readelf", "--program-headers", program], capture_output=True, text=True, check=True).stdout
