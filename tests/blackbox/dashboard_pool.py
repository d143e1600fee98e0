"""The dashboard in front of an upstream shows the pool, and nothing that only a broker has."""

import contextlib
import signal

import pika
import pytest
import websocket

from harness.ctl import Ctl
from harness.dashboard import PALE, Visit, window
from harness.instances import leveret
from harness.metrics import wait_until
from harness.mqtt_broker import ANY, listening
from harness.mqtt_client import V5, V311, MqttClient
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.stomp_client import Client, StompWire

ENTER = "\ue007"
TAB = "\ue004"
ESCAPE = "\ue00c"


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
    upstream = f"127.0.0.1:{targets.upstream.port}"
    with leveret(tmp_path, "--upstream", f"amqp://{upstream}") as server, contextlib.ExitStack() as stack:
        for number in range(6):
            connect(stack, server, f"client {number}")
        visit = Visit(window, server).open()
        visit.settle()
        # There is no login, and no page of a broker.
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


def test_an_upstream_that_does_not_answer_is_shown_with_the_cause(tmp_path, window):
    [port] = free_ports(1)
    with leveret(tmp_path, "--upstream", f"amqp://127.0.0.1:{port}") as server:
        visit = Visit(window, server).open()
        visit.settle()
        visit.wait("document.querySelector('#view .listeners')?.textContent.includes('down')")
        shown = visit.text("#view .listeners")
        assert f"127.0.0.1:{port}" in shown and "Connection refused" in shown
        assert visit.text("#view .verdict") == "not reachable"
        assert visit.violations() == [] and visit.window.complaints() == []
        server.stop()


def test_clients_are_listed_and_can_be_closed(tmp_path, targets, window):
    upstream = f"amqp://127.0.0.1:{targets.upstream.port}"
    with leveret(tmp_path, "--upstream", upstream) as server, contextlib.ExitStack() as stack:
        connection = connect(stack, server, "<b>ada</b>")
        visit = Visit(window, server).open(("clients",))
        visit.settle()
        visit.wait("document.querySelector('#view tbody tr')")
        [row] = visit.rows()
        assert (row["Client"], row["User name"], row["Virtual host"]) == ("<b>ada</b>", "guest", "/")
        visit.window.evaluate("document.querySelector('#view tbody a').click()")
        visit.close_connection("enough")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="enough"):
            connection.process_data_events(time_limit=PATIENCE)
        stack.pop_all()
        server.stop()


def test_an_unreachable_upstream_is_shown(tmp_path, window):
    with leveret(tmp_path, "--upstream", "amqp://127.0.0.1:1") as server:
        visit = Visit(window, server).open()
        visit.settle()
        visit.wait("document.querySelector('#view .verdict').textContent === 'not reachable'")
        assert visit.text("#view h1") == "Overview"
        server.stop()


TABLE = "[...document.querySelectorAll('#view section')].find((each) => each.querySelector('h2')?.textContent === 'Multiplexed subscriptions')"


def test_multiplexed_subscriptions_and_savings_are_shown_only_if_present(tmp_path, targets, window):
    with limited(tmp_path, targets, "--stomp", ANY, "--web-stomp", ANY) as server, contextlib.ExitStack() as stack:
        visit = Visit(window, server).open()
        visit.settle()
        assert window.evaluate(f"return {TABLE}.checkVisibility()") is False
        assert "Messages saved by multiplexed subscriptions" not in figures(visit)
        clients = [Client(listening(server, "stomp", "stomp")) for _ in range(3)]
        for client in clients:
            stack.callback(client.close)
            client.subscribe("/topic/shown")
        clients[0].send("/topic/shown", "x")
        assert [client.message().body for client in clients] == ["x"] * 3
        refreshed(visit)
        visit.wait(f"{TABLE}.checkVisibility() && {TABLE}.querySelectorAll('tbody tr').length === 1")
        visit.wait("[...document.querySelectorAll('#view .what')].some((each) => each.textContent === 'Messages saved by multiplexed subscriptions')")
        [row] = visit.rows()
        assert row.pop("Queue").startswith("stomp-subscription-")
        told = {"Protocol": "STOMP", "User name": "guest", "Virtual host": "/", "Subscribers": "3", "Bindings": "1"}
        told |= {"Messages in": "1", "Copies out": "3"}
        assert row == told
        assert figures(visit)["Messages saved by multiplexed subscriptions"] == figures(visit)["Queues saved now"] == "2"
        assert window.evaluate(PALE) == []
        assert visit.violations() == [] and window.complaints() == []
        window.become_phone()
        assert visit.overflow() == 0
        window.become_desktop()
        stack.close()
        server.stop()


