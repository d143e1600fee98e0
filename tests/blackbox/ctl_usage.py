"""`leveret ctl` on its own: passwords stay off the command line, mistakes are one line, output can be trusted."""

import subprocess

import pytest

from harness.child import clean_environment
from harness.ctl import Ctl
from harness.instances import leveret
from harness.leveret import binary, run
from harness.rabbitmq import free_ports


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("server")) as server:
        yield server
        server.stop()


def test_a_password_in_the_url_is_refused_and_not_repeated():
    code, out, error = run("ctl", "--url", "http://guest:hunter2@127.0.0.1:1", "status")
    assert (code, out) == (2, "") and "hunter2" not in error and len(error.splitlines()) == 1


def test_a_wrong_password_is_told_without_it(server):
    error = Ctl(server.http, password="hunter2").fails("status")
    assert error.startswith("user 'guest' is refused") and "hunter2" not in error


def test_a_password_comes_from_a_file(server, tmp_path):
    file = tmp_path / "password"
    file.write_text("guest\n")
    assert run("ctl", "--url", server.http, "--password-file", file, "authenticate_user")[0] == 0
    file.write_text("wrong\n")
    assert run("ctl", "--url", server.http, "--password-file", file, "authenticate_user")[0] == 1


def test_without_a_password_and_a_terminal_another_user_is_told_what_to_do(server):
    done = subprocess.run(
        ["setsid", "--wait", binary(), "ctl", "--url", server.http, "--user", "ann", "status"],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2 and "LEVERET_CTL_PASSWORD" in done.stderr


def test_a_new_password_comes_from_standard_input(server):
    argv = [binary(), "ctl", "--url", server.http, "add_user", "piped"]
    done = subprocess.run(argv, env=clean_environment(), input="s3cret\n", capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "user 'piped' added\n"), done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    Ctl(server.http)("set_user_tags", "piped", "management")
    Ctl(server.http, "piped", "s3cret")("authenticate_user")


def test_nobody_there_is_told_in_one_line():
    [port] = free_ports(1)
    error = Ctl(f"http://127.0.0.1:{port}").fails("status")
    assert str(port) in error and "refused" in error.lower()


@pytest.mark.parametrize("arguments", [[], ["dance"], ["list_queues", "--page"], ["add_user"]])
def test_a_command_line_that_is_wrong_has_exit_code_2(arguments):
    assert run("ctl", *arguments)[0] == 2


def test_a_unix_socket_is_spoken_to(tmp_path):
    path = tmp_path / "http.sock"
    argv = [binary(), "serve", "--amqp", "127.0.0.1:0", "--http", f"unix:{path}", "--data-dir", "off"]
    argv += [word for name in ("ws", "mqtt", "stomp", "web-mqtt", "web-stomp") for word in (f"--{name}", "off")]
    with subprocess.Popen(argv, env=clean_environment(), stdout=subprocess.PIPE, text=True) as child:
        try:
            while not child.stdout.readline().startswith("http "):
                assert child.poll() is None
            assert "no alarm stands" in Ctl(f"unix:{path}")("ping")
        finally:
            child.kill()


def test_a_hostile_name_cannot_forge_rows_or_move_the_cursor(server):
    ctl = Ctl(server.http)
    ctl("add_vhost", "x\ty\x1b[2J")
    assert ["x\\ty\\u{1b}[2J"] in ctl.rows("list_vhosts")
    ctl("delete_vhost", "x\ty\x1b[2J")
