"""Metrics of single queues, connections and channels, of chosen families and virtual hosts, and on a listener of their own."""

import base64
import contextlib
import json
import os
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from harness.amqp import connect
from harness.exposition import scrape
from harness.instances import leveret
from harness.metrics import wait_until
from harness.mqtt_client import MqttClient
from harness.patience import PATIENCE
from harness.websocket import WebSocketWire

FEW, MANY = 1_000, 10_000
# Ten times the queues should cost ten times as much; a hundred times would mean a nested loop.
COSTS_TIMES = 30
# Seconds of the server's CPU time, enough clock ticks for a measurement.
MEASURED_SECONDS = 0.3


@pytest.fixture
def server(tmp_path):
    with leveret(tmp_path, "--prometheus", "127.0.0.1:0") as server:
        server.metrics = server.child.wait_line(r"^prometheus listening on (http://\S+)").group(1)
        yield server
        server.stop()


def test_per_object_tells_each_queue_connection_and_channel(server):
    with connect(server) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=3)
        channel.confirm_delivery()
        for name, messages in {"one": 1, 'quo"te': 2}.items():
            channel.queue_declare(name)
            for _ in range(messages):
                channel.basic_publish("", name, b"xy")
        apart = scrape(server.metrics + "/metrics/per-object")
        assert apart.value("rabbitmq_queue_messages_ready", vhost="/", queue="one") == 1
        assert apart.value("rabbitmq_queue_messages_ready_bytes", queue="one") == 2
        names = sorted(labels["queue"] for labels, _ in apart.families["rabbitmq_queue_consumers"])
        assert names == ["one", r"quo\"te"]
        assert apart.value("rabbitmq_connection_channels", user="guest", vhost="/") == 1
        assert apart.value("rabbitmq_connection_incoming_bytes_total") > 0
        assert apart.value("rabbitmq_consumer_prefetch", channel="1") == 3
        # All other metrics are unchanged.
        together = scrape(server.metrics + "/metrics")
        assert together.value("rabbitmq_queue_messages_ready") == 3
        assert set(together.families) - set(apart.families) == set()


def test_detailed_tells_chosen_families_of_chosen_virtual_hosts(server):
    with connect(server) as connection:
        channel = connection.channel()
        channel.queue_declare("one")
        channel.exchange_declare("events", "topic")
        channel.queue_bind("one", "events", "a.#")
        of = lambda query: scrape(f"{server.metrics}/metrics/detailed?{query}")
        coarse = of("family=queue_coarse_metrics&vhost=%2F")
        assert coarse.value("rabbitmq_detailed_queue_messages", vhost="/", queue="one") == 0
        assert "rabbitmq_detailed_queue_consumers" not in coarse.families
        both = of("family=queue_metrics&family=queue_consumer_count")
        assert both.value("rabbitmq_detailed_queue_consumers", queue="one") == 0
        assert of("family=queue_coarse_metrics&vhost=other").families["rabbitmq_detailed_queue_messages"] == []
        assert of("family=connection_metrics").value("rabbitmq_detailed_connection_channels") == 1
        assert of("family=channel_metrics").value("rabbitmq_detailed_channel_consumers", channel="1") == 0
        assert of("family=connection_churn_metrics").value("rabbitmq_detailed_queues_declared_total") == 1
        assert of("family=node_coarse_metrics").value("rabbitmq_detailed_process_resident_memory_bytes") > 1 << 20
        assert of("family=vhost_status").value("rabbitmq_cluster_vhost_status", vhost="/") == 1
        assert of("family=exchange_names").value("rabbitmq_cluster_exchange_name", exchange="events", type="topic") == 1
        assert of("family=exchange_bindings").value("rabbitmq_cluster_exchange_bindings", exchange="events") == 1


def test_metric_families_not_requested_or_unknown_are_left_out(server):
    for query in ("", "?family=nonsense", "?vhost=/"):
        families = scrape(f"{server.metrics}/metrics/detailed{query}").families
        assert set(families) == {"rabbitmq_build_info", "rabbitmq_identity_info"}


