"""The listeners and protocols on the dashboard's overview, and the link to the page for trying out messages."""

from harness.dashboard import Visit, window
from harness.instances import leveret
from harness.wire import Wire


def test_connections_are_counted_by_protocol_and_transport(tmp_path, window):
    with leveret(tmp_path, "--ws", "127.0.0.1:0", "--mqtt", "127.0.0.1:0") as server:
        wires = [Wire(server.port).handshake() for _ in range(2)]
        visit = Visit(window, server).enter()
        await_gauge(visit, "AMQP", "2")
        listeners = visit.text("#view")
        for port in (server.port, server.ws_port):
            assert f"127.0.0.1:{port}" in listeners
        # The other page is one link away, and its connection is counted here.
        first = window.tab()
        messages = window.evaluate("const link = document.getElementById('messages-link'); return link.hidden || link.href")
        assert messages == server.http + "/messages"
        window.new_tab()
        window.open(messages)
        window.run("while (!document.querySelector('#connect [name=url]').value) await new Promise(requestAnimationFrame)")
        window.click("#connect-button")
        window.wait_for_text("#connection-state", "^Connected as guest")
        window.turn_to(first)
        await_gauge(visit, "AMQP over WebSocket", "1")
        for wire in wires:
            wire.close()
        await_gauge(visit, "AMQP", None)
        server.stop()


def test_without_websockets_there_is_no_way_to_the_page_that_needs_them(tmp_path, window):
    with leveret(tmp_path) as server:
        Visit(window, server).enter()
        assert window.evaluate("return document.getElementById('messages-link').hidden")
        server.stop()


def await_gauge(visit, title, figure):
    """Waits until the gauge with this title shows this value; `None` means that there is no such gauge."""
    visit.wait(
        """([...document.querySelectorAll("#view .tile")].find((each) => each.querySelector(".what").textContent === args[0])
            ?.querySelector(".figure").textContent ?? null) === args[1]""",
        title,
        figure,
    )
