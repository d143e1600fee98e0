"""Messages that the target refuses stay in their queue and are reported; the migration continues once the cause is removed."""

import contextlib

import pika
import pytest
from harness.amqp import connect
from harness.management import Management, path
from harness.metrics import wait_until
from harness.migration import Running, bodies, fill, migration_fixtures, numbers, take_all, to
from harness.patience import TEST_SECONDS

pytestmark = pytest.mark.timeout(2 * TEST_SECONDS)
cluster, movable = migration_fixtures()


def test_a_full_queue_is_waited_for(movable, cluster):
    api = Management(cluster, cluster.http)
    limit = {"pattern": "^narrow$", "definition": {"max-length": 10, "overflow": "reject-publish"}, "apply-to": "queues"}
    assert api.status("PUT", path("policies", "/", "limit"), limit) in (201, 204)
    fill(movable, "narrow", numbers(30))
    running = Running(movable, to(cluster))
    wait_until(lambda: any("is full" in trouble for trouble in movable.troubles()))
    taken = []
    while running.process.poll() is None:
        with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
            taken += bodies(take_all(cluster, "narrow"))
    code, out, error = running.end()
    # The message that a consumer took is missing from the count.
    assert code == 1 and "fewer" in out and "other counts" in error, out + error
    assert "this server is a pool" in out
    # A refused message comes after others, for which the consumer had made space.
    assert sorted(taken + bodies(take_all(cluster, "narrow")), key=int) == numbers(30)


def test_a_message_of_another_user_needs_the_right_to_impersonate(movable, cluster):
    movable.ctl("add_user", "ann", LEVERET_CTL_NEW_PASSWORD="ann")
    movable.ctl("set_permissions", "ann", ".*", ".*", ".*")
    fill(movable, "signed", [b"0"])
    with pika.BlockingConnection(pika.URLParameters(f"amqp://ann:ann@127.0.0.1:{movable.amqp}")) as client:
        channel = client.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "signed", b"1", pika.BasicProperties(user_id="ann", delivery_mode=2))
    fill(movable, "signed", [b"2"])
    fill(movable, "unsigned", numbers(5))
    api = Management(cluster, cluster.http)
    for tags, code in [("administrator", 1), ("administrator,impersonator", 0)]:
        assert api.status("PUT", path("users", "mover"), {"password": "word", "tags": tags}) in (201, 204)
        actual, out, error = movable.ctl.raw(*to(cluster, "--other-user", "mover"), LEVERET_CTL_OTHER_PASSWORD="word")
        assert actual == code, out + error
        if code:
            assert "user_id property set to 'ann'" in out and "run the same command again" in error
    found = take_all(cluster, "signed")
    # No duplicates: only one message was in flight when it was refused.
    assert bodies(found) == numbers(3)
    assert [properties.user_id for _, properties, _ in found] == [None, "ann", None]
    assert bodies(take_all(cluster, "unsigned")) == numbers(5)


def test_a_message_that_is_too_large_stays(movable, cluster):
    if cluster.version != "4":
        pytest.skip("RabbitMQ 3.10 takes 128 MiB")
    fill(movable, "large", [b"first", b"x" * (17 << 20), b"last"])
    code, out, error = movable.ctl.raw(*to(cluster))
    assert code == 1 and "larger than" in out, out + error
    assert bodies(take_all(cluster, "large")) == [b"first"]
    movable.ctl("migrate", "--stop")
    with connect(movable) as client:
        assert client.channel().basic_get("large", auto_ack=True)[0].redelivered is False
    movable.ctl(*to(cluster))
    assert bodies(take_all(cluster, "large")) == [b"last"]


def test_messages_that_nobody_bound_are_not_lost(movable, cluster):
    """The target's queue is deleted during the migration: unmoved messages stay, and repeating the command creates the queue
    again."""
    fill(movable, "gone", numbers(3))
    movable.ctl(*to(cluster, "--stay"))
    with connect(cluster) as client:
        client.channel().queue_delete("gone")
    fill(movable, "gone", numbers(3, first=3))
    wait_until(lambda: any("no such queue" in trouble for trouble in movable.troubles()))
    code, out, error = movable.ctl.raw(*to(cluster))
    assert "this server is a pool" in out, out + error
    assert bodies(take_all(cluster, "gone")) == numbers(3, first=3)
