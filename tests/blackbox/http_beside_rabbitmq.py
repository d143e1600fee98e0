"""Leveret and RabbitMQ answer the same requests alike: status, keys and values."""

import contextlib
import itertools
import json
import time

import pika
import pytest

from harness.management import beside, path
from harness.patience import PATIENCE
from harness.rabbitmq import RabbitMq
from harness.releases import RELEASES

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
POLICY = {"pattern": "^q", "definition": {"max-length": 10}, "priority": 1, "apply-to": "queues"}
TOPIC = {"exchange": "amq.topic", "write": ".*", "read": ".*"}
STRING = {"routing_key": "q1", "payload": "hello", "payload_encoding": "string"}
GET = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}

# Requests in this order, with a body or without.
STEPS = [
    ("PUT", "vhosts/v1", {"description": "d", "tags": "a,b"}),
    ("PUT", "vhosts/v1", None),
    ("PUT", "users/u1", {"password": "x", "tags": "monitoring"}),
    ("PUT", "users/u1", {"tags": "management"}),
    ("PUT", "users/u3", {"password": "x"}),
    ("PUT", "users/u4", {"password": "x", "password_hash": "x", "tags": ""}),
    ("PUT", "users/u4", {"password": None, "password_hash": "", "tags": ""}),
    ("PUT", "users/u5", {"tags": ["a", "administrator"], "password_hash": ""}),
    ("PUT", "permissions/v1/u1", ALL),
    ("PUT", "permissions/v1/u1", {"configure": ".*", "write": ".*"}),
    ("PUT", "permissions/nope/u1", ALL),
    ("PUT", "permissions/v1/nope", ALL),
    ("PUT", "topic-permissions/v1/u1", {"exchange": "nope", "write": ".*", "read": ".*"}),
    ("DELETE", "topic-permissions/v1/u1/nope", None),
    ("PUT", "topic-permissions/v1/u1", {"exchange": "", "write": ".*", "read": ".*"}),
    ("PUT", "topic-permissions/v1/u1", {"exchange": "amq.topic", "write": ".*", "read": ".*"}),
    ("GET", "topic-permissions/v1/u1/amq.topic", None),
    ("PUT", "topic-permissions/v1/u1/amq.topic", {"exchange": "amq.topic", "write": ".*", "read": ".*"}),
    ("PUT", "policies/v1/p1", POLICY),
    ("PUT", "operator-policies/v1/o1", {**POLICY, "definition": {"max-length": 5}}),
    ("PUT", "vhost-limits/v1/max-queues", {"value": 100}),
    ("PUT", "user-limits/u1/max-connections", {"value": 100}),
    ("PUT", "global-parameters/gp", {"value": {"a": 1}}),
    ("PUT", "exchanges/v1/e1", {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "amq.fanout"}}),
    ("PUT", "exchanges/v1/e1", {"type": "fanout", "durable": True}),
    ("PUT", "exchanges/v1/e2", {"type": "bogus", "durable": True}),
    ("PUT", "exchanges/v1/e2", {"durable": True}),
    ("PUT", "queues/v1/q1", {"durable": True, "arguments": {"x-message-ttl": 60000}}),
    ("PUT", "queues/v1/q1", {"durable": True, "arguments": {"x-message-ttl": 60001}}),
    ("PUT", "queues/v1/q2", {"durable": "true"}),
    ("PUT", "queues/v1/q3", "{bad"),
    ("PUT", "queues/v1/q3", "[]"),
    ("PUT", "queues/v1/null", {"arguments": {"x": None}}),
    ("PUT", "queues/v1/null", {"arguments": {"x-message-ttl": None}}),
    ("PUT", "queues/v1/null", {"arguments": {"x": [{"y": None}]}}),
    ("PUT", "queues/v1/null", {"durable": None}),
    ("PUT", "queues/v1/null", {"auto_delete": 1}),
    ("PUT", "exchanges/v1/null", {"type": "topic", "arguments": {"x": None}}),
    ("PUT", "exchanges/v1/null", {"type": "topic", "internal": None}),
    ("POST", "exchanges/v1/amq.default/publish", {**STRING, "properties": {"headers": {"h": None}}}),
    ("GET", "queues/v1/null", None),
    ("GET", "exchanges/v1/null", None),
    ("GET", "exchanges/v1/nope/bindings/source", None),
    ("GET", "exchanges/v1/nope/bindings/destination", None),
    ("GET", "bindings/v1/e/nope/q/q1", None),
    ("GET", "bindings/v1/e/e1/q/nope", None),
    ("GET", "bindings/v1/e/e1/e/nope", None),
    ("GET", "bindings/v1/e/e1/q/nope/k", None),
    ("PUT", "queues/v1/amq.x", {}),
    ("PUT", "queues/nov/q3", {}),
    ("POST", "bindings/v1/e/e1/q/q1", {"routing_key": "a.b", "arguments": {}}),
    ("POST", "bindings/v1/e/e1/q/q1", {}),
    ("POST", "bindings/v1/e/e1/q/q1", {"routing_key": "a/b c~"}),
    ("POST", "bindings/v1/e/e1/e/amq.direct", {"routing_key": "k"}),
    ("POST", "bindings/v1/e/nope/q/q1", {"routing_key": "k"}),
    ("POST", "exchanges/v1/e1/publish", {**STRING, "properties": {"delivery_mode": 2, "headers": {"h": 1}}, "routing_key": "a.b"}),
    ("POST", "exchanges/v1/amq.default/publish", {"properties": {}, "routing_key": "q1", "payload": "AAH/", "payload_encoding": "base64"}),
    ("POST", "exchanges/v1/amq.default/publish", {**STRING, "properties": {}, "routing_key": "nope"}),
    ("POST", "exchanges/v1/nope/publish", {**STRING, "properties": {}}),
    ("POST", "exchanges/v1/amq.default/publish", STRING),
    ("POST", "exchanges/v1/amq.default/publish", {**STRING, "properties": {}, "payload": "%%", "payload_encoding": "base64"}),
    ("POST", "queues/v1/q1/get", GET),
    ("POST", "queues/v1/q1/get", {**GET, "encoding": "base64", "truncate": 2}),
    ("POST", "queues/v1/q1/get", {"count": 5}),
    ("POST", "queues/v1/nope/get", GET),
    ("DELETE", "queues/v1/nope/contents", None),
    ("DELETE", "queues/v1/nope", None),
    ("DELETE", "exchanges/v1/nope", None),
    ("DELETE", "exchanges/v1/amq.direct", None),
    ("DELETE", "queues/v1/q1?if-empty=true", None),
    ("DELETE", "exchanges/v1/e1?if-unused=true", None),
    ("POST", "queues/v1/q1/actions", {"action": "sync"}),
    ("POST", "queues/v1/q1/actions", {"action": "bogus"}),
    ("GET", "bindings/v1/e/e1/q/q1", None),
    ("GET", "bindings/v1/e/e1/q/q1/a.b", None),
    ("GET", "bindings/v1/e/e1/q/q1/a%252Fb%2Bc%257E", None),
    ("GET", "bindings/v1/e/e1/q/q1/nope", None),
    ("DELETE", "bindings/v1/e/e1/q/q1/nope", None),
    ("DELETE", "bindings/v1/e/e1/q/q1/~", None),
    ("POST", "overview", {}),
    ("OPTIONS", "queues", None),
    ("DELETE", "policies/v1/nope", None),
    ("DELETE", "permissions/v1/nope", None),
    ("DELETE", "vhosts/nope", None),
    ("DELETE", "users/nope", None),
    ("POST", "users/bulk-delete", {"users": ["nope"]}),
    ("DELETE", "connections/nope", None),
    ("POST", "definitions", {"exchanges": [{"name": "amq.x", "vhost": "v1", "type": "topic", "durable": True, "auto_delete": False}]}),
    ("GET", "exchanges/v1/amq.x", None),
    ("POST", "definitions", {"queues": [{"name": "amq.x", "vhost": "v1", "durable": True, "auto_delete": False}]}),
    ("GET", "queues/v1/amq.x", None),
    ("GET", "nope", None),
    ("POST", "nope", {}),
    ("OPTIONS", "nope", None),
    ("GET", "health/checks/alarms", None),
    ("GET", "health/checks/local-alarms", None),
    ("GET", "health/checks/protocol-listener/AMQP", None),
    ("GET", "health/checks/protocol-listener/nope", None),
    ("GET", "health/checks/protocol-listener/amqp,nope", None),
    ("GET", "health/checks/virtual-hosts", None),
    ("GET", "health/checks/node-is-mirror-sync-critical", None),
    ("GET", "health/checks/node-is-quorum-critical", None),
    ("GET", "health/checks/is-in-service", None),
    ("GET", "health/checks/ready-to-serve-clients", None),
    ("GET", "health/checks/below-node-connection-limit", None),
    ("GET", "health/checks/reached-target-cluster-size", None),
    ("GET", "health/checks/metadata-store/initialized", None),
    ("GET", "health/checks/metadata-store/initialized/with-data", None),
    ("GET", "health/checks/quorum-queues-without-elected-leaders/all-vhosts/", None),
    ("GET", "health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/x", None),
    ("GET", "health/checks/quorum-queues-without-elected-leaders/vhost/v1", None),
    ("GET", "health/checks/quorum-queues-without-elected-leaders/vhost/v1/pattern/x", None),
    ("GET", "health/checks/port-listener/nope", None),
    ("GET", "healthchecks/node", None),
    ("GET", "healthchecks/node/nope", None),
    ("GET", "aliveness-test/v1", None),
    ("GET", "queues/v1/aliveness-test?columns=name,durable", None),
    ("GET", "version", None),
    ("GET", "vhosts/nope/connections", None),
    ("GET", "vhosts/nope/channels", None),
    ("PUT", "feature-flags/quorum_queue/enable", {}),
    ("PUT", "feature-flags/nope/enable", {}),
    ("DELETE", "reset", None),
    ("DELETE", "reset/nope", None),
    ("GET", "reset", None),
    ("POST", "vhosts/v1/start/nope", None),
    ("PUT", "vhosts/v2", {"default_queue_type": "bogus"}),
    ("PUT", "vhosts/v2", {"default_queue_type": "quorum", "description": "d"}),
    ("PUT", "queues/v2/durable", {"durable": True}),
    ("PUT", "queues/v2/durable", {"durable": True, "arguments": {"x-queue-type": "classic"}}),
    ("GET", "queues/quorum/v2/nope/status", None),
    ("GET", "queues/quorum/v1/q1/status", None),
    ("POST", "queues/quorum/v2/durable/replicas/add", {}),
    ("POST", "queues/quorum/v2/durable/replicas/add", {"node": "nope"}),
    ("POST", "queues/quorum/v2/nope/replicas/add", {"node": "nope"}),
    ("DELETE", "queues/quorum/v2/durable/replicas/delete", None),
    ("DELETE", "queues/quorum/v2/durable/replicas/delete", {"node": "nope"}),
    ("DELETE", "queues/quorum/v2/nope/replicas/delete", {"node": "nope"}),
    ("DELETE", "queues/quorum/v1/q1/replicas/delete", {"node": "nope"}),
    ("DELETE", "queues/quorum/replicas/on/nope/shrink", None),
    ("PUT", "queues/v2/transient", {"durable": False}),
    ("PUT", "queues/v2/auto-delete", {"durable": True, "auto_delete": True}),
    ("GET", "queues/v2?columns=name,type,arguments", None),
    ("GET", "queues/detailed?columns=name,vhost", None),
    ("GET", "vhosts/v2?columns=name,description,tags,default_queue_type,protected_from_deletion,metadata", None),
    ("POST", "vhosts/v2/deletion/protection", None),
    ("POST", "vhosts/nope/deletion/protection", None),
    ("DELETE", "vhosts/nope/deletion/protection", None),
    ("DELETE", "vhosts/v2", None),
    ("PUT", "vhosts/v2", {"description": "e"}),
    ("GET", "vhosts/v2?columns=name,description,default_queue_type,protected_from_deletion,metadata", None),
    ("DELETE", "vhosts/v2/deletion/protection", None),
    ("DELETE", "vhosts/v2", None),
    ("GET", "queues/v1?page=9&page_size=1", None),
    ("GET", "queues/v1?page=1&name=nope", None),
    ("GET", "queues?page=0", None),
    ("GET", "queues?page=1&page_size=600", None),
    ("GET", "queues?page=1&name=(&use_regex=true", None),
    ("GET", "queues/v1?columns=name,vhost", None),
    ("GET", "queues/v1?columns=name&page=1&page_size=1&sort=name&sort_reverse=true&name=q", None),
    ("GET", "whoami", None),
    ("GET", "auth", None),
    ("GET", "vhosts/v1/permissions", None),
    ("GET", "vhosts/v1/topic-permissions", None),
    ("GET", "users/u1", None),
    ("GET", "users/u1/permissions", None),
    ("GET", "permissions", None),
    ("GET", "permissions/v1/u1", None),
    ("GET", "topic-permissions", None),
    ("GET", "topic-permissions/v1/u1", None),
    ("GET", "policies", None),
    ("GET", "policies/v1/p1", None),
    ("GET", "operator-policies", None),
    ("GET", "operator-policies/v1/o1", None),
    ("GET", "vhost-limits", None),
    ("GET", "user-limits/u1", None),
    ("GET", "parameters/operator_policy/v1", None),
    ("GET", "global-parameters/gp", None),
    ("GET", "exchanges/v1/e1/bindings/source", None),
    ("GET", "exchanges/v1/amq.direct/bindings/destination", None),
    ("GET", "queues/v1/q1/bindings", None),
    ("GET", "bindings/v1", None),
]

