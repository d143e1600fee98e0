"""`leveret ctl` finds the intended server, and explains what is wrong otherwise."""

import subprocess
import sys

import pytest

from harness.child import clean_environment
from harness.ctl import Ctl
from harness.instances import leveret
from harness.leveret import binary, run
from harness.patience import PATIENCE
from harness.wire import Wire


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("broker")) as server:
        yield server
        server.stop()


@pytest.fixture(scope="module")
def pool(tmp_path_factory, targets):
    with leveret(tmp_path_factory.mktemp("pool"), "--upstream", f"amqp://127.0.0.1:{targets.upstream.port}") as server:
        server.upstream = f"127.0.0.1:{targets.upstream.port}"
        yield server
        server.stop()


def test_the_server_is_found_by_its_variables_and_its_file(broker, tmp_path):
    address = broker.http.removeprefix("http://")
    assert run("ctl", "ping", env={"LEVERET_HTTP": address})[0] == 0
    assert run("ctl", "ping", env={"LEVERET_HTTP": address.replace("127.0.0.1", "0.0.0.0")})[0] == 0
    file = tmp_path / "leveret.toml"
    file.write_text(f'http = "{address}"\n')
    assert run("ctl", "ping", env={"LEVERET_CONFIG": str(file)})[0] == 0
    code, _, error = run("ctl", "ping", env={"LEVERET_HTTP": "off"})
    assert code == 2 and "http: is off; --url tells where the server is" in error


# A network namespace where the usual ports are free.
OWN_NETWORK = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]

ALONE = """
import os, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer

class Other(BaseHTTPRequestHandler):
    logins = []
    def do_GET(self):
        if self.headers["Authorization"]:
            self.logins.append(self.server.server_port)
        body = {"/healthz": b"ok", "/api/overview": b'{"product_name": "RabbitMQ"}'}.get(self.path, b"")
        self.send_response(200 if body else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

def other(port):
    server = HTTPServer(("127.0.0.1", port), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server

def served(*arguments):
    argv = [sys.argv[1], "serve", *arguments, "--ws", "off", "--mqtt", "off", "--stomp", "off", "--web-mqtt", "off", "--web-stomp", "off"]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    while not server.stdout.readline().startswith("http "):
        pass
    return server

def ctl(*arguments, **env):
    done = subprocess.run([sys.argv[1], "ctl", *arguments], env=os.environ | env, capture_output=True, text=True)
    print(done.returncode, repr(done.stdout), repr(done.stderr), Other.logins, sep="|")
    Other.logins.clear()

ctl("ping")
impostor = other(15673)
ctl("ping")
rabbitmq = other(15672)
ctl("status")
ctl("--quiet", "status")
for server in (impostor, rabbitmq):
    server.shutdown()
    server.server_close()
pool = served("--upstream", "amqp://127.0.0.1:1")
rabbitmq = other(15672)
ctl("list_upstreams")
ctl("--quiet", "list_upstreams")
rabbitmq.shutdown()
rabbitmq.server_close()
broker = served("--data-dir", "off")
ctl("list_vhosts")
ctl("list_vhosts", LEVERET_CONFIG="/nowhere/leveret.toml")
pool.kill()
broker.kill()
"""


def test_a_server_at_a_usual_port_is_found_and_only_a_leveret_gets_a_password_at_that_of_a_pool(tmp_path):
    argv = [*OWN_NETWORK, sys.executable, "-c", ALONE, binary()]
    done = subprocess.run(argv, env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE)
    if "unshare" in done.stderr or "ip:" in done.stderr:
        pytest.skip("no network namespaces here")
    assert done.stderr == "", done
    nobody, impostor, other, quiet, pool, quiet_pool, broker, unreadable = (line.split("|") for line in done.stdout.splitlines())
    first, second = "http://127.0.0.1:15672", "http://127.0.0.1:15673"
    for code, out, error, logins in (nobody, impostor):
        assert (code, out, logins) == ("1", "''", "[]")
        assert f"no server answers at {first}, and no Leveret at {second}; --url tells where it is" in error
    assert other[0] == "0" and f"{first} is not a Leveret" in other[2] and "15672" in other[3] and "15673" not in other[3]
    assert quiet[0] == "0" and quiet[2] == "''"
    # The pool is found although another program listens on the broker's port.
    assert pool[0] == "0" and "127.0.0.1:1" in pool[1] and f"using the Leveret at {second}" in pool[2] and pool[3] == "[]"
    assert "127.0.0.1:1" in quiet_pool[1] and quiet_pool[2] == "''"
    assert broker[:3] == ["0", broker[1], "''"] and "/" in broker[1]
    assert unreadable[:2] == broker[:2] and "LEVERET_CONFIG: cannot read /nowhere/leveret.toml" in unreadable[2]


