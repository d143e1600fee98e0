"""Tags determine which requests a user may make, as in RabbitMQ."""

import re

import pika
import pytest

from harness.management import beside, path
from harness.releases import RELEASES

TAGS = ["", "management", "policymaker", "monitoring", "administrator"]
GRANT = {"configure": "^x", "write": ".*", "read": "^q"}
PATHS = """overview nodes whoami vhosts vhosts/v1 vhosts/%2F vhosts/v1/permissions users users/m_management
users/m_management/permissions permissions permissions/v1/m_management topic-permissions policies policies/v1
policies/v1/p1 policies/%2F operator-policies operator-policies/v1 operator-policies/v1/o1 vhost-limits vhost-limits/v1 vhost-limits/%2F
user-limits user-limits/m_management parameters parameters/vhost-limits parameters/vhost-limits/v1
global-parameters global-parameters/gp definitions definitions/v1 exchanges exchanges/v1 exchanges/%2F queues
queues/v1 queues/v1/q1 queues/%2F bindings bindings/v1 consumers connections channels auth/hash_password/x
feature-flags extensions aliveness-test/v1 health/checks/alarms health/checks/virtual-hosts cluster-name
users/without-permissions vhosts/v1/connections vhosts/%2F/connections version deprecated-features
deprecated-features/used queues/quorum/v1/q1/status health/checks/is-in-service
health/checks/ready-to-serve-clients health/checks/below-node-connection-limit
health/checks/reached-target-cluster-size health/checks/metadata-store/initialized health/checks/node-is-quorum-critical
health/checks/quorum-queues-without-elected-leaders/all-vhosts/""".split()
LIMIT = {"pattern": "^q", "definition": {"max-length": 10}}
MESSAGE = {"properties": {}, "routing_key": "a", "payload": "x", "payload_encoding": "string"}
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
CHANGES = [
    ("PUT", "vhosts/w1", {}),
    ("DELETE", "vhosts/w1", None),
    ("PUT", "users/w1", {"tags": ""}),
    ("PUT", "permissions/v1/w1", GRANT),
    ("PUT", "topic-permissions/v1/w1", {"exchange": "e1", "write": "^a", "read": "^a"}),
    ("PUT", "topic-permissions/v1/w1/e1", {"exchange": "e1", "write": "^b", "read": "^b"}),
    ("DELETE", "topic-permissions/v1/w1/e1", None),
    ("DELETE", "topic-permissions/v1/w1", None),
    ("DELETE", "permissions/v1/w1", None),
    ("POST", "users/bulk-delete", {"users": ["w2"]}),
    ("DELETE", "users/w1", None),
    ("PUT", "policies/v1/w1", LIMIT),
    ("DELETE", "policies/v1/w1", None),
    ("PUT", "policies/%2F/w1", LIMIT),
    ("PUT", "operator-policies/v1/w1", LIMIT),
    ("DELETE", "operator-policies/v1/w1", None),
    ("PUT", "vhost-limits/v1/max-queues", {"value": 50}),
    ("PUT", "user-limits/m_management/max-connections", {"value": 50}),
    ("DELETE", "user-limits/m_management/max-connections", None),
    ("PUT", "parameters/vhost-limits/v1/limits", {"value": {"max-queues": 50}}),
    ("DELETE", "parameters/vhost-limits/v1/limits", None),
    ("DELETE", "vhost-limits/v1/max-queues", None),
    # The doors for administrators only have others beside them.
    ("PUT", "parameters/operator_policy/v1/w1", {"value": {**LIMIT, "apply-to": "queues", "priority": 0}}),
    ("DELETE", "parameters/operator_policy/v1/w1", None),
    ("PUT", "parameters/operator_policy/%2F/w1", {"value": {**LIMIT, "apply-to": "queues", "priority": 0}}),
    ("PUT", "global-parameters/cluster_name", {"value": "zz"}),
    ("DELETE", "global-parameters/cluster_name", None),
    ("PUT", "global-parameters/w1", {"value": 5}),
    ("DELETE", "global-parameters/w1", None),
    ("PUT", "exchanges/v1/x1", {"type": "direct"}),
    ("PUT", "exchanges/v1/n1", {"type": "direct"}),
    ("PUT", "queues/v1/x1", {}),
    ("PUT", "queues/v1/n1", {}),
    ("PUT", "queues/%2F/x1", {}),
    ("POST", "bindings/v1/e/e1/q/x1", {}),
    ("POST", "bindings/v1/e/e1/e/x1", {}),
    ("DELETE", "bindings/v1/e/e1/q/x1/~", None),
    ("DELETE", "bindings/v1/e/e1/e/x1/~", None),
    ("POST", "exchanges/v1/x1/publish", MESSAGE),
    ("POST", "queues/v1/q1/get", GET),
    ("POST", "queues/v1/x1/get", GET),
    ("POST", "queues/v1/q1/actions", {"action": "sync"}),
    ("DELETE", "queues/v1/q1/contents", None),
    ("DELETE", "queues/v1/x1/contents", None),
    ("DELETE", "queues/v1/x1", None),
    ("DELETE", "exchanges/v1/x1", None),
    ("POST", "definitions", {}),
    ("POST", "definitions/v1", {}),
    ("PUT", "feature-flags/quorum_queue/enable", {}),
    ("DELETE", "reset", None),
    ("DELETE", "reset/nope", None),
    ("POST", "vhosts/v1/start/nope", None),
    ("POST", "vhosts/v1/deletion/protection", None),
    ("DELETE", "vhosts/v1/deletion/protection", None),
    ("POST", "queues/quorum/v1/q1/replicas/add", {"node": "nope"}),
    ("DELETE", "queues/quorum/v1/q1/replicas/delete", {"node": "nope"}),
    ("POST", "all-configuration", {}),
    ("DELETE", "queues/quorum/replicas/on/nope/shrink", None),
    ("PUT", "cluster-name", {"name": "zz"}),
    ("POST", "rebalance/queues", None),
]


