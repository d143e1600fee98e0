"""SIGHUP reloads the configuration: live settings change while clients are connected, the log names those that need a
restart."""

import re
import signal

import pytest

from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.wire import Closed, Wire

READ = r"SIGHUP: no TLS files to reload"


class Configured:
    """A server with a configuration file that changes."""

    def __init__(self, directory, text):
        self.file = directory / "leveret.toml"
        self.file.write_text(text)
        self.flags = ["--config", self.file]

    def reload(self, server, text):
        """Reloads; returns the lines logged meanwhile."""
        self.file.write_text(text)
        before = len(server.child.lines)
        server.child.send(signal.SIGHUP)
        wait_until(lambda: any(re.search(READ, line) for line in server.child.lines[before:]))
        return [re.sub(r"\x1b\[\d*m", "", line) for line in server.child.lines[before:]]


def test_limits_change_under_open_connections(tmp_path):
    configured = Configured(tmp_path, "")
    with leveret(tmp_path / "server", *configured.flags) as server:
        first = Wire(server.port).handshake()
        logged = configured.reload(server, "max_connections = 1\n")
        assert any("max_connections" in line and "changed" in line for line in logged)
        with pytest.raises(Closed):
            Wire(server.port).handshake()
        assert metric(server, "rabbitmq_connections") == 1
        configured.reload(server, "")
        Wire(server.port).handshake().close()
        first.open_channel()
        first.close()
        server.stop()


def test_the_log_level_changes_in_both_directions(tmp_path):
    configured = Configured(tmp_path, 'log = "info"\n')
    with leveret(tmp_path / "server", *configured.flags) as server:
        unchanged = configured.reload(server, 'log = "info"\n')
        assert any("no setting changed" in line for line in unchanged)
        configured.reload(server, 'log = "warn,leveret=info"\n')
        Wire(server.port).handshake().close()
        wait_until(lambda: metric(server, "rabbitmq_connections_closed_total") == 1)
        # Log lines are in order: a warning would come before the lines of the reload.
        configured.reload(server, 'log = "info"\n')
        assert not any("connection opened" in line for line in server.child.lines)
        Wire(server.port).handshake().close()
        server.child.wait_line("connection opened")
        server.stop()


def test_memory_and_disk_limits_change(tmp_path):
    configured = Configured(tmp_path, "")
    with leveret(tmp_path / "server", *configured.flags) as server:
        assert metric(server, "rabbitmq_alarms_memory_used_watermark") == 0
        configured.reload(server, 'memory_high_watermark = "1MiB"\n')
        wait_until(lambda: metric(server, "rabbitmq_alarms_memory_used_watermark") == 1)
        assert metric(server, "rabbitmq_resident_memory_limit_bytes") == 1 << 20
        configured.reload(server, 'memory_high_watermark = "off"\ndisk_free_limit = "1000TB"\n')
        wait_until(lambda: metric(server, "rabbitmq_alarms_memory_used_watermark") == 0)
        wait_until(lambda: metric(server, "rabbitmq_alarms_free_disk_space_watermark") == 1)
        configured.reload(server, "")
        wait_until(lambda: metric(server, "rabbitmq_alarms_free_disk_space_watermark") == 0)
        server.stop()


def test_a_setting_that_needs_a_restart_is_logged_and_keeps_its_value(tmp_path):
    configured = Configured(tmp_path, "heartbeat = 10\n")
    with leveret(tmp_path / "server", *configured.flags) as server:
        for _ in range(2):
            logged = configured.reload(server, "heartbeat = 20\n")
            assert any("heartbeat" in line and "on restart" in line for line in logged), logged
        assert offered_heartbeat(server) == 10
        server.stop()


def test_a_reload_with_a_mistake_changes_nothing_and_is_logged(tmp_path):
    configured = Configured(tmp_path, "max_connections = 50\n")
    with leveret(tmp_path / "server", *configured.flags) as server:
        logged = configured.reload(server, "max_connections = 1\nnonsense = 1\n")
        assert any("leveret.toml:2: nonsense: unknown key" in line for line in logged), logged
        wires = [Wire(server.port).handshake() for _ in range(3)]
        for wire in wires:
            wire.close()
        server.stop()


def test_flags_still_win_over_the_file(tmp_path):
    configured = Configured(tmp_path, "")
    with leveret(tmp_path / "server", *configured.flags, "--max-connections", "100") as server:
        logged = configured.reload(server, "max_connections = 1\n")
        assert any("no setting changed" in line for line in logged)
        Wire(server.port).handshake().close()
        Wire(server.port).handshake().close()
        server.stop()


def offered_heartbeat(server):
    with Wire(server.port) as client:
        client.start()
        return int.from_bytes(client.expect((10, 30))[6:8], "big")
