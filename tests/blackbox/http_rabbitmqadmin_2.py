"""rabbitmqadmin 2, RabbitMQ 4's standalone program, works alike with both servers."""

import itertools
import json
import subprocess
import tempfile

import pytest

from harness.child import clean_environment
from harness.management import beside
from harness.patience import PATIENCE
from harness.releases import RELEASES

# Exit codes for an invalid command line.
EX_USAGE, USAGE = 64, 2
# Tables of definitions and messages, which are the same on both servers.
COMMANDS = [
    "declare vhost --name v --description d --default-queue-type quorum",
    "declare user --name u --password p --tags management",
    "declare permissions --user u --configure .* --write .* --read .*",
    "declare exchange --name e --type topic --durable true",
    "declare queue --name q --type classic --durable true",
    "declare queue --name qq --type quorum --durable true",
    "declare binding --source e --destination-type queue --destination q --routing-key a.b",
    "declare policy --name p --pattern ^q --apply-to classic_queues --priority 1 --definition {\"max-length\":5}",
    "declare operator_policy --name o --pattern ^q --apply-to quorum_queues --priority 1 --definition {\"max-length\":3}",
    "declare vhost_limit --name max-queues --value 9",
    "declare user_limit --user u --name max-connections --value 9",
    "publish message --exchange e --routing-key a.b --payload hello",
    "publish message --exchange e --routing-key nope --payload hello",
    "publish message --exchange nope --routing-key nope --payload hello",
    "get messages --queue q --count 1 --ack-mode ack_requeue_true",
    "get messages --queue q --count 1 --ack-mode ack_requeue_false",
    "get messages --queue nope --count 1",
    "list vhosts",
    "list permissions",
    "list exchanges",
    "list bindings",
    "list policies",
    "list operator_policies",
    "policies list_in --apply-to classic_queues",
    "policies list_matching_object --name q --type classic_queues",
    "list connections",
    "list channels",
    "list vhost_limits",
    "list user_limits",
    "list parameters",
    "list consumers",
    "list deprecated_features_in_use",
    "vhosts enable_deletion_protection --name v",
    "vhosts delete --name v",
    "vhosts disable_deletion_protection --name v",
    "health_check local_alarms",
    "health_check cluster_wide_alarms",
    "health_check node_is_quorum_critical",
    "health_check protocol_listener --protocol amqp",
    "health_check protocol_listener --protocol nope",
    "health_check port_listener --port 1",
    "feature_flags enable --name quorum_queue",
    "feature_flags enable --name nope",
    "purge queue --name q",
    "delete binding --source e --destination-type queue --destination q --routing-key a.b",
    "delete policy --name p",
    "delete queue --name q",
    "delete queue --name q",
    "delete exchange --name e",
    "--username u --password p list vhosts",
    "--username u --password wrong list vhosts",
    "--username u --password p list users",
    "delete user --name u",
    "delete vhost --name v",
]


def rabbitmqadmin(management, *arguments, vhost="v"):
    """The exit code, and the output's lines sorted: the order of rows is not specified."""
    where = ("--host", management.host, "--port", management.port, "--vhost", vhost, "--non-interactive")
    argv = [*RELEASES["4"].inside, "/usr/bin/rabbitmqadmin", *where, *arguments]
    # With an empty home directory, because it reads a settings file there.
    with tempfile.TemporaryDirectory() as home:
        environment = clean_environment(HOME=home)
        done = subprocess.run(list(map(str, argv)), env=environment, capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, sorted((done.stdout + done.stderr).splitlines())


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    with beside(tmp_path_factory, "4") as servers:
        yield [[rabbitmqadmin(each, *command.split()) for command in COMMANDS] for each in servers]


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=COMMANDS)
def test_a_rabbitmqadmin_2_command_has_the_same_result_as_with_rabbitmq(outputs, number):
    ours, theirs = outputs
    assert ours[number] == theirs[number]
    # Otherwise the command line was invalid, and neither server was asked.
    assert ours[number][0] not in (EX_USAGE, USAGE)


# Output that varies (node names, memory, rates, salts). The program fails if a key is missing or has another type.
READABLE = [
    "list queues",
    "list nodes",
    "list users",
    "list feature_flags",
    "list deprecated_features",
    "show overview",
    "show churn",
    "definitions export --stdout",
    "definitions export_from_vhost --stdout",
    "passwords salt_and_hash secret",
    "rebalance queues",
]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    with beside(tmp_path_factory, "4") as servers:
        for each, command in itertools.product(servers, COMMANDS[:9]):
            assert rabbitmqadmin(each, *command.split())[0] == 0
        for each in servers:
            each.eventually("nodes", lambda nodes: "mem_used" in nodes[0])
        yield servers


@pytest.mark.parametrize("command", READABLE)
def test_an_answer_can_be_read(filled, command):
    (ours, of_ours), (theirs, of_theirs) = (rabbitmqadmin(each, *command.split()) for each in filled)
    assert ours == theirs == 0, (of_ours, of_theirs)
    # RabbitMQ has more rows for these.
    assert len(of_ours) == len(of_theirs) or command in ("list feature_flags", "list deprecated_features")


def test_export_and_import(filled, tmp_path):
    for number, source in enumerate(filled):
        for target in filled:
            file = tmp_path / f"definitions-{number}.json"
            assert rabbitmqadmin(source, "definitions", "export", "--file", file) == (0, [])
            assert rabbitmqadmin(target, "definitions", "import", "--file", file) == (0, [])
            assert json.loads(file.read_text())["vhosts"]
