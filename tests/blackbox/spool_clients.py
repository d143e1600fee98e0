"""Applications behind a spool, with pika, the Java client and php-amqplib: an outage, a restart during it, refused messages,
a changed password, a full disk."""

import contextlib

import pika
import pytest
from harness.ctl import Ctl
from harness.disks import FailingDisk
from harness.metrics import metric, wait_until
from harness.own_rabbitmq import broker, link
from harness.publishers import COMMANDS, ConfirmedPublisher, NotConnected
from harness.spool import cut_off, spooling, waiting, waits_for

# Fixtures of these tests.
__all__ = ["broker", "link"]

QUEUE = "clients"


@pytest.fixture(params=COMMANDS)
def language(request):
    return request.param


@pytest.fixture(autouse=True)
def user(broker):
    """A user of the test, whose password it may change."""
    broker.control("add_user", "edge", "secret")
    broker.control("set_permissions", "edge", ".*", ".*", ".*")
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        direct.channel().queue_delete(QUEUE)
        direct.channel().queue_declare(QUEUE, durable=True)
    yield
    broker.control("delete_user", "edge")


def publisher(language, server, password="secret"):
    return ConfirmedPublisher(language, f"amqp://edge:{password}@127.0.0.1:{server.port}")


def publisher_at_last(language, server):
    """Retries like an application while the link recovers."""
    found = []

    def is_connected():
        with contextlib.suppress(NotConnected):
            found.append(publisher(language, server))
        return found

    wait_until(is_connected)
    return found[0]


