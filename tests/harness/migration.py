"""`leveret ctl migrate` between a Leveret and a RabbitMQ with its management API."""

import contextlib
import json
import os
import subprocess

import pika
import pytest

from harness.amqp import connect
from harness.child import clean_environment
from harness.ctl import Ctl, managed_rabbitmq
from harness.instances import leveret
from harness.leveret import binary
from harness.patience import PATIENCE, TEST_SECONDS
from harness.ports import free_ports
from harness.process import end_processes
from harness.releases import missing

PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Movable:
    """A Leveret on fixed ports with a data directory, which tests may kill and restart. The end of the test also kills a
    process that took over from it."""

    def __init__(self, directory, stack, *flags):
        self.directory, self.stack, self.flags, self.runs = directory, stack, flags, 0
        self.amqp, self.http_port = free_ports(2)
        self.ctl = Ctl(f"http://127.0.0.1:{self.http_port}")
        self.start()
        stack.callback(self.end_successor)

    def start(self):
        self.runs += 1
        listeners = ("--amqp", f"127.0.0.1:{self.amqp}", "--http", f"127.0.0.1:{self.http_port}")
        data = ("--data-dir", str(self.directory / "data"))
        self.server = self.stack.enter_context(leveret(self.directory / f"run{self.runs}", *listeners, *data, *self.flags))

    def restart(self):
        self.server.kill()
        self.start()

    @property
    def uri(self):
        return f"amqp://guest:guest@127.0.0.1:{self.amqp}"

    def status(self):
        """The queues of the move; `None` while the server does not answer."""
        code, out, _ = self.ctl.raw("--format", "json", "migrate", "--status")
        return json.loads(out) if code == 0 else None

    def moved(self):
        """Messages moved by the process that is serving."""
        status = self.status()
        return sum(queue["moved"] for queue in status) if status else 0

    def troubles(self):
        return [queue["trouble"] for queue in self.status() or [] if queue["trouble"]]

    def end_successor(self):
        end_processes(self.successors())

    def successors(self):
        """Processes with the same command line as this one, without itself."""
        mark = f"127.0.0.1:{self.amqp}".encode()
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != self.server.pid:
                with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
                    line = file.read().split(b"\0")
                    if b"serve" in line and mark in line and not line[0].endswith(b"setpriv"):
                        yield int(entry)


class Running:
    """A `leveret ctl migrate` that runs while the test continues."""

    def __init__(self, movable, words, **env):
        self.result = None
        environment = clean_environment(**(movable.ctl.env | env))
        argv = [binary(), "ctl", *map(str, words)]
        self.process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def end(self):
        """Waits for its end: (exit code, standard output, standard error)."""
        out, error = self.process.communicate(timeout=TEST_SECONDS)
        return self.process.returncode, out, error


def to(cluster, *more, port=None):
    """The arguments to move to a RabbitMQ."""
    port = port or cluster.port
    return ("migrate", "--to", f"amqp://127.0.0.1:{port}", "--to-management", cluster.http, *more)


def with_unix_socket(movable):
    """Restarts the server with a STOMP listener on a Unix socket; returns the path."""
    path = movable.directory / "stomp.sock"
    movable.flags = ("--stomp", f"unix:{path}")
    movable.restart()
    return path


def fill(server, queue, bodies, properties=PERSISTENT, arguments=None, durable=True):
    """Declares a queue, and publishes to it through the default exchange; returns once everything is confirmed."""
    with connect(server) as client:
        channel = client.channel()
        channel.queue_declare(queue, durable=durable, arguments=arguments)
        bodies = list(bodies)
        unconfirmed = set(range(1, len(bodies) + 1))

        def answered(frame):
            method = frame.method
            assert isinstance(method, pika.spec.Basic.Ack), method
            unconfirmed.difference_update(range(1, method.delivery_tag + 1) if method.multiple else [method.delivery_tag])
            if not unconfirmed:
                # Ends process_data_events.
                client.add_callback_threadsafe(lambda: None)

        # pika's own methods wait for each confirm, which takes most of the time.
        channel._impl.confirm_delivery(ack_nack_callback=answered, callback=lambda _: None)
        for body in bodies:
            channel._impl.basic_publish("", queue, body, properties)
        while unconfirmed:
            client.process_data_events(PATIENCE)


def take_all(server, queue):
    """Takes all messages of a queue: (method, properties, body)."""
    found = []
    with connect(server) as client:
        channel = client.channel()
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append(got)
    return found


def bodies(found):
    return [body for _, _, body in found]


def numbers(count, first=0):
    return [str(number).encode() for number in range(first, first + count)]


def migration_fixtures(scope="module"):
    """Fixtures: a RabbitMQ of either release, and a Leveret that can migrate."""

    @pytest.fixture(scope=scope, params=["3.10", "4"])
    def cluster(request):
        if reason := missing(request.param):
            pytest.skip(reason)
        server = managed_rabbitmq(request.param)
        server.version = request.param
        yield server
        server.stop()

    @pytest.fixture
    def movable(tmp_path):
        with contextlib.ExitStack() as stack:
            yield Movable(tmp_path, stack)

    return cluster, movable
