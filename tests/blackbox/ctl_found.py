"""`leveret ctl` finds the server that is meant, and says what is wrong in words."""

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


# A network of its own, where the usual ports are free: what runs in it does not meet what runs outside.
OWN_NETWORK = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]

ALONE = """
import subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
import threading

class Other(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"product_name": "RabbitMQ"}' if self.path == "/api/overview" else b""
        self.send_response(200 if body else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

def ctl(*arguments):
    done = subprocess.run([sys.argv[1], "ctl", *arguments], capture_output=True, text=True)
    print(done.returncode, done.stdout.strip(), done.stderr.strip(), sep="|")

ctl("ping")
threading.Thread(target=HTTPServer(("127.0.0.1", 15672), Other).serve_forever, daemon=True).start()
ctl("status")
ctl("--quiet", "status")
pool = subprocess.Popen(
    [sys.argv[1], "serve", "--upstream", "amqp://127.0.0.1:1", "--ws", "off"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
)
while not pool.stdout.readline().startswith("http "):
    pass
ctl("list_upstreams")
pool.kill()
"""


def test_a_pool_at_its_usual_port_is_found_and_another_server_is_said_to_be_one(tmp_path):
    argv = [*OWN_NETWORK, sys.executable, "-c", ALONE, binary()]
    done = subprocess.run(argv, env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE)
    if "unshare" in done.stderr or "ip:" in done.stderr:
        pytest.skip("no network namespaces here")
    nobody, other, quiet, *found = done.stdout.splitlines()
    assert nobody.startswith("1||leveret: no server answers at http://127.0.0.1:15672 or http://127.0.0.1:15673; --url"), done
    assert other.startswith("0|product") and "http://127.0.0.1:15672 is not a Leveret" in done.stdout
    assert "not a Leveret" not in quiet
    assert found and "127.0.0.1:1" in "".join(found)


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


def test_what_does_not_exist_is_named_in_words(broker):
    ctl = Ctl(broker.http)
    assert ctl.fails("purge_queue", "x") == "no queue 'x' in vhost '/'"
    assert ctl.fails("delete_queue", "x", "--vhost", "nowhere").startswith("no queue 'x' in vhost 'nowhere'")
    assert ctl.fails("list_queues", "--vhost", "nowhere") == "no vhost 'nowhere'"
    assert ctl.fails("delete_user", "ann") == "no user 'ann'"
    assert ctl.fails("leases").startswith("this is a broker: only a pool")


@pytest.mark.parametrize("command", [["add_user", "ann"], ["change_password", "guest"], ["authenticate_user", "guest"]], ids=" ".join)
def test_a_password_among_the_arguments_is_refused_with_where_to_put_it_and_not_repeated(broker, command):
    error = Ctl(broker.http).fails(*command, "hunter2", code=2)
    assert "everybody could read on a command line" in error and "LEVERET_CTL_" in error and "hunter2" not in error
    assert "ann" not in [row[0] for row in Ctl(broker.http).rows("list_users")]


def test_an_unknown_column_is_an_error(broker):
    ctl = Ctl(broker.http)
    assert ctl.fails("list_queues", "nmae", code=2) == "unknown column 'nmae'; did you mean 'name'?"
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
