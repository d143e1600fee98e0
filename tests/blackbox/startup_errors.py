"""A configuration error at startup is reported with its remedy, and a successful start reports its mode and what it found."""

import os
import re
import socket

import pika
import pytest

from harness.certificates import TestCa
from harness.child import Child, clean_environment
from harness.ctl import Ctl
from harness.health import status, wait_for_status
from harness.instances import leveret
from harness.leveret import binary, run
from harness.metrics import wait_until
from harness.ports import free_ports

OTHERS = ("--ws", "off", "--mqtt", "off", "--stomp", "off", "--web-mqtt", "off", "--web-stomp", "off", "--http", "off")
SERVE_IN = ("serve", "--amqp", "127.0.0.1:0", *OTHERS, "--data-dir")


def test_an_unknown_variable_stops_the_start_and_names_the_one_that_was_meant(tmp_path):
    for command in (["serve"], ["config", "check"], ["health"]):
        code, out, error = run(*command, env={"LEVERET_UPSTREM": "amqp://rabbit"})
        assert (code, out, error) == (2, "", "leveret: LEVERET_UPSTREM: unknown variable; did you mean LEVERET_UPSTREAM?\n")
    platform = {"LEVERET_SERVICE_HOST": "10.0.0.1", "LEVERET_PORT": "tcp://10.0.0.1:5672", "LEVERET_PORT_5672_TCP_ADDR": "10.0.0.1"}
    with leveret(tmp_path, env=platform) as server:
        server.stop()


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--listen", "0.0.0.0:5672"], "unexpected argument '--listen' found; did you mean --amqp ADDR?"),
        (["--port", "5672"], "unexpected argument '--port' found; did you mean --amqp ADDR?"),
        (["amqp://rabbit"], "unexpected argument 'amqp://rabbit' found; to stand in front of that broker, --upstream amqp://rabbit"),
    ],
)
def test_the_flag_that_was_meant_is_named(arguments, told):
    assert run("serve", *arguments) == (2, "", f"leveret: {told}\n")


def test_a_key_and_a_value_of_the_file_are_put_right(tmp_path):
    file = tmp_path / "leveret.toml"
    file.write_text("upstrem = 'amqp://rabbit'\n")
    assert run("serve", "--config", file)[2] == f"leveret: {file}:1: upstrem: unknown key; did you mean upstream?\n"
    file.write_text("amqp = 0.0.0.0:5672\n")
    error = run("serve", "--config", file)[2]
    assert error.startswith(f"leveret: {file}:1: not valid TOML: ") and error.endswith('; text needs quotes: amqp = "..."\n')
    for line, form in [("amqp = [::1]:5672", 'amqp = "..."'), ("amqp = [127.0.0.1:5672]", 'amqp = ["..."]')]:
        file.write_text(line)
        assert run("serve", "--config", file)[2].endswith(f"; text needs quotes: {form}\n")


