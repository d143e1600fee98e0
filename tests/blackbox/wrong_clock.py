"""A machine whose clock is wrong, or is set while the server runs or is down: what has a deadline ends when it should, before
and after a restart, and the times that clients and operators see are right."""

import time

import pika
import pytest

from harness.amqp import connect
from harness.ctl import Ctl
from harness.instances import leveret
from harness.metrics import wait_until
from harness.mqtt_broker import listening
from harness.mqtt_client import V5, MqttClient, publish_properties
from harness.spool import count, spooling, waiting
from harness.wrong_clock import WrongClock

HOUR = 3600
DAY = 24 * HOUR


def start(tmp_path, clock, *flags):
    """A server on the data directory that the one before it left."""
    run = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
    return leveret(run, "--data-dir", str(tmp_path / "data"), *flags, env=clock.environment)


def publish(server, queue, seconds):
    """Publishes a message that expires after this time; it is confirmed."""
    with connect(server) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2, expiration=str(seconds * 1000))
        channel.basic_publish("", queue, b"m", properties)


def counts(server):
    with connect(server) as connection:
        channel = connection.channel()
        return count(channel, "q"), count(channel, "dead")


def declare(server):
    with connect(server) as connection:
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("q", durable=True, arguments=arguments)


@pytest.mark.parametrize("error", [-2 * HOUR, 2 * HOUR])
@pytest.mark.parametrize("is_killed", [True, False])
def test_messages_expire_when_they_should_after_a_restart(tmp_path, error, is_killed):
    clock = WrongClock(tmp_path, error)
    with start(tmp_path, clock) as server:
        declare(server)
        publish(server, "q", HOUR)
        clock.set_right(server)
        publish(server, "q", HOUR)
        server.kill() if is_killed else server.stop()
    with start(tmp_path, clock) as server:
        assert counts(server) == (2, 0)
        publish(server, "q", HOUR)
        server.stop()
    with start(tmp_path, clock) as server:
        assert counts(server) == (3, 0)
        server.stop()


@pytest.mark.parametrize("error", [-2 * HOUR, 2 * HOUR])
def test_messages_expire_when_they_should_if_the_clock_was_set_while_no_process_saw_it(tmp_path, error):
    """As just before a kill, or between a stop and the next start."""
    clock = WrongClock(tmp_path, 0)
    with start(tmp_path, clock) as server:
        declare(server)
        publish(server, "q", HOUR)
        server.kill()
    clock.set(error)
    with start(tmp_path, clock) as server:
        assert counts(server) == (1, 0)
        publish(server, "q", 1)
        # Behind the other in the queue, it expires once it is at the head.
        with connect(server) as connection:
            connection.channel().basic_get("q", auto_ack=True)
        wait_until(lambda: counts(server) == (0, 1))
        server.stop()


def test_a_message_whose_time_has_passed_is_not_delivered_after_a_restart(tmp_path):
    clock = WrongClock(tmp_path, 2 * HOUR)
    with start(tmp_path, clock) as server:
        declare(server)
        clock.set_right(server)
        publish(server, "q", 1)
        server.stop()
    with start(tmp_path, clock) as server:
        wait_until(lambda: counts(server) == (0, 1))
        server.stop()


@pytest.mark.parametrize("error", [-2 * HOUR, 2 * HOUR])
def test_clients_and_operators_see_the_right_time(tmp_path, error):
    clock = WrongClock(tmp_path, error)
    with start(tmp_path, clock, "--mqtt", "127.0.0.1:0", "--compatibility", "4") as server:
        declare(server)
        clock.set_right(server)
        # Within as many seconds as the test takes.
        begun = int(time.time())
        with connect(server) as connection, MqttClient(listening(server, "mqtt", "mqtt"), "m", V5) as client:
            [shown] = [each for each in Ctl(server.http).json("list_connections", "protocol", "connected_at")
                       if each["protocol"].startswith("AMQP")]
            assert begun <= shown["connected_at"] / 1000 <= time.time() + 1
            channel = connection.channel()
            channel.queue_bind("q", "amq.topic", "t")
            client.publish("t", b"m", properties=publish_properties(MessageExpiryInterval=HOUR))
            method, properties, _ = channel.basic_get("q")
            assert begun <= properties.timestamp <= time.time()
            channel.basic_reject(method.delivery_tag, requeue=False)
            wait_until(lambda: count(channel, "dead") == 1)
            _, properties, _ = channel.basic_get("dead", auto_ack=True)
            died = properties.headers["x-death"][0]["time"].timestamp()
            assert begun <= died <= time.time()
        server.stop()


def test_an_mqtt_session_lives_as_long_as_it_should(tmp_path):
    clock = WrongClock(tmp_path, -2 * DAY)
    with start(tmp_path, clock, "--mqtt", "127.0.0.1:0") as server:
        port = listening(server, "mqtt", "mqtt")
        with MqttClient(port, "sleeper", V5, keep=True, expiry=DAY) as client:
            client.subscribe("t", 1)
        clock.set_right(server)
        with MqttClient(port, "awake", V5, keep=True, expiry=DAY) as client:
            client.subscribe("t", 1)
        with MqttClient(port, "publisher") as client:
            client.publish("t", b"m")
        server.stop()
    with start(tmp_path, clock, "--mqtt", "127.0.0.1:0") as server:
        port = listening(server, "mqtt", "mqtt")
        for name in ("sleeper", "awake"):
            with MqttClient(port, name, V5, keep=True, expiry=DAY) as client:
                assert client.session_present and client.message().payload == b"m"
        server.stop()


def test_a_login_that_the_upstream_has_accepted_counts_after_a_restart(tmp_path):
    clock = WrongClock(tmp_path, -2 * DAY)
    logins = tmp_path / "data" / "spool" / "logins"
    with leveret(tmp_path / "upstream") as upstream:
        with spooling(tmp_path, f"amqp://{upstream.address}", env=clock.environment) as server:
            with connect(upstream) as connection:
                connection.channel().queue_declare("q", durable=True)
            clock.set_right(server)
            with connect(server) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.basic_publish("", "q", b"m")
                wait_until(lambda: waiting(server) == 0)
                wait_until(lambda: logins.exists() and logins.read_text().count("\n") == 1)
                upstream.kill()
                # Confirmed: it is in the spool.
                channel.basic_publish("", "q", b"m")
            server.stop()
        with spooling(tmp_path, f"amqp://{upstream.address}", env=clock.environment) as server:
            with connect(server) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.basic_publish("", "q", b"m")
            assert waiting(server) == 2
            server.stop()
