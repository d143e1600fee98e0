"""MQTT and STOMP clients are listed and closed like AMQP clients."""

import socket

import pytest
from paho.mqtt import client as paho

from harness.management import leveret, path
from harness.patience import PATIENCE


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("leveret"), "--mqtt", "127.0.0.1:0", "--stomp", "127.0.0.1:0") as ours:
        yield ours


def port(ours, protocol):
    """The port in the overview."""
    [listener] = [each for each in ours.get("overview")["listeners"] if each["protocol"] == protocol]
    assert ours.get(f"health/checks/protocol-listener/{protocol}") == {"status": "ok", "protocol": protocol}
    assert ours.get(f"health/checks/port-listener/{listener['port']}")["status"] == "ok"
    return listener["port"]


def close_the_only_one(ours):
    [shown] = ours.eventually("connections", lambda all: len(all) == 1)
    assert ours.status("DELETE", path("connections", shown["name"]), headers={"x-reason": "enough"}) == 204
    ours.eventually("connections", lambda all: not all)
    return shown


def test_an_mqtt_client(ours):
    options = {"client_id": "mine", "protocol": paho.MQTTv5, "reconnect_on_failure": False}
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, **options)
    client.username_pw_set("guest", "guest")
    client.connect("127.0.0.1", port(ours, "mqtt"))
    client.loop_start()
    try:
        shown = close_the_only_one(ours)
    finally:
        client.loop_stop()
    assert (shown["protocol"], shown["user"], shown["vhost"]) == ("MQTT 5-0", "guest", "/")
    assert shown["client_properties"] == {"client_id": "mine"}
    nothing = {"subscriptions": 0, "messages_published": 0, "messages_delivered": 0}
    assert shown["session"] == {"persistent": False, "expiry_seconds": 0} | nothing
    assert shown["timeout"] == 60


def test_a_stomp_client(ours):
    with socket.create_connection(("127.0.0.1", port(ours, "stomp")), timeout=PATIENCE) as client:
        client.sendall(b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\nheart-beat:20000,0\n\n\0")
        assert client.recv(4096).startswith(b"CONNECTED")
        client.sendall(b"SUBSCRIBE\nid:1\ndestination:/topic/counted\n\n\0SEND\ndestination:/topic/counted\n\nx\0")
        assert client.recv(4096).startswith(b"MESSAGE")
        shown = close_the_only_one(ours)
        assert (shown["protocol"], shown["user"], shown["timeout"]) == ("STOMP 1.2", "guest", 20)
        counted = {"subscriptions": 1, "messages_published": 1, "messages_delivered": 1}
        assert shown["session"] == {"persistent": False, "expiry_seconds": 0} | counted
        told = b""
        while part := client.recv(4096):
            told += part
        assert b"ERROR" in told and b"enough" in told


def test_sessions_are_listed_in_front_of_an_upstream_alone(ours):
    for shared in ("sessions", "shared-groups", "retained", "multiplexed-queues"):
        assert ours.get(f"leveret/{shared}") == []
    assert ours.status("GET", "leveret/multiplexed-queues/none/bindings") == 404
