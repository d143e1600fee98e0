"""The dashboard's spool page: each button's effect on the page, in the API and at the broker."""

import pika
import pytest

from harness.ctl import Ctl
from harness.dashboard import Visit, ask, window
from harness.metrics import metric, wait_until
from harness.mqtt_broker import channel_of
from harness.own_rabbitmq import broker
from harness.spool import count, spooling, take

# Fixtures of these tests.
__all__ = ["broker", "window"]

QUEUE, LATE = "of-the-page", "declared-late"
PARKED = "[...document.querySelectorAll('#view section')].find((each) => each.querySelector('h2')?.textContent === 'Parked messages')"


@pytest.fixture
def direct(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.queue_purge(QUEUE)
        yield channel
        channel.exchange_delete(LATE)


@pytest.fixture
def page(tmp_path, broker, window):
    """The spool page of a server of the test's own."""
    with spooling(tmp_path, f"amqp://127.0.0.1:{broker.port}") as server:
        visit = Visit(window, server).open(("spool",))
        visit.settle()
        yield visit
        assert visit.violations() == [] and window.complaints() == []
        server.stop()


def do(visit, words, told):
    """Presses a button, and confirms the dialog."""
    visit.press(words)
    visit.answer(words)
    visit.wait("document.getElementById('notice').textContent.includes(args[0])", told)


def await_row(visit, state, messages):
    """Waits until the page shows this state for the only user, by its periodic refresh."""
    shown = lambda label: f"document.querySelector('#view table.list tbody td[data-label=\"{label}\"]')?.textContent"
    visit.wait(f"{shown('State')} === args[0] && {shown('Messages')} === args[1]", state, str(messages))


def test_the_spool_is_paused_resumed_and_drained(page, direct):
    server = page.server
    state = lambda: [row["state"] for row in ask(server, "GET", "leveret/spool")]
    with channel_of(server) as channel:
        do(page, "Pause", "The spool is paused.")
        channel.basic_publish("", QUEUE, "while it is paused")
        await_row(page, "paused", 1)
        assert (state(), metric(server, "leveret_spool_paused"), count(direct, QUEUE)) == (["paused"], 1, 0)

        do(page, "Resume", "The spool is resumed.")
        await_row(page, "running", 0)
        assert (state(), metric(server, "leveret_spool_paused")) == (["running"], 0)
        wait_until(lambda: count(direct, QUEUE) == 1)

        do(page, "Pause", "The spool is paused.")
        channel.basic_publish("", QUEUE, "before the drain")
        await_row(page, "paused", 1)
        do(page, "Drain", "The spool is being drained.")
        channel.basic_publish("", QUEUE, "behind the drain")
        await_row(page, "draining", 0)
        assert state() == ["draining"]

        do(page, "Resume", "The spool is resumed.")
        channel.basic_publish("", QUEUE, "at the end")
        await_row(page, "running", 0)
        wait_until(lambda: count(direct, QUEUE) == 4)
    found = [("while it is paused", True), ("before the drain", True), ("behind the drain", False), ("at the end", True)]
    assert [take(direct, QUEUE) for _ in found] == found


def test_parked_messages_are_forwarded_again_and_dropped(page, direct):
    server = page.server
    parked = lambda: [row["exchange"] for row in ask(server, "GET", "leveret/spool/parked")]
    is_shown = f"{PARKED}.checkVisibility()"
    rows = f"{PARKED}.querySelectorAll('tbody tr').length"
    assert not page.window.evaluate(f"return {is_shown}"), "there are none"
    with channel_of(server) as channel:
        for body in ("one", "two"):
            channel.basic_publish(LATE, "key", body)
        page.wait(f"{is_shown} && {rows} > 0")
        wait_until(lambda: parked() == [LATE, LATE])
        direct.exchange_declare(LATE, "fanout")
        direct.queue_bind(QUEUE, LATE)
        do(page, "Forward again", "2 parked messages are forwarded again.")
        page.wait(f"!{is_shown}")
        wait_until(lambda: count(direct, QUEUE) == 2)
        assert (parked(), [take(direct, QUEUE) for _ in range(2)]) == ([], [("one", True), ("two", True)])

        channel.basic_publish("never-declared", "key", "three")
        page.wait(f"{is_shown} && {rows} === 1")
        page.press("Drop all")
        page.wait("document.querySelector('dialog[open]')")
        page.press("Cancel", "dialog")
        page.wait("!document.querySelector('dialog')")
        assert parked() == ["never-declared"], "nobody has confirmed it"
        do(page, "Drop all", "1 parked messages are dropped.")
        page.wait(f"!{is_shown}")
        assert parked() == []
        assert Ctl(server.http)("spool", "requeue") == "0 parked messages are forwarded again, 0 are parked\n"
