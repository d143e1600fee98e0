"""The service manager is notified of readiness, of liveness (watchdog), of reloads, and of the drain."""

import signal

from harness.instances import leveret
from harness.machine import Manager
from harness.wire import Wire


def test_the_service_manager_is_notified_of_readiness_reload_and_drain(tmp_path):
    with Manager(tmp_path / "notify") as manager:
        with leveret(tmp_path / "server", env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as server:
            assert manager.wait("READY")["READY"] == "1"
            # The listeners are indeed open.
            Wire(server.port).handshake().close()
            server.child.send(signal.SIGHUP)
            assert int(manager.wait("RELOADING")["MONOTONIC_USEC"]) > 0
            assert manager.wait("READY")["READY"] == "1"
            server.child.send(signal.SIGTERM)
            stopping = manager.wait("STOPPING")
            # drain_timeout is 10 s; the manager must wait longer.
            assert int(stopping["EXTEND_TIMEOUT_USEC"]) > 10_000_000
            assert server.child.wait() == 0


def test_watchdog_notifications_are_sent_only_if_requested(tmp_path):
    with Manager(tmp_path / "notify") as manager, Manager(tmp_path / "plain") as plain:
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        with (
            leveret(tmp_path / "without", env={"NOTIFY_SOCKET": str(tmp_path / "plain")}) as without,
            leveret(tmp_path / "server", env=env) as server,
        ):
            plain.wait("READY")
            manager.wait("READY")
            for _ in range(5):
                assert manager.wait("WATCHDOG")["WATCHDOG"] == "1"
            # The other server sent no watchdog messages, because its manager did not ask for them.
            without.stop()
            assert "STOPPING" in plain.heard()
            server.stop()
