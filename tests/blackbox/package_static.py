"""The static binary (make static, which make package-test builds): it needs nothing of the system, and serves."""

import os
import subprocess
from pathlib import Path

import pika
import pytest

from harness.child import clean_environment
from harness.instances import leveret
from harness.patience import PATIENCE

if "LEVERET_STATIC" not in os.environ:
    pytest.skip("a static binary takes minutes to build: make package-test", allow_module_level=True)

PROGRAM = Path(os.environ["LEVERET_STATIC"])


def test_it_needs_no_library_and_no_loader():
    headers = subprocess.run(["readelf", "--wide", "--program-headers", "--dynamic", PROGRAM], capture_output=True, text=True, timeout=PATIENCE)
    assert headers.returncode == 0 and "LOAD" in headers.stdout
    assert "INTERP" not in headers.stdout and "NEEDED" not in headers.stdout


def test_it_keeps_a_message_over_a_restart(tmp_path):
    for step in ("publish", "get"):
        with leveret(tmp_path / step, "--data-dir", str(tmp_path / "data"), program=PROGRAM) as server:
            health = [PROGRAM, "health", "--ready", "--http", server.http.removeprefix("http://")]
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
