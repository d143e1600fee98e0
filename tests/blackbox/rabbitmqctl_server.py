"""The harness runs rabbitmqctl's code in a long-lived Erlang VM; its output and errors are those of the tool itself."""

import pytest

TARGETS = ["rabbitmq", "rabbitmq4"]


@pytest.mark.parametrize(
    "words",
    [
        ("list_permissions", "--vhost", "/"),
        ("set_permissions", "guest", ".*", "", "a b|é"),
        ("list_queues", "no_such_column"),
    ],
    ids=" ".join,
)
def test_output_and_errors_are_those_of_rabbitmqctl(target, words):
    try:
        assert said(target.control, words) == said(lambda *words: target.tool("rabbitmqctl", *words), words)
    finally:
        target.control("set_permissions", "guest", ".*", ".*", ".*")


def said(run, words):
    try:
        return "done", run(*words)
    except AssertionError as refused:
        return "refused", str(refused)


def test_one_that_has_ended_is_started_again(target):
    before = target.control("list_users")
    target.rabbitmqctl.process.kill()
    target.rabbitmqctl.process.wait()
    assert target.control("list_users") == before
