"""Debian's Chromium without a window, driven through its chromedriver (W3C WebDriver) with nothing but the standard library."""

import base64
import contextlib
import json
import os
import struct
import urllib.error
import urllib.request

from harness.child import Child, clean_environment
from harness.patience import PATIENCE
from harness.ports import free_ports

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
SWITCHES = [
    "--headless=new",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-gpu",
    # A container's shared memory is often too small.
    "--disable-dev-shm-usage",
    # Nothing of the browser's own goes over the network.
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


class BrowserError(AssertionError):
    """The browser could not do what it was asked for; begins with WebDriver's name for the error."""


@contextlib.contextmanager
def browser(directory, *switches):
    """A browser with an empty profile, and whatever switches are added, for the length of a `with`."""
    directory.mkdir(parents=True, exist_ok=True)
    environment = clean_environment(HOME=str(directory))
    # Left to itself it chooses a port that is free over IPv6, and ends if that is not free over IPv4 as well.
    [port] = free_ports(1)
    driver = Child(["chromedriver", f"--port={port}"], directory / "chromedriver.log", env=environment)
    try:
        driver.wait_line(f"started successfully on port {port}")
        window = Browser(f"http://127.0.0.1:{port}", directory / "profile", switches)
        try:
            yield window
        finally:
            window.quit()
    finally:
        driver.kill()


class Browser:
    def __init__(self, driver, profile, switches=()):
        switches = [*SWITCHES, *switches, f"--user-data-dir={profile}"]
        if os.geteuid() == 0:
            # Its sandbox does not work for root, whom containers often run tests as.
            switches.append("--no-sandbox")
        self.url = driver
        wanted = {
            "goog:chromeOptions": {"args": switches},
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"script": PATIENCE * 1000},
        }
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.url = f"{driver}/session/{session['sessionId']}"

    def quit(self):
        self._call("DELETE", "")

    def open(self, url):
        """Loads a page in the tab at hand, and waits until it is loaded."""
        self._call("POST", "/url", {"url": url})

    def reload(self):
        self._call("POST", "/refresh", {})

    def new_tab(self):
        """Opens an empty tab and turns to it; its handle is for `turn_to`."""
        handle = self._call("POST", "/window/new", {"type": "tab"})["handle"]
        self.turn_to(handle)
        return handle

    def close_tab(self):
        """Closes the tab at hand; then turn to another."""
        self._call("DELETE", "/window")

    def tab(self):
        return self._call("GET", "/window")

    def turn_to(self, handle):
        self._call("POST", "/window", {"handle": handle})

    def resize(self, width, height):
        self._call("POST", "/window/rect", {"width": width, "height": height})

    def become_phone(self, width=360, height=740):
        """Shows pages as a phone does; windows themselves cannot be as narrow."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        self._develop("Emulation.setDeviceMetricsOverride", metrics)

    def become_desktop(self):
        self._develop("Emulation.clearDeviceMetricsOverride", {})

    def prefer(self, scheme):
        """Says to pages that the visitor prefers "dark" or "light"."""
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self._develop("Emulation.setEmulatedMedia", media)

    def run_first(self, script):
        """Runs a script in every page that is opened from now on, before the page's own."""
        self._develop("Page.addScriptToEvaluateOnNewDocument", {"source": script})

    def click(self, selector):
        self._call("POST", f"/element/{self._find(selector)}/click", {})

    def fill(self, selector, text):
        """Types text into a field in place of what it holds."""
        element = self._find(selector)
        self._call("POST", f"/element/{element}/clear", {})
        self._call("POST", f"/element/{element}/value", {"text": text})

    def value(self, selector):
        """What a field holds."""
        return self._call("GET", f"/element/{self._find(selector)}/property/value")

    def press(self, keys):
        """Presses keys on whatever has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def evaluate(self, script, *arguments):
        """What the body of a synchronous function returns in the page."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run(self, body, *arguments):
        """What the body of an async function returns in the page; it is called with `args`. An error in it is raised."""
        script = f"""
            const done = arguments[arguments.length - 1];
            const args = [...arguments].slice(0, -1);
            (async () => {{ {body} }})().then(
                (value) => done({{ value: value ?? null }}),
                (error) => done({{ error: String(error.stack ?? error) }}),
            );"""
        outcome = self._call("POST", "/execute/async", {"script": script, "args": list(arguments)})
        if "error" in outcome:
            raise BrowserError(outcome["error"])
        return outcome["value"]

    def wait_for_text(self, selector, pattern):
        """Waits until an element's text matches a pattern (of JavaScript), and returns the text."""
        return self.run(
            """
            const element = document.querySelector(args[0]);
            const pattern = new RegExp(args[1], "s");
            return await new Promise((resolve, reject) => {
                const look = () => pattern.test(element.textContent) && resolve(element.textContent.trim());
                new MutationObserver(look).observe(element, { childList: true, characterData: true, subtree: true });
                setTimeout(() => reject(new Error(`${args[0]} still says: ${element.textContent}`)), args[2]);
                look();
            });
            """,
            selector,
            pattern,
            # Before the script itself is given up.
            PATIENCE * 500,
        )

    def complaints(self):
        """What the browser has written to the console since it was asked last: errors, refusals by a page's policy."""
        entries = self._call("POST", "/se/log", {"type": "browser"})
        return [f"{entry['level']} {entry['message']}" for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def screenshot(self):
        """The tab as PNG."""
        return base64.b64decode(self._call("GET", "/screenshot"))

    def _develop(self, command, parameters):
        """A command of the browser's developer tools."""
        self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _find(self, selector):
        return self._call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=2 * PATIENCE) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise BrowserError(f"{value['error']}: {value['message']}") from None


def size_of(picture):
    """Width and height of a PNG."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n") and picture[12:16] == b"IHDR"
    return list(struct.unpack(">II", picture[16:24]))
