"""The static binaries (make static, which make package-test builds): they need nothing of the system, and serve."""

import os
import platform
import subprocess
from pathlib import Path

import pika
import pytest

from harness.child import clean_environment
from harness.instances import leveret
from harness.patience import PATIENCE

if "LEVERET_STATIC" not in os.environ:
    pytest.skip("a static binary takes minutes to build: make package-test", allow_module_level=True)

# By where they are; one for another processor is run by its emulator.
PROGRAMS = [Path(os.environ[name]) for name in ("LEVERET_STATIC", "LEVERET_STATIC_ARM64") if name in os.environ]


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def program(request, tmp_path):
    [_, processor] = request.param.name.split("-", 1)
    if processor == platform.machine():
        return request.param
    emulated = tmp_path / request.param.name
    emulated.write_text(f'#!/bin/sh\nexec qemu-{processor} {request.param} "$@"\n')
    emulated.chmod(0o755)
    return emulated


@pytest.mark.parametrize("built", PROGRAMS, ids=lambda built: built.name)
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
