"""The AMQP client for browsers publishes with confirms and consumes with a prefetch, at the broker and through the pool."""

import json
import subprocess

import pytest

from harness.instances import leveret
from harness.leveret import ROOT
from harness.patience import PATIENCE

CLIENT = ROOT / "tests" / "websocket" / "amqp_client.mjs"
COUNT = 300


def run_client(url):
    done = subprocess.run(
        ["node", "--no-warnings", "--experimental-websocket", CLIENT, url, str(COUNT)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("path", ["/", "/ws/amqp"])
@pytest.mark.parametrize("behind", ["broker", "pool"])
def test_messages_are_confirmed_and_consumed(tmp_path, targets, behind, path):
    flags = ["--ws", "127.0.0.1:0"]
    if behind == "pool":
        flags += ["--upstream", targets.upstream.uri.replace("guest:guest@", "")]
    with leveret(tmp_path, *flags) as server:
        seen = run_client(f"ws://127.0.0.1:{server.ws_port}{path}")
        assert seen == {"confirmed": COUNT, "received": COUNT, "prefetch": 7}
        server.stop()