def test_clients_show_the_protocol_that_they_speak(tmp_path, targets, window):
    with limited(tmp_path, targets, "--stomp", ANY, "--ws", ANY) as server, contextlib.ExitStack() as stack:
        connect(stack, server, "an application")
        wire = stack.enter_context(contextlib.closing(StompWire(listening(server, "stomp", "stomp"))))
        assert wire.connect(version="1.1")[0] == "CONNECTED"
        url = f"ws://127.0.0.1:{server.ws_port}/ws/stomp"
        socket = stack.enter_context(contextlib.closing(websocket.create_connection(url, subprotocols=["v12.stomp"], timeout=PATIENCE)))
        socket.send("CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n\0")
        assert socket.recv().startswith("CONNECTED")
        visit = Visit(window, server).open(("clients",))
        visit.settle()
        visit.wait("document.querySelectorAll('#view tbody tr').length === 3")
        assert sorted(row["Protocol"] for row in visit.rows()) == ["AMQP 0-9-1", "STOMP 1.1", "STOMP 1.2WebSocket"]
        assert {(row["User name"], row["Virtual host"]) for row in visit.rows()} == {("guest", "/")}
        # Follow one of them to its page.
        window.evaluate("[...document.querySelectorAll('#view tbody tr')].find((each) => each.textContent.includes('STOMP 1.1')).querySelector('a').click()")
        visit.wait("document.querySelector('#view dl')?.textContent.includes('STOMP 1.1')")
        assert visit.violations() == [] and window.complaints() == []
        stack.close()
        server.stop()


def tables(visit):
    """The rows of each visible table by its caption, as dictionaries by column title."""
    script = """
        return Object.fromEntries([...document.querySelectorAll("#view table")].filter((each) => each.checkVisibility()).map((table) => {
            const titles = [...table.querySelectorAll("thead th")].map((each) => each.textContent.trim());
            const rows = [...table.querySelectorAll("tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent));
            return [table.caption.textContent, rows.map((row) => Object.fromEntries(row.map((text, at) => [titles[at], text])))];
        }));
    """
    return visit.window.evaluate(script)


def test_sessions_groups_and_retained_messages_are_shown_and_a_session_leads_to_its_connection(tmp_path, targets, window):
    with limited(tmp_path, targets, "--mqtt", ANY, "--stomp", ANY) as server, contextlib.ExitStack() as stack:
        port = listening(server, "mqtt", "mqtt")
        live = stack.enter_context(MqttClient(port, "dash-live", V311))
        live.subscribe("dash/a", 0)
        with MqttClient(port, "dash-away", V5, keep=True, expiry=300) as away:
            away.subscribe("dash/a", 1)
        member = stack.enter_context(MqttClient(port, "dash-member", V5))
        member.subscribe("$share/dash/work", 1)
        wire = stack.enter_context(contextlib.closing(StompWire(listening(server, "stomp", "stomp"))))
        assert wire.connect()[0] == "CONNECTED"
        live.publish("dash/a", b"x", retain=True)
        live.message()
        ctl = Ctl(server.http)
        wait_until(lambda: ctl.rows("list_retained", "topics") == [["1"]])
        wait_until(lambda: ["dash-away", "detached"] in ctl.rows("list_sessions", "name", "state"))
        visit = Visit(window, server).open(("sessions",))
        visit.settle()
        assert "Sessions" in places(visit)
        visit.wait("document.querySelectorAll('#view table').length === 3")
        shown = tables(visit)
        rows = {row["Client"]: row for row in shown["Sessions"]}
        [stomp] = set(rows) - {"dash-live", "dash-away", "dash-member"}
        columns = ("User name", "State", "Expiry", "Keep alive", "Subscriptions", "Published", "Delivered")
        pick = lambda name: tuple(rows[name][column] for column in columns)
        assert pick("dash-live") == ("guest", "connected", "with the connection", "60 s", "1", "1", "1")
        assert pick("dash-away") == ("guest", "detached", "5 min", "–", "1", "–", "–")
        assert pick(stomp) == ("guest", "connected", "with the connection", "–", "0", "0", "0")
        assert (rows["dash-member"]["Protocol"], rows[stomp]["Protocol"]) == ("MQTT 5-0", "STOMP 1.2")
        [group] = shown["Shared subscriptions"]
        assert (group["Group"], group["Members"], group["Delivered"]) == ("$share/dash/work", "1", "0")
        [retained] = shown["Retained messages"]
        assert (retained["Virtual host"], retained["State"], retained["Topics"]) == ("/", "running", "1")
        told = figures(visit)
        assert (told["MQTT subscriptions"], told["Sessions without a connection"], told["Retained topics"]) == ("2", "1", "1")
        assert window.evaluate(PALE) == []
        assert visit.violations() == [] and window.complaints() == []
        window.become_phone()
        assert visit.overflow() == 0
        window.become_desktop()
        window.evaluate("[...document.querySelectorAll('#view tbody a')].find((each) => each.textContent === 'dash-live').click()")
        visit.wait("document.querySelector('#view dl')?.textContent.includes('ends with the connection')")
        visit.close_connection("enough")
        assert live.gone.wait(PATIENCE)
        # Leave nothing in RabbitMQ.
        with MqttClient(port, "dash-away", V5) as last:
            last.publish("dash/a", b"", retain=True)
        stack.close()
        server.stop()


