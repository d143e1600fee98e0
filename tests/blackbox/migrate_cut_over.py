"""The moments in which a broker becomes a pool: starts, stops, publishes and requests at that time lose no message."""

import os
import shutil
import signal
import socket
from pathlib import Path

import pytest
from harness.forwarder import Forwarder
from harness.instances import leveret
from harness.leveret import binary
from harness.management import Management, path
from harness.metrics import wait_until
from harness.migration import Running, bodies, fill, migration_fixtures, numbers, take_all, to, with_unix_socket
from harness.patience import PATIENCE, TEST_SECONDS

pytestmark = pytest.mark.timeout(2 * TEST_SECONDS)
cluster, movable = migration_fixtures()


def management(movable):
    return Management(movable.server, f"http://127.0.0.1:{movable.http_port}")


def phase(movable):
    return management(movable).get("leveret/migration")["phase"]


def closed(movable, cluster, queue):
    """The API of a broker that has moved a queue's messages and waits for the last definitions."""
    fill(movable, queue, numbers(10))
    movable.ctl(*to(cluster, "--stay"))
    wait_until(lambda: movable.moved() == 10)
    api = management(movable)
    assert api.status("POST", "leveret/migration/cut-over") == 200
    wait_until(lambda: phase(movable) == "last_definitions")
    return api


def is_asked(movable):
    """Whether a successor is connected to the takeover socket (unix(7): a connection beside the listener)."""
    sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    name = f"/127.0.0.1:{movable.amqp}"
    return len([words for words in sockets if words[-1].startswith("@leveret-takeover/") and words[-1].endswith(name)]) > 1


def becomes_pool(movable, cluster, queue):
    wait_until(lambda: phase(movable) == "moved")
    fill(movable, queue, [b"later"])
    assert bodies(take_all(cluster, queue)) == [*numbers(10), b"later"]


def test_no_upgrade_begins_in_the_middle(movable, cluster):
    api = closed(movable, cluster, "no-upgrade")
    os.kill(movable.server.pid, signal.SIGUSR2)
    movable.server.child.wait_line("SIGUSR2: upgrade not started.*upgrade afterwards")
    assert api.status("POST", "leveret/upgrade") == 400
    assert not list(movable.successors())
    assert api.status("POST", "leveret/migration/finish") == 200
    becomes_pool(movable, cluster, "no-upgrade")


def test_a_successor_that_has_been_started_by_hand_is_the_pool_as_well(tmp_path, movable, cluster):
    """It starts before there is a record, and waits for the broker, which writes the record before it exits."""
    api = closed(movable, cluster, "by-hand")
    listeners = ("--amqp", f"127.0.0.1:{movable.amqp}", "--http", f"127.0.0.1:{movable.http_port}")
    data = ("--data-dir", str(movable.directory / "data"), "--take-over", "on")
    with leveret(tmp_path / "by-hand", *listeners, *data, wait=False) as successor:
        # It has read its configuration and waits silently; the broker answers once it is a pool.
        wait_until(lambda: is_asked(movable) or not successor.child.running())
        assert api.status("POST", "leveret/migration/finish") == 200
        # The broker's own successor may take over from this one and close its clients, so the test opens none.
        successor.child.wait_line("mode: pool")
        assert bodies(take_all(cluster, "by-hand")) == numbers(10)
        assert "mode: broker" not in successor.child.output()