@pytest.fixture(scope="module", params=RELEASES)
def both(request, tmp_path_factory):
    with beside(tmp_path_factory, request.param) as (ours, theirs):
        for each in (ours, theirs):
            each.ask("PUT", "vhosts/v1")
            for tag in TAGS:
                each.ask("PUT", f"users/m_{tag}", {"password": "x", "tags": tag})
                each.ask("PUT", f"permissions/v1/m_{tag}", GRANT)
            each.ask("PUT", "policies/v1/p1", LIMIT)
            each.ask("PUT", "operator-policies/v1/o1", LIMIT)
            each.ask("PUT", "global-parameters/gp", {"value": 1})
            each.ask("PUT", "queues/v1/q1", {})
            each.ask("PUT", "exchanges/v1/e1", {})
        yield ours, theirs


@pytest.mark.parametrize("path", PATHS)
def test_anonymous_reads_get_the_same_status_as_in_rabbitmq(both, path):
    ours, theirs = both
    # Refusals have a body; RabbitMQ 4's have none.
    assert ours.status("GET", path, user=None) == theirs.status("GET", path, user=None)


def as_all(management, method, path, body=None):
    answers = [management.ask(method, path, body, user=f"m_{tag}:x") for tag in TAGS]
    # The text of a refusal is part of the answer.
    return [(status, answer if status == 401 else None) for status, _, answer in answers]


@pytest.mark.parametrize("path", PATHS)
def test_read_access_by_tag_is_the_same_as_in_rabbitmq(both, path):
    ours, theirs = both
    assert as_all(ours, "GET", path) == as_all(theirs, "GET", path)


def test_write_access_by_tag_is_the_same_as_in_rabbitmq(both):
    ours, theirs = both
    for method, path, body in CHANGES:
        assert as_all(ours, method, path, body) == as_all(theirs, method, path, body), (method, path)


# Routes of CHANGES and of the test of connections, as far as RabbitMQ has them.
OWN = {
    ("POST", "leveret/drain"),
    ("POST", "leveret/upgrade"),
    ("DELETE", "leveret/auth-cache"),
    ("POST", "leveret/migration"),
    ("DELETE", "leveret/migration"),
    *(("POST", f"leveret/migration/{step}") for step in ("check-login", "cut-over", "finish")),
    ("DELETE", "leveret/spool/parked"),
    ("DELETE", "leveret/spool/waiting"),
    *(("POST", f"leveret/spool/{action}") for action in ("parked/requeue", "pause", "resume", "drain")),
}
# RabbitMQ answers 500 for an unknown node.
OF_A_NODE = {("POST", "queues/quorum/replicas/on/{node}/grow")}
OF_CONNECTIONS = {("DELETE", "connections/{name}"), ("DELETE", "connections/username/{user}")}


def test_every_route_that_changes_something_is_asked(both):
    ours, _ = both
    described = ours.get("openapi.json", user=None)["paths"]
    changing = {(verb.upper(), route.strip("/")) for route, verbs in described.items() for verb in verbs}
    changing = {each for each in changing if each[0] in ("PUT", "POST", "DELETE")} - OWN - OF_A_NODE - OF_CONNECTIONS
    asked = lambda verb, route: any(verb == method and matches(route, path) for method, path, _ in CHANGES)
    assert [each for each in sorted(changing) if not asked(*each)] == []