def test_the_spool_is_shown_paused_and_its_parked_messages_dropped(tmp_path, targets, window):
    flags = ["--spool", "{}", "--data-dir", str(tmp_path / "data")]
    with limited(tmp_path / "run", targets, *flags) as server:
        ctl = Ctl(server.http)
        with pika.BlockingConnection(pika.URLParameters(server.uri)) as client:
            channel = client.channel()
            channel.confirm_delivery()
            channel.basic_publish("no-such-exchange", "key", "parked")
            wait_until(lambda: ctl.rows("spool", "parked", "exchange") == [["no-such-exchange"]])
            ctl("spool", "pause")
            channel.basic_publish("", "no-such-queue", "waits")
        visit = Visit(window, server).open(("spool",))
        visit.settle()
        assert "Spool" in places(visit)
        visit.wait("[...document.querySelectorAll('#view table')].filter((each) => each.checkVisibility()).length === 2")
        shown = tables(visit)
        [row] = shown["Spool"]
        assert (row["User name"], row["Virtual host"], row["State"], row["Messages"]) == ("guest", "/", "paused", "1")
        [parked] = shown["Parked messages"]
        assert (parked["Exchange"], parked["Routing key"]) == ("no-such-exchange", "key")
        assert "no exchange 'no-such-exchange'" in parked["Reason"]
        assert figures(visit)["Parked messages"] == "1"
        assert window.evaluate(PALE) == []
        assert visit.violations() == [] and window.complaints() == []
        window.become_phone()
        assert visit.overflow() == 0
        window.become_desktop()
        ctl("spool", "purge", "--yes")
        ctl("spool", "resume")
        visit.wait("[...document.querySelectorAll('#view table')].filter((each) => each.checkVisibility()).length === 1")
        visit.wait("document.querySelector('#view tbody')?.textContent.includes('running')")
        server.stop()


def limited(directory, targets, *flags):
    return leveret(directory, "--upstream", f"amqp://127.0.0.1:{targets.upstream.port}", *flags)


def bars(visit):
    """The visible bars: their texts, and whether they are full."""
    script = """
        return Object.fromEntries([...document.querySelectorAll("#view .bar")].filter((each) => each.checkVisibility())
            .map((each) => [each.querySelector("meter").ariaLabel,
                [each.querySelector(".what").textContent, !each.querySelector(".badge").hidden]]));
    """
    return visit.window.evaluate(script)


def refreshed(visit):
    """Refreshes immediately instead of within a few seconds."""
    visit.window.evaluate("document.getElementById('view').dispatchEvent(new Event('refresh'))")