def test_a_port_in_use_is_reported_with_a_remedy(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, error = run("serve", "--amqp", address, *OTHERS)
    assert code == 1
    assert "another process has it (`ss -ltnp` shows which)" in error and f"--upstream amqp://{address}" in error


def test_a_start_that_fails_announces_no_address(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = ("--amqp", "127.0.0.1:0", *OTHERS[2:], "--ws", f"127.0.0.1:{taken.getsockname()[1]}")
        code, out, error = run("serve", *arguments, "--data-dir", "off")
    assert (code, out) == (1, "") and "leveret: ws: " in error


def test_the_check_of_a_configuration_names_the_file_or_directory_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    missing = tmp_path / "missing"
    for flag, path, key in [
        ("--webroot", missing, "webroot"),
        ("--access-log", missing / "log", "access_log"),
        ("--data-dir", tmp_path / "file", "data_dir"),
        ("--data-dir", tmp_path / "file" / "below", "data_dir"),
    ]:
        code, _, error = run("config", "check", flag, path)
        assert code == 2 and error.startswith(f"leveret: {key}: {path}: "), error
    assert run("config", "check", "--data-dir", missing)[0] == 0 and not missing.exists()


def test_an_unusable_data_directory_is_reported_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with leveret(tmp_path / "first", "--data-dir", tmp_path / "data") as server:
        error = run(*SERVE_IN, tmp_path / "data")[2]
        assert f"in use by process {server.pid}: stop that one, or give this one a directory of its own with --data-dir" in error
        server.stop()
    assert "it has to be a directory" in run(*SERVE_IN, tmp_path / "file")[2]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_a_data_directory_of_another_user_is_reported_with_a_remedy(tmp_path):
    (tmp_path / "roots").mkdir(mode=0o700)
    tmp_path.chmod(0o755)
    argv = ["setpriv", "--reuid=65534", "--clear-groups", binary(), *SERVE_IN, tmp_path / "roots"]
    child = Child(argv, tmp_path / "leveret.log", env=clean_environment())
    assert child.wait() == 1
    assert "the user that runs Leveret has to own the directory" in child.output(), child.output()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give up a capability")
def test_a_privileged_port_is_reported_with_a_remedy(tmp_path):
    argv = ["setpriv", "--bounding-set=-net_bind_service", "--inh-caps=-net_bind_service", binary()]
    argv += ["serve", "--amqp", "127.0.0.1:672", *OTHERS, "--data-dir", "off"]
    child = Child(argv, tmp_path / "leveret.log", env=clean_environment())
    assert child.wait() == 1
    assert "ports below 1024 need CAP_NET_BIND_SERVICE" in child.output(), child.output()


def test_a_self_signed_ca_as_the_upstreams_certificate_is_explained(tmp_path):
    ca = TestCa(tmp_path / "certificates")
    key = ca.write_key()
    # Leveret's own listener acts as the broker.
    files = ["--amqps", "127.0.0.1:0", "--tls-cert", ca.file, "--tls-key", key]
    with leveret(tmp_path / "broker", *files) as broker:
        port = broker.child.wait_line(r"^amqps +listening on amqps://[^\s/]+:(\d+)").group(1)
        flags = ["--upstream", f"amqps://localhost:{port}", "--upstream-ca", ca.file]
        with leveret(tmp_path / "pool", *flags) as pool:
            pool.child.wait_line("TLS: the server's certificate is a CA certificate .CA:TRUE.*basicConstraints=critical,CA:FALSE")


def test_a_login_refused_by_the_upstream_is_logged_as_its_refusal(tmp_path, targets):
    upstream = f"127.0.0.1:{targets.upstream.port}"
    # The password in the URL is not used, although new users often put one there.
    with leveret(tmp_path, "--upstream", f"amqp://guest:guest@{upstream}") as pool:
        pool.child.wait_line(f"WARN.*ignoring user, password and vhost of the upstream URL: clients use their own.*{upstream}")
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            pika.BlockingConnection(pika.URLParameters(pool.uri.replace("guest:guest", "guest:mistaken")))
        pool.child.wait_line("WARN.*login refused.*user=.?guest.*error=.refused by the upstream")
        assert "mistaken" not in pool.child.output()


def test_a_wrong_upstream_protocol_or_ca_is_reported_with_a_remedy(tmp_path):
    ca = TestCa(tmp_path)
    certificate, key = ca.issue("server", ["localhost"])
    with leveret(tmp_path / "broker", "--amqps", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key) as broker:
        secured = broker.child.wait_line(r"^amqps +listening on amqps://[^\s/]+:(\d+)").group(1)
        for number, (url, more, cause, advice) in enumerate([
            (f"amqp://localhost:{secured}", [], "it speaks TLS: its address begins with amqps://", "is --upstream its AMQP port"),
            (f"amqps://localhost:{broker.port}", [], "the server does not speak TLS: is this its TLS port", "its port for TLS"),
            (broker.http.replace("http://", "amqp://"), [], "the server speaks HTTP: give its AMQP port", "is --upstream its AMQP port"),
            (f"amqps://localhost:{secured}", [], "was not issued by a trusted CA", "does --upstream-ca name the CA of"),
            (f"amqps://localhost:{secured}", ["--upstream-ca", ca.file], None, None),
        ]):
            with leveret(tmp_path / str(number), "--upstream", url, *more) as pool:
                if cause is None:
                    pool.child.wait_line("upstream reachable")
                else:
                    pool.child.wait_line(f"WARN.*upstream connection failed.*{cause}")
                    pool.child.wait_line(f"WARN.*no upstream reachable.*{advice}")


def test_the_mode_and_the_data_directory_are_logged_at_the_start(tmp_path, targets):
    with leveret(tmp_path / "broker", "--data-dir", str(tmp_path / "data")) as broker:
        broker.child.wait_line("INFO.*mode: broker, as RabbitMQ 3.10.8; no upstream is set")
        broker.child.wait_line(f"INFO.*recovered definitions and persistent messages directory={tmp_path / 'data'}")
        broker.stop()
    url = f"amqp://127.0.0.1:{targets.upstream.port}"
    with leveret(tmp_path / "pool", "--upstream", url) as pool:
        pool.child.wait_line(f"INFO.*mode: pool in front of {url}; no data directory")
        pool.child.wait_line(rf'INFO.*upstream reachable address="127.0.0.1:{targets.upstream.port}" product="RabbitMQ [\d.]+"')
        pool.stop()


def test_every_place_tells_the_same_of_a_dead_upstream(tmp_path):
    [nobody] = free_ports(1)
    with leveret(tmp_path, "--upstream", f"amqp://127.0.0.1:{nobody}", "--upstream", "amqp://no-such-host.invalid") as pool:
        pool.child.wait_line(f"WARN.*upstream connection failed address=127.0.0.1:{nobody}")
        pool.child.wait_line("WARN.*no upstream reachable: closing clients until one is")
        wait_for_status(pool.http + "/readyz", 503)
        ctl = Ctl(pool.http)
        wait_until(lambda: len(ctl.rows("list_upstreams")) == 2)
        rows = {row[0]: row[1:] for row in ctl.rows("list_upstreams")}
        assert rows[f"127.0.0.1:{nobody}"] == ["false", "0", "Connection refused (os error 111)"]
        assert rows["no-such-host.invalid:5672"][:2] == ["false", "0"] and "name is not found" in rows["no-such-host.invalid:5672"][2]
        code, _, error = run("health", "--ready", "--http", pool.http.removeprefix("http://"))
        assert code == 1 and f"upstream unreachable: 127.0.0.1:{nobody}: Connection refused (os error 111); no-such-host" in error
        assert f"127.0.0.1:{nobody} down: Connection refused" in ctl("status")
        pool.stop()


def test_an_idle_upstream_that_is_dead_is_not_called_up(tmp_path, targets):
    [nobody] = free_ports(1)
    flags = ["--upstream", f"amqp://127.0.0.1:{targets.upstream.port}", "--upstream", f"amqp://127.0.0.1:{nobody}"]
    with leveret(tmp_path, *flags) as pool:
        pool.child.wait_line(f'upstream reachable address="127.0.0.1:{targets.upstream.port}"')
        rows = {row[0]: row[1] for row in Ctl(pool.http).rows("list_upstreams")}
        assert rows == {f"127.0.0.1:{targets.upstream.port}": "true", f"127.0.0.1:{nobody}": "false"}
        assert status(pool.http + "/readyz") == 200
        pool.stop()


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0"])
def test_a_pool_that_would_be_its_own_upstream_does_not_start(listen):
    [port] = free_ports(1)
    code, _, error = run("serve", "--amqp", f"{listen}:{port}", "--upstream", f"amqp://127.0.0.1:{port}", *OTHERS)
    assert code == 2
    assert f"leveret: upstream: amqp://127.0.0.1:{port}: is this server's own amqp; give the address of the broker" in error


def test_a_pool_that_may_be_its_own_upstream_starts_and_says_so(tmp_path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        own = probe.getsockname()[0]
    [port] = free_ports(1)
    with leveret(tmp_path, "--upstream", f"amqp://{own}:{port}", amqp=f"0.0.0.0:{port}") as pool:
        pool.child.wait_line(f"WARN.*the upstream may be this server's own amqp.*address=amqp://{own}:{port}")
        pool.stop()


def test_equal_warnings_are_logged_once_and_counted(tmp_path):
    refused = 5
    with leveret(tmp_path) as server:
        for _ in range(refused):
            with pytest.raises(pika.exceptions.AMQPConnectionError):
                pika.BlockingConnection(
                    pika.ConnectionParameters("127.0.0.1", server.port, credentials=pika.PlainCredentials("ann", "wrong"))
                )
        server.stop()
        log = server.child.output()
    # The log's interval may end at any moment, which adds a full line and splits the count.
    lines = re.findall("WARN server::client: login refused", log)
    text = r'login refused peer=127.0.0.1 user="ann" error="no such user"'
    times = re.findall(f"WARN leveret::repeated: repeated (once|[0-9]+ times): {text}", log)
    assert len(lines) + sum(1 if number == "once" else int(number.split()[0]) for number in times) == refused
    assert times and len(lines) < refused
