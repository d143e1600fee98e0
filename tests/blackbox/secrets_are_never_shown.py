"""Passwords never appear in the server's log at any level, in its metrics or in its arguments."""

import json
import urllib.request
from pathlib import Path

from harness.instances import leveret
from harness.leveret import run
from harness.patience import PATIENCE
from harness.wire import CONNECTION_TUNE, Closed, Wire

SECRET = "hunter2-never-shown"


def test_a_refused_password_is_not_shown(tmp_path):
    with leveret(tmp_path, "--log", "trace") as server:
        with Wire(server.port) as wrong:
            refused = ""
            try:
                wrong.start(f"guest:{SECRET}")
                wrong.expect(CONNECTION_TUNE)
            except (AssertionError, Closed) as problem:
                refused = str(problem)
        assert SECRET not in refused
        with Wire(server.port) as right:
            right.handshake()
        metrics = read(server.http + "/metrics")
        server.stop()
        told = server.child.output()
    assert "leveret_" in metrics and SECRET not in metrics
    # The log does mention the event, so the search is meaningful.
    assert told and SECRET not in told


def test_the_password_of_an_upstream_url_is_not_shown(tmp_path):
    # Nothing listens on port 1 of loopback, so failures are logged as well.
    url = f"amqp://someone:{SECRET}@127.0.0.1:1/"
    with leveret(tmp_path, "--log", "trace", env={"LEVERET_UPSTREAM": url}) as server:
        with Wire(server.port) as client:
            try:
                client.handshake()
            except (AssertionError, Closed):
                pass
        metrics = read(server.http + "/metrics")
        arguments = Path(f"/proc/{server.pid}/cmdline").read_text()
        server.stop()
        told = server.child.output()
    for text in (metrics, arguments, told):
        assert text and SECRET not in text


def test_commands_do_not_repeat_a_password(tmp_path):
    url = f"amqp://someone:{SECRET}@127.0.0.1:5672"
    file = tmp_path / "leveret.toml"
    for upstream, code in [(url, 0), (url.replace("amqp:", "nonsense:"), 2), (url + ":x", 2)]:
        file.write_text(f"upstream = [{json.dumps(upstream)}]\n")
        for command in (["config", "print"], ["config", "check"]):
            for given in (["--upstream", upstream], ["--config", file]):
                got, out, error = run(*command, *given)
                assert got == code, error
                assert SECRET not in out + error


def test_a_password_in_an_invalid_argument_is_not_shown():
    code, out, error = run("serve", f"amqp://someone:{SECRET}@127.0.0.1")
    assert code == 2
    assert SECRET not in out + error


def read(url):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return answer.read().decode()
