"""While no upstream is reachable, clients whose credentials it accepted recently log in and publish to the spool."""

import time
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest
from harness.metrics import metric, wait_until
from harness.own_rabbitmq import broker, link
from harness.patience import PATIENCE
from harness.spool import cut_off, spooling, waiting, waits_for

# Fixtures of these tests.
__all__ = ["broker", "link"]

QUEUE = "offline"
CLOSED = pika.exceptions.AMQPConnectionError


@pytest.fixture(autouse=True)
def user(broker):
    """A user of the test, whose password it may change."""
    broker.control("add_user", "edge", "secret")
    broker.control("set_permissions", "edge", ".*", ".*", ".*")
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        direct.channel().queue_declare(QUEUE, durable=True)
        direct.channel().queue_purge(QUEUE)
    yield
    broker.control("delete_user", "edge")


def connect(server, password="secret", vhost="/"):
    parameters = pika.URLParameters(server.uri)
    parameters.virtual_host = vhost
    parameters.credentials = pika.PlainCredentials("edge", password)
    return pika.BlockingConnection(parameters)


def publish(connection, *bodies):
    channel = connection.channel()
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", QUEUE, body)


def arrived(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        channel, bodies = direct.channel(), []
        while (got := channel.basic_get(QUEUE, auto_ack=True))[0] is not None:
            bodies.append(got[2].decode())
        return bodies


def closed_with(connection):
    """The reply code with which the server closes a connection."""
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            connection.process_data_events(time_limit=0.1)
    return closed.value.reply_code


def is_stored(directory):
    """Whether the accepted login is on disk; its hash is slow."""
    path = directory / "data" / "spool" / "logins"
    return path.exists() and path.read_text().count("\n") == 1


def test_a_known_client_logs_in_while_nobody_can_be_asked_and_a_restart_changes_nothing(tmp_path, broker, link):
    with spooling(tmp_path, link.url) as server:
        with connect(server) as client:
            publish(client, "before")
        wait_until(lambda: is_stored(tmp_path))
        wait_until(lambda: waiting(server) == 0)
        cut_off(server, link)
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
        # The forwarder has the password from a client, and needs no other.
        link.reopen()
        found = []
        wait_until(lambda: found.extend(arrived(broker)) or len(found) >= 3)
        assert found == ["before", "away", "restarted"]
        server.stop()


def test_a_changed_password_ends_it_as_soon_as_the_broker_can_be_asked(tmp_path, broker, link):
    with spooling(tmp_path, link.url) as server:
        connect(server).close()
        cut_off(server, link)
        broker.control("change_password", "edge", "changed")
        client = connect(server)
        publish(client, "accepted by the old password")
        link.reopen()
        assert closed_with(client) == 403
        cut_off(server, link)
        with pytest.raises(CLOSED):
            connect(server)
        link.reopen()
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
        cut_off(server, link)
        # The setting has a resolution of a second.
        time.sleep(1.1)
        with pytest.raises(CLOSED):
            connect(server)
        server.stop()


# Verify each login with the broker.
ASKING = ["--auth-ttl", "0s", "--upstream-arrival-max", "60s"]


def test_a_slow_broker_decides_itself_about_clients_that_no_rule_concerns(tmp_path, broker, link):
    """The spool has stored the login for another virtual host; the broker answers later than the spool's timeout."""
    broker.control("add_vhost", "unspooled")
    broker.control("set_permissions", "-p", "unspooled", "edge", ".*", ".*", ".*")
    with spooling(tmp_path, link.url, *ASKING, rule='{vhost = "^/$"}') as server:
        connect(server).close()
        with decided_late(server, link, lambda: connect(server, vhost="unspooled")) as client:
            client.channel().queue_declare("there", exclusive=True)
        with pytest.raises(CLOSED):
            decided_late(server, link, lambda: connect(server, "wrong", vhost="unspooled"))
        assert metric(server, "leveret_spool_offline_logins_total") == 2, "of the clients beside them"
        server.stop()
    broker.control("delete_vhost", "unspooled")


def decided_late(server, link, login):
    """The outcome of a login whose verification begins only after the spool's timeout."""
    link.passes_new.clear()
    before = len(link.sockets)
    with ThreadPoolExecutor(1) as executor:
        try:
            outcome = executor.submit(login)
            wait_until(lambda: len(link.sockets) > before)
            # A client that a rule matches connects later, and is admitted after the spool's timeout.
            with connect(server):
                assert not outcome.done()
                link.passes_new.set()
                wait_until(lambda: metric(server, "leveret_spool_unverified_clients") == 0)
        finally:
            link.passes_new.set()
        return outcome.result(PATIENCE)


def test_a_slow_broker_decides_later_about_clients_that_a_rule_concerns(tmp_path, broker, link):
    with spooling(tmp_path, link.url, *ASKING) as server:
        connect(server).close()
        link.passes_new.clear()
        with connect(server) as client:
            publish(client, "early")
            assert metric(server, "leveret_spool_unverified_clients") == 1
            link.passes_new.set()
            wait_until(lambda: metric(server, "leveret_spool_unverified_clients") == 0)
            publish(client, "late")
        found = []
        wait_until(lambda: found.extend(arrived(broker)) or len(found) >= 2)
        assert found == ["early", "late"]
        server.stop()


def test_a_client_is_asked_about_while_the_forwarder_is_busy(tmp_path, broker, link):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        direct.channel().queue_declare("stuck", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    with spooling(tmp_path, link.url, *ASKING) as server:
        with connect(server) as first:
            # Published repeatedly on an open connection.
            first.channel().basic_publish("", "stuck", "never")
            wait_until(lambda: metric(server, "leveret_spool_deferred_messages") == 1)
        broker.control("change_password", "edge", "changed")
        link.passes_new.clear()
        client = connect(server)
        publish(client, "before anybody was asked")
        link.passes_new.set()
        assert closed_with(client) == 403
        assert metric(server, "leveret_spool_unverified_clients") == 0
        server.kill()
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        direct.channel().queue_delete("stuck")


def test_a_limit_that_is_reached_for_now_ends_no_login(tmp_path, broker, link):
    with spooling(tmp_path, link.url, *ASKING) as server:
        connect(server).close()
        cut_off(server, link)
        with connect(server) as client:
            publish(client, "away")
            broker.control("set_vhost_limits", "-p", "/", '{"max-connections": 0}')
            link.reopen()
            wait_until(lambda: "connection limit" in (waits_for(server) or ""))
            publish(client, "over the limit")
            cut_off(server, link)
            with connect(server) as another:
                publish(another, "remembered")
            broker.control("clear_vhost_limits", "-p", "/")
            link.reopen()
            wait_until(lambda: metric(server, "leveret_spool_unverified_clients") == 0)
            publish(client, "verified")
            found = []
            wait_until(lambda: found.extend(arrived(broker)) or len(found) >= 4)
            assert found == ["away", "over the limit", "remembered", "verified"]
        server.stop()
