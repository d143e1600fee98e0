"""Under a memory or disk alarm, publishers are blocked and notified; consumers continue, and publishers resume once
consumers have freed enough."""

import contextlib
import socket
import struct
import subprocess
import threading

import pika
import pytest

from harness.drivers import TESTS
from harness.instances import leveret
from harness.management import Management
from harness.metrics import metric, wait_until
from harness.mqtt5_wire import Mqtt5Wire
from harness.mqtt_broker import listening
from harness.mqtt_wire import CONNACK, PUBACK, MqttWire
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq
from harness.stomp_client import StompWire
from harness.wire import BASIC_PUBLISH, BODY, CONNECTION_CLOSE, CONNECTION_CLOSE_OK, HEADER, Wire
from harness.wire import content_header, frame, publish_arguments

# RabbitMQ is tested as well, to detect wrong expectations.
TARGETS = ["rabbitmq", "leveret"]

# By reason: the settings that raise the alarm at the start of either broker.
MEMORY = {"rabbitmq": ["vm_memory_high_watermark.absolute = 1MB"], "leveret": ["--memory-high-watermark", "1MiB"]}
DISK = {"rabbitmq": ["disk_free_limit.absolute = 100000GB"], "leveret": ["--disk-free-limit", "100TB"]}
REASONS = {
    "low on memory": MEMORY,
    "low on disk": DISK,
    "low on disk & memory": {name: MEMORY[name] + DISK[name] for name in TARGETS},
}


@pytest.mark.parametrize("reason", REASONS)
def test_only_a_publisher_gets_connection_blocked_with_the_reason(tmp_path, target_name, reason):
    with started(target_name, tmp_path, REASONS[reason][target_name]) as server:
        # Never closed: the server does not read from it any more, so it would not answer the close.
        publisher, told = connect(server)
        channel = publisher.channel()
        channel.queue_declare("alarmed")
        channel.basic_publish("", "alarmed", b"late")
        wait_until(lambda: pumped(publisher) and told)
        assert told == [reason]
        other, other_told = connect(server)
        got, _, _ = other.channel().basic_get("alarmed")
        assert got is None
        assert other_told == []
        other.close()


def test_a_javascript_client_gets_the_reason_for_being_blocked(tmp_path):
    with leveret(tmp_path, *MEMORY["leveret"]) as server:
        argv = ["node", TESTS / "amqplib" / "blocked.js", server.uri]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stdout) == (0, "low on memory\n"), done.stderr


def test_publishers_go_on_when_consumers_have_made_room(tmp_path):
    count, body = 3000, b"x" * 100_000
    with leveret(tmp_path, "--data-dir", "off", "--memory-high-watermark", "128MiB") as server:
        publisher, told = connect(server)
        consumer, _ = connect(server)
        channel = publisher.channel()
        channel.queue_declare("fill")
        channel.confirm_delivery()
        publishing = threading.Thread(
            target=lambda: [channel.basic_publish("", "fill", body) for _ in range(count)], daemon=True
        )
        publishing.start()
        wait_until(lambda: metric(server, "leveret_blocked_connections") == 1)
        assert metric(server, 'leveret_alarm{kind="memory"}') == 1
        assert metric(server, 'leveret_alarm{kind="disk"}') == 0
        taken = 0
        for _ in consumer.channel().consume("fill", auto_ack=True):
            taken += 1
            if taken == count:
                break
        publishing.join(PATIENCE)
        assert not publishing.is_alive()
        publisher.process_data_events(0)
        assert told[:2] == ["low on memory", "unblocked"]
        publisher.close()
        consumer.close()
        wait_until(lambda: metric(server, 'leveret_alarm{kind="memory"}') == 0)
        assert metric(server, "leveret_blocked_connections") == 0
        server.child.wait_line("memory alarm set: publishers blocked")
        server.child.wait_line("memory alarm cleared")
        server.stop()


def test_the_will_of_a_blocked_mqtt_client_that_resets_its_connection_is_published(tmp_path):
    with leveret(tmp_path, *DISK["leveret"], "--mqtt", "127.0.0.1:0") as server:
        port = listening(server, "mqtt", "mqtt")
        heir, blocked = Mqtt5Wire(port), Mqtt5Wire(port)
        with contextlib.closing(heir):
            heir.connect("heir")
            heir.subscribe(("will", 0))
            blocked.connect("blocked", will=("will", b"gone", 0, False, {}))
            blocked.publish("a", qos=0)
            wait_until(lambda: metric(server, "leveret_blocked_connections") == 1)
            blocked.publish("a", b"not read", qos=0)
            blocked.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            blocked.close()
            assert heir.answer()["body"] == b"gone"
            wait_until(lambda: metric(server, "leveret_blocked_connections") == 0)


