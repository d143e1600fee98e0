"""The dashboard's actions on queues, exchanges and bindings, with names of any kind."""

from harness.dashboard import ask, server, visit, window

HOSTILE = [
    '<img src=x onerror="window.hacked = 1">',
    "<script>window.hacked = 1</script>",
    "javascript:window.hacked = 1",
    "__proto__",
    "a/b?c=d#e&f%2Fg",
    "~",
    "~~tilde",
    "\u202eevil\u2066",
    " ",
    "héllo 🐇",
    "'\"`${window.hacked = 1}",
    "x" * 255,
]


def declare(visit, name, **fields):
    visit.go("queues")
    visit.press("Declare a queue")
    visit.answer("Declare", name=name, **fields)
    visit.wait("document.querySelector('#view h1').textContent === `Queue ${args[0]}`", name)
    visit.settle()


def add_argument(visit, name, kind, value, within="dialog"):
    script = """
        const [within, name, kind, value] = arguments;
        const list = document.querySelector(`${within} .arguments`);
        [...list.querySelectorAll("button")].find((each) => each.textContent === "Add").click();
        const row = list.querySelector(".row:last-child");
        row.querySelector(".key").value = name;
        row.querySelector(".kind").value = kind;
        row.querySelector(".any").value = value;
    """
    visit.window.evaluate(script, within, name, kind, value)


def publish(visit, text):
    visit.fill("Payload", text)
    visit.press("Publish")
    visit.window.wait_for_text("#view form .state", "^Message published\\.$")


def await_figure(visit, title, figure):
    """Waits until a card with this title shows this value."""
    visit.wait(
        """[...document.querySelectorAll("#view .card")].some((each) =>
            each.querySelector("h3").textContent === args[0] && each.querySelector(".figure").textContent === args[1])""",
        title,
        figure,
    )


def test_a_queue_is_declared_filled_looked_into_emptied_and_deleted(visit, server):
    visit.enter("queues")
    visit.press("Declare a queue")
    visit.wait("document.querySelector('dialog[open]')")
    add_argument(visit, "x-max-length", "number", "100")
    visit.answer("Declare", name="orders", durable=True)
    visit.wait("document.querySelector('#view h1').textContent === 'Queue orders'")
    visit.settle()
    assert "x-max-length = 100" in visit.text()
    told = ask(server, "GET", "queues/%2F/orders")
    assert (told["durable"], told["auto_delete"], told["arguments"]) == (True, False, {"x-max-length": 100})

    publish(visit, "<b>first</b>")
    publish(visit, "second")
    await_figure(visit, "Ready", "2")
    # Get with requeue, then get with acknowledgement.
    visit.fill("Messages", "5")
    visit.press("Get")
    visit.window.wait_for_text("#view .messages", "first.*second")
    shown = "return [...document.querySelectorAll('#view .messages pre')].map((each) => each.textContent)"
    assert visit.window.evaluate(shown) == ["<b>first</b>", "second"]
    await_figure(visit, "Ready", "2")
    visit.fill("Ack mode", "ack_requeue_false")
    visit.fill("Messages", "1")
    visit.press("Get")
    await_figure(visit, "Ready", "1")

    visit.press("Purge")
    visit.answer("Purge")
    visit.window.wait_for_text("#notice", "^Queue orders is purged\\.$")
    await_figure(visit, "Ready", "0")
    visit.go("queues")
    [row] = [row for row in visit.rows() if row["Name"] == "orders"]
    assert (row["Type"], row["Features"], row["Ready"], row["Total"]) == ("classic", "DLim", "0", "0")
    titles = "return [...document.querySelectorAll('#view abbr')].map((each) => each.title)"
    assert {"durable", "max length: 100 messages"} <= set(visit.window.evaluate(titles))
    visit.go("queues", "/", "orders")
    visit.press("Delete")
    visit.answer("Delete")
    visit.wait("location.hash === '#/queues'")
    visit.settle()
    assert "orders" not in [row["Name"] for row in visit.rows()]
    assert visit.violations() == []


def test_a_queue_is_declared_with_a_type(visit, server):
    visit.enter("queues")
    visit.press("Declare a queue")
    visit.wait("document.querySelector('dialog[open]')")
    suggested = "return [...document.querySelectorAll('dialog .arguments option')].map(({ value }) => value)"
    assert {"x-queue-type", "x-delivery-limit"} <= set(visit.window.evaluate(suggested))
    visit.answer("Declare", name="replicated", type="quorum")
    visit.wait("document.querySelector('#view h1').textContent === 'Queue replicated'")
    told = ask(server, "GET", "queues/%2F/replicated")
    assert (told["type"], told["arguments"]["x-queue-type"]) == ("quorum", "quorum")


def test_a_message_keeps_its_properties_and_headers(visit):
    visit.enter("queues")
    declare(visit, "headers")
    visit.window.evaluate("document.querySelector('#view section:has(.arguments)').id = 'publisher'")
    add_argument(visit, "answer", "number", "42", "#publisher")
    visit.fill("Content type", "application/json")
    publish(visit, '{"a": 1}')
    visit.press("Get")
    visit.window.wait_for_text("#view .messages", "content_type.*application/json.*answer.*42")


def test_a_refused_declaration_is_shown_and_the_dialog_stays_open(visit):
    visit.enter("queues")
    declare(visit, "twice", durable=True)
    visit.go("queues")
    visit.press("Declare a queue")
    visit.fill_dialog("Declare", {"name": "twice", "durable": False})
    visit.window.wait_for_text("dialog .problem", "inequivalent arg 'durable' for queue 'twice' in vhost '/'")
    assert visit.window.evaluate("return document.querySelector('dialog').open")
    visit.press("Cancel", "dialog")
    visit.wait("!document.querySelector('dialog')")
    # Invalid values are reported before a request is sent.
    visit.press("Declare a queue")
    visit.wait("document.querySelector('dialog[open]')")
    add_argument(visit, "x-max-length", "number", "many")
    visit.fill_dialog("Declare", {"name": "never"})
    visit.window.wait_for_text("dialog .problem", "^x-max-length is not a number\\.$")


