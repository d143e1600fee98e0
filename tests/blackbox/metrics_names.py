"""Metrics under RabbitMQ's names: what its dashboards read is there, means the same, and is of the same type."""

from pathlib import Path

import pika
import pytest

from harness.exposition import scrape
from harness.instances import leveret
from harness.metrics import wait_until
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq
from harness.releases import TAKEN_AFTER

NEEDED = Path(__file__).parents[1] / "metrics" / "rabbitmq_overview.txt"
# What RabbitMQ of this version has not: of a later one, or without a broker of its own.
NOT_IN_RABBITMQ = {"rabbitmq_global_messages_dead_lettered_delivery_limit_total"}
# The same workload has to show the same here.
COMPARED = [
    "rabbitmq_channels",
    "rabbitmq_connections",
    "rabbitmq_consumers",
    "rabbitmq_global_consumers",
    "rabbitmq_global_messages_acknowledged_total",
    "rabbitmq_global_messages_confirmed_total",
    "rabbitmq_global_messages_delivered_consume_auto_ack_total",
    "rabbitmq_global_messages_delivered_consume_manual_ack_total",
    "rabbitmq_global_messages_delivered_get_auto_ack_total",
    "rabbitmq_global_messages_delivered_get_manual_ack_total",
    "rabbitmq_global_messages_delivered_total",
    "rabbitmq_global_messages_get_empty_total",
    "rabbitmq_global_messages_received_confirm_total",
    "rabbitmq_global_messages_received_total",
    "rabbitmq_global_messages_redelivered_total",
    "rabbitmq_global_messages_routed_total",
    "rabbitmq_global_messages_unroutable_dropped_total",
    "rabbitmq_global_messages_unroutable_returned_total",
    "rabbitmq_global_publishers",
    "rabbitmq_queue_consumers",
    "rabbitmq_queue_messages",
    "rabbitmq_queue_messages_ready",
    "rabbitmq_queue_messages_ready_bytes",
    "rabbitmq_queue_messages_unacked",
    "rabbitmq_queues",
    "rabbitmq_queues_created_total",
    "rabbitmq_queues_declared_total",
    "rabbitmq_queues_deleted_total",
]


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory):
    """A RabbitMQ with its metrics, as soon as it has counted what a client did."""
    [port] = free_ports(1)
    settings = (f"prometheus.tcp.port = {port}", "prometheus.tcp.ip = 127.0.0.1", "collect_statistics_interval = 1000")
    server = RabbitMq(tmp_path_factory.mktemp("rabbitmq") / "server", *settings, plugins="rabbitmq_prometheus", version=TAKEN_AFTER)
    server.http = f"http://127.0.0.1:{port}"
    yield server
    server.stop()


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("leveret")) as server:
        yield server
        server.stop()


def test_what_the_dashboard_needs_is_there(ours):
    needed = {line for line in NEEDED.read_text().splitlines() if not line.startswith("#")}
    assert needed - set(scrape(ours.http + "/metrics").families) == set()


def test_the_same_work_shows_the_same_as_at_rabbitmq(ours, rabbitmq):
    at_work = [work(server.uri) for server in (ours, rabbitmq)]
    shown = lambda server: {name: scrape(server.http + "/metrics").value(name) for name in COMPARED}
    mine = shown(ours)
    # RabbitMQ counts now and then.
    wait_until(lambda: shown(rabbitmq)["rabbitmq_queue_messages_unacked"] == mine["rabbitmq_queue_messages_unacked"])
    wait_until(lambda: shown(rabbitmq) == mine or print(difference(shown(rabbitmq), mine)))
    for connection in at_work:
        connection.close()


def test_no_name_is_made_up_and_types_are_the_same(ours, rabbitmq):
    theirs, mine = (scrape(server.http + "/metrics") for server in (rabbitmq, ours))
    ours_alone = {name for name in mine.types if name.startswith("rabbitmq_")} - set(theirs.types)
    assert ours_alone - NOT_IN_RABBITMQ == set()
    for name in set(mine.types) & set(theirs.types):
        # An alarm has no type there.
        assert theirs.types[name] in (mine.types[name], "untyped"), name


def test_the_identity_has_the_labels_that_expressions_join_by(ours, rabbitmq):
    theirs, mine = (scrape(server.http + "/metrics") for server in (rabbitmq, ours))
    for name in ("rabbitmq_identity_info", "rabbitmq_build_info"):
        [(expected, _)], [(labels, value)] = theirs.families[name], mine.families[name]
        assert set(expected) <= set(labels) and value == 1


def work(uri):
    """Something of everything; returns the connection, which stays open."""
    connection = pika.BlockingConnection(pika.URLParameters(uri))
    plain, confirmed, consuming = (connection.channel() for _ in range(3))
    plain.queue_declare("a", durable=True)
    plain.queue_declare("a", durable=True)
    plain.queue_declare("b")
    plain.queue_declare("gone")
    plain.queue_delete("gone")
    for _ in range(5):
        plain.basic_publish("", "a", b"0123456789")
    plain.basic_publish("", "nowhere", b"x")
    confirmed.confirm_delivery()
    for _ in range(4):
        confirmed.basic_publish("", "b", b"01234")
    with pytest.raises(pika.exceptions.UnroutableError):
        confirmed.basic_publish("", "nowhere", b"x", mandatory=True)
    got, _, _ = plain.basic_get("a", auto_ack=False)
    plain.basic_nack(got.delivery_tag, requeue=True)
    got, _, _ = plain.basic_get("a", auto_ack=False)
    plain.basic_ack(got.delivery_tag)
    plain.basic_get("a", auto_ack=True)
    plain.basic_get("a", auto_ack=False)
    plain.queue_declare("empty")
    assert plain.basic_get("empty")[0] is None
    taken = []
    consuming.basic_qos(prefetch_count=2)
    consuming.basic_consume("b", lambda *delivery: taken.append(delivery))
    consuming.basic_consume("a", lambda *delivery: taken.append(delivery), auto_ack=True)
    wait_until(lambda: connection.process_data_events(0.05) or len(taken) == 4)
    return connection


def difference(theirs, mine):
    return {name: (theirs[name], mine[name]) for name in mine if theirs[name] != mine[name]}
