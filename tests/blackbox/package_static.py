"""The static binaries (make static, run by make package-test) need no system libraries, and work, also inside the package
and the image."""

import io
import os
import platform
import subprocess
import tarfile
from pathlib import Path

import pika
import pytest

from harness import debian, layout
from harness.child import clean_environment
from harness.instances import leveret
from harness.patience import PATIENCE

if "LEVERET_STATIC" not in os.environ:
    pytest.skip("a static binary takes minutes to build: make package-test", allow_module_level=True)

# By path; one for another processor runs under qemu.
PROGRAMS = [Path(os.environ[name]) for name in ("LEVERET_STATIC", "LEVERET_STATIC_ARM64") if name in os.environ]


ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def processor_of(built):
    return built.name.split("-", 1)[1]


def by_itself(built, _):
    return built


def from_the_package(built, directory):
    package = debian.build(directory, "1", built)
    field = subprocess.run(["dpkg-deb", "--field", package, "Architecture"], capture_output=True, text=True, timeout=PATIENCE)
    assert field.stdout.strip() == ARCHITECTURES[processor_of(built)]
    subprocess.run(["dpkg-deb", "--extract", package, directory / "root"], check=True, timeout=PATIENCE)
    return directory / "root" / "usr" / "bin" / "leveret"


def from_the_image(built, directory):
    """The binary in the multi-platform image."""
    assert layout.build(directory, *PROGRAMS, flags=())[0] == 0
    [written] = directory.glob("*-image")
    architecture = ARCHITECTURES[processor_of(built)]
    [image] = [image for image in layout.images(written) if image["platform"]["architecture"] == architecture]
    for layer in image["layers"]:
        with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
            tar.extractall(directory / "root", filter="tar")
    assert "PATH=/usr/bin" in image["config"]["config"]["Env"]
    return directory / "root" / "usr" / "bin" / image["config"]["config"]["Entrypoint"][0]


@pytest.fixture(params=PROGRAMS, ids=processor_of)
def built(request):
    return request.param


@pytest.fixture(params=[by_itself, from_the_package, from_the_image], ids=lambda way: way.__name__)
def program(request, built, tmp_path):
    """The program, as it was built or from a package; one for another processor runs under qemu."""
    found = request.param(built, tmp_path / "packed")
    processor = processor_of(built)
    if processor == platform.machine():
        return found
    emulated = tmp_path / "emulated"
    emulated.write_text(f'#!/bin/sh\nexec qemu-{processor} {found} "$@"\n')
    emulated.chmod(0o755)
    return emulated


def test_it_needs_no_library_and_no_loader(built):
    headers = subprocess.run(["readelf", "--wide", "--program-headers", "--dynamic", built], capture_output=True, text=True, timeout=PATIENCE)
    assert headers.returncode == 0 and "LOAD" in headers.stdout
    assert "INTERP" not in headers.stdout and "NEEDED" not in headers.stdout


def test_it_keeps_a_message_over_a_restart(tmp_path, program):
    for step in ("publish", "get"):
        with leveret(tmp_path / step, "--data-dir", str(tmp_path / "data"), program=program) as server:
            health = [program, "health", "--ready", "--http", server.http.removeprefix("http://")]
            assert subprocess.run(health, env=clean_environment(), timeout=PATIENCE).returncode == 0
            with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
                channel = connection.channel()
                channel.queue_declare("kept", durable=True)
                channel.confirm_delivery()
                if step == "publish":
                    channel.basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=2))
                else:
                    assert channel.basic_get("kept", auto_ack=True)[2] == b"x"
            server.stop()
