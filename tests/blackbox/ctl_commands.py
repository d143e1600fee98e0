"""`leveret ctl` has the same effects on Leveret and on RabbitMQ, through the management API."""

import contextlib
import itertools
import json
from urllib.parse import quote

import pika
import pytest

from harness.ctl import Ctl, managed_rabbitmq
from harness.instances import leveret
from harness.management import Management
from harness.metrics import wait_until
from harness.releases import RELEASES, missing


@pytest.fixture(scope="module", params=itertools.product(["rabbitmq", "leveret"], RELEASES), ids=" ".join)
def server(request, tmp_path_factory):
    kind, version = request.param
    if kind == "rabbitmq":
        if reason := missing(version):
            pytest.skip(f"RabbitMQ {version}: {reason}")
        server = managed_rabbitmq(version)
        server.follows = version
        yield server
        server.stop()
    else:
        with leveret(tmp_path_factory.mktemp(kind) / "server", "--compatibility", version) as server:
            server.follows = version
            yield server
            server.stop()


@pytest.fixture
def ctl(server):
    return Ctl(server.http)


@pytest.fixture
def vhost(ctl):
    """A virtual host for the test, where guest has permissions."""
    ctl("add_vhost", "v/1")
    ctl("set_permissions", "-p", "v/1", "guest", ".*", ".*", ".*")
    yield "v/1"
    ctl("delete_vhost", "v/1")


@contextlib.contextmanager
def channel(server, vhost):
    parameters = pika.URLParameters(server.uri)
    parameters.virtual_host = vhost
    connection = pika.BlockingConnection(parameters)
    yield connection.channel()
    if connection.is_open:
        connection.close()


def test_status_shows_the_version_and_the_memory_in_use(ctl):
    facts = lambda: dict(line.split("\t", 1) for line in ctl("--quiet", "status").splitlines())
    # RabbitMQ updates its statistics periodically.
    wait_until(lambda: "mem_used" in facts())
    assert facts()["rabbitmq_version"] and int(facts()["mem_used"]) > 1 << 20
    assert set(ctl.json("status")) == {"overview", "nodes"}
    assert "no alarm is in effect" in ctl("ping")


def test_queues_exchanges_and_bindings_are_listed(server, ctl, vhost):
    with channel(server, vhost) as at:
        at.confirm_delivery()
        at.queue_declare("orders", durable=True, arguments={"x-max-length": 7})
        at.queue_declare("a/b ü")
        at.exchange_declare("events", "topic")
        at.queue_bind("orders", "events", "a.#")
        at.basic_publish("", "orders", b"x")
        names = ["a/b ü", "orders"]
        wait_until(lambda: ctl.rows("list_queues", "-p", vhost) == [[names[0], "0"], [names[1], "1"]])
        found = [[*row, json.loads(of)] for *row, of in ctl.rows("list_queues", "-p", vhost, "name", "durable", "arguments")]
        # RabbitMQ 4 adds the type to each queue's arguments.
        of_type = {} if server.follows == "3.10" else {"x-queue-type": "classic"}
        assert found == [["a/b ü", "false", of_type], ["orders", "true", {"x-max-length": 7, **of_type}]]
        assert ["events", "topic"] in ctl.rows("list_exchanges", "-p", vhost)
        assert ["events", "orders", "queue", "a.#", "{}"] in ctl.rows("list_bindings", "-p", vhost)
        assert [vhost, "orders"] in ctl.rows("list_queues", "--all-vhosts", "vhost", "name")
        [queue] = [queue for queue in ctl.json("list_queues", "-p", vhost, "name", "durable") if queue["durable"]]
        assert queue == {"name": "orders", "durable": True}
        table = ctl("list_queues", "-p", vhost).splitlines()
        assert table[0].split() == ["name", "messages"] and len(table) == 3


def test_a_long_list_comes_whole(server, ctl, vhost):
    with channel(server, vhost) as at:
        for number in range(1203):
            at.queue_declare(f"queue-{number}")
        assert len(ctl.rows("list_queues", "-p", vhost, "name")) == 1203


