"""The dashboard's layout and accessibility: on a phone, with the keyboard alone, in dark mode, and without foreign
resources."""

import itertools
import os
import threading
from pathlib import Path

import pika
import pytest

from harness.browser import size_of
from harness.dashboard import PALE, Visit, ask, hash_of, window
from harness.instances import leveret

ENTER = "\ue007"
TAB = "\ue004"
ESCAPE = "\ue00c"
LONG = "a-queue-with-a-name-that-is-" + 10 * "very-" + "long"
PLACES = [
    (),
    ("connections",),
    ("channels",),
    ("exchanges",),
    ("exchanges", "/", "orders"),
    ("queues",),
    ("queues", "/", "billing"),
    ("queues", "/", LONG),
    ("bindings",),
    ("topology",),
    ("policies",),
    ("users",),
    ("users", "guest"),
    ("vhosts",),
    ("nowhere",),
]
CARDS = ["Publish", "Deliver / get", "Consumer ack", "Ready", "Unacked", "Total"]
BINDINGS = [
    ("orders", "q", "billing", "order.paid"),
    ("orders", "q", "shipping", "order.paid"),
    ("orders", "q", "warehouse", "order.#"),
    ("orders", "e", "events", "order.#"),
    ("events", "q", "mail", ""),
    ("events", "q", "search-index", ""),
    ("audit", "q", "audit-log", "login"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("server"), "--ws", "127.0.0.1:0") as server:
        furnish(server)
        with traffic(server):
            yield server
        server.stop()


@pytest.fixture
def visit(window, server):
    yield Visit(window, server)
    window.become_desktop()
    window.prefer("light")


def furnish(server):
    for name, kind in [("orders", "topic"), ("events", "fanout"), ("audit", "direct")]:
        ask(server, "PUT", f"exchanges/%2F/{name}", {"type": kind, "durable": True})
    for name in ["billing", "shipping", "warehouse", "mail", "search-index", "audit-log", LONG]:
        ask(server, "PUT", f"queues/%2F/{name}", {"durable": True, "arguments": {"x-max-length": 10_000}})
    for source, kind, target, key in BINDINGS:
        ask(server, "POST", f"bindings/%2F/e/{source}/{kind}/{target}", {"routing_key": key})
    policy = {"pattern": "^audit", "definition": {"message-ttl": 60_000}, "apply-to": "queues"}
    ask(server, "PUT", "policies/%2F/limits", policy)


class traffic:
    """Publishes at a varying rate and consumes, for the length of a `with`."""

    def __init__(self, server):
        self.parameters = pika.URLParameters(server.uri)
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=run) for run in (self.publish, self.consume)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def publish(self):
        with pika.BlockingConnection(self.named("web shop")) as connection:
            channel = connection.channel()
            turn = 0
            while not self.ended.wait(0.02):
                turn += 1
                for _ in range(2 + turn // 40 % 4):
                    channel.basic_publish("orders", "order.paid" if turn % 3 else "order.sent", b'{"order": 4711}')
                if turn % 10 == 0:
                    channel.basic_publish("audit", "login", b"ada")
                connection.process_data_events(0)

    def consume(self):
        with pika.BlockingConnection(self.named("workers")) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=50)
            for queue in ["billing", "shipping", "warehouse", "mail"]:
                channel.basic_consume(queue, lambda channel, method, *_: channel.basic_ack(method.delivery_tag))
            while not self.ended.is_set():
                connection.process_data_events(0.1)

    def named(self, name):
        self.parameters.client_properties = {"connection_name": name}
        return self.parameters


def test_nothing_comes_from_elsewhere_and_the_policy_is_kept(visit):
    visit.enter()
    for place in PLACES:
        visit.go(*place)
        assert visit.foreign_requests() == []
        assert visit.violations() == [], place
    assert visit.window.complaints() == []
    # The content security policy even prevents text from being parsed as markup.
    script = """
        try { document.getElementById("view").innerHTML = "<img src=x>"; return "made"; } catch (error) { return error.name; }
    """
    assert visit.window.evaluate(script) == "TypeError"


