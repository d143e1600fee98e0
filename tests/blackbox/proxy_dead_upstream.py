"""While no upstream is reachable, clients see what they would see of a dead broker without the pool: never a refused login
(S7)."""

import pika
import pytest
from harness.instances import leveret, replaceable
from harness.metrics import metric, wait_until
from harness.wire import (
    CONNECTION_OPEN,
    CONNECTION_START,
    CONNECTION_TUNE,
    CONNECTION_TUNE_OK,
    PROTOCOL_HEADER,
    Wire,
    short_string,
)

CLOSED_UNHEARD = 0
TUNING = b"\x07\xff\0\2\0\0\0\0"


@pytest.fixture
def broker(tmp_path):
    with replaceable(tmp_path / "broker") as broker:
        yield broker


def pool(tmp_path, broker, *flags):
    return leveret(tmp_path / "pool", "--upstream", f"amqp://{broker.address}", *flags)


def bytes_heard(server):
    """The number of bytes that a client receives after it sends only the protocol header."""
    with Wire(server.port) as wire:
        wire.send(PROTOCOL_HEADER)
        return wire.expect_end()


def start_again(tmp_path, broker):
    return leveret(tmp_path / "again", amqp=broker.address)


def test_s7_a_new_client_receives_nothing_until_an_upstream_is_back(tmp_path, broker):
    with pool(tmp_path, broker) as server:
        with pika.BlockingConnection(pika.URLParameters(server.uri)):
            broker.child.kill()
            server.child.wait_line("upstream connection lost")
            # The first client detects the failure, and sees the same as later ones.
            assert [bytes_heard(server) for _ in range(3)] == [CLOSED_UNHEARD] * 3
            with pytest.raises(pika.exceptions.AMQPConnectionError) as refused:
                pika.BlockingConnection(pika.URLParameters(server.uri))
            assert not isinstance(
                refused.value, (pika.exceptions.ProbableAuthenticationError, pika.exceptions.ProbableAccessDeniedError)
            )
            with start_again(tmp_path, broker):
                # The recovery is detected without a client.
                server.child.wait_line("upstream reachable again")
                with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
                    connection.channel()
        server.stop()


def test_s7_a_pool_that_starts_before_its_upstream_is_a_dead_broker_until_then(tmp_path, broker):
    broker.child.kill()
    with pool(tmp_path, broker) as server:
        assert bytes_heard(server) == CLOSED_UNHEARD
        with start_again(tmp_path, broker):
            server.child.wait_line("upstream reachable again")
            pika.BlockingConnection(pika.URLParameters(server.uri)).close()
        server.stop()


@pytest.mark.parametrize("past", [CONNECTION_START, CONNECTION_TUNE], ids=["start", "tune"])
def test_s7_a_login_in_progress_waits_and_is_then_closed_without_reply(tmp_path, broker, past):
    with pool(tmp_path, broker, "--upstream-arrival-max", "3s") as server, Wire(server.port) as wire:
        wait_until(lambda: metric(server, "leveret_upstream_up") == 1)
        wire.send(PROTOCOL_HEADER)
        wire.expect(CONNECTION_START)
        if past == CONNECTION_TUNE:
            wire.send_login()
            wire.expect(CONNECTION_TUNE)
        broker.child.kill()
        if past == CONNECTION_START:
            wire.send_login()
        else:
            wire.send_method(0, CONNECTION_TUNE_OK, TUNING)
            wire.send_method(0, CONNECTION_OPEN, short_string("/") + short_string("") + b"\x00")
        assert wire.expect_end() == CLOSED_UNHEARD
        server.stop()


def test_s7_a_client_in_the_middle_of_its_login_is_let_in_when_an_upstream_is_back_in_time(tmp_path, broker):
    with pool(tmp_path, broker, "--upstream-arrival-max", "60s", "--handshake-timeout", "120s") as server:
        with Wire(server.port) as wire:
            wire.send(PROTOCOL_HEADER)
            wire.expect(CONNECTION_START)
            broker.child.kill()
            wire.send_login()
            server.child.wait_line("upstream connection failed")
            with start_again(tmp_path, broker):
                wire.expect(CONNECTION_TUNE)
        server.stop()
