"""Relays to servers without WebSocket support: RabbitMQ's protocols, Redis, PostgreSQL."""

import contextlib
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from harness.child import Child
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq
from harness.relay import HERE, RelayWire, relay
from harness.websocket import FIN, TEXT

# Debian installs each version in its own directory; empty if none is installed.
POSTGRES = next(map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"))), "")


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory):
    mqtt, stomp = free_ports(2)
    settings = [f"mqtt.listeners.tcp.1 = {HERE}:{mqtt}", f"stomp.listeners.tcp.1 = {HERE}:{stomp}"]
    server = RabbitMq(tmp_path_factory.mktemp("rabbit"), *settings, plugins="rabbitmq_mqtt,rabbitmq_stomp")
    try:
        yield {"amqp": server.port, "mqtt": mqtt, "stomp": stomp}
    finally:
        server.stop()


@contextlib.contextmanager
def relayed(directory, port, **headers):
    with relay(directory, f"tcp://{HERE}:{port}") as (_, listener), RelayWire(listener, **headers) as wire:
        yield wire


def test_amqp(rabbit, tmp_path):
    with relayed(tmp_path, rabbit["amqp"]) as wire:
        wire.handshake().open_channel()


def test_mqtt(rabbit, tmp_path):
    def packet(kind, *fields):
        """Bytes are preceded by their length, bytes in a list are not."""
        body = b"".join(struct.pack(">H", len(field)) + field if isinstance(field, bytes) else field[0] for field in fields)
        return bytes([kind, len(body)]) + body

    with relayed(tmp_path, rabbit["mqtt"], Sec_WebSocket_Protocol="mqtt") as wire:
        assert wire.headers["sec-websocket-protocol"] == "mqtt"
        wire.send(packet(0x10, b"MQTT", [b"\x04\xc2\0\x3c"], b"relay", b"guest", b"guest"))
        assert wire.read(4) == b"\x20\2\0\0"
        wire.send(packet(0x82, [b"\0\1"], b"a/b", [b"\0"]))
        assert wire.read(5)[:4] == b"\x90\3\0\1"
        wire.send(packet(0x30, b"a/b", [b"hello"]))
        assert wire.read(12) == packet(0x30, b"a/b", [b"hello"])
        wire.send(b"\xe0\0")
        assert wire.read_to_close() == (b"", 1000, "")


def test_stomp_in_text_as_its_clients_send_it(rabbit, tmp_path):
    with relayed(tmp_path, rabbit["stomp"], Sec_WebSocket_Protocol="v12.stomp") as wire:
        wire.send_frame(FIN | TEXT, b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n\0")
        answer = b""
        while b"\0" not in answer:
            answer += wire._receive()
        assert answer.startswith(b"CONNECTED\n")


def test_redis(tmp_path):
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed")
    path = tmp_path / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", path, "--dir", tmp_path, "--save", ""]
    server = Child(command, tmp_path / "redis.log")
    try:
        server.wait_line(r"ready to accept connections|The server is now ready", 30)
        with relay(tmp_path / "l", f"unix:{path}") as (_, port), RelayWire(port) as wire:
            value = os.urandom(1_000_000)
            wire.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%b\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" % (len(value), value))
            expected = b"+OK\r\n$%d\r\n%b\r\n" % (len(value), value)
            assert wire.read(len(expected)) == expected
            wire.send(b"QUIT\r\n")
            assert wire.read_to_close() == (b"+OK\r\n", 1000, "")
    finally:
        server.kill()


def test_postgresql(tmp_path):
    if not POSTGRES:
        pytest.skip("PostgreSQL is not installed")
    # It refuses to run as root.
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
    directory = tmp_path / "data"
    directory.mkdir()
    if user:
        for each in (directory, *list(tmp_path.parents)[:-2], tmp_path):
            if each.stat().st_uid == os.getuid() and str(each) != "/tmp":
                each.chmod(each.stat().st_mode | 0o011)
        shutil.chown(directory, "postgres")
    init = [*user, f"{POSTGRES}/initdb", "-D", directory, "-U", "tester", "-A", "trust", "-N", "--no-instructions"]
    done = subprocess.run(init, capture_output=True, text=True, cwd=directory)
    assert done.returncode == 0, done.stderr
    (port,) = free_ports(1)
    options = ["-D", directory, "-p", str(port), "-h", HERE, "-k", "", "-c", "fsync=off"]
    server = Child([*user, f"{POSTGRES}/postgres", *options], tmp_path / "postgres.log", cwd=directory)
    try:
        server.wait_line("ready to accept connections", 60)
        with relayed(tmp_path / "l", port) as wire:
            startup = struct.pack(">I", 196608) + b"user\0tester\0database\0postgres\0\0"
            wire.send(struct.pack(">I", len(startup) + 4) + startup)
            messages_until(wire, b"Z")
            query = b"SELECT 6 * 7, repeat('x', 200000)\0"
            wire.send(b"Q" + struct.pack(">I", len(query) + 4) + query)
            row = messages_until(wire, b"Z")[b"D"]
            assert row.startswith(b"\0\2\0\0\0\x0242") and row.endswith(b"x" * 200_000)
            wire.send(b"X\0\0\0\4")
            assert wire.read_to_close() == (b"", 1000, "")
    finally:
        server.kill()


def messages_until(wire, last):
    """The types of the server's messages, up to one of type `last`."""
    messages = {}
    while last not in messages:
        kind = wire.read(1)
        (size,) = struct.unpack(">I", wire.read(4))
        messages[kind] = wire.read(size - 4)
        assert kind != b"E", messages[kind]
    return messages
