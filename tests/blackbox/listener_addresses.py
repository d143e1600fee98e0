"""A listener can have several addresses, and `localhost` means both loopback addresses."""

import socket
import urllib.request

import pika
import pytest

from harness.child import Child, clean_environment
from harness.instances import leveret
from harness.leveret import OPTIONAL_LISTENERS, binary, run

BOTH = ["127.0.0.1", "::1"]


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")


def port_of(child, name, host):
    """The announced port of this host."""
    host = rf"\[{host}\]" if ":" in host else host
    return int(child.wait_line(rf"^{name} +listening on \w+://{host}:(\d+)").group(1))


def test_flags_are_repeated(tmp_path):
    flags = [word for address in ("127.0.0.1:0", "[::1]:0") for name in ("--amqp", "--http") for word in (name, address)]
    with leveret(tmp_path, *flags) as server:
        for host in BOTH:
            at = pika.ConnectionParameters(host, port_of(server.child, "amqp", host))
            with pika.BlockingConnection(at) as connection:
                assert connection.channel().is_open
        url = f"http://[::1]:{port_of(server.child, 'http', '::1')}/healthz"
        with urllib.request.urlopen(url) as answer:
            assert answer.status == 200
        assert server.child.stop() == 0


def test_localhost_is_both_addresses_on_one_port(tmp_path):
    quiet = [word for name in OPTIONAL_LISTENERS for word in (name, "off")]
    argv = [binary(), "serve", *quiet, "--amqp", "localhost:0", "--http", "localhost:0"]
    child = Child(argv, tmp_path / "log", env=clean_environment(STATE_DIRECTORY=str(tmp_path / "state")))
    try:
        for name in ("amqp", "http"):
            first, second = (port_of(child, name, host) for host in BOTH)
            assert first == second
            for host in BOTH:
                socket.create_connection((host, first)).close()
        assert child.stop() == 0
    finally:
        child.kill()


def test_the_file_has_a_list_and_the_variable_commas(tmp_path):
    expected = 'amqp = ["127.0.0.1:1", "[::1]:1"]'
    file = tmp_path / "leveret.toml"
    file.write_text(f"{expected}\n")
    for arguments, env in [
        (["--config", file], {}),
        ([], {"LEVERET_AMQP": "127.0.0.1:1,[::1]:1"}),
        (["--amqp", "127.0.0.1:1,[::1]:1"], {}),
        (["--amqp", "127.0.0.1:1", "--amqp", "[::1]:1"], {}),
    ]:
        code, out, error = run("config", "print", *arguments, env=env)
        assert code == 0, error
        assert expected in out


def test_an_address_in_use_is_reported(tmp_path):
    with leveret(tmp_path / "first") as server:
        quiet = [word for name in OPTIONAL_LISTENERS for word in (name, "off")]
        both = f"[::1]:0,{server.address}"
        code, _, error = run("serve", *quiet, "--amqp", both, "--http", "off", "--data-dir", "off", "--log", "off")
        assert code == 1
        assert server.address in error
