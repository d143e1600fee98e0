"""Failed logins are limited, over every protocol; other users of the same address can log in meanwhile."""

import itertools
import time

import pika
import pytest

from harness.instances import leveret
from harness.management import Management
from harness.mqtt_client import MqttClient
from harness.stomp_client import StompWire

ANY = "127.0.0.1:0"
# More than the wrong passwords per user that are checked within this many seconds after the first.
GUESSES = 40
WINDOW_SECONDS = 60


@pytest.fixture
def server(tmp_path):
    with leveret(tmp_path, "--mqtt", ANY, "--stomp", ANY) as server:
        server.api = Management(server, server.http)
        for user in ("u", "v"):
            add_user(server, user)
        yield server
        server.stop()


def add_user(server, user):
    server.api.ask("PUT", f"users/{user}", {"password": "right", "tags": "management"})
    server.api.ask("PUT", f"permissions/%2F/{user}", {"configure": ".*", "write": ".*", "read": ".*"})


def over_amqp(server, user, password):
    login = pika.PlainCredentials(user, password)
    try:
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port, "/", login)).close()
    except pika.exceptions.ProbableAuthenticationError:
        return False
    return True


def over_stomp(server, user, password):
    port = server.child.wait_line(r"^stomp +listening on stomp://127\.0\.0\.1:(\d+)").group(1)
    return StompWire(int(port)).connect(login=user, passcode=password)[0] == "CONNECTED"


def over_mqtt(server, user, password):
    port = server.child.wait_line(r"^mqtt +listening on mqtt://127\.0\.0\.1:(\d+)").group(1)
    client = MqttClient(int(port), user, user=user, password=password)
    client.close()
    return not client.reason.is_failure


def over_http(server, user, password):
    return server.api.status("GET", "whoami", user=f"{user}:{password}") == 200


@pytest.mark.parametrize("enter", [over_amqp, over_mqtt, over_stomp, over_http])
def test_guessing_ends_for_that_user_and_for_nobody_else(server, enter):
    # Repeated with another user if the machine was too slow.
    for user in (f"u-{number}" for number in itertools.count()):
        add_user(server, user)
        began = time.monotonic()
        for number in range(GUESSES):
            assert not enter(server, user, f"wrong-{number}")
        here, elsewhere = enter(server, user, "right"), over_http(server, user, "right")
        if time.monotonic() - began < WINDOW_SECONDS:
            break
    assert (here, elsewhere) == (False, False), "not looked at"
    assert enter(server, "v", "right")


@pytest.mark.parametrize("enter", [over_amqp, over_mqtt, over_stomp, over_http])
def test_a_client_with_an_old_password_locks_nobody_out(server, enter):
    for _ in range(GUESSES):
        assert not enter(server, "u", "old")
    assert enter(server, "u", "right")
