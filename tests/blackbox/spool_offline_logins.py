"""While no upstream can be asked, clients whose credentials it has accepted lately log in and publish to the spool."""

import time

import pika
import pytest
from harness.forwarder import Forwarder
from harness.metrics import metric, wait_until
from harness.rabbitmq import RabbitMq
from harness.spool import spooling, waiting

QUEUE = "offline"
CLOSED = pika.exceptions.AMQPConnectionError


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    broker = RabbitMq(tmp_path_factory.mktemp("spool") / "rabbitmq")
    yield broker
    broker.stop()


@pytest.fixture
def link(broker):
    link = Forwarder(broker.port)
    yield link
    link.stop()


@pytest.fixture(autouse=True)
def user(broker):
    """A user of the test's own, whose password it may change."""
    broker.control("add_user", "edge", "secret")
    broker.control("set_permissions", "edge", ".*", ".*", ".*")
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        direct.channel().queue_declare(QUEUE, durable=True)
        direct.channel().queue_purge(QUEUE)
    yield
    broker.control("delete_user", "edge")


def connect(server, password="secret"):
    parameters = pika.URLParameters(server.uri)
    parameters.credentials = pika.PlainCredentials("edge", password)
    return pika.BlockingConnection(parameters)


def publish(connection, *bodies):
    channel = connection.channel()
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", QUEUE, body)


def cut(link, is_closed):
    link.is_closed = is_closed
    link.cut()


def arrived(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        channel, bodies = direct.channel(), []
        while (got := channel.basic_get(QUEUE, auto_ack=True))[0] is not None:
            bodies.append(got[2].decode())
        return bodies


def is_stored(folder):
    """Whether the accepted login has been written; it takes a slow hash."""
    path = folder / "data" / "spool" / "logins"
    return path.exists() and path.read_text().count("\n") == 1


def test_a_known_client_logs_in_while_nobody_can_be_asked_and_a_restart_changes_nothing(tmp_path, broker, link):
    with spooling(tmp_path, link.url) as server:
        with connect(server) as client:
            publish(client, "before")
        wait_until(lambda: is_stored(tmp_path))
        wait_until(lambda: waiting(server) == 0)
        cut(link, True)
        with connect(server) as client:
            publish(client, "away")
        server.kill()
    stored = tmp_path / "data" / "spool" / "logins"
    assert stored.stat().st_mode & 0o77 == 0
    with spooling(tmp_path, link.url) as server:
        with connect(server) as client:
            publish(client, "restarted")
        with pytest.raises(CLOSED):
            connect(server, "wrong")
        assert metric(server, "leveret_spool_offline_logins_total") == 1
        # The spool has learnt the password from a client, and needs no other.
        cut(link, False)
        found = []
        wait_until(lambda: found.extend(arrived(broker)) or len(found) >= 3)
        assert found == ["before", "away", "restarted"]
        server.stop()


def test_a_changed_password_ends_it_as_soon_as_the_broker_can_be_asked(tmp_path, broker, link):
    with spooling(tmp_path, link.url) as server:
        connect(server).close()
        cut(link, True)
        broker.control("change_password", "edge", "changed")
        client = connect(server)
        publish(client, "accepted by the old password")
        cut(link, False)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                client.process_data_events(time_limit=0.1)
        assert closed.value.reply_code == 403
        cut(link, True)
        with pytest.raises(CLOSED):
            connect(server)
        cut(link, False)
        assert waiting(server) == 1
        wait_until(lambda: metric(server, "leveret_upstream_up") == 1)
        with connect(server, "changed"):
            found = []
            wait_until(lambda: found.extend(arrived(broker)) or found)
        assert found == ["accepted by the old password"]
        server.stop()


@pytest.mark.parametrize("flags", [["--spool-auth-max", "0s"], ["--spool-auth-max", "1s"]])
def test_a_login_counts_no_longer_than_its_setting(tmp_path, broker, link, flags):
    with spooling(tmp_path, link.url, *flags) as server:
        connect(server).close()
        cut(link, True)
        # The setting's own second.
        time.sleep(1.1)
        with pytest.raises(CLOSED):
            connect(server)
        server.stop()
