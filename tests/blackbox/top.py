"""`leveret top` shows a broker, a pool and a RabbitMQ in a terminal, handles its keys, survives a restart of the server, and
prints a snapshot if there is no terminal."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading

import pika
import pytest
import pyte

from harness.child import clean_environment
from harness.ctl import managed_rabbitmq
from harness.instances import leveret
from harness.leveret import binary, run
from harness.metrics import wait_until
from harness.patience import PATIENCE
from harness.ports import free_ports

LINES, COLUMNS = 40, 160
READY = 7
"""Messages in the queue "orders"."""


@contextlib.contextmanager
def filled(uri):
    """A connection that has published to a queue, for the length of a `with`."""
    with pika.BlockingConnection(pika.URLParameters(uri)) as connection:
        channel = connection.channel()
        for name in ["empty", "orders"]:
            channel.queue_declare(name, durable=True)
        channel.queue_purge("orders")
        channel.confirm_delivery()
        for _ in range(READY):
            channel.basic_publish("", "orders", b"x")
        yield channel


@pytest.fixture(scope="module")
def rabbitmq():
    server = managed_rabbitmq()
    yield server
    server.stop()


@pytest.fixture
def broker(tmp_path):
    with leveret(tmp_path / "broker") as server:
        yield server


@pytest.fixture
def pool(tmp_path, rabbitmq):
    with leveret(tmp_path / "pool", "--upstream", f"amqp://127.0.0.1:{rabbitmq.port}") as server:
        yield server


def once(url, **env):
    code, printed, error = run("top", "--once", "--interval", "0.1", "--url", url, env=env)
    assert (code, error) == (0, "")
    return printed.splitlines()


def row(lines, name):
    """The words of the line with the virtual host and this name; there is at most one."""
    found = [words for words in map(str.split, lines) if words[1:2] == [name]]
    assert len(found) <= 1, found
    return found[0] if found else []


@pytest.mark.parametrize("kind", ["broker", "rabbitmq"])
def test_it_prints_the_queues_the_longest_first(request, kind):
    server = request.getfixturevalue(kind)
    counts = f"Ready {READY}   Unacked 0   Connections 1"
    with filled(server.uri):
        # RabbitMQ updates queue statistics and totals separately, with a delay.
        wait_until(lambda: row(lines := once(server.http), "orders")[4:6] == [str(READY), "0"] and counts in "\n".join(lines))
        lines = once(server.http)
    assert lines[0].startswith(f"{server.http}  {'Leveret' if kind == 'broker' else 'RabbitMQ'} ")
    text = "\n".join(lines)
    assert text.index("orders") < text.index("empty")
    assert "Memory " in text and "Disk free " in text


def test_once_prints_the_clients_of_a_pool_and_its_upstream_traffic(pool):
    with filled(pool.uri):
        lines = once(pool.http)
    text = "\n".join(lines)
    assert ", pool, " in lines[0]
    assert "To upstreams" in text and re.search("Upstream connections [1-9]", text)
    assert any("AMQP 0-9-1" in line and "guest" in line for line in lines)


class Screen:
    """The program in a terminal, as a user sees it."""

    def __init__(self, *arguments):
        # One thread feeds the screen, another reads it.
        self.lock = threading.Lock()
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.stream = pyte.ByteStream(self.screen)
        self.terminal, inside = pty.openpty()
        self.resize(LINES, COLUMNS)
        self.modes = termios.tcgetattr(inside)
        environment = clean_environment(TERM="xterm-256color")
        argv = [binary(), "top", "--interval", "0.1", *arguments]
        # Killed with the test run, even if that is killed itself.
        argv = ["setpriv", "--pdeathsig", "KILL", "--", *argv]
        self.child = subprocess.Popen(argv, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True)
        self.inside = inside
        self.problem = None
        self.reader = threading.Thread(target=self.follow, daemon=True)
        self.reader.start()

    def follow(self):
        """Distinguishes a screen that cannot be parsed from a program that hangs."""
        try:
            self.read()
        except Exception as problem:
            self.problem = problem

    def read(self):
        before = b""
        with contextlib.suppress(OSError):
            while data := os.read(self.terminal, 65536):
                # The program may query the cursor position.
                if (asked := b"\x1b[6n") in (seen := before + data):
                    os.write(self.terminal, b"\x1b[1;1R")
                    seen = seen.rpartition(asked)[2]
                before = seen[1 - len(asked) :]
                with self.lock:
                    self.stream.feed(data)

    def resize(self, lines, columns):
        with self.lock:
            self.screen.resize(lines, columns)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def text(self):
        assert self.problem is None, self.problem
        with self.lock:
            return "\n".join(self.screen.display)

    def shows(self, *words):
        with self.seen():
            wait_until(lambda: all(word in self.text() for word in words))

    def shows_no(self, word):
        with self.seen():
            wait_until(lambda: word not in self.text())

    @contextlib.contextmanager
    def seen(self):
        """Prints the screen if the expected content does not appear."""
        try:
            yield
        except AssertionError:
            print(self.text(), self.child.poll())
            raise

    def press(self, keys):
        os.write(self.terminal, keys.encode())

    def ends(self, code=0):
        assert self.child.wait(PATIENCE) == code
        # The terminal modes are restored for the shell.
        assert termios.tcgetattr(self.inside) == self.modes

    def close(self):
        self.child.kill()
        self.child.wait()
        os.close(self.inside)
        self.reader.join(PATIENCE)
        os.close(self.terminal)


@pytest.fixture
def screens():
    """Starts the program in terminals, which are closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(*arguments):
            screen = Screen(*arguments)
            stack.callback(screen.close)
            return screen

        yield start