@pytest.fixture(scope="module", params=RELEASES)
def both(request, tmp_path_factory):
    with beside(tmp_path_factory, request.param) as (ours, theirs):
        answers = [[each.ask(*step) for step in STEPS] for each in (ours, theirs)]
        yield ours, theirs, answers


def told(step, answer):
    status, headers, body = answer
    if isinstance(body, dict) and "protocols" in body:
        # Without Erlang's own protocol.
        body["protocols"] = sorted(set(body["protocols"]) - {"clustering"})
    # HEAD is allowed wherever GET is; some of RabbitMQ's paths do not list it, and one lists a GET that crashes.
    allow = set(headers.get("allow", "").split(", ")) - ({"HEAD", "GET"} if "protection" in step[1] else {"HEAD"})
    listed = body if not isinstance(body, list) else sorted(body, key=lambda item: json.dumps(item, sort_keys=True))
    return status, headers.get("location"), allow, listed


@pytest.mark.parametrize("number", range(len(STEPS)), ids=[f"{method} {path}" for method, path, _ in STEPS])
def test_an_answer_is_rabbitmqs(both, number):
    ours, theirs = both[2]
    assert told(STEPS[number], ours[number]) == told(STEPS[number], theirs[number])


# RabbitMQ's keys about Erlang or mirrors, or that Leveret does not measure.
LEFT_OUT = {
    "backing_queue_status", "garbage_collection", "reductions", "reductions_details", "memory", "idle_since",
    "message_bytes", "message_bytes_paged_out", "message_bytes_persistent", "message_bytes_ram",
    "message_bytes_unacknowledged", "messages_persistent", "messages_ready_ram", "messages_unacknowledged_ram",
    "messages_details", "messages_ready_details", "messages_unacknowledged_details", "consumer_capacity",
    "consumer_utilisation", "head_message_timestamp", "acks_uncommitted", "messages_uncommitted",
    "pending_raft_commands", "recv_cnt", "send_cnt", "cached_segments",
    "storage_version", "messages_paged_out",
}  # fmt: skip
# RabbitMQ 4 does not page out; Leveret does with either compatibility.
MADE_HERE = {"websocket", "messages_paged_out"}


