"""The rabbitmqadmin script of RabbitMQ's management plugin works alike with both servers."""

import json

import pytest

from harness.management import beside, leveret
from harness.releases import RELEASES

# Tables of definitions and messages, which are the same on both servers.
COMMANDS = [
    "declare vhost name=v",
    "declare user name=u password=p tags=management",
    "declare permission vhost=v user=u configure=.* write=.* read=.*",
    "-V v declare exchange name=e type=topic",
    "-V v declare queue name=q durable=true",
    "-V v declare binding source=e destination=q routing_key=a.b",
    "-V v declare policy name=p pattern=^q definition={\"max-length\":5} apply-to=queues",
    "-V v declare operator_policy name=o pattern=^q definition={\"max-length\":3}",
    "declare vhost_limit vhost=v name=max-queues value=9",
    "-V v publish exchange=e routing_key=a.b payload=hello",
    "-V v publish exchange=e routing_key=nope payload=hello",
    "-V v get queue=q",
    "-V v get queue=q ackmode=ack_requeue_false",
    "-V v get queue=q",
    "list vhosts name",
    "list users name tags",
    "list permissions",
    "-V v list exchanges name type durable",
    # RabbitMQ 4 ignores the columns for virtual hosts.
    "-V v -f raw_json list exchanges name",
    "-V v list queues name durable",
    "-V v list bindings source destination routing_key properties_key",
    "list policies",
    "list operator_policies",
    "list vhost_limits",
    "list parameters component vhost name",
    "show overview rabbitmq_version",
    "-V v purge queue name=q",
    "-V v delete binding source=e destination_type=queue destination=q properties_key=a.b",
    "-V v delete policy name=p",
    "-V v delete queue name=q",
    "-V v delete queue name=q",
    "-V v delete exchange name=e",
    "-u u -p p list vhosts name",
    "-u u -p wrong list vhosts name",
    "delete user name=u",
    "delete vhost name=v",
]


@pytest.fixture(scope="module", params=RELEASES)
def outputs(request, tmp_path_factory):
    with beside(tmp_path_factory, request.param) as servers:
        yield [[told(each.admin(*command.split())) for command in COMMANDS] for each in servers]


def told(answer):
    """The lines sorted, because RabbitMQ's rows have no order unless one was requested."""
    code, output = answer
    return code, sorted(output.splitlines())


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=COMMANDS)
def test_a_rabbitmqadmin_command_has_the_same_result_as_with_rabbitmq(outputs, number):
    ours, theirs = outputs
    assert ours[number] == theirs[number]


def test_export_and_import(tmp_path):
    with leveret(tmp_path / "one") as one, leveret(tmp_path / "two") as two:
        assert one.admin("declare", "queue", "name=q", "durable=true")[0] == 0
        file = tmp_path / "definitions.json"
        code, output = one.admin("export", file)
        assert code == 0 and "Exported definitions" in output
        assert [queue["name"] for queue in json.loads(file.read_text())["queues"]] == ["q"]
        code, output = two.admin("import", file)
        assert code == 0 and "Uploaded definitions" in output, output
        assert [queue["name"] for queue in two.get("queues")] == ["q"]
