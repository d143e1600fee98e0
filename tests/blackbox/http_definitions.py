"""Definitions are exported from Leveret, imported into RabbitMQ and back, without loss."""

import contextlib
import json

import pika

from harness.definitions import operator_policy, permission, policy, topic_permission, user, vhost_limits
from harness.leveret import Leveret
from harness.management import Management, leveret, rabbitmq

SECTIONS = {
    "vhosts": [{"name": "/"}, {"name": "v"}],
    "users": [user("admin", "administrator"), user("old", algorithm="sha512", limits={"max-channels": 5})],
    "permissions": [permission("admin", "/", ".*", ".*", ".*"), permission("old", "v", "^a", "b$", "")],
    "topic_permissions": [topic_permission("admin", "amq.topic", "^a", "^b")],
    "parameters": [operator_policy("o", "^q", {"max-length": 9}), vhost_limits("v", queues=50)],
    "global_parameters": [{"name": "mine", "value": {"deep": [1, {"a": None}]}}],
    "policies": [policy("p", "^q", {"message-ttl": 1000, "alternate-exchange": "e"}, priority=3)],
    "queues": [
        {"name": "q", "vhost": "v", "durable": True, "auto_delete": False, "arguments": {"x-max-priority": 5}},
        {"name": "quorum", "vhost": "v", "durable": True, "auto_delete": False, "arguments": {"x-queue-type": "quorum"}},
        {"name": "a/b ü", "vhost": "/", "durable": True, "auto_delete": True, "arguments": {}},
    ],
    "exchanges": [
        {"name": "e", "vhost": "v", "type": "headers", "durable": True, "auto_delete": False, "internal": True, "arguments": {"alternate-exchange": "amq.fanout"}},
    ],
    "bindings": [
        {"source": "e", "vhost": "v", "destination": "q", "destination_type": "queue", "routing_key": "k", "arguments": {"x-match": "any", "n": 1}},
        {"source": "amq.topic", "vhost": "v", "destination": "e", "destination_type": "exchange", "routing_key": "a.#", "arguments": {}},
    ],
}  # fmt: skip


def sections(management, path="definitions"):
    """The exported sections, sorted, without what only RabbitMQ has."""
    exported = management.get(path, user="admin:admin")
    found = {section: exported[section] for section in SECTIONS if section in exported}
    for entries in found.values():
        entries[:] = [entry for entry in entries if entry.get("name") not in ("guest", "internal_cluster_id")]
        entries[:] = [entry for entry in entries if entry.get("user") != "guest"]
    for entry in found.get("queues", []):
        # RabbitMQ adds the queue type.
        entry["arguments"].pop("x-queue-type", None)
    for entries in found.values():
        entries.sort(key=lambda entry: json.dumps(entry, sort_keys=True))
    return found


def test_a_round_trip_through_rabbitmq_loses_nothing(tmp_path):
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(leveret(tmp_path / "first"))
        theirs = stack.enter_context(rabbitmq())
        last = stack.enter_context(leveret(tmp_path / "last"))
        assert first.status("POST", "definitions", SECTIONS) == 204
        given = sections(first)
        for before, after in ((first, theirs), (theirs, last)):
            assert after.status("POST", "definitions", before.get("definitions")) == 204
            assert sections(after) == given
            assert sections(after, "definitions/v") == sections(first, "definitions/v")
        assert {section for section, entries in given.items() if not entries} == set()


def test_one_virtual_host_is_loaded_into_another(tmp_path):
    with leveret(tmp_path) as ours:
        assert ours.status("POST", "definitions", SECTIONS) == 204
        assert ours.status("PUT", "vhosts/copy", {}) == 201
        assert ours.status("POST", "definitions/copy", ours.get("definitions/v")) == 204
        copied, given = ours.get("definitions/copy"), ours.get("definitions/v")
        for entry in given["parameters"] + given["policies"]:
            entry["vhost"] = "copy"
        assert copied == given
        assert {binding["source"] for binding in ours.get("bindings/copy")} == {"", "e", "amq.topic"}


