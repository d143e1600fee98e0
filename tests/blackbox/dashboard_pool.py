"""The dashboard in front of an upstream: what the pool has to tell, and nothing of what only a broker has."""

import contextlib

import pika
import pytest

from harness.dashboard import Visit, window
from harness.instances import leveret


def connect(stack, server, name):
    parameters = pika.URLParameters(server.uri)
    parameters.client_properties = {"connection_name": name}
    connection = stack.enter_context(contextlib.closing(pika.BlockingConnection(parameters)))
    connection.channel().queue_declare("pooled", auto_delete=True)
    return connection


def figures(visit):
    script = """
        return Object.fromEntries([...document.querySelectorAll("#view .tile")]
            .map((each) => [each.querySelector(".what").textContent, each.querySelector(".figure").textContent]));
    """
    return visit.window.evaluate(script)


def places(visit):
    return visit.window.evaluate("return [...document.querySelectorAll('#places a')].map((each) => each.textContent)")


def test_sharing_and_savings_are_shown(tmp_path, targets, window):
    upstream = f"127.0.0.1:{targets['rabbitmq'].port}"
    with leveret(tmp_path, "--upstream", f"amqp://{upstream}") as server, contextlib.ExitStack() as stack:
        for number in range(6):
            connect(stack, server, f"client {number}")
        visit = Visit(window, server).open()
        visit.settle()
        # There is nobody to log in as, and nothing of a broker's.
        assert visit.window.evaluate("return document.getElementById('login').hidden")
        assert not {"Queues", "Exchanges", "Bindings", "Users", "Policies"} & set(places(visit))
        assert visit.text("#view .verdict") == "reachable"
        assert upstream in visit.text("#view .listeners")
        assert "up" in visit.text("#view .listeners")
        told = figures(visit)
        assert told["Clients per connection"] == "6.0"
        assert int(told["Handshakes avoided"]) >= 5
        assert visit.violations() == []
        assert visit.window.complaints() == []
        visit.window.become_phone()
        assert visit.overflow() == 0
        visit.window.become_desktop()
        stack.close()
        server.stop()


def test_clients_are_listed_and_can_be_closed(tmp_path, targets, window):
    upstream = f"amqp://127.0.0.1:{targets['rabbitmq'].port}"
    with leveret(tmp_path, "--upstream", upstream) as server, contextlib.ExitStack() as stack:
        connection = connect(stack, server, "<b>ada</b>")
        visit = Visit(window, server).open(("clients",))
        visit.settle()
        visit.wait("document.querySelector('#view tbody tr')")
        [row] = visit.rows()
        assert (row["Client"], row["User"], row["Virtual host"]) == ("<b>ada</b>", "guest", "/")
        visit.window.evaluate("document.querySelector('#view tbody a').click()")
        visit.close_connection("enough")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="enough"):
            connection.process_data_events(time_limit=30)
        stack.pop_all()
        server.stop()


def test_an_upstream_that_is_away_is_told(tmp_path, window):
    with leveret(tmp_path, "--upstream", "amqp://127.0.0.1:1") as server:
        visit = Visit(window, server).open()
        visit.settle()
        visit.wait("document.querySelector('#view .verdict').textContent === 'not reachable'")
        assert visit.text("#view h1") == "Overview"
        server.stop()