def test_every_place_fits_a_phone(visit):
    visit.window.become_phone()
    visit.enter()
    assert visit.window.evaluate("return innerWidth") == 360
    for place in PLACES:
        visit.go(*place)
        assert visit.overflow() == 0, place
    visit.go("queues")
    visit.press("Declare a queue")
    visit.wait("document.querySelector('dialog[open]')")
    assert visit.overflow() == 0
    box = visit.window.evaluate("return document.querySelector('dialog').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0 and box["right"] <= 360
    visit.press("Cancel", "dialog")


def test_it_can_be_used_by_keyboard_alone(visit):
    window = visit.window
    visit.open(("queues",))
    window.press([*"guest", TAB, *"guest", ENTER])
    visit.settle()
    # The first focusable element is the skip link, which is visible while it has the focus.
    assert window.evaluate("return document.querySelector('a, button, input, select').id") == "skip"
    window.evaluate("document.getElementById('skip').focus()")
    assert window.evaluate("return document.getElementById('skip').getBoundingClientRect().top") >= 0
    window.press([ENTER])
    assert window.evaluate("return document.activeElement.tagName") == "H1"
    window.press([TAB, ENTER])
    visit.wait("document.querySelector('dialog[open]')")
    # The focus is inside the dialog; Escape closes it and restores the focus.
    assert window.evaluate("return document.querySelector('dialog').contains(document.activeElement)")
    window.press([ESCAPE])
    visit.wait("!document.querySelector('dialog')")
    assert window.evaluate("return document.activeElement.textContent") == "Declare a queue"
    window.press([ENTER])
    visit.wait("document.querySelector('dialog[open]')")
    window.evaluate("document.querySelector('dialog [name=name]').focus()")
    window.press([*"typed", ENTER])
    visit.wait("document.querySelector('#view h1').textContent === 'Queue typed'")
    visit.settle()
    # A heading that was focused by script has no outline; everything reached by Tab has one.
    window.evaluate("document.getElementById('logout').focus()")
    for _ in range(30):
        window.press([TAB])
        outline = """
            const style = getComputedStyle(document.activeElement);
            return document.activeElement === document.body || style.outlineStyle !== "none";
        """
        assert window.evaluate(outline), window.evaluate("return document.activeElement.outerHTML")


def has_focus(visit, selector):
    visit.wait("document.activeElement === document.querySelector(args[0])", selector)


def focus_in_row(visit, name, words):
    script = """
        const row = [...document.querySelectorAll("#view tbody tr")].find((each) => each.textContent.startsWith(arguments[0]));
        [...row.querySelectorAll("button")].find((each) => each.textContent === arguments[1]).focus();
    """
    visit.window.evaluate(script, name, words)


def test_the_focus_is_not_lost_with_a_row_that_is_removed(visit, server):
    ask(server, "PUT", "policies/%2F/unwanted", {"pattern": "^$", "definition": {"expires": 1000}})
    visit.enter("policies")
    focus_in_row(visit, "unwanted", "Delete")
    visit.window.press([ENTER])
    visit.wait("document.querySelector('dialog[open]')")
    visit.window.press([ENTER])
    has_focus(visit, "#view h1")
    visit.press("Set a policy")
    visit.wait("document.querySelector('dialog[open]')")
    for words in ["Add", "Remove"]:
        focus = """
            const all = [...document.querySelectorAll("dialog .arguments button")];
            all.find((each) => each.textContent === arguments[0]).focus();
        """
        visit.window.evaluate(focus, words)
        visit.window.press([ENTER])
    assert visit.window.evaluate("return document.activeElement.textContent") == "Add"
    visit.window.press([ESCAPE])
    visit.wait("!document.querySelector('dialog')")
    # The row is removed while the dialog is open.
    ask(server, "PUT", "vhosts/passing")
    visit.go("vhosts")
    focus_in_row(visit, "passing", "Delete")
    visit.window.press([ENTER])
    visit.wait("document.querySelector('dialog[open]')")
    ask(server, "DELETE", "vhosts/passing")
    visit.window.evaluate("document.getElementById('view').dispatchEvent(new Event('refresh'))")
    visit.wait("!document.querySelector('#view tbody').textContent.includes('passing')")
    visit.window.press([ESCAPE])
    visit.wait("!document.querySelector('dialog')")
    has_focus(visit, "#view h1")


def test_every_field_and_picture_has_words(visit):
    visit.enter()
    wordless = """
        const fields = [...document.querySelectorAll("input, select, textarea")];
        const buttons = [...document.querySelectorAll("button, a")];
        return [...fields.filter((each) => !each.labels.length && !each.ariaLabel),
            ...buttons.filter((each) => !each.textContent.trim() && !each.ariaLabel),
            ...[...document.querySelectorAll("img")].filter((each) => each.getAttribute("alt") === null),
            ...[...document.querySelectorAll("svg")].filter((each) => !each.ariaLabel && !each.ariaHidden),
        ].map((each) => each.outerHTML);
    """
    for place in PLACES:
        visit.go(*place)
        assert visit.window.evaluate(wordless) == [], place
        # The heading of the hidden login form, and that of the view.
        assert visit.window.evaluate("return document.querySelectorAll('h1').length") == 2
    visit.go("policies")
    visit.press("Set a policy")
    visit.wait("document.querySelector('dialog[open]')")
    visit.press("Add", "dialog")
    assert visit.window.evaluate(wordless) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_ground(visit, scheme):
    visit.window.prefer(scheme)
    visit.enter()
    ground = visit.window.evaluate("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(23, 26, 22)") == (scheme == "dark")
    for place in [(), ("queues",), ("queues", "/", "billing"), ("policies",)]:
        visit.go(*place)
        assert visit.window.evaluate(PALE) == [], place


def test_figures_move_while_they_are_watched(visit):
    visit.enter()
    figures = "[...document.querySelectorAll('#view .card .figure')].slice(0, 3)"
    visit.wait(f"{figures}.every((each) => /^[1-9]/.test(each.textContent))")
    visit.wait("document.querySelector('#view .spark .line').getAttribute('d').includes('L')")
    # A focused element keeps the focus.
    visit.window.evaluate("document.querySelector('#view a.tile').focus()")
    line = "document.querySelector('#view .spark .line').getAttribute('d')"
    before = visit.window.evaluate(f"return {line}")
    visit.wait(f"{line} !== args[0]", before)
    assert visit.window.evaluate("return document.activeElement.className") == "tile"


def test_it_is_pictured(visit, server):
    """With LEVERET_SCREENSHOTS=directory it also makes the pictures in the README (make screenshot)."""
    directory = os.environ.get("LEVERET_SCREENSHOTS")
    ask(server, "DELETE", f"queues/%2F/{LONG}")
    pictures = {
        "dashboard.png": ("light", (), 760, "document.querySelector('#view .spark .line').getAttribute('d').includes('L')"),
        "dashboard-picture.png": ("dark", ("topology",), 800, "document.querySelector('svg.diagram .node')"),
    }
    for name, (scheme, place, height, is_there) in pictures.items():
        visit.window.prefer(scheme)
        visit.window.resize(1180, height)
        visit.enter(*place)
        visit.wait(is_there)
        if directory and not place:
            draw_lines(visit)
        # The pointer still rests where the login button was, and would highlight what is below it.
        visit.window.evaluate("document.querySelector('svg.diagram')?.dispatchEvent(new Event('pointerleave'))")
        visit.window.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        (diagram_is_seen if place else overview_is_seen)(visit)
        assert visit.window.evaluate("return location.hash") == hash_of(place)
        picture = visit.window.screenshot()
        assert size_of(picture) == visit.window.evaluate("return [innerWidth, innerHeight]")
        if directory:
            # The repository's pictures are small; elsewhere the fonts determine the size.
            assert len(picture) < 150_000
            (Path(directory) / name).write_bytes(picture)


def overview_is_seen(visit):
    """Each card shows its title, value and sparkline inside the window."""
    cards = visit.window.evaluate("""
        return [...document.querySelectorAll("#view .card")].map((card) => {
            const { left, right, top, height } = card.querySelector(".spark").getBoundingClientRect();
            return {
                title: card.querySelector("h3").textContent,
                figure: card.querySelector(".figure").textContent,
                length: card.querySelector(".line").getTotalLength(),
                inside: left >= 0 && right <= innerWidth && top >= 0 && height > 0 && card.checkVisibility(),
            };
        });
    """)
    assert [card["title"] for card in cards] == CARDS
    assert [card for card in cards if not card["inside"] or not card["figure"][0].isdigit()] == []
    # A sparkline with one point has no length; no card may be left with one.
    assert [card["title"] for card in cards if not card["length"] > 0] == []
    expected = {"Queues": len(ask(visit.server, "GET", "queues")), "Connections": 2, "Consumers": 4}
    tile = "[...document.querySelectorAll('#view .tile')].find((each) => each.querySelector('.what').textContent === args[0])"
    for name, number in expected.items():
        visit.wait(f"{tile}?.querySelector('.figure').textContent === args[1]", name, str(number))


def diagram_is_seen(visit):
    """Every bound object is drawn with its name, without overlaps, and with one line for each binding."""
    seen = visit.window.evaluate("""
        const picture = document.querySelector("svg.diagram");
        const box = (element) => element.getBoundingClientRect().toJSON();
        return {
            picture: box(picture),
            nodes: [...picture.querySelectorAll(".node")].map((node) =>
                ({ kind: node.classList[1], name: node.querySelector(".what").textContent, ...box(node.querySelector("rect")) })),
            lines: [...picture.querySelectorAll(".edge")].filter((line) => line.getTotalLength() > 0).length,
            words: [...picture.querySelectorAll(".edge-words")].map((words) => words.firstChild.data),
        };
    """)
    nodes = seen["nodes"]
    names = {kind: {node["name"] for node in nodes if node["kind"] == kind} for kind in ("exchange", "queue", "publisher")}
    assert names["exchange"] >= {"orders", "events", "audit"}
    assert names["queue"] == {queue["name"] for queue in ask(visit.server, "GET", "queues")} >= {"billing", "audit-log"}
    assert seen["lines"] >= len(BINDINGS)
    # The picture lists routing keys, and the rates where messages flow.
    for key in ("order.paid", "order.#", "login"):
        assert any(words.startswith(key) for words in seen["words"]), seen["words"]
    frame = seen["picture"]
    for node in nodes:
        assert frame["left"] <= node["left"] and node["right"] <= frame["right"], node
        assert frame["top"] <= node["top"] and node["bottom"] <= frame["bottom"], node
        assert node["width"] > 100 and node["height"] > 20, node
    for one, other in itertools.combinations(nodes, 2):
        apart = one["right"] <= other["left"] or other["right"] <= one["left"]
        assert apart or one["bottom"] <= other["top"] or other["bottom"] <= one["top"], (one, other)


def draw_lines(visit):
    """Refreshes until the sparklines have their full length."""
    script = """
        const line = document.querySelector("#view .spark .line");
        while (line.getAttribute("d").split("L").length < 58) {
            document.querySelector("#view .stack").dispatchEvent(new Event("refresh", { bubbles: true }));
            await new Promise((resolve) => setTimeout(resolve, 500));
        }
    """
    visit.window.run(script)
