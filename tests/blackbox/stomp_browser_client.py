"""@stomp/stompjs in Chromium, with each STOMP over WebSocket listener; for comparison with RabbitMQ's Web-STOMP."""

import pytest

from harness.instances import leveret
from harness.mqtt_broker import ANY, Broker, listening
from harness.site import origin, window
from harness.stomp_client import EVERYTHING

RUN = "return await (await import('/stomp_conversation.mjs')).run(...args)"


@pytest.mark.parametrize(("listener", "path"), [("web-stomp", "/ws"), ("ws", "/ws/stomp"), ("ws", "/")])
def test_a_page_speaks_stomp(tmp_path, origin, window, listener, path):
    with leveret(tmp_path, f"--{listener}", ANY, "--ws-origins", origin) as server:
        assert window.run(RUN, f"ws://127.0.0.1:{listening(server, listener, 'ws')}{path}", "q") == EVERYTHING
        server.stop()


def test_rabbitmq_gives_a_page_the_same(tmp_path, window):
    broker = Broker("rabbitmq", tmp_path)
    try:
        seen = window.run(RUN, f"ws://127.0.0.1:{broker.web_stomp}/ws", "q")
    finally:
        broker.stop()
    # The server sends binary messages (harness/mqtt_broker.py), which the client does not decode as text.
    assert {**seen, "text": EVERYTHING["text"]} == EVERYTHING
