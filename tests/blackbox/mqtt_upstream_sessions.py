"""MQTT sessions in front of an upstream during outages, takeovers, shutdowns and changes of permissions."""

import contextlib
import signal
import threading
import time

import pytest

from harness.ctl import Ctl
from harness.instances import leveret, replaceable
from harness.metrics import metric, wait_until
from harness.mqtt5_wire import Mqtt5Wire
from harness.mqtt_broker import ANY, listening
from harness.mqtt_client import V5, V311, MqttClient, persistent_session
from harness.mqtt_pool import MqttPool
from harness.patience import PATIENCE
from harness.releases import RELEASES, missing

VERSIONS = [V311, V5]
# MQTT 5.0 reason codes.
BAD_PASSWORD, NOT_AUTHORIZED, QUOTA = 0x86, 0x87, 0x97


@pytest.fixture(scope="module", params=RELEASES)
def pool(request, tmp_path_factory):
    if reason := missing(request.param):
        pytest.skip(reason)
    pool = MqttPool(request.param, tmp_path_factory.mktemp("pool"), "--auth-ttl", "1s", "--mqtt-vhost", "default")
    pool.rabbitmq.control("add_vhost", "default")
    pool.rabbitmq.control("set_permissions", "-p", "default", "guest", ".*", ".*", ".*")
    yield pool
    pool.stop()


@contextlib.contextmanager
def in_front_of_leveret(directory, *flags):
    """A pool with MQTT in front of an embedded broker; yields the broker first."""
    with replaceable(directory / "broker") as broker:
        flags = ("--upstream", f"amqp://127.0.0.1:{broker.port}", "--mqtt", ANY, *flags)
        with leveret(directory / "pool", *flags) as server:
            server.mqtt = listening(server, "mqtt", "mqtt")
            yield broker, server


def user(pool, name, *permissions, vhost="/"):
    pool.rabbitmq.control("add_user", name, name)
    pool.rabbitmq.control("set_permissions", "-p", vhost, name, *(permissions or (".*",) * 3))
    return {"user": name if vhost == "default" else f"{vhost}:{name}", "password": name}


def test_a_user_or_vhost_at_its_connection_limit_gets_quota_exceeded(pool):
    mine = user(pool, "limited")
    pool.rabbitmq.control("set_user_limits", "limited", '{"max-connections": 0}')
    with contextlib.closing(Mqtt5Wire(pool.mqtt)) as client:
        assert client.connect("limited", **mine)["reason"] == QUOTA
    pool.rabbitmq.control("add_vhost", "limit")
    pool.rabbitmq.control("set_vhost_limits", "-p", "limit", '{"max-connections": 0}')
    other = user(pool, "other", vhost="limit")
    pool.rabbitmq.control("add_user", "stranger", "stranger")
    for options, reason in (
        (other, QUOTA),
        ({"user": "stranger", "password": "stranger"}, NOT_AUTHORIZED),
        ({"user": "no limit:guest"}, BAD_PASSWORD),
    ):
        with contextlib.closing(Mqtt5Wire(pool.mqtt)) as client:
            assert client.connect("other", **options)["reason"] == reason, options


def test_the_virtual_host_is_that_of_the_user_name_or_the_default(pool):
    with pool.client("one") as one, pool.client("two", user="/:guest") as two:
        for client in (one, two):
            client.subscribe("host/a", 1)
        one.publish("host/a", b"default")
        two.publish("host/a", b"/")
        assert [client.message().payload for client in (one, two)] == [b"default", b"/"]


@pytest.mark.parametrize("version", VERSIONS)
def test_permissions_that_are_revoked_hold_for_clients_that_are_connected(pool, version):
    mine = user(pool, f"revoked{version}", vhost="default")
    name = mine["user"]
    with pool.client(f"revoked{version}", version, **mine, **persistent_session(version)) as client:
        client.subscribe(f"revoked/{version}", 1)
        client.publish(f"revoked/{version}", b"before")
        assert client.message().payload == b"before"
        pool.rabbitmq.control("set_permissions", "-p", "default", name, ".*", "^$", ".*")
        if version == V311:
            # RabbitMQ caches permissions per channel, until the channel has been idle for a while.
            pause, deadline = 0.5, time.monotonic() + PATIENCE
            while not client.gone.wait(pause):
                assert time.monotonic() < deadline, "permitted for ever"
                client.client.publish(f"permitted/{version}", b"after", 1)
                pause *= 1.5
        else:
            with contextlib.closing(Mqtt5Wire(pool.mqtt)) as wire:
                wire.connect("writer", **mine)
                assert wire.publish("revoked/a", b"x", 1)["reason"] == NOT_AUTHORIZED
    pool.rabbitmq.control("set_permissions", "-p", "default", name, ".*", ".*", ".*")
    with pool.client("other") as other, pool.client(f"revoked{version}", version, **mine, **persistent_session(version)) as client:
        assert client.session_present
        other.publish(f"revoked/{version}", b"again")
        assert client.message().payload == b"again"