def test_connections_channels_and_consumers_are_shown_as_by_rabbitmq(both):
    """Compares the keys, and the values that have the same meaning."""
    shown = []
    for management in both[:2]:
        parameters = pika.URLParameters(management.server.uri)
        parameters.client_properties = {"connection_name": "mine"}
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_qos(prefetch_count=7)
            channel.queue_declare("cq")
            channel.queue_declare("exq", exclusive=True)
            channel.basic_consume("cq", lambda *_: None, consumer_tag="t1", arguments={"x-priority": 3})
            # RabbitMQ reports a connection's properties and its statistics separately, in any order.
            is_whole = {"client_properties", "recv_oct_details"}.issubset
            [of_connection] = management.eventually("connections", lambda all: all and is_whole(all[0]))
            [of_channel] = management.eventually("channels", lambda all: all and all[0].get("consumer_count") == 1)
            [of_consumer] = management.eventually("consumers", len)
            queue = management.eventually(path("queues", "/", "cq"), lambda queue: queue.get("consumer_details") and queue.get("consumers") == 1)
            exclusive = management.eventually(path("queues", "/", "exq"), lambda queue: "consumers" in queue)
            exchange = management.get(path("exchanges", "/", "amq.direct"))
            assert management.get(path("connections", of_connection["name"]))["name"] == of_connection["name"]
            assert management.get(path("channels", of_channel["name"]))["consumer_details"] == [of_consumer]
            shown.append([of_connection, of_channel, of_consumer, queue, exclusive, exchange])
    for ours, theirs in zip(*shown, strict=True):
        assert set(ours) - MADE_HERE == set(theirs) - LEFT_OUT
        for key in set(ours) & set(theirs):
            if not varies(key):
                assert ours[key] == theirs[key], key


