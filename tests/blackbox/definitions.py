"""A definitions file that cannot be loaded prevents the start; the error names the wrong entry."""

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


@pytest.mark.parametrize("name", MISTAKES)
def test_a_check_finds_the_mistakes_that_would_stop_a_first_start(tmp_path, name):
    content, reason = MISTAKES[name]
    file = tmp_path / "definitions.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    for directory in ("off", tmp_path / "none"):
        code, _, errors = run("config", "check", "--definitions", file, "--data-dir", directory)
        assert (code, errors) == (2, f"leveret: definitions: {file}: {reason}\n")


TYPO = {"policies": [{"vhost": "v", "name": "p", "pattern": "", "definition": {"max-lenght": 5}}]}


def test_a_check_accepts_references_to_objects_the_broker_may_have(tmp_path):
    """It may have the virtual host, and then the queue, too."""
    file, directory = tmp_path / "definitions.json", tmp_path / "data"
    directory.mkdir()
    (directory / "journal").touch()
    check = ("config", "check", "--definitions", file, "--data-dir", directory)
    file.write_text(json.dumps({"queues": [{**QUEUE, "vhost": "v"}]}))
    assert run(*check) == (0, "", "")
    file.write_text(json.dumps(TYPO))
    code, _, errors = run(*check)
    assert code == 2 and errors.startswith(f"leveret: definitions: {file}: policy 'p' in vhost 'v': "), errors


def test_the_first_user_of_the_settings_is_there_for_the_file(tmp_path):
    file = tmp_path / "definitions.json"
    permission = {"user": "guest", "vhost": "/", "configure": "", "write": "", "read": ""}
    file.write_text(json.dumps({"permissions": [permission]}))
    settings = ("--definitions", file, "--data-dir", "off")
    code, _, errors = run("config", "check", *settings)
    assert (code, errors) == (2, f"leveret: definitions: {file}: permissions of user 'guest' in vhost '/': user 'guest' does not exist\n")
    assert run("config", "check", *settings, env={"LEVERET_DEFAULT_PASSWORD": "x"}) == (0, "", "")


def test_a_missing_definitions_file_is_reported(tmp_path):
    code, _, errors = run("config", "check", "--definitions", tmp_path / "none.json")
    assert code == 2
    assert errors.startswith(f"leveret: definitions: {tmp_path}/none.json: No such file")


def test_definitions_and_an_upstream_exclude_each_other(tmp_path):
    code, _, errors = run("config", "check", "--definitions", "any", "--upstream", "amqp://localhost")
    assert (code, errors) == (2, "leveret: --definitions: applies to the embedded broker only, not with an upstream\n")
