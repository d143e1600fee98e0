"""Under a service manager: it is told when clients can come, that the process lives, of reloads, and of the drain."""

import signal

from harness.frozen import frozen
from harness.instances import leveret
from harness.machine import Manager
from harness.wire import Wire


def test_a_service_manager_hears_of_readiness_reload_and_drain(tmp_path):
    with Manager(tmp_path / "notify") as manager:
        with leveret(tmp_path / "server", env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as server:
            assert manager.wait("READY")["READY"] == "1"
            # It is true: the listeners are there.
            Wire(server.port).handshake().close()
            server.child.send(signal.SIGHUP)
            assert int(manager.wait("RELOADING")["MONOTONIC_USEC"]) > 0
            assert manager.wait("READY")["READY"] == "1"
            server.child.send(signal.SIGTERM)
            stopping = manager.wait("STOPPING")
            # drain_timeout is 10 s; the manager must not lose patience before.
            assert int(stopping["EXTEND_TIMEOUT_USEC"]) > 10_000_000
            assert server.child.wait() == 0


def test_the_watchdog_hears_a_sign_of_life_twice_in_its_time(tmp_path):
    env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    with Manager(tmp_path / "notify") as manager:
        with leveret(tmp_path / "server", env=env) as server:
            manager.wait("READY")
            for _ in range(5):
                assert manager.wait("WATCHDOG")["WATCHDOG"] == "1"
            # A process that does not get on is silent, and is ended by its manager.
            with frozen(server.child):
                assert silent(manager)
            manager.wait("WATCHDOG")
            server.stop()


def test_without_a_watchdog_there_are_no_signs_of_life(tmp_path):
    with Manager(tmp_path / "notify") as manager:
        with leveret(tmp_path / "server", env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as server:
            manager.wait("READY")
            server.stop()
            assert "STOPPING" in manager.heard()


def silent(manager):
    """Whether nothing more comes once what was under way has been heard."""
    while True:
        try:
            manager.heard(seconds=1)
        except TimeoutError:
            return True
