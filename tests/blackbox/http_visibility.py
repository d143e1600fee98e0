"""What each tag shows of inaccessible virtual hosts and of other users, as in RabbitMQ."""

import contextlib

import pika
import pytest

from harness.management import beside
from harness.releases import RELEASES

# Users with these tags may open v1; only guest may open v2.
TAGS = ["management", "policymaker", "monitoring", "administrator"]
USERS = ["guest", *(f"m_{tag}" for tag in TAGS)]
VHOSTS = ["v1", "v2"]
GRANT = {"configure": ".*", "write": ".*", "read": ".*"}
LIMIT = {"pattern": "^q", "definition": {"max-length": 1000}}
# Ready messages in each virtual host's queue.
MESSAGES = {"v1": 2, "v2": 5}
MESSAGE = {"properties": {}, "routing_key": "filled", "payload": "x", "payload_encoding": "string"}

# Lists, and the members that identify their items.
LISTS = {
    "vhosts": ["name", "messages"],
    "queues": ["vhost", "name"],
    "exchanges": ["vhost", "name"],
    "bindings": ["vhost", "source", "destination"],
    "policies": ["vhost", "name"],
    "operator-policies": ["vhost", "name"],
    "parameters": ["vhost", "component", "name"],
    "vhost-limits": ["vhost"],
    "user-limits": ["user"],
    "consumers": ["queue", "channel_details.user"],
    "connections": ["vhost", "user"],
    "channels": ["vhost", "user", "number"],
    "users": ["name"],
    "permissions": ["vhost", "user"],
    "topic-permissions": ["vhost", "user"],
    "nodes": ["type"],
    **{f"{things}/v1": ["vhost", "name"] for things in ("queues", "exchanges", "policies", "operator-policies")},
    "bindings/v1": ["vhost", "source", "destination"],
    "consumers/v1": ["queue", "channel_details.user"],
    "vhosts/v1/connections": ["vhost", "user"],
    "vhosts/v1/channels": ["vhost", "user", "number"],
    "users/m_management/permissions": ["vhost", "user"],
}


@pytest.fixture(scope="module", params=RELEASES)
def both(request, tmp_path_factory):
    with beside(tmp_path_factory, request.param) as (ours, theirs), contextlib.ExitStack() as clients:
        for each in (ours, theirs):
            define(each)
            for user, vhost in [("guest", "v1"), ("guest", "v2"), *((user, "v1") for user in USERS[1:])]:
                clients.enter_context(contextlib.closing(consumer(each, user, vhost)))
            for path in ("connections", "channels", "consumers"):
                each.eventually(path, lambda shown: len(shown) == len(USERS) + 1 and all(map(is_complete, shown)))
            each.eventually("overview", lambda shown: shown["queue_totals"].get("messages") == sum(MESSAGES.values()))
            each.eventually("overview", lambda shown: shown["message_stats"].get("publish") == sum(MESSAGES.values()))
            each.eventually("vhosts", lambda shown: {each["name"]: each.get("messages") for each in shown}.items() >= MESSAGES.items())
        yield ours, theirs


def define(management):
    for vhost in VHOSTS:
        management.ask("PUT", f"vhosts/{vhost}")
    for tag in TAGS:
        management.ask("PUT", f"users/m_{tag}", {"password": "x", "tags": tag})
        management.ask("PUT", f"permissions/v1/m_{tag}", GRANT)
        management.ask("PUT", f"user-limits/m_{tag}/max-connections", {"value": 50})
    for vhost in VHOSTS:
        for name in ("q1", "filled"):
            management.ask("PUT", f"queues/{vhost}/{name}", {"durable": True})
        management.ask("PUT", f"exchanges/{vhost}/e1", {"type": "topic"})
        management.ask("POST", f"bindings/{vhost}/e/e1/q/q1", {})
        management.ask("PUT", f"policies/{vhost}/p1", LIMIT)
        management.ask("PUT", f"operator-policies/{vhost}/o1", LIMIT)
        management.ask("PUT", f"vhost-limits/{vhost}/max-queues", {"value": 50})
        management.ask("PUT", f"topic-permissions/{vhost}/guest", {"exchange": "e1", "write": ".*", "read": ".*"})
        for _ in range(MESSAGES[vhost]):
            assert management.ask("POST", f"exchanges/{vhost}/amq.default/publish", MESSAGE)[2] == {"routed": True}