def test_an_export_with_a_queue_that_the_server_has_named_is_loaded(tmp_path):
    """Over HTTP and at startup: without that queue and its bindings, as in RabbitMQ, but with everything else."""
    named = "amq.gen-"
    with leveret(tmp_path / "first") as ours, pika.BlockingConnection(pika.URLParameters(ours.server.uri)) as connection:
        assert ours.status("POST", "definitions", SECTIONS) == 204
        channel = connection.channel()
        queue = channel.queue_declare("", auto_delete=True).method.queue
        assert queue.startswith(named)
        for exchange in ("amq.direct", "amq.topic"):
            channel.queue_bind(queue, exchange, "k")
        channel.exchange_bind("amq.fanout", "amq.direct", "k")
        channel.queue_bind("a/b ü", "amq.topic", "k")
        file = ours.get("definitions")
    assert queue in {each["name"] for each in file["queues"]}
    assert queue in {each["destination"] for each in file["bindings"]}
    # The bindings of the server-named queue come first, so they would prevent the others.
    file["bindings"].sort(key=lambda each: not each["destination"].startswith(named))
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(file))
    expected = [each for each in file["bindings"] if each["destination"] != queue]
    in_order = lambda bindings: sorted(bindings, key=lambda each: json.dumps(each, sort_keys=True))
    with leveret(tmp_path / "posted") as posted, leveret(tmp_path / "started", "--definitions", path) as started:
        assert posted.ask("POST", "definitions", file)[::2] == (204, None)
        for loaded in (posted, started):
            again = loaded.get("definitions")
            assert in_order(again["bindings"]) == in_order(expected)
            assert {each["name"] for each in again["queues"]} == {each["name"] for each in file["queues"]} - {queue}


def test_definitions_changed_over_http_survive_a_kill(tmp_path):
    """Users, virtual hosts, permissions, limits and policies, both created and deleted."""
    server = Leveret(tmp_path)
    ours = Management(server, server.http)
    try:
        assert ours.status("POST", "definitions", SECTIONS) == 204
        assert ours.status("PUT", "vhosts/gone", {}) == 201
        assert ours.status("PUT", "queues/gone/q", {"durable": True}) == 201
        grant = {"configure": ".*", "write": ".*", "read": ".*"}
        assert ours.status("PUT", "permissions/v/guest", grant) == 201
        for path in ("vhosts/gone", "users/old", "policies/%2F/p", "vhost-limits/v/max-queues", "queues/v/quorum"):
            assert ours.status("DELETE", path) == 204, path
        assert ours.status("PUT", "users/new", {"password": "x", "tags": "monitoring"}) == 201
        assert ours.status("PUT", "cluster-name", {"name": "named"}) == 204
    finally:
        server.child.kill()
    with leveret(tmp_path) as again:
        assert again.get("cluster-name") == {"name": "named"}
        assert [vhost["name"] for vhost in again.get("vhosts")] == ["/", "v"]
        assert [each["name"] for each in again.get("users")] == ["admin", "guest", "new"]
        assert again.get("whoami", user="new:x") == {"name": "new", "tags": ["monitoring"]}
        assert again.get("policies") == [] and again.get("vhost-limits") == []
        assert [queue["name"] for queue in again.get("queues")] == ["a/b ü", "q"]
        assert "old" not in {entry["user"] for entry in again.get("permissions")}


def test_a_policy_holds_at_once(tmp_path):
    with leveret(tmp_path) as ours:
        assert ours.status("PUT", "queues/%2F/q", {}) == 201
        message = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
        for _ in range(5):
            assert ours.status("POST", "exchanges/%2F/amq.default/publish", message) == 200
        limit = {"pattern": "^q", "definition": {"max-length": 2}, "apply-to": "queues"}
        assert ours.status("PUT", "policies/%2F/p", limit) == 201
        queue = ours.get("queues/%2F/q")
        assert (queue["messages"], queue["policy"], queue["effective_policy_definition"]) == (2, "p", {"max-length": 2})
        assert ours.status("DELETE", "policies/%2F/p") == 204
        assert ours.get("queues/%2F/q")["policy"] is None
