"""`leveret config print` shows each effective value and its origin, and no secrets."""

import re

from harness.leveret import run


def test_each_value_tells_where_it_came_from(tmp_path):
    file = tmp_path / "leveret.toml"
    file.write_text("\nheartbeat = 10\nframe_max = 8192\n")
    env = {"LEVERET_FRAME_MAX": "16384", "LEVERET_CHANNEL_MAX": "9"}
    code, out, error = run("config", "print", "--config", file, "--channel-max", "8", env=env)
    assert (code, error) == (0, "")
    told = dict(re.findall(r"^(\w+) = .*?  # (.*)$", out, re.MULTILINE))
    assert told["heartbeat"] == f"{file}:2"
    assert told["frame_max"] == "LEVERET_FRAME_MAX"
    assert told["channel_max"] == "--channel-max"
    assert told["max_message_size"] == "default"


def test_every_setting_is_there_once():
    _, out, _ = run("config", "print")
    keys = re.findall(r"^(\w+) = ", out, re.MULTILINE)
    assert len(keys) == len(set(keys)) > 70
    _, reference, _ = run("config", "reference")
    assert set(keys) == set(re.findall(r"\| `LEVERET_(\w+)` \|", reference.lower().replace("leveret_", "LEVERET_")))


def test_no_secret_is_shown(tmp_path):
    file = tmp_path / "leveret.toml"
    file.write_text('upstream = "amqp://user:hunter2@localhost"\n')
    for arguments, env in [
        (["--config", file], {}),
        (["--upstream", "amqp://user:hunter2@localhost"], {}),
        ([], {"LEVERET_UPSTREAM": "amqp://user:hunter2@localhost"}),
    ]:
        code, out, error = run("config", "print", *arguments, env=env)
        assert code == 0 and "localhost" in out and "hunter2" not in out + error