def test_a_client_at_a_unix_socket_waits_for_the_pool(movable, cluster):
    path = with_unix_socket(movable)
    api = closed(movable, cluster, "by-file")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE)
        client.connect(str(path))
        client.sendall(b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n\0")
        assert api.status("POST", "leveret/migration/finish") == 200
        assert client.recv(9) == b"CONNECTED"
    becomes_pool(movable, cluster, "by-file")


def test_a_signal_in_the_middle_ends_the_broker_without_a_successor(movable, cluster):
    path = with_unix_socket(movable)
    closed(movable, cluster, "signalled")
    movable.server.child.send(signal.SIGTERM)
    assert movable.server.child.wait() == 0
    assert not list(movable.successors()) and not path.exists()
    movable.start()
    assert phase(movable) == "none"
    fill(movable, "signalled", [b"rest"])
    movable.ctl(*to(cluster))
    assert bodies(take_all(cluster, "signalled")) == [*numbers(10), b"rest"]


def test_http_changes_that_would_be_lost_in_a_cut_over_are_refused(movable, cluster):
    api = closed(movable, cluster, "by-http")
    message = {"properties": {}, "routing_key": "by-http", "payload": "lost", "payload_encoding": "string"}
    assert api.status("POST", path("exchanges", "/", "amq.default") + "/publish", message) == 503
    assert api.status("PUT", path("queues", "/", "late"), {"durable": True}) == 503
    assert api.status("POST", "leveret/migration/finish") == 200
    becomes_pool(movable, cluster, "by-http")


def test_a_setting_that_would_undo_the_move_is_found_before_it(tmp_path, movable, cluster):
    movable.server.kill()
    movable.flags = ("--upstream", "off")
    movable.start()
    fill(movable, "explicit", numbers(10))
    assert "could not become a pool" in movable.ctl(*to(cluster, "--dry-run"))
    assert "upstream is set" in movable.ctl.fails(*to(cluster))
    assert bodies(take_all(movable, "explicit")) == numbers(10), "nothing has moved"
    api = management(movable)
    movable.ctl(*to(cluster, "--stay"))
    assert api.status("POST", "leveret/migration/cut-over") == 400


def test_a_move_is_not_replaced_by_another(movable, cluster):
    fill(movable, "first", numbers(10))
    movable.ctl(*to(cluster, "--stay"))
    wait_until(lambda: movable.moved() == 10)
    api, other = management(movable), "amqp://127.0.0.1:1"
    login = {"user": "guest", "password": "guest"}
    for direction, address in (("to", other), ("from", f"amqp://127.0.0.1:{cluster.port}")):
        request = {"direction": direction, "addresses": [address], **login}
        status, _, told = api.ask("POST", "leveret/migration", request)
        assert status == 400 and "--stop first" in told["reason"], told
    words = ("migrate", "--to", other, "--to-management", cluster.http)
    assert "--stop first" in movable.ctl.fails(*words)
    # A request that names another move.
    for named in ({"direction": "from"}, {"direction": "to", "addresses": [other]}):
        status, _, told = api.ask("POST", "leveret/migration/cut-over", named)
        assert status == 409 and "not the requested one" in told["reason"], told
    assert phase(movable) == "moving" and movable.moved() == 10, "the first one goes on"
    named = {"direction": "to", "addresses": [f"amqp://127.0.0.1:{cluster.port}"]}
    assert api.status("POST", "leveret/migration/cut-over", named) == 200
    wait_until(lambda: phase(movable) == "last_definitions")
    assert api.status("POST", "leveret/migration/finish", {"addresses": [other]}) == 409
    assert f"everything moves to amqp://127.0.0.1:{cluster.port}" in movable.ctl.fails(*words)
    assert "nothing was changed" in movable.ctl(*to(cluster, "--dry-run"))
    assert phase(movable) == "last_definitions"
    assert "this server is a pool" in movable.ctl(*to(cluster))
    assert f"everything has moved to amqp://127.0.0.1:{cluster.port}" in movable.ctl.fails(*words)


def test_of_two_equal_commands_each_may_end_the_move(movable, cluster):
    closed(movable, cluster, "two")
    both = [Running(movable, to(cluster)) for _ in range(2)]
    for code, out, error in [running.end() for running in both]:
        assert code == 0 and "this server is a pool" in out, out + error
    becomes_pool(movable, cluster, "two")


def test_a_start_that_was_stopped_begins_nothing(movable, cluster):
    fill(movable, "started", numbers(10))
    way = Forwarder(cluster.port)
    try:
        way.passes_new.clear()
        api = management(movable)
        request = {"direction": "to", "addresses": [way.url], "user": "guest", "password": "guest"}
        assert api.status("POST", "leveret/migration", request) == 200
        assert phase(movable) == "starting"
        assert api.status("POST", "leveret/migration", request) == 400, "one at a time"
        assert api.status("DELETE", "leveret/migration") == 200
        way.passes_new.set()
        request["addresses"] = [f"amqp://127.0.0.1:{cluster.port}"]
        request["password"] = "wrong"
        assert api.status("POST", "leveret/migration", request) == 200
        wait_until(lambda: phase(movable) == "failed")
        assert api.get("leveret/migration")["queues"] == []
    finally:
        way.passes_new.set()
        way.stop()
    assert bodies(take_all(movable, "started")) == numbers(10)


def test_without_a_successor_the_process_fails_and_is_the_pool_when_it_starts_again(tmp_path, movable, cluster):
    movable.server.kill()
    program = tmp_path / "leveret"
    shutil.copy(binary(), program)
    listeners = ("--amqp", f"127.0.0.1:{movable.amqp}", "--http", f"127.0.0.1:{movable.http_port}")
    with leveret(tmp_path / "gone", *listeners, "--data-dir", str(movable.directory / "data"), program=program) as server:
        movable.server = server
        api = closed(movable, cluster, "no-successor")
        program.unlink()
        assert api.status("POST", "leveret/migration/finish") == 200
        assert server.child.wait() == 1
        assert "no successor took over" in server.child.output()
    movable.start()
    becomes_pool(movable, cluster, "no-successor")