def test_operators_see_which_mqtt_and_stomp_connections_an_alarm_blocks(tmp_path, target_name):
    with speaking(target_name, tmp_path) as (mqtt_port, stomp_port, api, raise_alarm):
        mqtt, stomp = MqttWire(mqtt_port), StompWire(stomp_port)
        with contextlib.closing(mqtt), contextlib.closing(stomp):
            mqtt.connect("publisher")
            # RabbitMQ 4 blocks those at once that have published.
            mqtt.publish("a", b"", 1, 1)
            assert (mqtt.packet()[0], mqtt.packet()[0]) == (CONNACK, PUBACK)
            assert stomp.connect()[0] == "CONNECTED"
            raise_alarm()
            wait_until(lambda: states(api).get("STOMP") == "blocking" and "MQTT" in states(api))
            stomp.send("SEND\ndestination:/queue/blocked\n\n", "SEND\ndestination:/queue/blocked\n\n")
            wait_until(lambda: states(api) == {"MQTT": "blocked", "STOMP": "blocked"})


def states(api):
    return {row["protocol"].split()[0]: row.get("state") for row in api.get("connections") if "protocol" in row}


@contextlib.contextmanager
def speaking(kind, directory):
    """A server that gets a disk alarm: the ports of MQTT and STOMP, its management API, and a function that raises the alarm.
    Leveret has it from the start; RabbitMQ would read no CONNECT of MQTT then."""
    if kind == "leveret":
        with leveret(directory, *DISK[kind], "--mqtt", "127.0.0.1:0", "--stomp", "127.0.0.1:0") as server:
            api = Management(server, server.http)
            yield listening(server, "mqtt", "mqtt"), listening(server, "stomp", "stomp"), api, lambda: None
        return
    ports = mqtt, stomp, http = free_ports(3)
    names = ("mqtt.listeners.tcp", "stomp.listeners.tcp")
    settings = [f"{name}.1 = 127.0.0.1:{port}" for name, port in zip(names, ports)]
    settings += [f"management.tcp.port = {http}", "management.tcp.ip = 127.0.0.1", "collect_statistics_interval = 1000"]
    server = RabbitMq(directory, *settings, plugins="rabbitmq_mqtt,rabbitmq_stomp,rabbitmq_management")
    try:
        api = Management(server, f"http://127.0.0.1:{http}")
        yield mqtt, stomp, api, lambda: server.control("set_disk_free_limit", "100000GB")
    finally:
        server.stop()


def test_a_blocked_client_does_not_keep_the_server_from_stopping(tmp_path):
    with leveret(tmp_path, *DISK["leveret"]) as server:
        with Wire(server.port) as wire:
            wire.handshake()
            wire.open_channel()
            wire.send_method(1, BASIC_PUBLISH, publish_arguments("", "nowhere"))
            wire.send(frame(HEADER, 1, content_header(1)) + frame(BODY, 1, b"x"))
            wait_until(lambda: metric(server, "leveret_blocked_connections") == 1)
            server.child.send(15)
            wire.expect(CONNECTION_CLOSE)
            wire.send_method(0, CONNECTION_CLOSE_OK)
            assert server.child.wait() == 0


def test_without_a_data_directory_there_is_no_disk_to_be_short_of(tmp_path):
    with leveret(tmp_path, "--data-dir", "off", *DISK["leveret"]) as server:
        assert metric(server, 'leveret_alarm{kind="disk"}') == 0
        server.stop()


@contextlib.contextmanager
def started(name, directory, settings):
    if name == "leveret":
        with leveret(directory, *settings) as server:
            yield server
        return
    server = RabbitMq(directory / "rabbitmq", *settings)
    try:
        yield server
    finally:
        server.stop()


def connect(server):
    """A client, and the list of its blocked and unblocked notifications."""
    connection = pika.BlockingConnection(pika.URLParameters(server.uri))
    told = []
    connection.add_on_connection_blocked_callback(lambda _, blocked: told.append(blocked.method.reason))
    connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
    return connection, told


def pumped(connection):
    connection.process_data_events(0.05)
    return True
