"""The log says why a login was refused; the client gets the same error as from RabbitMQ."""

import urllib.error
import urllib.request

import pika
import pika.exceptions
import pytest

from harness.ctl import Ctl
from harness.definitions import permission, user
from harness.instances import leveret
from harness.management import Management
from harness.patience import PATIENCE
from harness.stomp_client import StompWire
from harness.wire import Closed, Wire

AFAR = b"PROXY TCP4 192.0.2.1 127.0.0.1 50000 5672\r\n"
TEXT = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("server")) as server:
        sections = {"users": [user("ann")], "vhosts": [{"name": "closed"}], "permissions": [permission("ann", "/", ".*")]}
        assert Management(server, server.http).status("POST", "definitions", sections) == 204
        yield server
        server.stop()


def refusal(server, name, password, vhost="/"):
    parameters = pika.ConnectionParameters("127.0.0.1", server.port, vhost, pika.PlainCredentials(name, password))
    with pytest.raises(pika.exceptions.AMQPConnectionError) as refused:
        pika.BlockingConnection(parameters)
    return str(refused.value)


@pytest.mark.parametrize(
    "name, password, why",
    [("ann", "hunter2", "wrong password"), ("nobody", "hunter2", "no such user"), ("ann", "", "blank password")],
)
def test_the_reason_for_a_refused_amqp_login_is_only_logged(server, name, password, why):
    assert TEXT in refusal(server, name, password)
    server.child.wait_line(f'WARN.*login refused.*user="{name}" error="{why}"')
    assert "hunter2" not in server.child.output()


def test_a_virtual_host_that_a_user_may_not_open_is_named(server):
    assert "access to vhost 'closed' refused for user 'ann'" in refusal(server, "ann", "ann", "closed")
    server.child.wait_line("WARN.*login refused.*user=\"ann\" error=\"access to vhost 'closed' refused for user 'ann'\"")
    assert "vhost nowhere not found" in refusal(server, "ann", "ann", "nowhere")
    server.child.wait_line('WARN.*login refused.*user="ann" error="vhost nowhere not found"')


def test_a_remote_login_as_guest_is_refused_and_the_reason_is_logged(tmp_path):
    with leveret(tmp_path, "--proxy-protocol", "v1", "--trusted-proxies", "127.0.0.1") as server:
        wire = Wire(server.port)
        wire.send(AFAR)
        # Without authentication_failure_close the connection is just closed.
        with pytest.raises(Closed):
            wire.handshake()
        server.child.wait_line('login refused.*user="guest" error="user can only log in via localhost"')
        server.stop()


def test_the_warning_of_a_refused_login_has_a_limited_part_of_the_name(tmp_path):
    with leveret(tmp_path, "--stomp", "127.0.0.1:0") as server:
        port = int(server.child.wait_line(r"^stomp +listening on stomp://[^\s/]+:(\d+)").group(1))
        assert StompWire(port).connect(login="n" * 10_000)[0] == "ERROR"
        server.child.wait_line('WARN.*login refused.*user="n{255}" error=')
        # Other refusals are logged with the user, and the virtual host that could not be opened.
        assert StompWire(port).connect(host="nowhere")[0] == "ERROR"
        server.child.wait_line('WARN.*login refused.*user="guest" error="vhost nowhere not found"')
        server.stop()


def test_http_tells_the_address_and_a_missing_tag(server):
    ctl = Ctl(server.http, "ann", "hunter2")
    assert "user 'ann' is refused" in ctl.fails("status")
    server.child.wait_line('WARN.*HTTP login refused peer="127.0.0.1" user="ann" error="wrong password"')
    assert "Not management user" in Ctl(server.http, "ann", "ann").fails("status")
    server.child.wait_line('HTTP login refused peer="127.0.0.1" user="ann" error="user has no management tag"')


def test_a_local_request_for_another_host_is_logged_with_that_host(server):
    request = urllib.request.Request(f"{server.http}/api/whoami", headers={"Host": "foo", "Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PATIENCE)
    assert refused.value.code == 401
    server.child.wait_line("HTTP login refused.*user=\"guest\" error=\"user can only log in via localhost; the request's Host is 'foo'\"")
