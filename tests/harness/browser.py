"""Debian's headless Chromium, driven through chromedriver (W3C WebDriver) with the standard library alone."""

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
    # /dev/shm is often too small in a container.
    "--disable-dev-shm-usage",
    # The browser makes no requests of its own.
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


class BrowserError(AssertionError):
    """WebDriver reported an error; the text begins with WebDriver's name for it."""


@contextlib.contextmanager
def browser(directory, *switches):
    """Runs a browser with an empty profile, and these extra switches, for the length of a `with`."""
    directory.mkdir(parents=True, exist_ok=True)
    environment = clean_environment(HOME=str(directory))
    # By default chromedriver picks a port that is free over IPv6, and exits if that port is taken over IPv4.
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
            # Chromium's sandbox refuses to run as root, the usual user in containers.
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
        """Loads a page in the current tab and waits until it has loaded."""
        self._call("POST", "/url", {"url": url})

    def reload(self):
        self._call("POST", "/refresh", {})

    def new_tab(self):
        """Opens an empty tab and switches to it; returns its handle for `turn_to`."""
        handle = self._call("POST", "/window/new", {"type": "tab"})["handle"]
        self.turn_to(handle)
        return handle

    def close_tab(self):
        """Closes the current tab; the caller then switches to another one."""
        self._call("DELETE", "/window")

    def tab(self):
        return self._call("GET", "/window")

    def turn_to(self, handle):
        self._call("POST", "/window", {"handle": handle})

    def resize(self, width, height):
        self._call("POST", "/window/rect", {"width": width, "height": height})

    def become_phone(self, width=360, height=740):
        """Emulates a phone's screen, which is narrower than any window can be."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        self._develop("Emulation.setDeviceMetricsOverride", metrics)

    def become_desktop(self):
        self._develop("Emulation.clearDeviceMetricsOverride", {})

    def prefer(self, scheme):
        """Sets the preferred colour scheme, "dark" or "light"."""
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self._develop("Emulation.setEmulatedMedia", media)

    def run_first(self, script):
        """Runs a script in each page opened from now on, before the page's own scripts."""
        self._develop("Page.addScriptToEvaluateOnNewDocument", {"source": script})

    def click(self, selector):
        self._call("POST", f"/element/{self._find(selector)}/click", {})

    def fill(self, selector, text):
        """Replaces the text of a field."""
        element = self._find(selector)
        self._call("POST", f"/element/{element}/clear", {})
        self._call("POST", f"/element/{element}/value", {"text": text})

    def value(self, selector):
        """The current value of a field."""
        return self._call("GET", f"/element/{self._find(selector)}/property/value")

    def press(self, keys):
        """Sends key presses to the focused element."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def evaluate(self, script, *arguments):
        """Evaluates the body of a synchronous function in the page; returns its result."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run(self, body, *arguments):
        """Evaluates the body of an async function in the page, called with `args`; returns its result and raises its errors."""
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
        """Waits until an element's text matches a JavaScript pattern; returns the text."""
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
            # Shorter than the script timeout.
            PATIENCE * 500,
        )

    def complaints(self):
        """Console messages since the last call: errors, and violations of the page's content security policy."""
        entries = self._call("POST", "/se/log", {"type": "browser"})
        return [f"{entry['level']} {entry['message']}" for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def screenshot(self):
        """A PNG screenshot of the tab."""
        return base64.b64decode(self._call("GET", "/screenshot"))

    def _develop(self, command, parameters):
        """Sends a Chrome DevTools command."""
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
    """Width and height of a PNG image."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n") and picture[12:16] == b"IHDR"
    return list(struct.unpack(">II", picture[16:24]))
