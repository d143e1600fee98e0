"""Moving a RabbitMQ 4 by its definitions: Leveret imports its export, and RabbitMQ imports Leveret's."""

import json

import pytest

from harness.child import Child, clean_environment
from harness.leveret import binary
from harness.management import leveret, rabbitmq
from harness.releases import missing

FOLLOWING_4 = ("--compatibility", "4")
CLASSIC, QUORUM = ({"x-queue-type": kind} for kind in ("classic", "quorum"))
FILLED = [
    ("PUT", "vhosts/plain", {}),
    ("PUT", "vhosts/described", {"description": "of orders", "tags": "production,orders", "default_queue_type": "quorum"}),
    ("PUT", "vhosts/guarded", {"default_queue_type": "classic"}),
    ("POST", "vhosts/guarded/deletion/protection", None),
    ("PUT", "users/admin", {"password": "secret", "tags": "administrator"}),
    ("PUT", "users/reader", {"password": "secret", "tags": "monitoring,management"}),
    ("PUT", "users/without-password", {"password_hash": "", "tags": ""}),
    ("PUT", "permissions/described/admin", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("PUT", "permissions/described/reader", {"configure": "^$", "write": "^$", "read": "^orders"}),
    ("PUT", "exchanges/described/events", {"type": "topic", "durable": True}),
    ("PUT", "topic-permissions/described/reader", {"exchange": "events", "write": "^$", "read": "^eu\\..*"}),
    ("PUT", "user-limits/reader/max-connections", {"value": 5}),
    ("PUT", "user-limits/reader/max-channels", {"value": 50}),
    ("PUT", "vhost-limits/described/max-queues", {"value": 100}),
    ("PUT", "vhost-limits/described/max-connections", {"value": 20}),
    ("PUT", "global-parameters/of-us", {"value": {"list": [1, "two", None, 1.5], "yes": True}}),
    ("PUT", "cluster-name", {"name": "shop"}),
    ("PUT", "policies/described/all", {"pattern": ".*", "definition": {"max-length": 1000}, "apply-to": "all"}),
    ("PUT", "policies/described/queues", {"pattern": "^o", "definition": {"expires": 9000000}, "apply-to": "queues", "priority": 1}),
    ("PUT", "policies/described/classic", {"pattern": "^c", "definition": {"max-length": 5}, "apply-to": "classic_queues", "priority": 2}),
    ("PUT", "policies/described/quorum", {"pattern": "^q", "definition": {"delivery-limit": 5}, "apply-to": "quorum_queues", "priority": 3}),
    ("PUT", "policies/described/streams", {"pattern": "^s", "definition": {"max-age": "1D"}, "apply-to": "streams"}),
    ("PUT", "policies/described/exchanges", {"pattern": "^e", "definition": {"alternate-exchange": "dead"}, "apply-to": "exchanges"}),
    ("PUT", "operator-policies/described/most", {"pattern": "^q", "definition": {"max-length": 9}, "apply-to": "quorum_queues"}),
    ("PUT", "operator-policies/described/longest", {"pattern": "", "definition": {"message-ttl": 99}, "apply-to": "classic_queues"}),
    ("PUT", "queues/described/orders", {"durable": True}),
    ("PUT", "queues/described/quorum", {"durable": True, "arguments": {**QUORUM, "x-delivery-limit": 3, "x-dead-letter-exchange": "dead"}}),
    ("PUT", "queues/described/classic", {"durable": True, "arguments": {**CLASSIC, "x-max-priority": 5, "x-message-ttl": 60000}}),
    ("PUT", "queues/described/transient", {"durable": False}),
    ("PUT", "queues/described/auto-delete", {"durable": True, "auto_delete": True, "arguments": CLASSIC}),
    ("PUT", "queues/plain/of-no-type", {"durable": True}),
    ("PUT", "exchanges/described/dead", {"type": "fanout", "durable": True, "arguments": {"alternate-exchange": "events"}}),
    ("PUT", "exchanges/described/hash", {"type": "x-consistent-hash", "durable": True, "auto_delete": True}),
    ("PUT", "exchanges/described/transient", {"type": "headers", "durable": False}),
    ("POST", "bindings/described/e/events/q/orders", {"routing_key": "eu.#"}),
    ("POST", "bindings/described/e/events/q/quorum", {"routing_key": "*.orders", "arguments": {"note": "why", "n": 1}}),
    ("POST", "bindings/described/e/events/e/dead", {"routing_key": "dead"}),
    ("POST", "bindings/described/e/hash/q/classic", {"routing_key": "10"}),
    ("POST", "bindings/described/e/transient/q/transient", {"arguments": {"x-match": "any", "a": "b"}}),
]  # fmt: skip
STREAM = {"name": "events", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-queue-type": "stream"}}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A RabbitMQ 4 with an object of every kind that definitions contain."""
    if reason := missing("4"):
        pytest.skip(f"RabbitMQ 4: {reason}")
    with rabbitmq("4") as theirs:
        for step in FILLED:
            assert theirs.status(*step) in (201, 204), step
        yield theirs


@pytest.fixture(scope="module")
def file(theirs):
    return theirs.get("definitions")


def comparable(file):
    """Without the product's name, and sorted."""
    own = ("product_name", "product_version")
    shown = {key: value for key, value in file.items() if key not in own}
    # RabbitMQ's own exchange for its log.
    shown["exchanges"] = [each for each in shown["exchanges"] if each["name"] != "amq.rabbitmq.log"]
    in_order = lambda value: sorted(value, key=lambda each: json.dumps(each, sort_keys=True))
    return {key: in_order(value) if isinstance(value, list) else value for key, value in shown.items()}


def without_defaults(file):
    """RabbitMQ omits `internal` for other exchanges, Leveret exports it as false."""
    for exchange in file["exchanges"]:
        assert exchange.pop("internal", False) is False
    return file


def differences(one, other):
    """By key, the entries that only one of the two has."""
    found = {}
    for key in one.keys() | other.keys():
        a, b = (each.get(key) if isinstance(each.get(key), list) else [each.get(key)] for each in (one, other))
        if only := ([each for each in a if each not in b], [each for each in b if each not in a]):
            found |= {key: only} if any(only) else {}
    return found


def test_definitions_exported_by_rabbitmq_are_loaded_over_http(file, tmp_path):
    with leveret(tmp_path, *FOLLOWING_4) as ours:
        assert ours.ask("POST", "definitions", file)[::2] == (204, None)
        assert differences(comparable(without_defaults(ours.get("definitions"))), comparable(file)) == {}
        # Imported definitions take effect: the default queue type, and policies for a queue type.
        columns = "columns=name,type,policy,operator_policy,effective_policy_definition"
        shown = {queue["name"]: queue for queue in ours.get(f"queues/described?{columns}")}
        assert shown["orders"]["type"] == "quorum" and shown["quorum"]["policy"] == "quorum"
        assert shown["classic"]["operator_policy"] == "longest"


def test_definitions_exported_by_rabbitmq_are_loaded_at_the_start(file, tmp_path):
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(file))
    with leveret(tmp_path / "leveret", *FOLLOWING_4, "--definitions", path) as ours:
        assert differences(comparable(without_defaults(ours.get("definitions"))), comparable(file)) == {}


def test_definitions_exported_by_leveret_are_loaded_by_rabbitmq(file, tmp_path):
    with leveret(tmp_path / "leveret", *FOLLOWING_4) as ours, rabbitmq("4") as fresh:
        assert ours.status("POST", "definitions", file) == 204
        assert fresh.ask("POST", "definitions", ours.get("definitions"))[::2] == (204, None)
        assert differences(comparable(fresh.get("definitions")), comparable(file)) == {}


def test_a_virtual_host_moves_alone_both_ways(theirs, tmp_path):
    with leveret(tmp_path, *FOLLOWING_4) as ours:
        exported = theirs.get("definitions/described")
        assert ours.status("PUT", "vhosts/described", {}) == 201
        assert ours.ask("POST", "definitions/described", exported)[::2] == (204, None)
        mine = without_defaults(ours.get("definitions/described"))
        # The file does not set the virtual host's own properties.
        of_vhost = ("description", "metadata")
        told = lambda file: {key: value for key, value in comparable(file).items() if key not in of_vhost}
        assert differences(told(mine), told(exported)) == {}
        for management in (theirs, ours):
            assert management.status("PUT", "vhosts/copy", {}) == 201
            assert management.ask("POST", "definitions/copy", mine)[::2] == (204, None)
        copies = (management.get("definitions/copy") for management in (theirs, ours))
        mine, expected = (told(without_defaults(copy)) for copy in copies)
        assert differences(mine, expected) == {}
        assert theirs.status("DELETE", "vhosts/copy") == 204


@pytest.mark.parametrize("section, entry, named", [
    ("queues", STREAM, "unsupported queue type 'stream'"),
    ("vhosts", {"name": "v", "metadata": {"default_queue_type": "stream"}}, "no queues of type 'stream'"),
])  # fmt: skip
def test_streams_are_refused_by_name(section, entry, named, tmp_path):
    with leveret(tmp_path / "leveret", *FOLLOWING_4) as ours:
        status, _, body = ours.ask("POST", "definitions", {section: [entry]})
        assert status == 400 and named in body["reason"] and entry["name"] in body["reason"]
        assert [queue["name"] for queue in ours.get("queues")] == [] and len(ours.get("vhosts")) == 1
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps({"vhosts": [{"name": "/"}], **{section: [entry]}}))
    argv = [binary(), "serve", *FOLLOWING_4, "--definitions", path, "--amqp", "127.0.0.1:0", "--http", "off"]
    refused = Child(argv, tmp_path / "refused.log", env=clean_environment(STATE_DIRECTORY=str(tmp_path / "state")), cwd=tmp_path)
    try:
        assert refused.wait() == 2 and named in refused.tail()
    finally:
        refused.kill()


def test_properties_of_virtual_hosts_survive_a_restart(tmp_path):
    flags = (*FOLLOWING_4, "--data-dir", tmp_path / "data")
    with leveret(tmp_path / "first", *flags) as ours:
        assert ours.status("PUT", "vhosts/kept", {"default_queue_type": "quorum", "description": "d", "tags": "t"}) == 201
        assert ours.status("POST", "vhosts/kept/deletion/protection") == 204
        assert ours.status("PUT", "permissions/kept/guest", {"configure": ".*", "write": ".*", "read": ".*"}) in (201, 204)
        before = ours.get("vhosts/kept")
    with leveret(tmp_path / "second", *flags) as ours:
        assert ours.get("vhosts/kept") == before
        assert ours.status("PUT", "queues/kept/q", {"durable": True}) == 201
        assert ours.get("queues/kept/q")["type"] == "quorum"
        assert ours.status("DELETE", "vhosts/kept") == 412
        assert ours.status("DELETE", "vhosts/kept/deletion/protection") == 204
    with leveret(tmp_path / "third", *flags) as ours:
        assert ours.status("DELETE", "vhosts/kept") == 204
