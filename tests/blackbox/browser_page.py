"""The page at `/messages` of the HTTP listener, in Chromium: a user connects, publishes, and sees messages arrive."""

import contextlib
import itertools
import os
from pathlib import Path

import pytest

from harness.browser import browser, size_of
from harness.instances import leveret
from harness.wire import BASIC_PUBLISH, BODY, HEADER, Wire, content_header, frame, publish_arguments

ENTER = "\ue007"
TAB = "\ue004"


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as window:
        yield window


@pytest.fixture
def server(tmp_path):
    with leveret(tmp_path, "--ws", "127.0.0.1:0") as server:
        yield server
        server.stop()


def connect(window, server, **fields):
    """Opens the page and connects with its defaults, except for the given fields."""
    window.open(server.http + "/messages")
    window.run(
        """
        const field = document.querySelector("#connect [name=url]");
        while (field.value === "") await new Promise(requestAnimationFrame);
        """
    )
    for name, text in fields.items():
        window.fill(f"#connect [name={name}]", text)
    window.click("#connect-button")


def connected(window, server):
    connect(window, server)
    window.wait_for_text("#connection-state", "^Connected as guest")
    window.wait_for_text("#receive-state", "^Receiving amq.topic → demo.# by queue amq.gen-")


def publish(window, text, **fields):
    for name, value in fields.items():
        window.fill(f"#publish [name={name}]", value)
    window.fill("#publish [name=body]", text)
    window.click("#publish-button")


def first_message(window):
    return window.evaluate("return document.querySelector('#messages li .body').textContent")


@contextlib.contextmanager
def another_tab(window):
    first = window.tab()
    second = window.new_tab()
    try:
        yield first, second
    finally:
        window.turn_to(second)
        window.close_tab()
        window.turn_to(first)


@pytest.mark.parametrize("behind", ["broker", "proxy"])
def test_a_published_message_is_confirmed_and_received(tmp_path, targets, window, behind):
    flags = ["--ws", "127.0.0.1:0"]
    if behind == "proxy":
        flags += ["--upstream", f"amqp://127.0.0.1:{targets.upstream.port}"]
    with leveret(tmp_path, *flags) as server:
        connect(window, server)
        assert window.value("#connect [name=url]") == f"ws://127.0.0.1:{server.ws_port}/"
        # The page shows the server's own product name.
        product = "RabbitMQ" if behind == "proxy" else "Leveret"
        window.wait_for_text("#connection-state", f"^Connected as guest to virtual host / of {product} ")
        window.wait_for_text("#receive-state", "^Receiving amq.topic → demo.# by queue amq.gen-")
        # Markup in a message is not interpreted by the page.
        publish(window, "<b>héllo</b> 🐇", key="demo.greeting")
        window.wait_for_text("#publish-state", "^Confirmed \\(no. 1\\) after \\d+ ms\\.$")
        window.wait_for_text("#messages", "demo.greeting.*héllo")
        assert first_message(window) == "<b>héllo</b> 🐇"
        assert window.complaints() == []
        server.stop()


def test_a_wrong_password_is_reported_and_the_right_one_then_connects(window, server):
    connect(window, server, password="wrong")
    window.wait_for_text("#connection-state", "^The server refused the login: wrong user name or password.$")
    window.fill("#connect [name=password]", "guest")
    window.click("#connect-button")
    window.wait_for_text("#connection-state", "^Connected as guest")


def test_an_unknown_virtual_host_and_unusable_urls_are_reported(window, server):
    connect(window, server, vhost="nowhere")
    window.wait_for_text("#connection-state", "^Server error: NOT_ALLOWED - vhost nowhere not found \\(530\\)\\.$")
    window.fill("#connect [name=vhost]", "/")
    window.fill("#connect [name=url]", "ws://127.0.0.1:1/")
    window.click("#connect-button")
    window.wait_for_text("#connection-state", "^No connection to ws://127.0.0.1:1/\\. Either it has no listener, or ")
    window.fill("#connect [name=url]", "nonsense:")
    window.click("#connect-button")
    window.wait_for_text("#connection-state", "^nonsense: cannot be connected to")


def test_a_page_from_a_disallowed_origin_shows_the_reason(tmp_path, window):
    with leveret(tmp_path, "--ws", "127.0.0.1:0", "--ws-origins", "https://app.example.com") as server:
        connect(window, server)
        window.wait_for_text("#connection-state", f"pages from {server.http} are not among the server's ws_origins")
        server.stop()


def test_an_unroutable_message_is_confirmed_and_shown_as_not_routed(window, server):
    connected(window, server)
    publish(window, "lost", key="elsewhere")
    window.wait_for_text("#publish-state", "^Confirmed \\(no. 1\\), but not routed: NO_ROUTE\\.$")


def test_a_mistake_ends_no_more_than_its_own_attempt(window, server):
    connected(window, server)
    publish(window, "lost", exchange="nowhere")
    window.wait_for_text("#publish-state", "NOT_FOUND - no exchange 'nowhere' in vhost '/' \\(404\\)\\.$")
    publish(window, "found", exchange="amq.topic", key="demo.found")
    window.wait_for_text("#publish-state", "^Confirmed")
    window.wait_for_text("#messages", "found")
    # The same for consuming.
    window.fill("#receive [name=exchange]", "nowhere")
    window.click("#receive-button")
    window.wait_for_text("#receive-state", "NOT_FOUND - no exchange 'nowhere'")
    publish(window, "still here", key="demo.still")
    window.wait_for_text("#messages", "still here")


