"""Drives the dashboard at `/` of the HTTP listener as a user would."""

import contextlib
import json
import urllib.parse
import urllib.request
from base64 import b64encode

import pytest

from harness.browser import browser
from harness.instances import leveret
from harness.patience import PATIENCE

# A violation of the content security policy raises an event and a console message; both are recorded from the start.
WATCH = """
    window.violations = [];
    document.addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) =>
        window.violations.push(`${violatedDirective} ${blockedURI}`));
"""


# Texts with a contrast ratio below 4.5 (WCAG 2.1, 1.4.3).
PALE = """
    const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const luminance = (colour) => {
        const [r, g, b] = channels(colour).map((part) => part / 255)
            .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (element) => {
        const colour = getComputedStyle(element).backgroundColor;
        return channels(colour)[3] === 0 && element.parentElement ? ground(element.parentElement) : colour;
    };
    const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const pale = [];
    for (const element of document.querySelectorAll("body *:not(svg *, option, noscript)")) {
        if (!hasText(element) || !element.checkVisibility() || element.closest("[aria-disabled]")) continue;
        const [one, other] = [getComputedStyle(element).color, ground(element)].map(luminance).sort((a, b) => b - a);
        if ((one + 0.05) / (other + 0.05) < 4.5) pale.push(element.outerHTML.slice(0, 200));
    }
    return pale;
"""


@contextlib.contextmanager
def dashboard(directory):
    """A browser that records violations of the page's content security policy."""
    with browser(directory) as window:
        window.run_first(WATCH)
        window.resize(1180, 900)
        yield window


# Fixtures to import: a browser and a broker for each file, and a visitor for each test.


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with dashboard(tmp_path_factory.mktemp("browser")) as window:
        yield window


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("server")) as server:
        yield server
        server.stop()


@pytest.fixture
def visit(window, server):
    return Visit(window, server)


class Visit:
    """A user of one server's dashboard."""

    def __init__(self, window, server):
        self.window = window
        self.server = server
        # A page of an earlier test may still be polling a server that has stopped.
        window.open("about:blank")
        window.complaints()

    def open(self, place=()):
        """Loads the dashboard from its URL, logged out."""
        self.window.open("about:blank")
        self.window.open(f"{self.server.http}/{hash_of(place)}")
        self.window.evaluate("sessionStorage.clear()")
        self.window.reload()
        self.wait("!document.getElementById('login').hidden || !document.getElementById('view').hidden")
        return self

    def log_in(self, user="guest", password="guest"):
        self.window.fill("#login-user", user)
        self.window.fill("#login-password", password)
        self.window.click("#login button")

    def enter(self, *place, user="guest", password="guest"):
        """Opens a page of the dashboard and logs in."""
        self.open(place)
        self.log_in(user, password)
        self.settle()
        return self

    def close_connection(self, reason):
        """Closes the connection whose page is open."""
        self.wait("document.querySelector('#view h1').textContent.startsWith('Connection ')")
        self.settle()
        self.press("Close connection")
        self.answer("Close connection", reason=reason)

    def go(self, *place, query=""):
        """Opens a page of the dashboard and waits for its data."""
        self.window.evaluate("location.hash = arguments[0]", hash_of(place) + query)
        self.wait("location.hash === args[0] && document.getElementById('view').ariaBusy === 'false'", hash_of(place) + query)
        self.settle()

    def settle(self):
        """Waits until the view has loaded its data."""
        self.wait("document.querySelector('#view h1') && document.getElementById('view').ariaBusy === 'false'")

    def wait(self, condition, *arguments):
        """Waits until a JavaScript expression of `args` is truthy; returns its value."""
        script = f"""
            const until = performance.now() + {PATIENCE * 500};
            for (;;) {{
                const outcome = {condition};
                if (outcome) return outcome;
                if (performance.now() > until) throw new Error(`never: {escaped(condition)}; ` + document.body.innerText);
                await new Promise(requestAnimationFrame);
            }}
        """
        return self.window.run(script, *arguments)

    def press(self, words, within="#view"):
        """Clicks the first button with this text."""
        script = """
            const all = [...document.querySelectorAll(`${arguments[0]} button`)];
            const found = all.find((each) => each.textContent === arguments[1] && each.checkVisibility());
            if (!found) throw new Error(`no button ${arguments[1]} among ${all.map((each) => each.textContent)}`);
            found.click();
        """
        self.window.evaluate(script, within, words)

    def fill(self, label, text, within="#view"):
        """Sets the field, checkbox or menu with this label."""
        script = """
            const [within, label, text] = arguments;
            const found = [...document.querySelectorAll(`${within} label`)].find((each) => each.textContent === label);
            if (!found) throw new Error(`no field ${label}`);
            const field = found.control;
            if (field.type === "checkbox") field.checked = text;
            else field.value = text;
            for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
        """
        self.window.evaluate(script, within, label, text)

    def answer(self, confirm, **fields):
        """Fills the dialog's fields by name, confirms, and waits until the dialog closes."""
        self.fill_dialog(confirm, fields)
        self.wait("!document.querySelector('dialog')")

    def fill_dialog(self, confirm, fields):
        self.wait("document.querySelector('dialog[open]')")
        script = """
            for (const [name, value] of Object.entries(arguments[0])) {
                const field = document.querySelector(`dialog [name="${name}"]`);
                if (field.type === "checkbox") field.checked = value;
                else field.value = value;
            }
        """
        self.window.evaluate(script, fields)
        self.press(confirm, "dialog")

    def rows(self, selector="#view table.list"):
        """The table as a list of dictionaries, with the visible columns only."""
        script = """
            const rows = [...document.querySelectorAll(`${arguments[0]} tbody tr`)];
            return rows.map((row) => Object.fromEntries([...row.children].filter((cell) => !cell.hidden)
                .map((cell) => [cell.dataset.label, cell.textContent])));
        """
        return self.window.evaluate(script, selector)

    def text(self, selector="#view"):
        return self.window.evaluate("return document.querySelector(arguments[0]).innerText", selector)

    def violations(self):
        return self.window.evaluate("return window.violations")

    def foreign_requests(self):
        """Resources loaded from another origin."""
        script = """
            return performance.getEntriesByType("resource").map(({ name }) => name)
                .filter((name) => new URL(name).origin !== location.origin);
        """
        return self.window.evaluate(script)

    def overflow(self):
        """The number of pixels by which the page is wider than the screen."""
        return self.window.evaluate("return document.documentElement.scrollWidth - innerWidth")


def hash_of(place):
    return "#/" + "/".join(urllib.parse.quote(part, safe="!*'()~") for part in place)


def escaped(text):
    return text.replace("\\", "\\\\").replace("`", "\\`").replace("$", "\\$")


def ask(server, method, path, body=None, user="guest", password="guest"):
    """Sends one request to the management API; returns the answer."""
    data = None if body is None else json.dumps(body).encode()
    token = b64encode(f"{user}:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.http}/api/{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        text = response.read()
    return json.loads(text) if text else None
