"""A stderr pipe that nobody reads blocks neither clients, nor health checks, nor the shutdown."""

import contextlib
import os
import signal
import socket
import threading

import pika
import pytest

from harness.ctl import Ctl
from harness.health import status
from harness.instances import leveret
from harness.patience import PATIENCE
from harness.upgrading import replaceable, running
from harness.wire import CONNECTION_CLOSE, Wire


class Pipe:
    """A full pipe, until somebody reads it."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self.filled = 0
        for size in (4096, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    self.filled += os.write(self.writer, b"x" * size)
        os.set_blocking(self.writer, True)

    def read_all(self):
        """Reads in a thread until all writers have closed the pipe; returns a function that waits for the text."""
        os.close(self.writer)
        self.writer = None
        text = []
        with_file = os.fdopen(self.reader, "rb")
        self.reader = None
        thread = threading.Thread(target=lambda: text.append(with_file.read()), daemon=True)
        thread.start()

        def wait():
            thread.join(PATIENCE)
            with_file.close()
            return text[0][self.filled :].decode()

        return wait

    def close(self):
        for end in (self.reader, self.writer):
            if end is not None:
                os.close(end)


@pytest.fixture
def pipe():
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_clients_and_operators_do_not_notice_a_log_that_nobody_reads(tmp_path, pipe):
    flags = ("--data-dir", tmp_path / "data", "--access-log", "stderr", "--log", "debug")
    with leveret(tmp_path, *flags, stderr=pipe.writer) as server:
        with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            # More clients than threads, with a log line each.
            for number in range(50):
                with Wire(server.port) as refused:
                    refused.start(f"nobody{number}:wrong")
                    refused.expect_end()
                channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
            server.child.send(signal.SIGHUP)
            assert status(f"{server.http}/healthz") == status(f"{server.http}/readyz") == 200
            assert channel.queue_declare("q", passive=True).method.message_count == 50
        server.stop()


def test_a_log_that_is_read_again_has_all_lines_to_the_last(tmp_path, pipe):
    with leveret(tmp_path, stderr=pipe.writer) as server:
        with pika.BlockingConnection(pika.URLParameters(server.uri)):
            wait = pipe.read_all()
        server.stop()
        log = wait()
    assert "mode: broker" in log and "shutting down" in log


def test_a_second_signal_ends_the_process_even_if_stderr_is_not_read(tmp_path, pipe):
    with leveret(tmp_path, "--drain-timeout", "1h", stderr=pipe.writer) as server:
        with Wire(server.port) as client:
            client.handshake()
            server.child.send(signal.SIGTERM)
            # Left unanswered, so that the drain continues.
            client.expect(CONNECTION_CLOSE)
            assert server.child.stop() == 1


def test_a_start_that_fails_ends_though_its_reason_cannot_be_written(tmp_path, pipe):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with leveret(tmp_path, amqp=address, wait=False, stderr=pipe.writer) as server:
            assert server.child.wait() == 1


MISTAKES = {"flag": ["--no-such-flag"], "value": ["--heartbeat", "often"], "file": ["--config", "missing.toml"]}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_settings_ends_the_start_though_it_cannot_be_written(tmp_path, pipe, mistake):
    with leveret(tmp_path, *MISTAKES[mistake], wait=False, stderr=pipe.writer) as server:
        assert server.child.wait() == 2


def test_a_successor_with_a_mistake_in_its_settings_does_not_block_later_upgrades(tmp_path, pipe):
    file = tmp_path / "leveret.toml"
    file.write_text("")
    with replaceable(tmp_path, "--data-dir", "off", "--config", file, stderr=pipe.writer) as (server, program, callers):
        file.write_text("nonsense = 1")
        assert "the successor has ended, and the server continues: exit status: 2" in Ctl(server.http).fails("upgrade")
        file.write_text("")
        assert "has taken over" in Ctl(server.http)("upgrade")
        callers.go_on()
        assert len(running(program)) == 1