def arrived(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        channel, numbers = direct.channel(), []
        while (got := channel.basic_get(QUEUE, auto_ack=True))[0] is not None:
            numbers.append(int(got[2]))
        return numbers


def collect(broker, count):
    """The numbers in the order of their first arrival, once there are this many."""
    found = {}
    wait_until(lambda: found.update(dict.fromkeys(arrived(broker))) or len(found) >= count)
    return list(found)


def collect_with(broker, numbers):
    """These numbers in the order of their first arrival, without others that may be redelivered."""
    found = {}
    wait_until(lambda: found.update(dict.fromkeys(arrived(broker))) or found.keys() >= set(numbers))
    return [number for number in found if number in numbers]


def test_an_outage_a_restart_in_it_and_clients_that_come_meanwhile(tmp_path, broker, link, language):
    with spooling(tmp_path, link.url) as server:
        with publisher(language, server) as stays:
            stays.publish(QUEUE, range(100))
            # The login's slow hash is on disk.
            wait_until((tmp_path / "data" / "spool" / "logins").exists)
            cut_off(server, link)
            stays.publish(QUEUE, range(100, 200))
            with publisher(language, server) as comes:
                comes.publish(QUEUE, range(200, 300))
                comes.close()
            server.kill()
    with spooling(tmp_path, link.url) as server:
        assert waiting(server) >= 200
        with publisher(language, server) as comes:
            comes.publish(QUEUE, range(300, 400))
            link.reopen()
            comes.publish(QUEUE, range(400, 500))
            assert collect(broker, 500) == list(range(500))
            comes.close()
        wait_until(lambda: waiting(server) == 0)
        server.stop()


POISONED = "short-lived"


def delete_exchange(broker, _):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        direct.channel().exchange_delete(POISONED)


def take_permission(broker, link):
    broker.control("set_permissions", "edge", ".*", f"^(?!{POISONED}$)", ".*")
    # RabbitMQ caches write permissions per channel.
    link.cut()


# The causes for which the broker refuses messages permanently: the user id of the messages, and the reason. A user id is
# refused whatever an operator changes; the other messages can be forwarded again.
POISONS = {
    "a deleted exchange": (delete_exchange, "", f"NOT_FOUND - no exchange '{POISONED}' in vhost '/'"),
    "a lost permission": (take_permission, "", f"access to exchange '{POISONED}' in vhost '/' refused for user 'edge'"),
    "another user's id": (
        lambda *_: None,
        "somebody",
        "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'edge'",
    ),
}


@pytest.fixture
def poisoned(broker):
    """Declares the exchange."""

    def declare():
        with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
            direct.channel().exchange_declare(POISONED, "fanout")
            direct.channel().queue_bind(QUEUE, POISONED)

    declare()
    yield declare
    delete_exchange(broker, None)


@pytest.mark.parametrize("poison", POISONS)
def test_poison_is_parked_and_concerns_nobody_else(tmp_path, broker, link, poisoned, language, poison):
    poison, user_id, reason = POISONS[poison]
    with spooling(tmp_path, link.url) as server:
        ctl, parked = Ctl(server.http), lambda: metric(server, "leveret_spool_parked_messages")
        with publisher(language, server) as application:
            application.publish("", range(10), exchange=POISONED)
            assert collect(broker, 10) == list(range(10))
            # Their confirms have arrived, too, otherwise they would be sent again, and be poison.
            wait_until(lambda: waiting(server) == 0)
            poison(broker, link)
            application.publish("", range(10, 20), exchange=POISONED, user_id=user_id)
            application.publish(QUEUE, range(20, 30))
            assert collect_with(broker, range(20, 30)) == list(range(20, 30))
            wait_until(lambda: parked() == 10)
            wait_until(lambda: waiting(server) == 0)
            assert [reason in row["reason"] for row in ctl.json("spool", "parked", "reason")] == 10 * [True]
            poisoned()
            broker.control("set_permissions", "edge", ".*", ".*", ".*")
            link.cut()
            assert ctl("spool", "requeue").startswith("10 parked messages are forwarded again")
            if user_id:
                wait_until(lambda: parked() == 10)
                assert ctl("spool", "purge", "--yes") == "10 parked messages are dropped\n"
                assert not set(arrived(broker)) & set(range(10, 20))
            else:
                assert collect_with(broker, range(10, 20)) == list(range(10, 20))
            wait_until(lambda: waiting(server) == 0)
            assert parked() == 0
            application.close()
        server.stop()


def test_another_password_ends_the_old_one_and_the_messages_wait_for_the_new_one(tmp_path, broker, link, language):
    with spooling(tmp_path, link.url) as server:
        with publisher(language, server) as known:
            known.publish(QUEUE, range(5))
            assert collect(broker, 5) == list(range(5))
            # Their confirms have arrived, too, otherwise they would be sent again.
            wait_until(lambda: waiting(server) == 0)
            known.close()
        cut_off(server, link)
        broker.control("change_password", "edge", "changed")
        with publisher(language, server) as late:
            late.publish(QUEUE, range(5, 10))
            link.reopen()
            # Until the broker has refused the login, all publishes are accepted.
            accepted = range(5, 10)
            with pytest.raises(NotConnected):
                while True:
                    late.publish(QUEUE, range(accepted.stop, accepted.stop + 1))
                    accepted = range(5, accepted.stop + 1)
            # The reason is the lost connection until the login is retried.
            wait_until(lambda: "refused" in waits_for(server))
        with pytest.raises(NotConnected):
            publisher(language, server)
        with publisher(language, server, "changed") as changed:
            found = collect(broker, len(accepted))
            assert found[: len(accepted)] == list(accepted)
            changed.close()
        server.stop()


def test_a_disk_without_room_confirms_nothing_and_loses_nothing(tmp_path, broker, link, language):
    disk = FailingDisk.without_room(tmp_path / "failing")
    flags = ["--disk-free-limit", "0"]
    with spooling(tmp_path, link.url, *flags, data=disk.directory / "data", env=disk.environment) as server:
        with publisher(language, server) as application:
            application.publish(QUEUE, range(10))
            assert collect(broker, 10) == list(range(10))
            # Their confirms have arrived and are on disk once this is answered: the next write is a publish's.
            wait_until(lambda: waiting(server) == 0)
            Ctl(server.http)("spool", "purge", "--yes")
            cut_off(server, link)
            disk.fail()
            application.send(QUEUE, range(10, 60))
            # Publishers are blocked as soon as the disk fails, perhaps before all messages are here. pika waits for each
            # confirm.
            wait_until(lambda: 1 <= waiting(server) <= (1 if language == "pika" else 50))
            # Operators see it like a broker's full disk.
            failing = lambda: metric(server, 'leveret_store_failing{cause="full"}')
            wait_until(lambda: failing() == 1)
            disk.mend()
            application.confirmed()
            assert failing() == 0
            server.kill()
    with spooling(tmp_path, link.url, *flags, data=disk.directory / "data", env=disk.environment) as server:
        assert waiting(server) == 50
        link.reopen()
        with publisher_at_last(language, server) as application:
            assert collect(broker, 50) == list(range(10, 60))
            application.close()
        server.stop()
    disk.remove()