def test_keys_filter_sort_and_switch_views(broker, screens):
    with filled(broker.uri) as channel:
        screen = screens("--url", broker.http)
        screen.shows("orders", "empty", "1 Queues", f"Ready {READY}")
        # A published message appears a moment later.
        channel.basic_publish("", "orders", b"x")
        screen.shows(f"Ready {READY + 1}")
        screen.press("/ord\r")
        screen.shows_no("empty")
        screen.shows("orders", "1 row with 'ord'")
        screen.press("/\x7f\x7f\x7f\r\t")
        screen.shows("AMQP 0-9-1", "received/s▼")
        screen.press("s")
        screen.shows("sent/s▼")
        screen.press("r")
        screen.shows("sent/s▲")
        screen.press("4")
        screen.shows("memory limit")
        screen.press("p")
        screen.shows("paused")
        # A table selected while paused is shown with its current content.
        screen.press("1")
        screen.shows("paused", "orders", "ready▼")
        screen.press("p")
        screen.shows("every 0.1 s", "orders")
        screen.press("q")
        screen.ends()


def test_ctrl_c_ends_it_and_a_terminal_may_change_its_size(broker, screens):
    screen = screens("--url", broker.http)
    screen.shows("Publish", "arrows scroll")
    screen.resize(20, 60)
    os.kill(screen.child.pid, signal.SIGWINCH)
    with screen.seen():
        wait_until(lambda: "q quit" in screen.text().splitlines()[19])
    screen.press("\x03")
    screen.ends()


def test_a_key_pressed_during_a_terminal_resize_is_processed(broker, screens):
    screen = screens("--url", broker.http)
    screen.shows("Publish", "arrows scroll")
    # Several changes, so that one arrives while the previous one is being read.
    for _ in range(100):
        for lines in [30, LINES, 30, LINES]:
            screen.resize(lines, COLUMNS)
            os.kill(screen.child.pid, signal.SIGWINCH)
        screen.press("p")
        screen.shows("paused")
        screen.press("p")
        screen.shows_no("paused")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(broker, screens, number):
    screen = screens("--url", broker.http)
    screen.shows("Publish", "arrows scroll")
    os.kill(screen.child.pid, number)
    screen.ends()


def test_the_pools_tables_are_those_of_a_pool(pool, screens):
    with filled(pool.uri):
        screen = screens("--url", pool.http)
        screen.shows("1 Connections", "To upstreams", "AMQP 0-9-1")
        screen.press("2")
        screen.shows("address▲", "yes")
        screen.press("3")
        screen.shows("clients", "channels▼")
        wait_until(lambda: re.search(r"guest +/ +1 +[1-9]", screen.text()))
        screen.press("4")
        screen.shows("forward/s")
        screen.press("q")
        screen.ends()


def test_a_server_restart_is_shown_and_does_not_end_the_program(tmp_path, screens):
    [port] = free_ports(1)
    flags = ["--http", f"127.0.0.1:{port}", "--data-dir", tmp_path / "data"]
    with leveret(tmp_path / "first", *flags) as server:
        with filled(server.uri):
            screen = screens("--url", server.http)
            screen.shows("orders")
        server.kill()
        screen.shows("Connection refused", "orders")
    with leveret(tmp_path / "second", *flags):
        screen.shows_no("Connection refused")
        screen.shows("orders")
        screen.press("q")
        screen.ends()


def test_startup_errors_are_reported_before_the_screen_is_switched(broker, screens):
    [port] = free_ports(1)
    screen = screens("--url", f"http://127.0.0.1:{port}")
    screen.ends(1)
    screen.shows("Connection refused")
    screen = screens("--url", broker.http, "--user", "nobody", "--password-file", os.devnull)
    screen.ends(2)
    code, printed, error = run("top", "--url", broker.http)
    assert (code, printed) == (2, "") and "--once" in error
    code, _, error = run("top", "--once", "--url", broker.http, env={"LEVERET_CTL_PASSWORD": "hunter2"})
    assert code == 1 and "user 'guest' is refused" in error and "hunter2" not in error
    code, _, error = run("top", "--once", "--interval", "0", "--url", broker.http)
    assert code == 2 and "0.1 to 3600" in error