def test_without_an_exchange_the_key_names_a_queue(window, server):
    connected(window, server)
    queue = window.evaluate("return document.getElementById('receive-state').textContent.match(/amq\\.gen-\\S+(?=\\.)/)[0]")
    publish(window, "straight", exchange="", key=queue)
    window.wait_for_text("#publish-state", "^Confirmed \\(no. 1\\) after")
    window.wait_for_text("#messages", "straight")


def test_another_pattern_replaces_the_one_before(window, server):
    connected(window, server)
    window.fill("#receive [name=pattern]", "other.*")
    window.click("#receive-button")
    window.wait_for_text("#receive-state", "^Receiving amq.topic → other.\\* ")
    publish(window, "unseen", key="demo.unseen")
    window.wait_for_text("#publish-state", "NO_ROUTE")
    publish(window, "seen", key="other.seen")
    window.wait_for_text("#messages", "seen")
    assert window.evaluate("return document.querySelectorAll('#messages li').length") == 1


def test_two_tabs_exchange_messages(window, server):
    connected(window, server)
    with another_tab(window) as (first, second):
        connected(window, server)
        publish(window, "from the second", key="demo.second")
        window.turn_to(first)
        window.wait_for_text("#messages", "from the second")
        publish(window, "from the first", key="demo.first")
        window.turn_to(second)
        window.wait_for_text("#messages", "from the first")


def test_messages_from_other_clients_arrive_too(window, server):
    connected(window, server)
    wire = Wire(server.port).handshake()
    wire.open_channel()
    wire.send_method(1, BASIC_PUBLISH, publish_arguments("amq.topic", "demo.wire"))
    wire.send(frame(HEADER, 1, content_header(2)) + frame(BODY, 1, b"\xff\xfe"))
    window.wait_for_text("#messages", "amq.topic → demo.wire.*\\(2 bytes that are no text\\)")
    wire.close()


def test_it_can_be_used_by_keyboard_alone(window, server):
    connected(window, server)
    window.evaluate("document.querySelector('#publish [name=key]').focus()")
    window.press([ENTER])
    window.wait_for_text("#publish-state", "^Confirmed")
    window.wait_for_text("#messages", "Hello from a browser")
    unlabelled = "return [...document.querySelectorAll('input, textarea')].filter((field) => !field.labels.length).length"
    assert window.evaluate(unlabelled) == 0
    # Tab reaches each control in the order of the page.
    window.evaluate("document.getElementById('connect-button').focus()")
    reached = []
    for _ in range(8):
        reached.append(window.evaluate("return document.activeElement.name || document.activeElement.id"))
        window.press([TAB])
    assert reached == [
        *("connect-button", "exchange", "key", "body", "publish-button"),
        *("exchange", "pattern", "receive-button"),
    ]


def test_a_disconnect_and_a_server_shutdown_are_shown(tmp_path, window):
    with leveret(tmp_path, "--ws", "127.0.0.1:0") as server:
        connected(window, server)
        window.click("#connect-button")
        window.wait_for_text("#connection-state", "^Not connected\\.$")
        window.click("#connect-button")
        window.wait_for_text("#receive-state", "^Receiving")
        server.stop()
        window.wait_for_text("#connection-state", "CONNECTION_FORCED - broker forced connection closure.*\\(320\\)")
        assert window.evaluate("return document.querySelector('#publish fieldset').disabled")


def test_it_fits_a_phone_and_is_pictured(window, server):
    """With LEVERET_SCREENSHOT=file it also makes the picture in the README (make screenshot)."""
    connected(window, server)
    texts = ["Hello from a browser", "On its way: parcel 4711", "Arrived: parcel 4711"]
    for number, text in enumerate(texts, 1):
        publish(window, text, key=f"demo.parcel.{number}")
        window.wait_for_text("#messages", text)
    window.resize(360, 740)
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert window.evaluate(overflow) == 0
    window.resize(1000, 1220)
    window.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    # The newest message comes first, and no part of the page is hidden or outside the window.
    seen = window.evaluate("""
        const parts = [...document.querySelectorAll("header h1, main form, #messages li")];
        return {
            bodies: [...document.querySelectorAll("#messages li .body")].map((body) => body.textContent),
            count: document.getElementById("message-count").textContent,
            state: document.getElementById("connection-state").textContent,
            boxes: parts.filter((part) => part.checkVisibility()).map((part) => part.getBoundingClientRect().toJSON()),
            size: [innerWidth, innerHeight],
        };
    """)
    assert (seen["bodies"], seen["count"]) == (texts[::-1], "3")
    assert seen["state"].startswith("Connected as guest to virtual host / of Leveret ")
    width, height = seen["size"]
    assert len(seen["boxes"]) == 1 + 3 + len(texts)
    for box in seen["boxes"]:
        assert box["width"] > 0 and 0 <= box["left"] and box["right"] <= width, box
        assert box["height"] > 0 and 0 <= box["top"] and box["bottom"] <= height, box
    for one, other in itertools.combinations(seen["boxes"], 2):
        apart = one["right"] <= other["left"] or other["right"] <= one["left"]
        assert apart or one["bottom"] <= other["top"] or other["bottom"] <= one["top"], (one, other)
    picture = window.screenshot()
    assert size_of(picture) == [width, height]
    if path := os.environ.get("LEVERET_SCREENSHOT"):
        Path(path).write_bytes(picture)
