"""The dashboard with ten thousand queues: paged, filtered and sorted by the server."""

import pika
import pytest

from harness.dashboard import Visit, window
from harness.instances import leveret

QUEUES = 10_000
PAGE = 50


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("server")) as server:
        declare(server)
        yield server
        server.stop()


@pytest.fixture(scope="module")
def visit(window, server):
    return Visit(window, server)


def declare(server):
    connection = pika.BlockingConnection(pika.URLParameters(server.uri))
    channel = connection.channel()
    # Not awaited one by one: the last one's answer means that all exist.
    for number in range(QUEUES - 1):
        declaration = pika.spec.Queue.Declare(queue=f"queue-{number:05}", nowait=True)
        channel._impl._send_method(declaration)
    channel.queue_declare(f"queue-{QUEUES - 1:05}")
    for number in (17, 4711):
        for _ in range(number):
            channel.basic_publish("", f"queue-{number:05}", b"x")
    connection.close()


def names(visit):
    return [row["Name"] for row in visit.rows()]


def await_first(visit, name):
    visit.wait("document.querySelector('#view tbody tr bdi')?.textContent === args[0]", name)


def test_there_is_one_page_of_rows_whichever_is_shown(visit):
    visit.enter("queues")
    assert names(visit) == [f"queue-{number:05}" for number in range(PAGE)]
    assert visit.text("#view .where") == "Page 1 of 200, 10,000 total"
    visit.press("Next ›")
    await_first(visit, "queue-00050")
    visit.press("Last »")
    await_first(visit, "queue-09950")
    assert len(names(visit)) == PAGE
    assert visit.window.evaluate("return document.querySelectorAll('*').length") < 2_500
    # A disabled button does nothing, and a reload shows the same page of the list.
    visit.press("Next ›")
    visit.window.reload()
    visit.settle()
    assert visit.text("#view .where") == "Page 200 of 200, 10,000 total"
    assert names(visit)[0] == "queue-09950"
    visit.press("« First")
    await_first(visit, "queue-00000")


def test_the_server_finds_and_sorts(visit):
    visit.enter("queues")
    visit.fill("Filter by name", "471")
    visit.window.wait_for_text("#view .where", "^\\d+ of 10,000 total$")
    assert "queue-04711" in names(visit)
    visit.fill("Filter by name", "nowhere")
    visit.window.wait_for_text("#view .paged > .hint", "^No matches for the filter\\.$")
    visit.fill("Filter by name", "")
    await_first(visit, "queue-00000")
    visit.press("Ready")
    await_first(visit, "queue-04711")
    assert [row["Ready"] for row in visit.rows()][:3] == ["4,711", "17", "0"]
    assert visit.window.evaluate("return document.querySelector('[aria-sort]').ariaSort") == "descending"
    visit.press("Ready")
    visit.wait("document.querySelector('[aria-sort=ascending]')")
    visit.press("Last »")
    visit.wait("[...document.querySelectorAll('#view tbody tr')].at(-1)?.textContent.includes('queue-04711')")


def test_the_picture_draws_some_of_them(visit):
    visit.enter("topology")
    visit.wait("document.querySelector('#view svg.diagram .node')")
    assert visit.window.evaluate("return document.querySelectorAll('#view svg .node.queue').length") == 15
    visit.fill("Queues by name", "0471")
    visit.wait("[...document.querySelectorAll('svg .node.queue .what')].every((each) => each.textContent.includes('0471'))")


def test_all_bindings_are_shown_by_pages_as_well(visit):
    visit.enter("bindings")
    assert len(visit.rows()) == PAGE
    assert "10,000 total" in visit.text("#view .where")
