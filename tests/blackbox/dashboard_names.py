"""The dashboard with names that a browser cannot request, long names, and names that the server refuses."""

from harness.dashboard import Visit, ask, server, visit, window
from harness.instances import leveret

PLACES = ["", "connections", "channels", "exchanges", "queues", "bindings", "topology", "policies", "users", "vhosts"]
# 255 bytes each, with and without a place to break the line.
LONG = ["é" * 127 + "x", "🐇 " * 51]


def steps(server):
    """Declares objects of each kind whose names are steps in a path."""
    for name in [".", ".."]:
        ask(server, "PUT", f"queues/%2F/{name}", {})
        ask(server, "PUT", f"exchanges/%2F/{name}", {"type": "topic"})
        ask(server, "PUT", f"policies/%2F/{name}", {"pattern": "^$", "definition": {"max-length": 1}})
        ask(server, "PUT", f"users/{name}", {"password": "secret", "tags": ""})
        ask(server, "PUT", f"vhosts/{name}")
        ask(server, "PUT", f"permissions/{name}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        ask(server, "PUT", f"queues/{name}/there", {})
        ask(server, "POST", f"bindings/%2F/e/{name}/q/{name}", {"routing_key": name})
    ask(server, "PUT", "queues/%2F/ordinary", {})
    ask(server, "POST", "bindings/%2F/e/./q/ordinary", {"routing_key": "key"})


def test_a_name_that_is_a_step_in_a_path_spoils_no_page(window, tmp_path):
    with leveret(tmp_path) as server:
        steps(server)
        visit = Visit(window, server).enter()
        for place in PLACES:
            visit.go(*([place] if place else []))
            problem = "const { hidden, textContent } = document.querySelector('#view .problem'); return hidden ? '' : textContent"
            assert visit.window.evaluate(problem) == "", place
        visit.go("topology")
        visit.wait("document.querySelector('#view svg.diagram .node')")
        words = "return [...document.querySelectorAll('#view details li')].map((each) => each.textContent.replace(/ \\(.*/, ''))"
        assert 'exchange . → queue ordinary by "key"' in visit.window.evaluate(words)
        nodes = "return [...document.querySelectorAll('svg .node title')].map((each) => each.textContent)"
        assert {"queue .", "queue .."} <= set(visit.window.evaluate(nodes))
        # The page of such a queue says why it is empty.
        visit.go("queues", "/", "..")
        visit.window.wait_for_text("#view .problem", '^A browser cannot request the name "\\.\\."; use leveret ctl\\.$')
        assert visit.violations() == []
        server.stop()


def test_an_exchange_that_is_deleted_while_the_topology_is_read_spoils_nothing_else(visit, server):
    ask(server, "PUT", "queues/%2F/remaining", {})
    ask(server, "PUT", "exchanges/%2F/deleted", {"type": "fanout"})
    ask(server, "POST", "bindings/%2F/e/deleted/q/remaining", {})
    visit.enter()
    # The exchange is deleted after the binding was listed.
    script = """
        const fetch = window.fetch;
        window.fetch = async (url, options) => {
            if (String(url) === "/api/exchanges/%2F/deleted") await fetch(url, { ...options, method: "DELETE" });
            return await fetch(url, options);
        };
    """
    visit.window.evaluate(script)
    visit.go("topology")
    visit.wait("document.querySelector('#view svg.diagram .node')")
    nodes = "return [...document.querySelectorAll('svg .node title')].map((each) => each.textContent)"
    assert {"exchange deleted", "queue remaining"} <= set(visit.window.evaluate(nodes))
    assert "deleted" not in [exchange["name"] for exchange in ask(server, "GET", "exchanges")]


def test_pages_with_names_of_255_bytes_fit_a_phone(visit):
    visit.window.become_phone()
    visit.enter("queues")
    for name in LONG:
        visit.press("Declare a queue")
        visit.answer("Declare", name=name)
        visit.wait("document.querySelector('#view h1').textContent === `Queue ${args[0]}`", name)
        visit.settle()
        assert visit.overflow() == 0
        visit.press("Bind to an exchange")
        visit.answer("Bind", source="amq.topic", key=name)
        visit.go("bindings")
        assert visit.overflow() == 0
        visit.go("topology")
        assert visit.overflow() == 0
        visit.go("queues")
        assert visit.overflow() == 0
    visit.window.become_desktop()


def refusal(visit, name):
    visit.fill_dialog("Declare", {"name": name})
    return visit.window.wait_for_text("dialog .problem", ".")


def test_a_refused_name_is_explained(visit, server):
    ask(server, "PUT", "users/bound", {"password": "secret", "tags": "management"})
    ask(server, "PUT", "permissions/%2F/bound", {"configure": "^mine", "write": ".*", "read": ".*"})
    for kind in ["queue", "exchange"]:
        visit.enter(f"{kind}s")
        visit.press(f"Declare a{'n' if kind == 'exchange' else ''} {kind}")
        assert refusal(visit, "amq.foo") == 'Names that begin with "amq." are reserved.'
        visit.enter(f"{kind}s", user="bound", password="secret")
        visit.press(f"Declare a{'n' if kind == 'exchange' else ''} {kind}")
        assert refusal(visit, "yours").startswith("Access refused: your permissions do not cover this name")