def test_tracing_leaves_the_rest_of_a_virtual_host_as_it_is(server, ctl, vhost):
    definition = {"description": "d", "tags": "a,b", "default_queue_type": "quorum"}
    api = Management(server, server.http)
    # The name has a slash.
    path = f"vhosts/{quote(vhost, safe='')}"
    assert api.status("PUT", path, definition) == 204
    facts = lambda: {key: api.get(path).get(key) for key in ("tracing", *definition)}
    before = facts()
    assert server.follows == "3.10" or before["default_queue_type"] == "quorum"
    ctl("trace_on", "-p", vhost)
    assert facts() == before | {"tracing": True}
    ctl("trace_off", "-p", vhost)
    assert facts() == before


def test_a_queue_is_purged_and_deleted(server, ctl, vhost):
    with channel(server, vhost) as at:
        at.confirm_delivery()
        at.queue_declare("doomed")
        at.basic_publish("", "doomed", b"x")
        wait_until(lambda: ctl.rows("list_queues", "-p", vhost) == [["doomed", "1"]])
        assert "not empty" in ctl.fails("delete_queue", "-p", vhost, "--if-empty", "doomed")
        assert ctl("purge_queue", "-p", vhost, "doomed") == "queue 'doomed' purged\n"
        assert at.queue_declare("doomed", passive=True).method.message_count == 0
        assert ctl("--quiet", "delete_queue", "-p", vhost, "--if-empty", "--if-unused", "doomed") == ""
        assert ctl.rows("list_queues", "-p", vhost) == []
        assert ctl.fails("purge_queue", "-p", vhost, "doomed") == f"no queue 'doomed' in vhost '{vhost}'"
        at.exchange_declare("doomed")
        ctl("delete_exchange", "-p", vhost, "doomed")
        assert "doomed" not in str(ctl.rows("list_exchanges", "-p", vhost))


def test_connections_channels_and_consumers_are_listed_and_closed(server, ctl, vhost):
    with channel(server, vhost) as at:
        at.queue_declare("watched")
        at.basic_qos(prefetch_count=4)
        at.basic_consume("watched", lambda *_: None, consumer_tag="mine")
        wait_until(lambda: ctl.rows("list_consumers", "-p", vhost))
        [[queue, _, tag, ack, prefetch, _]] = ctl.rows("list_consumers", "-p", vhost)
        assert (queue, tag, ack, prefetch) == ("watched", "mine", "true", "4")
        mine = lambda: [row for row in ctl.rows("list_connections") if row[2] == vhost]
        wait_until(lambda: mine() and mine()[0][4] == "1")
        [[name, user, *_]] = mine()
        assert user == "guest"
        wait_until(lambda: any(row[0].startswith(name) and row[3] == "1" for row in ctl.rows("list_channels")))
        ctl("close_connection", name, "enough of it")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            wait_until(lambda: at.connection.process_data_events(0.1))
        assert closed.value.reply_code == 320 and "enough of it" in closed.value.reply_text
        wait_until(lambda: not mine())
    assert ctl.fails("close_connection", name) == f"no connection '{name}'"


def test_a_user_is_added_changed_and_removed(ctl, tmp_path):
    file = tmp_path / "password"
    file.write_text("first\n")
    assert ctl("add_user", "ann", "--tag", "management", "--new-password-file", file) == "user 'ann' added\n"
    try:
        assert ["ann", "management"] in ctl.rows("list_users")
        assert ctl.fails("add_user", "ann") == "user 'ann' exists already"
        ctl.as_user("ann", "first")("authenticate_user")
        ctl("change_password", "ann", LEVERET_CTL_NEW_PASSWORD="second")
        assert "is refused" in ctl.as_user("ann", "first").fails("authenticate_user")
        ctl.as_user("ann", "second")("authenticate_user")
        ctl("set_user_tags", "ann", "monitoring", "policymaker")
        assert ["ann", "monitoring,policymaker"] in ctl.rows("list_users")
        ctl.as_user("ann", "second")("authenticate_user")
        ctl("clear_password", "ann")
        assert "is refused" in ctl.as_user("ann", "second").fails("authenticate_user")
    finally:
        ctl("delete_user", "ann")
    assert ctl.fails("change_password", "ann", LEVERET_CTL_NEW_PASSWORD="x") == "user 'ann' not found"


