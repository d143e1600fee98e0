"""RabbitMQ's metrics: those that its dashboards read exist, with the same meaning and type."""

from pathlib import Path

import pika
import pytest

from harness.exposition import scrape
from harness.instances import leveret
from harness.metrics import wait_until
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq
from harness.releases import RELEASES, missing

METRICS = Path(__file__).parents[1] / "metrics"
NEEDED = {"3.10": METRICS / "rabbitmq_overview.txt", "4": METRICS / "rabbitmq_overview_4.txt"}
# Only here: metrics of an earlier RabbitMQ, whose dashboards are still in use.
NOT_IN_RABBITMQ = {
    "3.10": set(),
    "4": {
        "rabbitmq_alarms_file_descriptor_limit",
        "rabbitmq_process_max_tcp_sockets",
        "rabbitmq_process_open_tcp_sockets",
    },
}
# Not here, by the beginning of the name, with the reason.
LEFT_OUT = {
    "rabbitmq_erlang_": "Erlang's own",
    "rabbitmq_raft_": "a quorum queue has one replica, and no Raft log",
    "rabbitmq_quorum_queue_": "a quorum queue has one replica, and no Raft log",
    "rabbitmq_stream_": "there are no streams",
    "rabbitmq_unreachable_cluster_peers_count": "there is one node",
    "rabbitmq_schema_db_": "definitions are in no Mnesia or Khepri: leveret_store_* tells of them",
    "rabbitmq_io_": "of RabbitMQ's files: leveret_store_* tells of those here",
    "rabbitmq_msg_store_": "of RabbitMQ's files: leveret_store_* tells of those here",
    "rabbitmq_queue_index_": "of RabbitMQ's files: leveret_store_* tells of those here",
    "rabbitmq_queue_disk_": "of RabbitMQ's files: leveret_store_* tells of those here",
    "rabbitmq_auth_attempts_": "logins are not counted by protocol",
    "rabbitmq_channel_": "sums over channels that are open: rabbitmq_global_* tell of all",
    "rabbitmq_connection_": "sums over connections that are open; at /metrics/per-object each is there",
    "rabbitmq_consumer_prefetch": "a sum means nothing; at /metrics/per-object each channel has it",
    "rabbitmq_exchange_": "sums over exchanges: rabbitmq_global_* tell of all",
    "rabbitmq_queue_exchange_": "not counted",
    "rabbitmq_queue_": "sums over queues: rabbitmq_global_* tell of all; bytes of unsettled messages are not counted",
    "rabbitmq_global_messages_dead_lettered_confirmed_total": "dead letters are never lost between two queues of one node",
}
# Queues count deliveries independently of the consumer's protocol; all queue types are one implementation.
WITHOUT_PROTOCOL = ("acknowledged", "delivered", "get_empty", "redelivered", "consumers")
# Values that must be equal after the same workload.
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


@pytest.fixture(scope="module", params=RELEASES)
def version(request):
    if reason := missing(request.param):
        pytest.skip(f"RabbitMQ {request.param}: {reason}")
    return request.param


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory, version):
    """A RabbitMQ with its metrics, once it has counted a client's actions."""
    [port] = free_ports(1)
    settings = (f"prometheus.tcp.port = {port}", "prometheus.tcp.ip = 127.0.0.1", "collect_statistics_interval = 1000")
    directory = tmp_path_factory.mktemp("rabbitmq") / "server"
    server = RabbitMq(directory, *settings, plugins="rabbitmq_prometheus", version=version)
    server.http = f"http://127.0.0.1:{port}"
    yield server
    server.stop()


@pytest.fixture(scope="module")
def ours(tmp_path_factory, version):
    flags = ("--compatibility", version, "--prometheus", "127.0.0.1:0")
    with leveret(tmp_path_factory.mktemp("leveret"), *flags) as server:
        server.metrics = server.child.wait_line(r"^prometheus listening on (http://\S+)").group(1)
        yield server
        server.stop()


