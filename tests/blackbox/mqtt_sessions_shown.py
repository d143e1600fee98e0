"""MQTT and STOMP sessions in front of RabbitMQ in the API: each client, shared subscriptions and what they save, sessions
without a connection, groups and retained messages; and sessions can be closed."""

import re
from contextlib import ExitStack, closing

import paho.mqtt.client as paho
import pytest

from harness.ctl import Ctl
from harness.exposition import scrape
from harness.metrics import metric, wait_until
from harness.mqtt5_wire import Mqtt5Wire
from harness.mqtt_broker import ANY, listening
from harness.mqtt_client import V5, V311, MqttClient
from harness.mqtt_pool import MqttPool
from harness.patience import PATIENCE
from harness.releases import RELEASES, missing
from harness.stomp_client import StompWire

ADMINISTRATIVE_ACTION = 0x98
LOG = "leveret.mqtt.retained"
V31 = paho.MQTTv31
# Connection names in each release's management API; RabbitMQ 3.10 does not support MQTT 5.0.
NAMES = {
    "3.10": {V31: "MQTT 3.1.0", V311: "MQTT 3.1.1", V5: "MQTT 5-0"},
    "4": {V31: "MQTT 3-1", V311: "MQTT 3-1-1", V5: "MQTT 5-0"},
}
# Each of them stands for one value.
LABELS = {"leveret_protocol_subscriptions": {"protocol"}}
METRICS = [
    "leveret_mqtt_persistent_session_clients",
    "leveret_mqtt_detached_sessions",
    "leveret_mqtt_shared_groups",
    "leveret_mqtt_shared_group_members",
    "leveret_mqtt_shared_group_messages_total",
    "leveret_mqtt_retained_topics",
    "leveret_mqtt_retained_bytes",
    "leveret_protocol_subscriptions",
]


@pytest.fixture(scope="module", params=RELEASES)
def pool(request, tmp_path_factory):
    if reason := missing(request.param):
        pytest.skip(reason)
    pool = MqttPool(request.param, tmp_path_factory.mktemp("pool"), "--stomp", ANY)
    pool.stomp = listening(pool.server, "stomp", "stomp")
    pool.ctl = Ctl(pool.server.http)
    yield pool
    pool.stop()


def sessions(pool, *columns):
    """The sessions by name."""
    return {row["name"]: row for row in pool.ctl.json("list_sessions", "name", *columns)}


def values(row, *columns):
    return tuple(row[column] for column in columns)


def state_of(pool, client_id):
    """A session's state; `None` while it is not listed, as between the end of its connection and its detachment."""
    return sessions(pool, "state").get(client_id, {}).get("state")


def connection_of(pool, client_id):
    return sessions(pool, "connection")[client_id]["connection"]