def consumer(management, user, vhost):
    """A connection with a consumer."""
    login = pika.PlainCredentials(user, "guest" if user == "guest" else "x")
    connection = pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", management.server.port, vhost, login, heartbeat=0)
    )
    connection.channel().basic_consume("q1", lambda *_: None)
    return connection


def is_complete(item):
    """Whether RabbitMQ has also collected the item's statistics."""
    return "user" in item or bool(item.get("channel_details"))


def at(item, place):
    for name in place.split("."):
        item = item.get(name, {})
    return str(item)


def seen(management, path, tag):
    """A list's items by their identifying members; or the status of a refusal."""
    status, _, items = management.ask("GET", path, user=f"m_{tag}:x")
    if status != 200:
        return status
    # The initial content of "/" is the broker's own.
    items = [item for item in items if item.get("vhost") != "/" or path in ("permissions", "users/m_management/permissions")]
    return sorted([at(item, place) for place in LISTS[path]] for item in items if item.get("name") != "/")


@pytest.mark.parametrize("path", LISTS)
def test_lists_contain_the_same_items_by_tag_as_in_rabbitmq(both, path):
    ours, theirs = ({tag: seen(management, path, tag) for tag in TAGS} for management in both)
    assert ours == theirs


def test_consumers_of_a_queue_are_shown_to_each_tag_as_in_rabbitmq(both):
    ours, theirs = ({tag: consumers_of_queue(management, tag) for tag in TAGS} for management in both)
    assert ours == theirs


def consumers_of_queue(management, tag):
    shown = management.get("queues/v1/q1", user=f"m_{tag}:x")
    return sorted(each["channel_details"]["user"] for each in shown["consumer_details"])


TOTALS = ("connections", "channels", "consumers", "queues", "exchanges")
ONLY_FOR_MONITORING = {"node", "listeners", "contexts"}


def test_the_overview_counts_the_same_for_each_tag_as_in_rabbitmq(both):
    for tag in TAGS:
        ours, theirs = (counted(management, tag) for management in both)
        assert ours == theirs, tag


def counted(management, tag):
    shown = management.get("overview", user=f"m_{tag}:x")
    if tag in ("monitoring", "administrator"):
        # One of RabbitMQ 4's own exchanges.
        exchanges = management.get("exchanges/%2F")
        shown["object_totals"]["exchanges"] -= sum(each["name"] == "amq.rabbitmq.log" for each in exchanges)
    return {
        "for monitoring": ONLY_FOR_MONITORING & shown.keys(),
        "objects": {name: shown["object_totals"].get(name) for name in TOTALS},
        "messages": {name: shown["queue_totals"].get(name) for name in ("messages", "messages_ready", "messages_unacknowledged")},
        "published": shown["message_stats"].get("publish"),
        "churn": "churn_rates" in shown,
    }


def test_the_overview_shows_nothing_of_other_virtual_hosts(both):
    ours, _ = both
    shown = ours.get("overview", user="m_management:x")
    assert shown["queue_totals"]["messages"] == shown["message_stats"]["publish"] == MESSAGES["v1"]
    assert shown["object_totals"]["connections"] == 1, "its own"
    everything = ours.get("overview", user="m_monitoring:x")
    assert everything["queue_totals"]["messages"] == sum(MESSAGES.values())
    assert shown.keys() == everything.keys() - ONLY_FOR_MONITORING