def matches(route, path):
    return re.fullmatch(re.sub(r"{\w+}", "[^/]+", route), path)


def test_access_to_connections_of_other_users_is_the_same_as_in_rabbitmq(both):
    for method in ("GET", "DELETE"):
        for by_name in (True, False):
            ours, theirs = (asked_of_a_connection(management, method, by_name) for management in both)
            # RabbitMQ refuses by user name too, but fails while it formats the error.
            theirs = [mine if status == 500 and mine[0] == 401 else (status, answer) for mine, (status, answer) in zip(ours, theirs)]
            assert ours == theirs, (method, by_name)


def asked_of_a_connection(management, method, by_name):
    """The answers to users with each tag about another user's connection."""
    parameters = pika.ConnectionParameters(
        "127.0.0.1", management.server.port, "v1", pika.PlainCredentials("m_", "x"), heartbeat=0
    )
    connection = pika.BlockingConnection(parameters)
    shown = management.eventually("connections", lambda all: any(each.get("user") == "m_" for each in all))
    [name] = [each["name"] for each in shown if each.get("user") == "m_"]
    answers = as_all(management, method, path("connections", *([name] if by_name else ["username", "m_"])))
    try:
        connection.close()
    except pika.exceptions.AMQPError:
        pass
    management.eventually("connections", lambda all: not any(each.get("user") == "m_" for each in all))
    return answers


def test_nobody_drains_the_server_but_administrators(both):
    ours, _ = both
    others = [f"m_{tag}:x" for tag in TAGS if tag != "administrator"]
    statuses = [ours.status("POST", f"leveret/{action}", user=user) for action in ("drain", "upgrade") for user in others]
    assert statuses == [401] * 2 * (len(TAGS) - 1)


def test_a_message_without_permission_is_refused_as_by_rabbitmq(both):
    answers = []
    for management in both:
        management.ask("PUT", "users/reader", {"password": "x", "tags": "management"})
        management.ask("PUT", "permissions/v1/reader", {"configure": "", "write": "^nothing", "read": ".*"})
        asked = [("exchanges/v1/e1/publish", "a"), ("exchanges/v1/amq.default/publish", "q1"), ("exchanges/v1/none/publish", "a")]
        answers.append(
            [management.ask("POST", where, MESSAGE | {"routing_key": key}, user="reader:x")[::2] for where, key in asked]
        )
    assert answers[0] == answers[1]


def test_limits_of_a_virtual_host_have_one_name(both):
    ours, _ = both
    ours.ask("PUT", "vhosts/v2")
    ours.ask("PUT", "parameters/vhost-limits/v2/limits", {"value": {"max-queues": 1}})
    assert ours.status("PUT", "parameters/vhost-limits/v2/other", {"value": {"max-queues": 9}}) == 400
    assert ours.status("DELETE", "parameters/vhost-limits/v2/other") == 404
    ours.ask("PUT", "permissions/v2/guest", GRANT | {"configure": ".*"})
    assert [ours.status("PUT", f"queues/v2/{name}", {}) for name in ("q1", "q2")] == [201, 400], "it still holds"


def test_nobody_comes_in_with_a_wrong_password_and_guessing_ends(both):
    ours, theirs = both
    for user in ("guest:wrong", "nobody:x", "guest:", None):
        status, headers, body = ours.ask("GET", "overview", user=user)
        expected = theirs.ask("GET", "overview", user=user or "guest:wrong")[2]
        assert (status, body) == (401, expected) and body["reason"] in ("Login failed", "Not_Authorized")
        assert headers["www-authenticate"].startswith("Basic ")
    statuses = [ours.status("GET", "whoami", user=f"m_monitoring:guess-{number}") for number in range(40)]
    assert statuses[0] == 401 and statuses[-1] == 429
    assert ours.status("GET", "whoami", user="m_administrator:x") == 200, "others are let in"


def test_a_body_is_not_read_before_the_login_nor_without_bounds(both):
    ours, _ = both
    huge = {"content-length": str(1 << 40)}
    assert ours.ask("PUT", "users/huge", "", user="guest:wrong", headers=huge)[0] == 401
    assert ours.ask("PUT", "users/huge", "", headers=huge)[0] == 413


def test_pages_of_other_origins_change_nothing(both):
    ours, _ = both
    foreign = {"origin": "http://evil.example"}
    assert ours.status("PUT", "vhosts/evil", headers=foreign) == 403
    assert ours.status("GET", "vhosts/evil") == 404