def test_a_pool_says_where_to_ask(pool):
    ctl = Ctl(pool.http)
    for command, what in [("list_queues", "queues"), ("list_users", "users"), ("list_policies", "policies")]:
        assert ctl.fails(command) == f"this is a pool, which has no {what} of its own: ask the upstream (--url http://UPSTREAM:15672)"


def test_the_status_of_a_pool_begins_with_clients_upstreams_and_savings(pool):
    ctl = Ctl(pool.http)
    with Wire(pool.port).handshake() as client:
        client.open_channel()
        names = [line.split()[0] for line in ctl("status").splitlines()]
        assert names[:5] == ["mode", "clients", "upstream", "upstream_connections", "connections_saved"]
        facts = dict(line.split("\t", 1) for line in ctl("--quiet", "status").splitlines())
        assert (facts["mode"], facts["clients"]) == ("pool", "1")
        assert facts["upstream"].startswith(f"{pool.upstream} up, ")
        whole = ctl.json("status")
        assert whole["upstreams"][0]["up"] is True and whole["leases"]["clients"] == 1


def test_a_missing_queue_vhost_or_user_is_named_in_the_error(broker):
    ctl = Ctl(broker.http)
    assert ctl.fails("purge_queue", "x") == "no queue 'x' in vhost '/'"
    assert ctl.fails("delete_queue", "x", "--vhost", "nowhere").startswith("no queue 'x' in vhost 'nowhere'")
    assert ctl.fails("list_queues", "--vhost", "nowhere") == "no vhost 'nowhere'"
    assert ctl.fails("delete_user", "ann") == "no user 'ann'"
    for command, what in (("leases", "leases"), ("list_upstreams", "upstreams"), ("list_sessions", "sessions"), ("spool list", "spool")):
        assert ctl.fails(*command.split()) == f"{what}: only for a pool; this server is a broker"


@pytest.mark.parametrize("command", [["add_user", "ann"], ["change_password", "guest"], ["authenticate_user", "guest"]], ids=" ".join)
def test_a_password_among_the_arguments_is_refused_with_where_to_put_it_and_not_repeated(broker, command):
    error = Ctl(broker.http).fails(*command, "hunter2", code=2)
    assert "everybody could read on a command line" in error and "LEVERET_CTL_" in error and "hunter2" not in error
    assert "ann" not in [row[0] for row in Ctl(broker.http).rows("list_users")]


def test_an_unknown_column_is_an_error(broker):
    ctl = Ctl(broker.http)
    assert ctl.fails("list_queues", "nmae", code=2) == "unknown column 'nmae'; did you mean 'name'?"
    # A script that asks for another release's column must not fail on an empty list: its rows might have that column.
    assert ctl.rows("list_queues", "name", "segments", "messages_ready_details.rate") == []
    with Wire(broker.port).handshake() as client:
        client.open_channel()
        assert ctl.fails("list_connections", "name", "chanels", code=2) == "unknown column 'chanels'; did you mean 'channels'?"
        error = ctl.fails("list_users", "name", "zzz", code=2)
        assert error.startswith("unknown column 'zzz'; some columns are: ") and "tags" in error
        assert ctl.rows("list_connections", "user", "idle_since")


def test_people_read_sizes_and_scripts_read_bytes(broker):
    ctl = Ctl(broker.http)
    with Wire(broker.port).handshake() as client:
        client.open_channel()
        [line] = ctl("list_connections", "recv_oct").splitlines()[1:]
        assert line.split()[-1] in ("B", "KiB")
        [[bare]] = ctl.rows("list_connections", "recv_oct")
        assert bare.isdigit()
        assert isinstance(ctl.json("list_connections", "recv_oct")[0]["recv_oct"], int)