def test_the_listener_of_the_metrics_has_nothing_else(server):
    assert scrape(server.metrics + "/metrics").value("rabbitmq_connections") == 0
    for path in ("/", "/healthz", "/api/overview"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(server.metrics + path, timeout=PATIENCE)
        assert refused.value.code == 404


def test_open_connections_are_shown_by_protocol_and_transport(tmp_path):
    kinds = {("amqp", "tcp"): 1, ("amqp", "websocket"): 2, ("mqtt", "tcp"): 1}
    with leveret(tmp_path, "--mqtt", "127.0.0.1:0", "--ws", "127.0.0.1:0") as server, contextlib.ExitStack() as clients:
        mqtt = int(server.child.wait_line(r"^mqtt +listening on mqtt://127\.0\.0\.1:(\d+)").group(1))
        clients.enter_context(connect(server))
        clients.enter_context(MqttClient(mqtt, "teller"))
        for _ in range(kinds["amqp", "websocket"]):
            clients.enter_context(WebSocketWire(server.ws_port)).handshake()

        def counted():
            samples = scrape(server.http + "/metrics").families["leveret_protocol_connections"]
            return {(labels["protocol"], labels["transport"]): value for labels, value in samples}

        wait_until(lambda: counted() == kinds)
        assert scrape(server.http + "/metrics").value("rabbitmq_connections") == sum(kinds.values())
        clients.close()
        server.stop()


def test_metrics_naming_queues_and_virtual_hosts_require_a_login(server):
    names = ("/metrics/per-object", "/metrics/detailed?family=queue_metrics", "/metrics/detailed")
    for login, expected in ((None, 401), ("guest:wrong", 401), ("guest:guest", 200)):
        assert [status(server.http + path, login) for path in names] == [expected] * 3, login
    users = f"{server.http}/api/users/"
    for tag, expected in (("", 401), ("management", 401), ("policymaker", 401), ("monitoring", 200)):
        assert status(users + "u", "guest:guest", "PUT", json.dumps({"password": "x", "tags": tag})) in (201, 204)
        assert [status(server.http + path, "u:x") for path in names] == [expected] * 3, tag
    assert [status(server.http + "/metrics"), status(server.metrics + "/metrics/per-object")] == [200, 200]


def status(url, login=None, method="GET", body=None):
    headers = {"authorization": "Basic " + base64.b64encode(login.encode()).decode()} if login else {}
    asked = urllib.request.Request(url, body and body.encode(), headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            return answer.status
    except urllib.error.HTTPError as answer:
        return answer.code


def test_ten_thousand_queues_are_scraped_at_ten_times_the_cost_of_a_thousand(server):
    paths = ("/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_coarse_metrics")
    with connect(server) as connection:
        channel = connection.channel()
        declare(channel, range(FEW))
        few = {path: scrape_cost(server, path) for path in paths}
        declare(channel, range(FEW, MANY))
        many = {path: scrape_cost(server, path) for path in paths}
        print({path: (few[path], many[path]) for path in paths})
        assert all(many[path] < COSTS_TIMES * few[path] for path in paths), (few, many)
        apart = scrape(server.metrics + "/metrics/per-object")
        assert len(apart.families["rabbitmq_queue_messages_ready"]) == MANY


def declare(channel, numbers):
    for number in numbers:
        channel.queue_declare(f"queue-{number}")


def scrape_cost(server, path):
    """The server's CPU seconds for a scrape, independent of other load on the machine."""
    scrapes, before = 0, processor_seconds(server.pid)
    while (cost := processor_seconds(server.pid) - before) < MEASURED_SECONDS:
        scraped(server.metrics + path)
        scrapes += 1
    return cost / scrapes


def scraped(url):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return answer.read()


def processor_seconds(pid):
    """User and system time of a process (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
