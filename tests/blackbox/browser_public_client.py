"""@cloudamqp/amqp-client on a page of its own, in a real Chromium: it works at the broker and through the pool, and comes
back after a restart of the broker behind the pool."""

import signal
from pathlib import Path

import pytest

from harness.browser import browser
from harness.instances import leveret
from harness.lending import borrow
from harness.site import HERE, Files
from harness.site import site as serving

CLIENT = HERE / "node_modules" / "@cloudamqp" / "amqp-client" / "dist"
COUNT = 300
PAGE = "/page.html"


class WithClient(Files):
    """Our own files, and under /client/ the client as it is published for browsers."""

    def translate_path(self, path):
        directory = CLIENT if path.startswith("/client/") else HERE
        return str(directory / Path(path).name)


@pytest.fixture(scope="module")
def site():
    with serving(WithClient) as origin:
        yield origin


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as window:
        yield window


@pytest.mark.parametrize("behind", ["broker", "pool"])
def test_messages_are_confirmed_and_consumed(tmp_path, targets, site, window, behind):
    flags = ["--ws", "127.0.0.1:0", "--ws-origins", site]
    if behind == "pool":
        flags += ["--upstream", f"amqp://127.0.0.1:{targets.upstream.port}"]
    with leveret(tmp_path, *flags) as server:
        window.open(site + PAGE)
        script = "return (await import('/confirms_and_prefetch.mjs')).run(...args)"
        seen = window.run(script, f"ws://127.0.0.1:{server.ws_port}/ws/amqp", COUNT)
        assert seen == {"confirmed": COUNT, "received": COUNT, "prefetch": 7}
        server.stop()


def test_a_page_of_another_origin_is_kept_out(tmp_path, site, window):
    # Another port is another origin.
    with leveret(tmp_path, "--ws", "127.0.0.1:0", "--ws-origins", "http://127.0.0.1:1") as server:
        window.open(site + PAGE)
        script = "return (await import('/confirms_and_prefetch.mjs')).run(...args).catch(({ type }) => type)"
        assert window.run(script, f"ws://127.0.0.1:{server.ws_port}/", 1) == "error"
        assert any("Unexpected response code: 403" in line for line in window.complaints())
        server.stop()


def test_it_outlives_a_restart_of_the_broker_behind_the_pool(tmp_path, site, window):
    upstream = borrow()
    try:
        flags = ["--ws", "127.0.0.1:0", "--ws-origins", site, "--upstream", f"amqp://127.0.0.1:{upstream.port}"]
        with leveret(tmp_path / "leveret", *flags) as server:
            window.open(site + PAGE)
            call = "const session = await import('/reconnecting.mjs'); return await"
            window.run(f"{call} session.begin(...args)", f"ws://127.0.0.1:{server.ws_port}/", "survivor")
            window.run(f"{call} session.publish(...args)", "before 1", "before 2")
            window.run(f"{call} session.until('before 2')")
            upstream.end(signal.SIGTERM)
            upstream.start()
            # Its reconnecting, if any, is over once a message is through; the messages are durable, as is the queue.
            window.run(f"{call} session.publishUntilConfirmed(...args)", "after")
            window.run(f"{call} session.until('after')")
            events = window.run("return (await import('/reconnecting.mjs')).events")
            # At least once: an acknowledgement may have been lost with a connection.
            assert {event for event in events if event.startswith("before")} == {"before 1", "before 2"}
            # 1011: not the client's fault, and worth another attempt.
            lost = [event for event in events if event.startswith("disconnected")]
            assert set(lost) <= {"disconnected (1011)"}
            window.run(f"{call} session.until('connected', args[0])", len(lost) + 1)
            window.run(f"{call} session.end()")
            server.stop()
    finally:
        upstream.stop()