def test_limits_are_shown_with_their_current_usage(tmp_path, targets, window):
    flags = ["--max-connections", "3", "--max-channels-per-user", "50", "--limits-mode", "alarm"]
    with limited(tmp_path, targets, *flags) as server, contextlib.ExitStack() as stack:
        connect(stack, server, "first")
        visit = Visit(window, server).open(("limits",))
        visit.settle()
        assert "Limits" in places(visit)
        assert visit.text("#view .badge") == "alarm only"
        shown = bars(visit)
        assert shown["Total connections"] == ["1 of 3", False]
        assert shown["Channels of one user"] == ["1 of 50", False]
        assert shown["Upstream connections"][0].endswith(" of 4,096")
        for name in ("second", "third", "one too many"):
            connect(stack, server, name)
        refreshed(visit)
        visit.wait("[...document.querySelectorAll('#view .bar .what')].some((each) => each.textContent === '4 of 3')")
        assert bars(visit)["Total connections"][1], "it is full, and says so"
        rows = {row["Name"]: row for row in visit.rows()}
        told = lambda limit: [rows[limit][column] for column in ("In use", "Limit", "Exceeded")]
        assert told("Total connections") == ["4", "3", "1"]
        assert told("Channels from one address") == ["4", "no limit", "0"]
        assert len(rows) == 12
        assert visit.violations() == [] and visit.window.complaints() == []
        stack.close()
        server.stop()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_limits_are_readable_by_light_and_dark_and_on_a_phone(tmp_path, targets, window, scheme):
    with limited(tmp_path, targets) as server:
        window.prefer(scheme)
        try:
            visit = Visit(window, server).open(("limits",))
            visit.settle()
            assert window.evaluate(PALE) == []
            visit.press("Drain")
            visit.wait("document.querySelector('dialog[open]')")
            assert window.evaluate(PALE) == []
            window.become_phone()
            assert visit.overflow() == 0
            visit.press("Cancel", "dialog")
            visit.wait("!document.querySelector('dialog')")
            assert visit.overflow() == 0
        finally:
            window.become_desktop()
            window.prefer("light")
        server.stop()


def test_a_drain_is_asked_for_twice_and_then_done_by_keyboard_alone(tmp_path, targets, window):
    with limited(tmp_path, targets) as server, contextlib.ExitStack() as stack:
        connection = connect(stack, server, "client")
        visit = Visit(window, server).open(("limits",))
        visit.settle()
        # From the heading, which has the focus, it is the first that is reached.
        window.evaluate("document.querySelector('#view h1').focus()")
        window.press([TAB])
        assert window.evaluate("return document.activeElement.textContent") == "Drain"
        window.press([ENTER])
        visit.wait("document.querySelector('dialog[open]')")
        assert "every client is disconnected" in visit.text("dialog")
        window.press([ESCAPE])
        visit.wait("!document.querySelector('dialog')")
        assert window.evaluate("return document.activeElement.textContent") == "Drain"
        # No client was disconnected.
        connection.channel().close()

        window.press([ENTER])
        visit.wait("document.querySelector('dialog[open]')")
        window.evaluate("document.querySelector('dialog button').focus()")
        assert window.evaluate("return document.activeElement.textContent") == "Drain"
        window.press([ENTER])
        visit.wait("!document.querySelector('dialog')")
        visit.wait("document.getElementById('notice').textContent.includes('The server drains')")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            connection.process_data_events(time_limit=PATIENCE)
        assert closed.value.reply_code == 320
        stack.pop_all()
        assert server.child.wait() == 0, server.tail()


def test_limits_that_change_under_it_are_shown(tmp_path, targets, window):
    file = tmp_path / "leveret.toml"
    file.write_text("max_connections = 10\n")
    with limited(tmp_path / "server", targets, "--config", file) as server:
        visit = Visit(window, server).open(("limits",))
        visit.settle()
        assert bars(visit)["Total connections"][0] == "0 of 10"
        file.write_text('max_connections = 20\nlimits_mode = "alarm"\n')
        server.child.send(signal.SIGHUP)
        server.child.wait_line("SIGHUP: no TLS files to reload")
        refreshed(visit)
        visit.wait("document.querySelector('#view .bar .what').textContent === '0 of 20'")
        assert visit.text("#view .badge") == "alarm only"
        server.stop()