# Counters of a virtual host that RabbitMQ sums up over its channels.
OF_CHANNELS = ("confirm", "return_unroutable", "drop_unroutable")


def test_messages_are_counted_as_by_rabbitmq(both):
    with contextlib.ExitStack() as connections:
        for management in both[:2]:
            assert management.status("PUT", "vhosts/counted", {}) == 201
            connections.callback(management.status, "DELETE", "vhosts/counted")
            parameters = pika.URLParameters(management.server.uri)
            parameters.virtual_host = "counted"
            go_through(connections.enter_context(pika.BlockingConnection(parameters)))
        ours, theirs = both[:2]
        # RabbitMQ updates its statistics periodically.
        deadline = time.monotonic() + PATIENCE
        while (by_us := counted(ours)) != (by_them := as_here(theirs)) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert by_us == by_them
        assert by_us["exchanges", "all"]["publish_out"] == 22 and by_us["queues", "consumed"]["redeliver"] == 1


def as_here(management):
    """RabbitMQ 3.10 counts unroutable messages as routed by the default exchange; both releases count more for a virtual
    host."""
    counters = counted(management)
    of_default = counters["exchanges", ""]
    if management.server.release.name == "3.10" and "publish_out" in of_default:
        of_default["publish_out"] -= 1
    of_vhost = counters["vhosts", "counted"]
    counters["vhosts", "counted"] = {key: of_vhost[key] for key in of_vhost if not key.startswith(OF_CHANNELS)}
    return counters


