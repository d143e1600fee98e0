"""The server raises its soft limit of open files to the hard limit. Clients cannot use all of them: some are reserved for
the journal, memory sampling and the management API."""

import contextlib
import resource
import signal

import pika
import pytest

from harness.amqp import connect
from harness.disks import MEBIBYTE
from harness.instances import leveret
from harness.leveret import binary
from harness.metrics import metric, wait_until
from harness.process import descriptors
from harness.relay import Echo, RelayWire, relay
from harness.websocket import Refused
from harness.wire import Closed, Wire

# Soft limits are often this low, though rarely quite as low.
LOW = 128
CLIENTS = 2 * LOW
# A hard limit, an eighth of which is reserved for each of files, operators, and what is open before the first client.
HARD = 512
FOR_CLIENTS = HARD * 5 // 8
BELOW_FILES = HARD * 7 // 8
# This many connections in a row are refused: no descriptor is left.
REFUSED = 8
PERSISTENT = pika.BasicProperties(delivery_mode=2)
# More than two journal segments, so that it needs another file.
MESSAGES = 140


def limited(tmp_path, limit):
    """The program with its own limit: pytest itself has more files open."""
    program = tmp_path / "limited"
    program.write_text(f'#!/bin/sh\nulimit {limit}\nexec "{binary()}" "$@"\n')
    program.chmod(0o755)
    return program


def fill(connections, connect_one):
    """Connects until connections are refused; returns the number of accepted ones."""
    accepted = refused = 0
    while refused < REFUSED:
        try:
            connections.enter_context(connect_one())
            accepted, refused = accepted + 1, 0
        except (Closed, ConnectionError, Refused):
            refused += 1
    return accepted


def handshaken(port):
    wire = Wire(port)
    try:
        return wire.handshake()
    except BaseException:
        wire.close()
        raise


def stores_messages(channel):
    for _ in range(MESSAGES):
        channel.basic_publish("", "q", b"x" * MEBIBYTE, PERSISTENT)


def durable_channel(server):
    channel = connect(server, heartbeat=0).channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    return channel


def test_more_clients_are_served_than_the_limit_it_was_started_with(tmp_path):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with leveret(tmp_path / "server", program=limited(tmp_path, f"-S -n {LOW}")) as server, descriptors(16 * CLIENTS):
        wires = [Wire(server.port).handshake() for _ in range(CLIENTS)]
        assert metric(server, "rabbitmq_process_open_fds") > CLIENTS
        assert metric(server, "rabbitmq_process_max_fds") == most
        for wire in wires:
            wire.close()
        server.stop()


@pytest.mark.parametrize("mode", ["enforce", "alarm"])
def test_clients_leave_descriptors_for_the_journal_the_memory_alarm_and_operators(tmp_path, mode):
    settings = tmp_path / "leveret.toml"
    settings.write_text(f"limits_mode = '{mode}'\nmax_connections = 70000\n")
    flags = ["--config", settings, "--data-dir", tmp_path / "data"]
    with (
        descriptors(4 * HARD),
        leveret(tmp_path / "server", *flags, program=limited(tmp_path, f"-n {HARD}")) as server,
        contextlib.ExitStack() as clients,
    ):
        server.child.wait_line(f"WARN.*max_connections is lowered.*max_connections=70000 in_effect={FOR_CLIENTS} open_files={HARD}")
        channel = durable_channel(server)
        accepted = fill(clients, lambda: handshaken(server.port))
        assert metric(server, "leveret_max_connections") == FOR_CLIENTS
        if mode == "enforce":
            # The publisher is one of them.
            assert accepted == FOR_CLIENTS - 1
            assert metric(server, 'leveret_limit_exceeded_total{limit="connections"}') == REFUSED
        assert metric(server, "rabbitmq_process_open_fds") < BELOW_FILES
        stores_messages(channel)
        assert metric(server, "leveret_store_failures_total") == 0

        limit = metric(server, "rabbitmq_resident_memory_limit_bytes")
        server.child.send(signal.SIGHUP)
        server.child.wait_line("SIGHUP: no setting changed")
        server.child.wait_line("SIGHUP: no TLS files to reload")
        assert metric(server, "rabbitmq_resident_memory_limit_bytes") == limit
        settings.write_text(f"limits_mode = '{mode}'\nmemory_high_watermark = '1MiB'\nmax_connections = 100\n")
        server.child.send(signal.SIGHUP)
        wait_until(lambda: metric(server, 'leveret_alarm{kind="memory"}') == 1)
        assert metric(server, "leveret_max_connections") == 100
        server.kill()


def test_relays_leave_descriptors_for_the_journal_and_operators(tmp_path):
    flags = ["--data-dir", tmp_path / "data"]
    with (
        descriptors(4 * HARD),
        Echo() as upstream,
        relay(tmp_path / "server", upstream.url, *flags, program=limited(tmp_path, f"-n {HARD}")) as (server, port),
        contextlib.ExitStack() as clients,
    ):
        channel = durable_channel(server)
        accepted = fill(clients, lambda: RelayWire(port))
        assert accepted > FOR_CLIENTS // 3
        assert metric(server, "rabbitmq_process_open_fds") < BELOW_FILES
        stores_messages(channel)
        assert metric(server, "leveret_store_failures_total") == 0
        server.kill()
