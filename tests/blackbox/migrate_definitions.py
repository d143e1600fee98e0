"""Definitions of all kinds move; each one that the target refuses is reported before any message moves."""

import pika
import pytest
from harness.amqp import connect
from harness.management import Management, path
from harness.migration import bodies, fill, migration_fixtures, numbers, take_all, to
from harness.patience import TEST_SECONDS

pytestmark = pytest.mark.timeout(2 * TEST_SECONDS)
cluster, movable = migration_fixtures()


def test_every_kind_of_definition_moves(movable, cluster):
    ours, theirs = Management(movable.server, movable.ctl.url), Management(cluster, cluster.http)
    assert ours.status("PUT", path("vhosts", "shop"), {"description": "of the shop"}) in (201, 204)
    movable.ctl("add_user", "ann", LEVERET_CTL_NEW_PASSWORD="secret")
    movable.ctl("set_user_tags", "ann", "monitoring")
    for vhost in ("/", "shop"):
        movable.ctl("set_permissions", "-p", vhost, "ann", "^a", "^b", ".*")
    movable.ctl("set_topic_permissions", "-p", "shop", "ann", "amq.topic", "^w", "^r")
    movable.ctl("set_vhost_limits", "-p", "shop", '{"max-queues": 100}')
    movable.ctl("set_user_limits", "ann", '{"max-connections": 7}')
    movable.ctl("set_operator_policy", "-p", "shop", "most", "^q", '{"max-length": 5000}')
    movable.ctl("set_policy", "-p", "shop", "dead", "^q", '{"dead-letter-exchange": "dlx"}')
    movable.ctl("set_permissions", "-p", "shop", "guest", ".*", ".*", ".*")
    with pika.BlockingConnection(pika.URLParameters(f"{movable.uri}/shop")) as client:
        channel = client.channel()
        channel.exchange_declare("one", "headers", durable=True, arguments={"alternate-exchange": "amq.fanout"})
        channel.exchange_declare("two", "x-consistent-hash", durable=True, internal=True)
        channel.queue_declare("q", durable=True, arguments={"x-message-ttl": 600000, "x-max-priority": 3})
        channel.queue_bind("q", "one", "", {"x-match": "all", "n": 1})
        channel.exchange_bind("two", "one", "key")
        named = channel.queue_declare("", durable=True).method.queue
    told = movable.ctl(*to(cluster, "--stay"))
    assert f"queue 'shop' '{named}' does not move" in told
    here, there = ours.get("definitions"), theirs.get("definitions")
    # RabbitMQ's export omits internal exchanges.
    there["exchanges"] = theirs.get("exchanges")
    here["queues"] = [queue for queue in here["queues"] if queue["name"] != named]
    compared = {
        "permissions": ("user", "vhost", "configure", "write", "read"),
        "topic_permissions": ("user", "vhost", "exchange", "write", "read"),
        "policies": ("vhost", "name", "pattern", "definition", "priority", "apply-to"),
        "parameters": ("vhost", "component", "name", "value"),
        "exchanges": ("vhost", "name", "type", "durable", "auto_delete", "arguments"),
        "queues": ("vhost", "name", "durable", "auto_delete"),
        "bindings": ("vhost", "source", "destination", "destination_type", "routing_key", "arguments"),
    }
    for section, keys in compared.items():
        for entry in here[section]:
            wanted = {key: entry.get(key) for key in keys}
            found = [{key: other.get(key) for key in keys} for other in there[section]]
            assert wanted in found, (section, wanted, found)
    assert theirs.get(path("vhosts", "shop"))["description"] == "of the shop"
    assert theirs.get(path("user-limits", "ann")) == [{"user": "ann", "value": {"max-connections": 7}}]
    assert theirs.get("whoami", user="ann:secret")["name"] == "ann"
    movable.ctl("migrate", "--stop")


def test_a_policy_unknown_to_the_target_is_reported(movable, cluster):
    if cluster.version != "4":
        pytest.skip("3.10 knows all that Leveret does")
    fill(movable, "mirrored", numbers(3))
    movable.ctl("set_policy", "mirrors", "^mirrored$", '{"ha-mode": "all"}')
    code, out, error = movable.ctl.raw(*to(cluster))
    assert code == 1 and "1 definitions are refused, and no message is moved" in error, out + error
    assert "refused: policy '/' 'mirrors': 400 bad_request" in out
    assert take_all(cluster, "mirrored") == []
    movable.ctl(*to(cluster, "--skip-refused"))
    assert bodies(take_all(cluster, "mirrored")) == numbers(3)


def test_a_queue_denied_by_the_target_is_reported(movable, cluster):
    """RabbitMQ 4.3 refuses non-durable queues, 3.10 accepts them."""
    with connect(movable) as client:
        client.channel().queue_declare("passing", durable=False)
        client.channel().queue_bind("passing", "amq.direct", "k")
        client.channel().basic_publish("", "passing", b"0")
        code, out, error = movable.ctl.raw(*to(cluster, "--stay"))
        if code:
            assert "refused: queue '/' 'passing'" in out and "2 definitions are refused" in error, out + error
            [bound] = [line for line in out.splitlines() if line.startswith("refused: binding")]
            assert bound.endswith(": no queue 'passing' in vhost '/'"), bound
        else:
            assert bodies(take_all(cluster, "passing")) == [b"0"]
    if code == 0:
        movable.ctl("migrate", "--stop")