def go_through(connection):
    """Performs every counted operation, on a publishing and a consuming channel."""
    publishing, consuming = connection.channel(), connection.channel()
    publishing.confirm_delivery()
    for queue in ("idle", "filled", "consumed", "asked"):
        publishing.queue_declare(queue)
    publishing.exchange_declare("all", "fanout")
    for queue in ("filled", "consumed"):
        publishing.queue_bind(queue, "all")
    for _ in range(10):
        publishing.basic_publish("all", "k", b"x")
    for queue in ("asked", "asked", "asked", "asked", "nowhere"):
        publishing.basic_publish("", queue, b"x")
    publishing.basic_publish("all", "k", b"x", mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError):
        publishing.basic_publish("amq.topic", "nowhere", b"x", mandatory=True)
    consuming.basic_qos(prefetch_count=4)
    deliveries = consuming.consume("consumed")
    tags = [next(deliveries)[0].delivery_tag for _ in range(4)]
    # The last one and three others are redelivered.
    consuming.basic_ack(tags[2], multiple=True)
    consuming.basic_reject(tags[3], requeue=True)
    assert [next(deliveries)[0].redelivered for _ in range(4)].count(True) == 1
    consuming.basic_get("idle")
    consuming.basic_get("asked", auto_ack=True)
    consuming.basic_ack(consuming.basic_get("asked")[0].delivery_tag)
    consuming.basic_nack(consuming.basic_get("asked")[0].delivery_tag, requeue=False)


