"""Users, permissions, policies, virtual hosts and connections on the dashboard."""

import pika
import pytest

from harness.dashboard import ask, server, visit, window


def row_of(visit, column, text):
    [row] = [row for row in visit.rows() if row[column] == text]
    return row


def press_in_row(visit, text, words):
    script = """
        const rows = [...document.querySelectorAll("#view tbody tr")];
        const row = rows.find((each) => each.firstChild.textContent === arguments[0]);
        [...row.querySelectorAll("button")].find((each) => each.textContent === arguments[1]).click();
    """
    visit.window.evaluate(script, text, words)


def await_row(visit, text, is_there=True):
    heads = "[...document.querySelectorAll('#view tbody tr > :first-child')]"
    visit.wait(f"{heads}.some((each) => each.textContent === args[0]) === args[1]", text, is_there)


def test_a_user_is_added_permitted_changed_and_deleted(visit, server):
    visit.enter("users")
    visit.press("Add a user")
    visit.answer("Add", name="ada", password="secret", tags="monitoring")
    await_row(visit, "ada")
    assert row_of(visit, "Name", "ada")["Tags"] == "monitoring"
    assert ask(server, "GET", "whoami", user="ada", password="secret")["name"] == "ada"
    visit.go("users", "ada")
    visit.press("Set permissions")
    visit.answer("Set permissions", vhost="/", configure="^ada", write=".*", read="")
    await_row(visit, "/")
    told = ask(server, "GET", "permissions/%2F/ada")
    assert (told["configure"], told["write"], told["read"]) == ("^ada", ".*", "")
    press_in_row(visit, "/", "Remove")
    visit.answer("Remove")
    visit.wait("!document.querySelector('#view tbody tr')")
    assert ask(server, "GET", "users/ada/permissions") == []
    visit.press("Change")
    visit.answer("Change", password="other", tags="")
    assert ask(server, "GET", "users/ada")["tags"] == []
    visit.press("Delete")
    visit.answer("Delete")
    visit.wait("location.hash === '#/users'")
    visit.settle()
    await_row(visit, "ada", is_there=False)


def test_a_policy_is_set_and_deleted(visit, server):
    visit.enter("policies")
    visit.press("Set a policy")
    visit.wait("document.querySelector('dialog[open]')")
    script = """
        [...document.querySelectorAll("dialog .arguments button")].find((each) => each.textContent === "Add").click();
        const [name, kind, value] = document.querySelectorAll("dialog .row > :is(input, select)");
        name.value = "max-length";
        name.dispatchEvent(new Event("change"));
        value.value = "10";
        return kind.value;
    """
    assert visit.window.evaluate(script) == "number"
    visit.answer("Set policy", name="short", pattern="^short\\.", applyTo="queues", priority="3")
    await_row(visit, "short")
    told = ask(server, "GET", "policies/%2F/short")
    assert (told["definition"], told["apply-to"], told["priority"]) == ({"max-length": 10}, "queues", 3)
    press_in_row(visit, "short", "Delete")
    visit.answer("Delete")
    await_row(visit, "short", is_there=False)


def test_a_virtual_host_is_added_chosen_and_deleted(visit, server):
    visit.enter("vhosts")
    visit.press("Add a virtual host")
    visit.answer("Add", name="<i>other</i>")
    await_row(visit, "<i>other</i>")
    ask(server, "PUT", "permissions/%3Ci%3Eother%3C%2Fi%3E/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    ask(server, "PUT", "queues/%3Ci%3Eother%3C%2Fi%3E/there", {})
    ask(server, "PUT", "queues/%2F/here", {})
    press_in_row(visit, "<i>other</i>", "Show queues")
    visit.wait("location.hash === '#/queues'")
    visit.settle()
    assert [row["Name"] for row in visit.rows()] == ["there"]
    # All, and then one of them, by the menu.
    choose = """
        const menu = document.getElementById("vhost");
        menu.value = arguments[0];
        menu.dispatchEvent(new Event("change"));
    """
    visit.window.evaluate(choose, "")
    visit.wait("document.querySelectorAll('#view tbody tr').length === 2")
    assert {row["Virtual host"] for row in visit.rows()} == {"/", "<i>other</i>"}
    visit.window.evaluate(choose, "/")
    visit.wait("document.querySelectorAll('#view tbody tr').length === 1")
    assert [row["Name"] for row in visit.rows()] == ["here"]
    visit.go("vhosts")
    press_in_row(visit, "<i>other</i>", "Delete")
    visit.answer("Delete")
    await_row(visit, "<i>other</i>", is_there=False)


def test_a_connection_is_shown_and_closed(visit, server):
    parameters = pika.URLParameters(server.uri)
    parameters.client_properties = {"connection_name": "<b>the one</b>"}
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=7)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_consume(queue, lambda *_: None, consumer_tag="mine")
    visit.enter("connections")
    await_row(visit, "<b>the one</b>")
    assert row_of(visit, "Name", "<b>the one</b>")["Protocol"] == "AMQP 0-9-1"
    visit.go("channels")
    visit.wait("document.querySelector('#view tbody tr')")
    [row] = visit.rows()
    assert (row["Mode"], row["Consumers"], row["Prefetch"], row["User name"]) == ("C", "1", "7", "guest")
    assert (row["Unconfirmed"], row["Unacked"]) == ("0", "0")
    visit.go("queues", "/", queue)
    visit.wait("document.querySelector('#view table tbody')?.textContent.includes('mine')")
    visit.go("connections")
    follow = "[...document.querySelectorAll('#view tbody a')].find((each) => each.textContent === '<b>the one</b>').click()"
    visit.window.evaluate(follow)
    visit.close_connection("maintenance – soon")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="maintenance"):
        connection.process_data_events(time_limit=30)
    visit.wait("location.hash === '#/connections'")
    assert visit.window.evaluate("return document.querySelectorAll('#view b').length") == 0
