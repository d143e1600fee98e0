"""Interrupted migrations, on either side or by the operator: repeating the command continues, and nothing is lost."""

import contextlib

import pika
import pytest
from harness.amqp import connect
from harness.forwarder import Forwarder
from harness.link import Link
from harness.management import Management
from harness.metrics import wait_until
from harness.migration import Running, bodies, fill, migration_fixtures, numbers, take_all, to
from harness.patience import TEST_SECONDS

pytestmark = pytest.mark.timeout(2 * TEST_SECONDS)
cluster, movable = migration_fixtures()
COUNT = 4000
# In bytes per second: a migration of all messages takes a quarter of a minute, so that it is not complete when it is interrupted,
# even if reading its progress takes seconds.
BANDWIDTH = 100_000


def in_order(found):
    """The numbers of messages in the order of their first arrival; asserts that duplicates have the same id."""
    ids, order = {}, []
    for _, properties, body in found:
        name = properties.headers["x-leveret-move-id"]
        if body not in ids:
            order.append(body)
        assert ids.setdefault(body, name) == name, "another id for the same message"
    assert len(set(ids.values())) == len(ids)
    return order


def test_the_server_and_its_operator_may_be_killed_at_any_moment(tmp_path, movable, cluster):
    fill(movable, "slow", numbers(COUNT), pika.BasicProperties(delivery_mode=2, content_type="x" * 200))
    link = Link(tmp_path / "link.log", cluster.port, "--bandwidth", str(BANDWIDTH))
    words = to(cluster, port=int(link.address.rpartition(":")[2]))
    try:
        for _ in range(2):
            running = Running(movable, words)
            wait_until(lambda: movable.moved() > 300)
            movable.restart()
            code, _, error = running.end()
            assert code == 1 and error
        running = Running(movable, words)
        wait_until(lambda: movable.moved() > 300)
        running.kill()
        moved = movable.moved()
        # The server continues without the command.
        wait_until(lambda: movable.moved() > moved)
        code, out, error = Running(movable, words).end()
        assert code == 0, out + error
        with connect(movable) as client:
            client.channel().basic_publish("", "slow", b"behind", pika.BasicProperties(headers={"x-leveret-move-id": "own"}))
        assert in_order(take_all(cluster, "slow")) == [*numbers(COUNT), b"behind"]
    finally:
        link.stop()


def test_exchanges_that_a_kill_leaves_at_the_target_are_deleted_by_the_next_move(tmp_path, movable, cluster):
    def exchanges():
        names = cluster.control("list_exchanges", "name").splitlines()
        return [name for name in names if name.startswith("leveret.move.")]

    fill(movable, "killed", numbers(COUNT), pika.BasicProperties(delivery_mode=2, content_type="x" * 200))
    # The exchange of another broker, which may be migrating to the same target.
    foreign = "leveret.move.00000000.e6016d3a248dd039"
    # No heartbeats, because it is idle for the length of the test.
    with connect(cluster, heartbeat=0) as client:
        client.channel().exchange_declare(foreign, "fanout")
        link = Link(tmp_path / "link.log", cluster.port, "--bandwidth", str(BANDWIDTH))
        words = to(cluster, "--stay", port=int(link.address.rpartition(":")[2]))
        try:
            running = Running(movable, words)
            wait_until(lambda: movable.moved() > 300)
            movable.restart()
            running.end()
            assert len(exchanges()) == 2
            # Without its queue it moves nothing any more.
            with connect(movable) as mine:
                mine.channel().queue_delete("killed")
            movable.ctl(*words)
            assert exchanges() == [foreign]
            assert not (movable.directory / "data" / "migration-exchanges.jsonl").exists()
        finally:
            link.stop()
            take_all(cluster, "killed")
            client.channel().exchange_delete(foreign)


def test_a_target_that_goes_away_is_waited_for(movable, cluster):
    fill(movable, "patient", numbers(20_000))
    way = Forwarder(cluster.port)
    try:
        way.flows.clear()
        running = Running(movable, to(cluster, port=way.port))
        way.flows.set()
        for _ in range(3):
            moved = movable.moved()
            with contextlib.suppress(AssertionError):
                wait_until(lambda: movable.moved() > moved, seconds=2)
            way.refuses = True
            way.cut()
            way.refuses = False
        code, out, error = running.end()
        # The counts allow for messages whose confirms were lost.
        assert code == 0, out + error
        assert in_order(take_all(cluster, "patient")) == numbers(20_000)
    finally:
        way.stop()


def test_without_the_last_definitions_the_broker_comes_back(movable, cluster):
    """The command is killed when clients have been closed."""
    fill(movable, "back", numbers(10))
    movable.ctl(*to(cluster, "--stay"))
    with connect(movable) as client:
        channel = client.channel()
        channel.confirm_delivery()
        # Delivered but not acknowledged, so it cannot move while its client is connected.
        channel.queue_declare("held", durable=True)
        channel.basic_publish("", "held", b"held", pika.BasicProperties(delivery_mode=2))
        channel.basic_consume("held", lambda *_: None)
        client.process_data_events(1)
        assert management(movable).status("POST", "leveret/migration/cut-over") == 200
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as told:
            client.sleep(TEST_SECONDS)
        assert told.value.reply_code == 320
    # It waits in the listen backlog until the broker serves again.
    with connect(movable) as client:
        client.channel().basic_publish("", "back", b"later", pika.BasicProperties(delivery_mode=2))
    movable.ctl(*to(cluster))
    assert bodies(take_all(movable, "back")) == [*numbers(10), b"later"]
    assert bodies(take_all(cluster, "held")) == [b"held"]


def test_a_target_that_goes_away_at_the_end_leaves_the_broker_with_the_rest(movable, cluster):
    """The target is down when the rest is to move, for longer than the timeout."""
    fill(movable, "rest", numbers(10))
    way = Forwarder(cluster.port)
    try:
        movable.ctl(*to(cluster, "--stay", port=way.port))
        wait_until(lambda: movable.moved() == 10)
        with connect(movable) as client:
            channel = client.channel()
            channel.confirm_delivery()
            channel.queue_declare("unacked", durable=True)
            channel.basic_consume("unacked", lambda *_: None)
            channel.basic_publish("", "unacked", b"rest", pika.BasicProperties(delivery_mode=2))
            client.process_data_events(1)
            api = management(movable)
            assert api.status("POST", "leveret/migration/cut-over") == 200
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
                client.sleep(TEST_SECONDS)
        wait_until(lambda: api.get("leveret/migration")["phase"] == "last_definitions")
        way.refuses = True
        way.cut()
        before = api.get("leveret/migration")["process"]
        assert api.status("POST", "leveret/migration/finish") == 200
        assert api.get("leveret/migration")["phase"] == "moving_rest"
        # The broker resumes by itself.
        with connect(movable) as client:
            assert client.channel().queue_declare("unacked", passive=True).method.message_count == 1
        assert api.get("leveret/migration")["process"] != before
    finally:
        way.stop()
    movable.ctl(*to(cluster))
    assert bodies(take_all(cluster, "rest")) == numbers(10)
    assert bodies(take_all(cluster, "unacked")) == [b"rest"]


def management(movable):
    return Management(movable.server, f"http://127.0.0.1:{movable.http_port}")
