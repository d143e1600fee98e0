"""A RabbitMQ that tests borrow is as if it had just been installed, whatever its last user did to it."""

import contextlib
import json
import signal

import pika
import pytest
from harness.amqp import connect
from harness.lending import borrow
from harness.releases import RELEASES, missing

ALARMS = "rabbit_alarm:get_alarms()."


@contextlib.contextmanager
def borrowed(version):
    if reason := missing(version):
        pytest.skip(reason)
    server = borrow(version=version)
    try:
        yield server
    finally:
        server.stop()


def contents(server):
    """Everything that definitions contain, but for the salted passwords, and the alarms."""
    definitions = json.loads(server.control("export_definitions", "-"))
    for user in definitions["users"]:
        del user["password_hash"]
    return definitions, server.control("eval", ALARMS).strip()


@pytest.mark.parametrize("version", RELEASES)
def test_nothing_of_the_last_user_is_left(version):
    with borrowed(version) as server:
        as_new = contents(server)
        client = connect(server)
        channel = client.channel()
        channel.confirm_delivery()
        channel.exchange_declare("theirs", "topic", durable=True)
        for kind in ("classic", "quorum", "stream"):
            channel.queue_declare(kind, durable=True, arguments={"x-queue-type": kind})
            channel.queue_bind(kind, "theirs", "#")
        channel.basic_publish("theirs", "key", b"x", pika.BasicProperties(delivery_mode=2))
        server.add_user("another")
        for command in (
            ["add_vhost", "theirs"],
            ["set_policy", "ttl", ".*", '{"message-ttl": 1000}'],
            ["set_permissions", "guest", "", "", ""],
            ["set_vhost_limits", "-p", "/", '{"max-connections": 1}'],
            ["change_password", "guest", "theirs"],
            ["set_vm_memory_high_watermark", "0"],
        ):
            server.control(*command)
        definitions, alarms = contents(server)
        assert len(definitions["queues"]) == 3 and "memory" in alarms
    with borrowed(version) as again:
        assert again is server
        assert contents(again) == as_new
        with connect(again) as other:
            for kind in ("classic", "quorum", "stream"):
                other.channel().queue_declare(kind, durable=True, arguments={"x-queue-type": kind})
                assert other.channel().queue_declare(kind, passive=True).method.message_count == 0
        with pytest.raises(pika.exceptions.AMQPError):
            client.process_data_events()
            client.channel()


def test_one_that_its_last_user_has_killed_is_not_lent_again():
    with borrowed(None) as server:
        server.end(signal.SIGKILL, is_synced=False)
    with borrowed(None) as another:
        assert another is not server
        connect(another).close()