def test_each_client_is_listed_with_its_protocol_and_its_session(pool):
    with ExitStack() as stack:
        live = stack.enter_context(pool.client("live", V311))
        live.subscribe("seen/a", 0)
        live.subscribe("seen/b", 1)
        persistent = stack.enter_context(pool.client("persistent", V5, keep=True, expiry=300))
        persistent.subscribe("seen/a", 1)
        wire = stack.enter_context(closing(StompWire(pool.stomp)))
        assert wire.connect(more="heart-beat:20000,0\n")[0] == "CONNECTED"
        wire.send("SUBSCRIBE\nid:1\ndestination:/topic/seen.a\nreceipt:r\n\n")
        assert wire.frame()[0] == "RECEIPT"
        live.publish("seen/a", b"x")
        assert (live.message().payload, persistent.message().payload, wire.frame()[2]) == (b"x", b"x", "x")
        counts = ("subscriptions", "messages_published", "messages_delivered")
        columns = ("name", "client_id", "user", "vhost", "protocol", "state", "keep_alive", "persistent", "expiry_seconds", *counts)
        wait_until(lambda: all(each["messages_delivered"] == 1 for each in sessions(pool, *counts).values()))
        told = sessions(pool, *columns)
        expected = ("live", "live", "guest", "/", NAMES[pool.version][V311], "connected", 60, False, 0, 2, 1, 1)
        assert values(told["live"], *columns) == expected
        expected = ("persistent", "persistent", "guest", "/", "MQTT 5-0", "connected", 60, True, 300, 1, 0, 1)
        assert values(told["persistent"], *columns) == expected
        [stomp] = [row for name, row in told.items() if name not in ("live", "persistent")]
        assert values(stomp, *columns)[1:] == (None, "guest", "/", "STOMP 1.2", "connected", 20, False, 0, 1, 0, 1)
        # The same clients are in the list of connections.
        columns = ("name", "protocol", "timeout", "client_properties", "session", "peer_port")
        listed = {row["name"]: row for row in pool.ctl.json("list_connections", *columns)}
        for name in ("live", "persistent"):
            shown = listed[connection_of(pool, name)]
            assert (shown["protocol"], shown["timeout"]) == (told[name]["protocol"], 60)
            assert shown["client_properties"] == {"client_id": name}
            assert shown["session"] == {column: told[name][column] for column in ("persistent", "expiry_seconds", *counts)}
            assert f":{shown['peer_port']} -> " in shown["name"]
        assert listed[stomp["name"]]["timeout"] == 20
        clients = {row["name"]: row for row in pool.ctl.json("list_clients", "name", "client_id", "session")}
        assert clients[connection_of(pool, "live")]["client_id"] == "live"
        assert clients[connection_of(pool, "live")]["session"]["subscriptions"] == 2
        assert metric(pool.server, 'leveret_protocol_subscriptions{protocol="mqtt"}') == 3
        assert metric(pool.server, 'leveret_protocol_subscriptions{protocol="stomp"}') == 1
        assert metric(pool.server, "leveret_mqtt_persistent_session_clients") == 1
        live.unsubscribe("seen/a")
        wait_until(lambda: sessions(pool, "subscriptions")["live"]["subscriptions"] == 1)
    wait_until(lambda: set(sessions(pool)) == {"persistent"})


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_version_of_mqtt_is_named_as_that_rabbitmq_names_it(pool, version):
    with pool.client("named", version):
        assert sessions(pool, "protocol")["named"]["protocol"] == NAMES[pool.version][version]


@pytest.mark.parametrize("version", [V311, V5])
def test_a_client_is_closed_by_force_and_its_session_is_shown_until_it_ends(pool, version):
    name = f"closed{version}"
    kept = {"keep": True, "expiry": 300 if version == V5 else None}
    with pool.client(name, version, **kept) as client:
        client.subscribe(f"closed/{version}", 1)
        pool.ctl("close_connection", connection_of(pool, name), "enough")
        assert client.gone.wait(PATIENCE)
    wait_until(lambda: state_of(pool, name) == "detached")
    columns = ("connection", "user", "vhost", "persistent", "subscriptions")
    assert values(sessions(pool, *columns)[name], *columns) == (None, "guest", "/", True, 1)
    assert metric(pool.server, "leveret_mqtt_detached_sessions") >= 1
    # A reconnect without a session ends it.
    with pool.client(name, version):
        wait_until(lambda: state_of(pool, name) == "connected")
    wait_until(lambda: name not in sessions(pool))


def test_an_mqtt_5_client_closed_by_ctl_gets_administrative_action(pool):
    with closing(Mqtt5Wire(pool.mqtt)) as wire:
        assert wire.connect("told")["reason"] == 0
        pool.ctl("close_connection", connection_of(pool, "told"), "enough")
        assert wire.answer()["reason"] == ADMINISTRATIVE_ACTION