def test_a_deleted_queue_is_shown_as_not_found(visit, server):
    visit.enter("queues")
    declare(visit, "shortlived")
    ask(server, "DELETE", "queues/%2F/shortlived")
    visit.window.wait_for_text("#view .problem", "^Not found\\. It may have been deleted\\.$")


def test_exchanges_and_bindings_are_made_and_removed(visit, server):
    visit.enter("queues")
    declare(visit, "bound")
    visit.go("exchanges")
    visit.press("Declare an exchange")
    visit.answer("Declare", name="news", type="topic")
    visit.wait("document.querySelector('#view h1').textContent === 'Exchange news'")
    visit.settle()
    visit.press("Bind a queue or exchange")
    visit.answer("Bind", type="queue", destination="bound", key="sports.#")
    visit.wait("document.querySelector('#view tbody tr td')?.closest('tr').textContent.includes('sports.#')")
    [row] = visit.rows()
    assert (row["To"], row["Type"], row["Routing key"]) == ("bound", "queue", "sports.#")
    visit.fill("Routing key", "sports.chess")
    publish(visit, "e4")
    visit.fill("Routing key", "politics")
    visit.fill("Payload", "lost")
    visit.press("Publish")
    visit.window.wait_for_text("#view form .state", "^Message published, but not routed\\.$")
    visit.go("bindings")
    mine = [row for row in visit.rows() if row["From exchange"] == "news"]
    assert [row["To"] for row in mine] == ["bound"]
    visit.go("queues", "/", "bound")
    await_figure(visit, "Ready", "1")
    visit.press("Remove")
    visit.answer("Remove")
    visit.window.wait_for_text("#notice", "removed")
    assert ask(server, "GET", "exchanges/%2F/news/bindings/source") == []
    visit.go("exchanges", "/", "news")
    visit.press("Delete")
    visit.answer("Delete")
    visit.wait("location.hash === '#/exchanges'")
    visit.settle()
    assert "news" not in [row["Name"] for row in visit.rows()]


def test_no_name_becomes_a_part_of_the_page(visit, server):
    visit.enter("queues")
    for name in HOSTILE:
        declare(visit, name)
        assert visit.window.evaluate("return document.querySelector('#view h1 bdi').textContent") == name
    for name in HOSTILE[:3]:
        visit.press("Bind to an exchange")
        visit.answer("Bind", source="amq.topic", key=HOSTILE[0])
    visit.go("queues")
    assert set(HOSTILE) <= {row["Name"] for row in visit.rows()}
    visit.go("bindings")
    visit.go("topology")
    visit.wait("document.querySelector('#view svg.diagram .node')")
    assert visit.window.evaluate("return window.hacked ?? null") is None
    assert visit.window.evaluate("return document.querySelectorAll('#view img, #view script').length") == 0
    assert visit.violations() == []
    # And each link leads to its queue.
    for name in HOSTILE:
        visit.go("queues")
        follow = "[...document.querySelectorAll('#view tbody a')].find((each) => each.textContent === arguments[0]).click()"
        visit.window.evaluate(follow, name)
        visit.wait("document.querySelector('#view h1').textContent === `Queue ${args[0]}`", name)
        visit.settle()
        visit.press("Delete")
        visit.answer("Delete")
    assert not set(HOSTILE) & {queue["name"] for queue in ask(server, "GET", "queues")}


def test_a_name_that_is_a_step_in_a_path_asks_for_nothing_else(visit):
    visit.enter("queues")
    visit.press("Declare a queue")
    visit.fill_dialog("Declare", {"name": ".."})
    visit.window.wait_for_text("dialog .problem", '^A browser cannot request the name "\\.\\."; use leveret ctl\\.$')


def test_the_topology_diagram_shows_bindings_of_exchanges_and_queues(visit, server):
    for name, kind in [("shop", "topic"), ("all", "fanout")]:
        ask(server, "PUT", f"exchanges/%2F/{name}", {"type": kind})
    for name in ["paid", "copy"]:
        ask(server, "PUT", f"queues/%2F/{name}", {})
    ask(server, "POST", "bindings/%2F/e/shop/q/paid", {"routing_key": "order.paid"})
    ask(server, "POST", "bindings/%2F/e/shop/e/all", {"routing_key": "#"})
    ask(server, "POST", "bindings/%2F/e/all/q/copy", {"routing_key": ""})
    visit.enter("topology")
    visit.wait("document.querySelector('#view svg.diagram .node')")
    words = "return [...document.querySelectorAll('#view details li')].map((each) => each.textContent.replace(/ \\(.*/, ''))"
    told = visit.window.evaluate(words)
    assert {
        'exchange shop → queue paid by "order.paid"',
        'exchange shop → exchange all by "#"',
        'exchange all → queue copy by ""',
    } <= set(told)
    # A focused node highlights its edges and leads to its own page.
    lit = """
        const nodes = [...document.querySelectorAll("svg .node")];
        const node = nodes.find((each) => each.querySelector(".what").textContent === "all");
        node.focus();
        const texts = [...document.querySelectorAll("svg .node.lit .what")].map((each) => each.textContent).sort();
        return [texts, node.getAttribute("href")];
    """
    assert visit.window.evaluate(lit) == [["all", "copy", "shop"], "#/exchanges/%2F/all"]