def test_permissions_are_set_and_cleared(ctl, vhost):
    ctl("add_user", "bob", LEVERET_CTL_NEW_PASSWORD="x")
    try:
        ctl("set_permissions", "-p", vhost, "bob", "^a", "^b", "^c")
        ctl("set_topic_permissions", "-p", vhost, "bob", "amq.topic", "^w", "^r")
        assert ["bob", "^a", "^b", "^c"] in ctl.rows("list_permissions", "-p", vhost)
        assert ctl.rows("list_user_permissions", "bob") == [[vhost, "^a", "^b", "^c"]]
        assert ctl.rows("list_topic_permissions", "-p", vhost) == [["bob", "amq.topic", "^w", "^r"]]
        assert ctl.rows("list_user_topic_permissions", "bob") == [[vhost, "amq.topic", "^w", "^r"]]
        ctl("clear_topic_permissions", "-p", vhost, "bob")
        ctl("clear_permissions", "-p", vhost, "bob")
        assert ctl.rows("list_user_permissions", "bob") == ctl.rows("list_user_topic_permissions", "bob") == []
    finally:
        ctl("delete_user", "bob")


def test_policies_are_set_and_cleared(server, ctl, vhost):
    ctl("set_policy", "-p", vhost, "--priority", "3", "--apply-to", "queues", "short", "^s", '{"max-length": 5}')
    ctl("set_operator_policy", "-p", vhost, "bound", ".*", '{"expires": 100000}')
    assert ctl.rows("list_policies", "-p", vhost) == [["short", "^s", "queues", '{"max-length":5}', "3"]]
    assert ctl.rows("list_operator_policies", "-p", vhost) == [["bound", ".*", "queues", '{"expires":100000}', "0"]]
    with channel(server, vhost) as at:
        at.queue_declare("stack")
        wait_until(lambda: ctl.rows("list_queues", "-p", vhost, "name", "policy") == [["stack", "short"]])
    ctl("clear_policy", "-p", vhost, "short")
    ctl("clear_operator_policy", "-p", vhost, "bound")
    assert ctl.rows("list_policies", "-p", vhost) == ctl.rows("list_operator_policies", "-p", vhost) == []
    assert ctl.fails("set_policy", "p", ".*", "no json", code=2).startswith("definition: is not JSON")
    assert "400" in ctl.fails("set_policy", "-p", vhost, "p", "(", '{"max-length": 5}')


def test_limits_are_set_and_cleared(ctl, vhost):
    ctl("set_vhost_limits", "-p", vhost, '{"max-connections": 10, "max-queues": 20}')
    [[where, value]] = ctl.rows("list_vhost_limits", "-p", vhost)
    assert (where, json.loads(value)) == (vhost, {"max-connections": 10, "max-queues": 20})
    ctl("clear_vhost_limits", "-p", vhost)
    assert ctl.rows("list_vhost_limits", "-p", vhost) in ([], [[vhost, "{}"]])
    ctl("set_user_limits", "guest", '{"max-channels": 50}')
    assert json.loads(ctl.rows("list_user_limits", "guest")[0][1]) == {"max-channels": 50}
    ctl("clear_user_limits", "guest")
    assert ctl.rows("list_user_limits", "guest") in ([], [["guest", "{}"]])
    assert ctl.fails("set_user_limits", "guest", '{"max-fun": 1}', code=2).startswith("limits: 'max-fun'")


def test_definitions_go_out_and_in_again(server, ctl, vhost, tmp_path):
    with channel(server, vhost) as at:
        at.queue_declare("kept", durable=True)
        at.exchange_declare("kept", "headers", durable=True)
        at.queue_bind("kept", "kept", arguments={"x-match": "all", "k": 1})
    file = tmp_path / "definitions.json"
    ctl("export_definitions", file)
    assert file.stat().st_mode & 0o777 == 0o600, "it holds hashes of passwords"
    exported = json.loads(file.read_text())
    assert "kept" in [queue["name"] for queue in exported["queues"]]
    ctl("delete_queue", "-p", vhost, "kept")
    ctl("import_definitions", file)
    assert "kept" in [row[0] for row in ctl.rows("list_queues", "-p", vhost)]
    assert [row for row in ctl.rows("list_bindings", "-p", vhost) if row[0] == "kept"]
    assert json.loads(ctl("export_definitions")).keys() == exported.keys()
    one = json.loads(ctl("export_definitions", "-p", vhost))
    assert [queue["name"] for queue in one["queues"]] == ["kept"] and "users" not in one
    file.write_text("{")
    assert "is not JSON" in ctl.fails("import_definitions", file, code=2)