def test_multiplexed_queues_are_shown_with_bindings_and_savings(pool):
    count = 5
    with ExitStack() as stack:
        readers = [stack.enter_context(pool.client(f"reader{number}")) for number in range(count)]
        for reader in readers:
            reader.subscribe("shared/+/all", 0)
        readers[0].subscribe("shared/one", 1)
        before = saved(pool)
        for topic, receivers in (("shared/x/all", readers), ("shared/one", readers[:1])):
            readers[0].publish(topic, b"x")
            assert [reader.message().payload for reader in receivers] == [b"x"] * len(receivers)
        wait_until(lambda: saved(pool)["multiplexed_copies_delivered"] == before["multiplexed_copies_delivered"] + count + 1)
        columns = ("name", "protocol", "user", "vhost", "subscribers")
        [queue] = [row for row in pool.ctl.json("list_multiplexed_queues", *columns) if row["protocol"] == "mqtt"]
        assert values(queue, *columns[2:]) == ("guest", "/", count)
        assert queue["name"] in pool.rabbitmq.control("list_queues", "name").splitlines()
        listed = pool.ctl.json("list_multiplexed_bindings", queue["name"], "key", "subscribers", "bound")
        keys = {row["key"]: values(row, "subscribers", "bound") for row in listed}
        assert keys["shared.*.all"] == (count, True) and keys["shared.one"] == (1, True)
        bound = pool.rabbitmq.control("list_bindings", "destination_name", "routing_key").splitlines()
        assert {line.split("\t")[1] for line in bound if line.startswith(queue["name"])} - {queue["name"]} == set(keys)
        told = saved(pool)
        # Each message was sent to the pool once.
        assert told["multiplexed_messages_received"] == before["multiplexed_messages_received"] + 2
        assert told["messages_saved"] == before["messages_saved"] + count - 1
        # The queue of an earlier test is deleted with a delay.
        assert told["queues_saved"] == told["multiplexed_subscribers"] - told["multiplexed_queues"] > 0
        assert told["connections_saved"] == max(0, len(pool.ctl.json("list_clients", "name")) - told["upstream_connections"])
    assert pool.ctl.fails("list_multiplexed_bindings", "no-such-queue") == "no multiplexed queue 'no-such-queue'"


def saved(pool):
    """The savings in `leases`."""
    return pool.ctl.json("leases")


def test_groups_are_shown_while_they_have_members(pool):
    with ExitStack() as stack:
        members = [stack.enter_context(pool.client(f"member{number}", V5)) for number in range(2)]
        for member in members:
            assert member.subscribe("$share/crew/jobs/+", 1) == [1]
        writer = stack.enter_context(pool.client("foreman"))
        before = metric(pool.server, "leveret_mqtt_shared_group_messages_total")
        for number in range(10):
            writer.publish(f"jobs/{number}", b"x")
        wait_until(lambda: sum(member.messages.qsize() for member in members) == 10)
        [[name, *told]] = pool.ctl.rows("list_shared_groups")
        assert told == ["/", "$share/crew/jobs/+", "2", "10"]
        assert name in pool.rabbitmq.control("list_queues", "name").splitlines()
        assert metric(pool.server, "leveret_mqtt_shared_groups") == 1
        assert metric(pool.server, "leveret_mqtt_shared_group_members") == 2
        members[0].unsubscribe("$share/crew/jobs/+")
        assert [row[3] for row in pool.ctl.rows("list_shared_groups")] == ["1"]
    wait_until(lambda: pool.ctl.rows("list_shared_groups") == [])
    assert metric(pool.server, "leveret_mqtt_shared_group_messages_total") == before + 10


def test_retained_messages_are_counted_by_virtual_host(pool):
    topics = lambda: [values(row, "vhost", "queue", "state", "topics") for row in pool.ctl.json("list_retained")]
    with pool.client("keeper") as client:
        wait_until(lambda: topics() == [("/", LOG, "running", 0)])
        for number in range(3):
            client.publish(f"kept/{number}", b"x" * 100, retain=True)
        wait_until(lambda: topics() == [("/", LOG, "running", 3)])
        [bytes_] = [row["bytes"] for row in pool.ctl.json("list_retained", "bytes")]
        assert bytes_ > 300
        assert metric(pool.server, "leveret_mqtt_retained_topics") == 3
        assert metric(pool.server, "leveret_mqtt_retained_bytes") == bytes_
        for number in range(3):
            client.publish(f"kept/{number}", b"", retain=True)
        wait_until(lambda: topics() == [("/", LOG, "running", 0)])


def test_metrics_have_help_and_no_label_for_each_client(pool):
    with pool.client("measured") as client:
        client.subscribe("measured/#", 1)
        shown = scrape(pool.server.http + "/metrics")
    for name in METRICS:
        assert shown.types[name] == ("counter" if name.endswith("_total") else "gauge")
        assert re.search(rf"^# HELP {name} .+\.$", shown.text, re.MULTILINE), name
        assert {label for labels, _ in shown.families[name] for label in labels} == LABELS.get(name, set())