def counted(management):
    """All counters, by kind and name."""
    found = {("vhosts", "counted"): management.get("vhosts/counted")}
    for kind, place in [("queues", "queues/counted"), ("exchanges", "exchanges/counted"), ("channels", "channels")]:
        for each in management.get(place):
            found[kind, each.get("number", each["name"])] = each
    return {key: without_rates(each.get("message_stats", {})) for key, each in found.items()}


def without_rates(stats):
    """The rates beside the counters vary."""
    assert all(stats[key].pop("rate") >= 0 for key in stats if key.endswith("_details"))
    return stats


def varies(key):
    """Whether the value differs between servers or runs."""
    parts = ("name", "port", "node", "connected_at", "_oct", "_details", "detail", "type", "messages_")
    return any(part in key for part in parts) or key == "channels"


@pytest.mark.parametrize("both", ["4"], indirect=True)
def test_the_only_replica_of_a_quorum_queue_stays(both):
    patterns = {"vhost_pattern": ".*", "queue_pattern": ".*", "strategy": "all"}
    answers = []
    for management in both[:2]:
        node = management.get("overview")["node"]
        for kind in ("classic", "quorum"):
            body = {"durable": True, "arguments": {"x-queue-type": kind}}
            assert management.status("PUT", f"queues/%2F/replicated-{kind}", body) == 201
        asked = [
            *(("GET", f"replicated-{kind}/status", None) for kind in ("classic", "quorum")),
            *(("POST", f"replicated-{kind}/replicas/add", {"node": node}) for kind in ("classic", "quorum")),
            *(("DELETE", f"replicated-{kind}/replicas/delete", {"node": node}) for kind in ("classic", "quorum")),
            ("POST", "nope/replicas/add", {"node": node}),
        ]
        asked = [(method, f"queues/quorum/%2F/{path}", body) for method, path, body in asked]
        place = f"queues/quorum/replicas/on/{node}"
        asked += [("POST", f"{place}/grow", patterns), ("POST", f"{place}/grow", {"strategy": "all"}), ("DELETE", f"{place}/shrink", None)]
        found = [management.ask(*each)[::2] for each in asked]
        if found[1][0] == 200:
            # The other members are positions in the Raft log, which Leveret lacks.
            found[1] = [{key: row[key] for key in ("Raft State", "Membership")} for row in found[1][1]]
            columns = "columns=type,leader,members,online"
            queue = json.dumps(management.get(f"queues/%2F/replicated-quorum?{columns}"))
            found.append(json.loads(queue.replace(node, "the node")))
        answers.append(found)
    assert answers[0] == answers[1]


def test_a_connection_is_closed_with_a_reason(both):
    for management in both[:2]:
        for headers, reason in [({}, "Closed via management plugin"), ({"x-reason": "because"}, "because")]:
            connection = pika.BlockingConnection(pika.URLParameters(management.server.uri))
            [shown] = management.eventually("connections", lambda all: len(all) == 1 and "name" in all[0])
            assert management.status("DELETE", path("connections", shown["name"]), headers=headers) == 204
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
                connection.process_data_events(PATIENCE)
            assert (closed.value.reply_code, closed.value.reply_text) == (320, f"CONNECTION_FORCED - {reason}")
            management.eventually("connections", lambda all: not all)


