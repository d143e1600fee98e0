"""Message rates on the dashboard: in lists, on a queue's page and in the topology diagram."""

import threading

import pika
import pytest

from harness.dashboard import server, visit, window

FLOWS = "/^[1-9][\\d.,]*[KM]?\\/s$/"


@pytest.fixture
def flow(server):
    """Publishes through an exchange to two queues, one of them without a consumer, for the length of the test."""
    connection = pika.BlockingConnection(pika.URLParameters(server.uri))
    channel = connection.channel()
    channel.exchange_declare("orders", "fanout")
    for queue in ("billed", "kept"):
        channel.queue_declare(queue, arguments={"x-max-length": 10})
        channel.queue_bind(queue, "orders", "placed")
    channel.basic_consume("billed", lambda channel, method, *_: channel.basic_ack(method.delivery_tag))
    ended = threading.Event()

    def publish():
        while not ended.is_set():
            for _ in range(5):
                channel.basic_publish("orders", "placed", b"x")
            connection.process_data_events(0.05)
        connection.close()

    publisher = threading.Thread(target=publish)
    publisher.start()
    yield
    ended.set()
    publisher.join()


def await_cells(visit, row, *columns):
    """Waits until the row that begins with these texts shows a rate in each of the columns."""
    flows = f"""[...document.querySelectorAll("#view tbody tr")]
        .filter((each) => each.children[0].textContent === args[0])
        .some((each) => args[1].every((column) =>
            {FLOWS}.test([...each.children].find((cell) => cell.dataset.label === column).textContent)))"""
    visit.wait(flows, row, columns)


def test_message_rates_are_shown_in_lists_queue_pages_and_the_diagram(flow, visit):
    visit.enter("queues")
    await_cells(visit, "billed", "incoming", "deliver / get", "ack")
    await_cells(visit, "kept", "incoming")
    assert {row["Name"]: row["deliver / get"] for row in visit.rows()}["kept"] in ("–", "0/s")
    visit.go("exchanges")
    await_cells(visit, "orders", "rate in", "rate out")
    visit.go("channels")
    visit.wait(f"[...document.querySelectorAll('#view td[data-label=publish]')].some((each) => {FLOWS}.test(each.textContent))")
    visit.go("queues", "/", "billed")
    for title in ("Publish", "Deliver / get", "Consumer ack"):
        figure = f"""[...document.querySelectorAll("#view .card")].some((each) =>
            each.querySelector("h3").textContent === args[0] && {FLOWS}.test(each.querySelector(".figure").textContent))"""
        visit.wait(figure, title)
    # The diagram is refreshed on demand.
    visit.go("topology")
    visit.wait("document.querySelectorAll('#view svg.diagram path.flows').length === 2")
    words = "return [...document.querySelectorAll('#view svg .edge-words')].map((each) => each.firstChild.textContent)"
    assert all(text.startswith("placed · ") and text.endswith("/s") for text in visit.window.evaluate(words))
    more = "return [...document.querySelectorAll('#view svg .node .more')].map((each) => each.textContent)"
    told = visit.window.evaluate(more)
    assert len(told) == 3 and all(text.endswith("/s") for text in told), told
