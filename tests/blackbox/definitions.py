"""A definitions file that cannot be loaded stops the start, names the entry at fault, and is told as a mistake."""

import json

import pytest

from harness.leveret import run

VHOST = {"vhosts": [{"name": "/"}]}
QUEUE = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-max-length": -1}}

MISTAKES = {
    "not JSON": ("{", "EOF while parsing an object at line 1 column 1"),
    "a user without a name": ({"users": [{"tags": []}]}, "users[0]: missing field `name`"),
    "a vhost that is not there": (
        {"queues": [QUEUE]},
        "queue 'q' in vhost '/': vhost '/' does not exist",
    ),
    "a wrong argument": (
        {**VHOST, "queues": [QUEUE]},
        "queue 'q' in vhost '/': invalid arg 'x-max-length' for queue 'q' in vhost '/': {value_negative,-1}",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_entry_at_fault_is_named(tmp_path, name):
    content, reason = MISTAKES[name]
    file = tmp_path / "definitions.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    code, _, errors = run("serve", "--definitions", file, "--amqp", "127.0.0.1:0", "--http", "off")
    assert (code, errors) == (2, f"leveret: definitions: {file}: {reason}\n")


def test_a_missing_file_is_told(tmp_path):
    code, _, errors = run("config", "check", "--definitions", tmp_path / "none.json")
    assert code == 2
    assert errors.startswith(f"leveret: definitions: {tmp_path}/none.json: No such file")


def test_definitions_and_an_upstream_exclude_each_other(tmp_path):
    code, _, errors = run("config", "check", "--definitions", "any", "--upstream", "amqp://localhost")
    assert (code, errors) == (2, "leveret: --definitions: applies to the embedded broker only, not with an upstream\n")