@pytest.mark.parametrize("gone, reason", [("users/gone", "user 'gone' is deleted"), ("vhosts/gone", "vhost 'gone' is down")])
def test_clients_go_with_their_user_and_virtual_host(both, gone, reason):
    for management in both[:2]:
        assert management.status("PUT", "users/gone", {"password": "x", "tags": ""}) == 201
        assert management.status("PUT", "vhosts/gone", {}) == 201
        assert management.status("PUT", "permissions/gone/gone", ALL) == 201
        login = pika.PlainCredentials("gone", "x")
        parameters = pika.ConnectionParameters("127.0.0.1", management.server.port, "gone", login)
        connection = pika.BlockingConnection(parameters)
        assert management.status("DELETE", gone) == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            connection.process_data_events(PATIENCE)
        # RabbitMQ uses one of two texts for a deleted virtual host.
        text = closed.value.reply_text.replace("vhost 'gone' is deleted", "vhost 'gone' is down")
        assert (closed.value.reply_code, text) == (320, f"CONNECTION_FORCED - {reason}")
        for rest in {"users/gone", "vhosts/gone"} - {gone}:
            assert management.status("DELETE", rest) == 204


def test_a_value_of_the_wrong_type_changes_nothing(both):
    """RabbitMQ answers some of these requests with 500."""
    for management in both[:2]:
        assert management.status("PUT", "users/typed", {"password": "x", "tags": "management"}) == 201
        assert management.status("PUT", "policies/v1/typed", POLICY) == 201
        for key, wrong in itertools.product(("password", "password_hash"), (None, 5, True, ["x"], {})):
            check_refused(management, management.status("PUT", "users/typed", {"tags": "", key: wrong}))
            entry = {"name": "typed", "tags": "", key: wrong}
            check_refused(management, management.status("POST", "definitions", {"users": [entry]}))
        hashed = {"tags": "", "password_hash": MD5, "hashing_algorithm": 5}
        check_refused(management, management.status("PUT", "users/typed", hashed))
        for priority, kind in itertools.product((None, "1", "x", True, []), ("policies", "operator-policies")):
            policy = {**POLICY, "definition": {"max-length": 5}, "priority": priority}
            check_refused(management, management.status("PUT", f"{kind}/v1/typed", policy))
        for key, wrong, kind in itertools.product(("pattern", "apply-to"), (None, 5), ("policies", "operator-policies")):
            policy = {**POLICY, "definition": {"max-length": 5}, key: wrong}
            check_refused(management, management.status("PUT", f"{kind}/v1/typed", policy))
        assert management.status("PUT", "permissions/v1/typed", ALL) == 201
        for key, wrong in itertools.product(ALL, (None, 5)):
            check_refused(management, management.status("PUT", "permissions/v1/typed", {**ALL, key: wrong}))
            check_refused(management, management.status("PUT", "topic-permissions/v1/typed", {**TOPIC, "write": wrong}))
        assert management.get("whoami", user="typed:x")["tags"] == ["management"]
        assert management.get("policies/v1/typed")["definition"] == POLICY["definition"]
        assert management.get("policies/v1/typed")["pattern"] == POLICY["pattern"]
        assert {key: management.get("permissions/v1/typed")[key] for key in ALL} == ALL
        assert management.status("GET", "topic-permissions/v1/typed") == 404
        assert management.status("GET", "operator-policies/v1/typed") == 404


def check_refused(management, status):
    assert status in ((400, 500) if isinstance(management.server, RabbitMq) else (400,))


# The MD5 hash of the password pw.
MD5 = "YWJjZODzy6NRiTHUYpNJdsHFvNQ="


def test_a_user_of_an_old_rabbitmq_logs_in(both):
    """RabbitMQ before 3.6 created such hashes; a user has one until the password changes."""
    user = {"password_hash": MD5, "hashing_algorithm": "rabbit_password_hashing_md5", "tags": "management"}
    for management in both[:2]:
        assert management.status("PUT", "users/old1", user) == 201
        assert management.status("POST", "definitions", {"users": [{"name": "old2", **user}]}) == 204
        for name in ("old1", "old2"):
            assert management.get("whoami", user=f"{name}:pw")["name"] == name
            assert management.status("GET", "whoami", user=f"{name}:x") == 401
            assert management.get(f"users/{name}")["hashing_algorithm"] == user["hashing_algorithm"]
