"""`leveret ctl` itself: passwords stay off the command line, each mistake is one line, output is safe for terminals."""

import contextlib
import os
import select
import subprocess
import termios

import pytest

from harness.child import clean_environment
from harness.ctl import Ctl
from harness.instances import leveret
from harness.leveret import binary, run
from harness.patience import PATIENCE
from harness.ports import free_ports


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("server")) as server:
        yield server
        server.stop()


def test_a_password_in_the_url_is_refused_and_not_repeated():
    code, out, error = run("ctl", "--url", "http://guest:hunter2@127.0.0.1:1", "status")
    assert (code, out) == (2, "") and "hunter2" not in error and len(error.splitlines()) == 1


def test_a_port_that_speaks_no_http_is_reported_as_such(server):
    error = Ctl(f"http://127.0.0.1:{server.port}").fails("status")
    assert error.endswith("the server does not speak HTTP: is this its HTTP port (15672)?"), error


def test_a_wrong_password_is_reported_without_being_shown(server):
    error = Ctl(server.http, password="hunter2").fails("status")
    assert "user 'guest' is refused" in error and "hunter2" not in error


def test_a_password_comes_from_a_file(server, tmp_path):
    file = tmp_path / "password"
    file.write_text("guest\n")
    assert run("ctl", "--url", server.http, "--password-file", file, "authenticate_user")[0] == 0
    file.write_text("wrong\n")
    assert run("ctl", "--url", server.http, "--password-file", file, "authenticate_user")[0] == 1


def test_without_password_or_terminal_the_error_names_the_variable_to_set(server):
    done = subprocess.run(
        ["setsid", "--wait", binary(), "ctl", "--url", server.http, "--user", "ann", "status"],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2 and "LEVERET_CTL_PASSWORD" in done.stderr


def test_a_new_password_comes_from_standard_input(server):
    argv = [binary(), "ctl", "--url", server.http, "add_user", "piped"]
    done = subprocess.run(argv, env=clean_environment(), input="s3cret\n", capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "user 'piped' added\n"), done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    Ctl(server.http)("set_user_tags", "piped", "management")
    Ctl(server.http, "piped", "s3cret")("authenticate_user")


def test_a_password_prompt_hides_input_and_ctrl_c_restores_echo(server):
    with at_terminal(server, "add_user", "typed") as (child, terminal):
        terminal.expects("New password of typed: ")
        assert not terminal.shows()
        terminal.types("s3\x03")
        out, error = child.communicate(timeout=PATIENCE)
        assert (child.returncode, out, error) == (1, "", "leveret: given up\n")
        assert terminal.shows()
    assert "typed" not in Ctl(server.http)("list_users")


def test_a_new_password_is_typed_twice_and_is_not_empty(server):
    with at_terminal(server, "add_user", "typed") as (child, terminal):
        terminal.expects("New password of typed: ")
        terminal.types("\n")
        out, error = child.communicate(timeout=PATIENCE)
        assert (child.returncode, out) == (2, "") and "empty password" in error
    with at_terminal(server, "add_user", "typed") as (child, terminal):
        terminal.expects("New password of typed: ")
        terminal.types("s3x\x7fcret\n")
        terminal.expects("Repeat the password: ")
        terminal.types("s3cret\n")
        assert child.communicate(timeout=PATIENCE) == ("user 'typed' added\n", "")
        assert terminal.shows() and "cret" not in terminal.seen
    Ctl(server.http)("set_user_tags", "typed", "management")
    Ctl(server.http, "typed", "s3cret")("authenticate_user")


class Terminal:
    """A terminal with a user."""

    def __init__(self):
        self.hands, self.end = os.openpty()
        self.seen = ""

    def shows(self):
        """Whether it echoes input, and turns Ctrl-C into a signal."""
        local = termios.tcgetattr(self.end)[3]
        assert bool(local & termios.ECHO) == bool(local & termios.ISIG) == bool(local & termios.ICANON)
        return bool(local & termios.ECHO)

    def types(self, text):
        os.write(self.hands, text.encode())

    def expects(self, text):
        while text not in self.seen:
            assert select.select([self.hands], [], [], 30)[0], self.seen
            self.seen += os.read(self.hands, 1024).decode()


@contextlib.contextmanager
def at_terminal(server, *arguments):
    terminal = Terminal()
    argv = ["setsid", "--ctty", "--wait", binary(), "ctl", "--url", server.http, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(argv, env=clean_environment(), stdin=terminal.end, **pipes)
    try:
        yield child, terminal
    finally:
        child.kill()
        child.communicate()
        os.close(terminal.hands)
        os.close(terminal.end)


def test_a_reason_that_would_not_arrive_is_refused(server):
    for command in ("close_connection", "close_all_user_connections"):
        code, out, error = run("ctl", "--url", server.http, command, "somebody", "größer")
        assert (code, out) == (2, "") and "ASCII" in error


def test_the_all_vhosts_flag_overrides_the_configured_virtual_host(server):
    ctl = Ctl(server.http)
    ctl("add_vhost", "elsewhere")
    rows = ctl("--quiet", "list_permissions", "--all-vhosts", LEVERET_CTL_VHOST="elsewhere")
    assert "/\tguest\t" in rows
    assert ctl("--quiet", "list_permissions", "--all-vhosts", "--vhost", "elsewhere") == rows
    ctl("delete_vhost", "elsewhere")


def test_a_refused_connection_is_reported_in_one_line_with_the_port():
    [port] = free_ports(1)
    error = Ctl(f"http://127.0.0.1:{port}").fails("status")
    assert str(port) in error and "refused" in error.lower()


@pytest.mark.parametrize("arguments", [["dance"], ["list_queues", "--page"], ["add_user"]])
def test_a_command_line_that_is_wrong_has_exit_code_2(arguments):
    assert run("ctl", *arguments)[0] == 2


def test_a_command_that_was_nearly_typed_is_named(server):
    code, _, error = run("ctl", "list_quues")
    assert code == 2 and "unrecognized subcommand 'list_quues'" in error and "'list_queues'" in error
    assert "--help lists those that there are" in run("ctl", "dance")[2]
    # Without a command it shows the status.
    assert Ctl(server.http)().splitlines()[0].split() == ["product", "Leveret"]


def test_a_unix_socket_is_spoken_to(tmp_path):
    path = tmp_path / "http.sock"
    argv = [binary(), "serve", "--amqp", "127.0.0.1:0", "--http", f"unix:{path}", "--data-dir", "off"]
    argv += [word for name in ("ws", "mqtt", "stomp", "web-mqtt", "web-stomp") for word in (f"--{name}", "off")]
    with subprocess.Popen(argv, env=clean_environment(), stdout=subprocess.PIPE, text=True) as child:
        try:
            while not child.stdout.readline().startswith("http "):
                assert child.poll() is None
            assert "no alarm is in effect" in Ctl(f"unix:{path}")("ping")
        finally:
            child.kill()


def test_a_hostile_name_cannot_forge_rows_or_move_the_cursor(server):
    ctl = Ctl(server.http)
    ctl("add_vhost", "x\ty\x1b[2J")
    assert ["x\\ty\\u{1b}[2J"] in ctl.rows("list_vhosts")
    ctl("delete_vhost", "x\ty\x1b[2J")