def test_a_user_without_permission_for_its_session_queue_is_disconnected(pool):
    mine = user(pool, "blind", vhost="default")
    with contextlib.closing(Mqtt5Wire(pool.mqtt)) as client:
        client.connect("blind", **mine, SessionExpiryInterval=60)
        assert client.subscribe(("blind/a", 1))["reasons"] == [1]
    pool.rabbitmq.control("set_permissions", "-p", "default", "blind", ".*", ".*", "^$")
    with contextlib.closing(Mqtt5Wire(pool.mqtt)) as client:
        assert client.connect("blind", clean=False, **mine, SessionExpiryInterval=60)["reason"] == 0
        answer = client.answer()
        assert (answer["packet"], answer["reason"]) == ("DISCONNECT", NOT_AUTHORIZED)
        # In the upstream's words, which vary by release.
        assert answer["ReasonString"].endswith("refused for user 'blind'")
    pool.rabbitmq.control("set_permissions", "-p", "default", "blind", ".*", ".*", ".*")
    with contextlib.closing(Mqtt5Wire(pool.mqtt)) as client:
        assert client.connect("blind", clean=False, **mine, SessionExpiryInterval=60)["session"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_password_that_was_changed_holds_after_auth_ttl(pool, version):
    mine = user(pool, f"changed{version}", vhost="default")
    with pool.client("changed", version, **mine) as client:
        assert not client.reason.is_failure
    pool.rabbitmq.control("change_password", mine["user"], "another")

    def is_refused(password):
        with pool.client("changed", version, user=mine["user"], password=password) as client:
            return client.reason.is_failure

    wait_until(lambda: is_refused(mine["password"]))
    assert not is_refused("another")
    # Refusals are not cached any longer.
    pool.rabbitmq.control("change_password", mine["user"], mine["password"])
    wait_until(lambda: not is_refused(mine["password"]))


@pytest.mark.parametrize("version", VERSIONS)
def test_500_numbered_messages_come_in_their_order_through_a_restart(tmp_path, version):
    release = "3.10" if version == V311 else "4"
    if reason := missing(release):
        pytest.skip(reason)
    restarted_with_500_messages(tmp_path, release, version)


def restarted_with_500_messages(directory, release, version):
    pool = MqttPool(release, directory)
    try:
        with pool.client("reader", version, **persistent_session(version)) as reader, pool.client("writer", version) as writer:
            reader.subscribe("numbered/#", 1)
            acknowledged = threading.Semaphore(0)
            writer.client.on_publish = lambda *_: acknowledged.release()
            for number in range(500):
                writer.client.publish(f"numbered/{number % 2}", str(number).encode(), 1)
                if number == 250:
                    pool.rabbitmq.end()
            pool.rabbitmq.start()
            for number in range(500):
                assert acknowledged.acquire(timeout=PATIENCE), number
            seen = {0: [], 1: []}
            while sum(len(set(numbers)) for numbers in seen.values()) < 500:
                message = reader.message()
                seen[int(message.topic[-1])].append(int(message.payload))
            for parity, numbers in seen.items():
                # Duplicates are a repeated run of earlier messages; the first arrivals are in order.
                assert list(dict.fromkeys(numbers)) == list(range(parity, 500, 2))
            assert not reader.gone.is_set() and not writer.gone.is_set()
    finally:
        pool.stop()


def test_messages_of_quality_0_are_dropped_and_counted_while_the_upstream_is_gone(tmp_path):
    with in_front_of_leveret(tmp_path) as (broker, server):
        with MqttClient(server.mqtt, "writer") as writer:
            writer.publish("gone/a", b"x", 1)
            broker.child.kill()
            wait_until(lambda: metric(server, "leveret_upstream_up") == 0)
            for _ in range(5000):
                writer.client.publish("gone/a", b"x" * 100, 0)
            wait_until(lambda: metric(server, "leveret_mqtt_dropped_messages_total") == 5000)
            assert not writer.gone.is_set()
            for version in VERSIONS:
                with MqttClient(server.mqtt, f"fresh{version}", version, password="fresh") as fresh:
                    assert fresh.reason == "Server unavailable"
            done = threading.Event()
            writer.client.on_publish = lambda *_: done.set()
            writer.client.publish("gone/a", b"x", 1)
            with leveret(tmp_path / "again", amqp=broker.address):
                assert done.wait(PATIENCE), "it has waited"
                server.stop()


def test_sessions_and_wills_that_wait_are_counted(tmp_path):
    with in_front_of_leveret(tmp_path) as (_, server):
        counts = lambda: [metric(server, f"leveret_mqtt_{name}") for name in ("detached_sessions", "delayed_wills")]  # noqa: E731
        assert counts() == [0, 0]
        for name in ("one", "other"):
            mortal = Mqtt5Wire(server.mqtt)
            mortal.connect(name, will=("w", b"x", 1, False, {"WillDelayInterval": 3600}), SessionExpiryInterval=3600)
            mortal.close()
        wait_until(lambda: counts() == [2, 2])
        assert metric(server, "leveret_mqtt_detached_bytes") > 0 and metric(server, "leveret_mqtt_delayed_will_bytes") > 0
        with MqttClient(server.mqtt, "one"):
            wait_until(lambda: counts() == [1, 1])
        server.stop()


def test_a_delayed_will_is_published_when_leveret_shuts_down(tmp_path):
    with in_front_of_leveret(tmp_path) as (broker, server):
        ctl = Ctl(broker.http)
        with MqttClient(server.mqtt, "heir", **persistent_session(V311)) as heir:
            heir.subscribe("will/#", 1)
            for name in ("gone", "there"):
                mortal = Mqtt5Wire(server.mqtt)
                delay = {"WillDelayInterval": 3600}
                mortal.connect(name, will=(f"will/{name}", b"x", 1, False, delay), SessionExpiryInterval=3600)
                if name == "gone":
                    mortal.close()
            server.child.send(signal.SIGTERM)
            assert server.child.wait() == 0, server.tail()
        wait_until(lambda: ctl.rows("list_queues", "name", "messages") == [["mqtt-subscription-heirqos1", "2"]])