def needed(version):
    return {line for line in NEEDED[version].read_text().splitlines() if not line.startswith("#")}


def test_metrics_needed_by_the_rabbitmq_dashboards_exist(ours, version):
    assert needed(version) - set(scrape(ours.http + "/metrics").families) == set()


def test_metrics_needed_by_the_dashboards_have_the_labels_of_rabbitmq(ours, rabbitmq, version):
    mine, theirs = (scrape(server.http + "/metrics").families for server in (ours, rabbitmq))
    for name in sorted(needed(version) & set(theirs)):
        labels = [{label for labels, _ in families[name] for label in labels} for families in (mine, theirs)]
        lacking = labels[1] - labels[0]
        assert lacking <= ({"protocol"} if any(word in name for word in WITHOUT_PROTOCOL) else set()), name


def test_the_same_work_shows_the_same_as_at_rabbitmq(ours, rabbitmq, version):
    at_work = [work(server.uri) for server in (ours, rabbitmq)]
    shown = lambda server: {name: scrape(server.http + "/metrics").value(name) for name in COMPARED}
    mine = shown(ours)
    # RabbitMQ updates its statistics periodically.
    wait_until(lambda: shown(rabbitmq)["rabbitmq_queue_messages_unacked"] == mine["rabbitmq_queue_messages_unacked"])
    wait_until(lambda: shown(rabbitmq) == mine or print(difference(shown(rabbitmq), mine)))
    if version == "4":
        assert sizes(ours) == sizes(rabbitmq)
        assert sizes(ours)["100"] == 11
    for connection in at_work:
        connection.close()


def test_no_name_is_made_up_and_types_are_the_same(ours, rabbitmq, version):
    theirs, mine = (scrape(server.http + "/metrics") for server in (rabbitmq, ours))
    ours_alone = {name for name in mine.types if name.startswith("rabbitmq_")} - set(theirs.types)
    assert ours_alone == NOT_IN_RABBITMQ[version]
    for name in set(mine.types) & set(theirs.types):
        # RabbitMQ's alarms have no type.
        assert theirs.types[name] in (mine.types[name], "untyped"), name


def test_every_rabbitmq_metric_left_out_has_a_reason(ours, rabbitmq):
    theirs, mine = (scrape(server.http + "/metrics") for server in (rabbitmq, ours))
    absent = {name for name in theirs.types if name.startswith("rabbitmq_")} - set(mine.types)
    assert {name for name in absent if not name.startswith(tuple(LEFT_OUT))} == set()


def test_the_path_that_is_scraped_is_a_label_since_4(ours, version):
    paths = {"/metrics": "aggregated", "/metrics/per-object": "per-object", "/metrics/detailed?family=queue_metrics": "detailed"}
    for path, endpoint in paths.items():
        [(labels, _)] = scrape(ours.metrics + path).families["rabbitmq_identity_info"]
        assert labels.get("rabbitmq_endpoint") == (endpoint if version == "4" else None)


def test_the_identity_has_the_labels_that_expressions_join_by(ours, rabbitmq):
    theirs, mine = (scrape(server.http + "/metrics") for server in (rabbitmq, ours))
    for name in ("rabbitmq_identity_info", "rabbitmq_build_info"):
        [(expected, _)], [(labels, value)] = theirs.families[name], mine.families[name]
        assert set(expected) <= set(labels) and value == 1


def work(uri):
    """Performs every counted operation; returns the connection, which stays open."""
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


def sizes(server):
    """The buckets of AMQP message sizes with their counts; and the number and bytes of messages."""
    samples = scrape(server.http + "/metrics").families["rabbitmq_message_size_bytes"]
    of_amqp = [(labels, value) for labels, value in samples if labels["protocol"] == "amqp091"]
    totals = sorted(value for labels, value in of_amqp if "le" not in labels)
    return {labels["le"]: value for labels, value in of_amqp if "le" in labels} | {"totals": totals}


def difference(theirs, mine):
    return {name: (theirs[name], mine[name]) for name in mine if theirs[name] != mine[name]}
