"""A new process takes over from a running one, and no client is refused at any moment."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys

import pika
import pytest

from harness.certificates import TestCa
from harness.child import Child, clean_environment
from harness.ctl import Ctl
from harness.frozen import frozen
from harness.instances import leveret
from harness.leveret import OPTIONAL_LISTENERS, binary, run
from harness.machine import Manager
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.process import end_processes
from harness.tokens import Key
from harness.upgrading import flags, kill_all, knocking, replace, replaceable, running
from harness.wire import CONNECTION_CLOSE, CONNECTION_CLOSE_OK, Wire


def test_a_second_start_takes_over_from_a_pool(tmp_path, targets):
    amqp, http = free_ports(2)
    all_flags = flags(amqp, http, "--upstream", f"amqp://127.0.0.1:{targets.upstream.port}")
    with leveret(tmp_path / "old", *all_flags) as old, knocking(amqp) as callers:
        callers.go_on()
        client = pika.BlockingConnection(pika.URLParameters(old.uri))
        with leveret(tmp_path / "new", *all_flags, "--take-over") as new:
            assert old.child.wait() == 0
            callers.go_on()
            with pika.BlockingConnection(pika.URLParameters(new.uri)) as again:
                again.channel()
            # Clients in the middle of a login were served, too.
            assert callers.troubles == []
            client.channel()
            client.close()
            new.stop()


def test_messages_confirmed_by_a_broker_survive_a_takeover(tmp_path):
    amqp, http = free_ports(2)
    all_flags = flags(amqp, http, "--data-dir", str(tmp_path / "data"))
    with leveret(tmp_path / "old", *all_flags) as old, knocking(amqp) as callers:
        with pika.BlockingConnection(pika.URLParameters(old.uri)) as client:
            channel = client.channel()
            channel.confirm_delivery()
            channel.queue_declare("kept", durable=True)
            for number in range(100):
                channel.basic_publish("", "kept", str(number), pika.BasicProperties(delivery_mode=2))
        with leveret(tmp_path / "new", *all_flags, "--take-over") as new:
            assert old.child.wait() == 0
            callers.go_on()
            with pika.BlockingConnection(pika.URLParameters(new.uri)) as client:
                channel = client.channel()
                kept = [channel.basic_get("kept", auto_ack=True)[2] for _ in range(100)]
            assert kept == [str(number).encode() for number in range(100)]
            assert callers.refusals == []
            new.stop()


def test_a_unix_socket_changes_hands_as_well(tmp_path):
    path = tmp_path / "amqp.sock"
    all_flags = ["--http", "off", "--data-dir", "off", "--log", "info"]
    with leveret(tmp_path / "old", *all_flags, amqp=f"unix:{path}", wait=False) as old:
        old.child.wait_line("^amqp +listening")
        with leveret(tmp_path / "new", *all_flags, "--take-over", amqp=f"unix:{path}", wait=False) as new:
            assert old.child.wait() == 0
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(PATIENCE)
                client.connect(str(path))
                client.sendall(b"AMQP\0\0\x09\x01")
                assert client.recv(1)
            new.stop()
    assert not path.exists()


def test_a_successor_that_fails_leaves_everything_as_it_is(tmp_path):
    path = tmp_path / "amqp.sock"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        old = ["--http", "off", "--upstream", f"amqp://127.0.0.1:{taken.getsockname()[1]}"]
        with leveret(tmp_path / "old", *old, amqp=f"unix:{path}", wait=False) as server:
            server.child.wait_line("^amqp +listening")
            new = ["--http", f"127.0.0.1:{taken.getsockname()[1]}", *old[2:]]
            with leveret(tmp_path / "new", *new, "--take-over", amqp=f"unix:{path}", wait=False) as failing:
                assert failing.child.wait() == 1
            server.child.wait_line("successor exited before serving; this process continues")
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
            server.stop()


def test_the_death_of_the_old_process_does_not_keep_the_new_one_from_serving(tmp_path, targets):
    amqp, http = free_ports(2)
    all_flags = flags(amqp, http, "--upstream", f"amqp://127.0.0.1:{targets.upstream.port}")
    with leveret(tmp_path / "old", *all_flags) as old:
        # A frozen process exists but does not answer.
        with frozen(old.child):
            with leveret(tmp_path / "new", *all_flags, "--take-over", wait=False) as new:
                old.kill()
                # It had handed nothing over, so the address is free.
                new.child.wait_line("^amqp +listening")
                with Wire(amqp) as wire:
                    wire.handshake()
                new.stop()


def test_without_a_process_to_take_over_from_it_just_starts(tmp_path):
    [amqp] = free_ports(1)
    with leveret(tmp_path, "--take-over", "--data-dir", "off", amqp=f"127.0.0.1:{amqp}") as server:
        server.child.wait_line("take_over: no running process with these listeners")
        with Wire(amqp) as wire:
            wire.handshake()
        server.stop()


def test_another_address_needs_no_predecessor(tmp_path):
    """Processes with other listeners do not interfere."""
    with leveret(tmp_path / "one", "--data-dir", "off") as one, leveret(tmp_path / "two", "--take-over", "--data-dir", "off"):
        one.check()


# Connects like a successor.
STRANGER = """
import socket, sys
with socket.socket(socket.AF_UNIX) as stranger:
    stranger.connect("\\0" + sys.argv[1])
    try:
        stranger.sendall(b'{"version":"1"}\\n')
        print(stranger.recv(1) or "nothing")
    except ConnectionError:
        print("nothing")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, who may become another user")
def test_another_user_gets_nothing(tmp_path):
    amqp, http = free_ports(2)
    with leveret(tmp_path / "old", *flags(amqp, http, "--data-dir", "off")) as old:
        argv = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-c", STRANGER, f"leveret-takeover/0/amqp/127.0.0.1:{amqp}"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stdout) == (0, "nothing\n"), done.stderr
        old.child.wait_line("successor refused.*user 65534 is another")
        old.stop()


def ends(server):
    """Whether the process exits with success. Its output continues, because its successor shares it."""
    return server.child.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("more", [[], ["--take-over"]], ids=["started", "that took over itself"])
def test_ctl_upgrades_to_the_program_on_the_disk(tmp_path, more):
    with replaceable(tmp_path, "--data-dir", str(tmp_path / "data"), *more) as (server, program, callers):
        replace(program)
        told = Ctl(server.http)("upgrade")
        [after] = running(program)
        assert f"process {after} with version" in told and f"has taken over from process {server.pid}" in told
        assert ends(server)
        callers.go_on()
        assert callers.refusals == []


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGHUP])
def test_a_signal_upgrades_as_well(tmp_path, number):
    with replaceable(tmp_path, "--data-dir", "off") as (server, program, callers):
        replace(program)
        server.child.send(number)
        assert ends(server)
        callers.go_on()
        assert callers.refusals == [] and len(running(program)) == 1


ORDERS = {
    "ctl": lambda server: Ctl(server.http)("upgrade"),
    "SIGUSR2": lambda server: server.child.send(signal.SIGUSR2),
    "SIGHUP": lambda server: server.child.send(signal.SIGHUP),
}


@pytest.mark.parametrize("order", ORDERS)
def test_clients_of_a_pool_stay_whichever_way_it_is_upgraded(tmp_path, targets, order):
    queue = f"stays-{tmp_path.name}"
    with replaceable(tmp_path, "--upstream", f"amqp://127.0.0.1:{targets.upstream.port}") as (server, program, callers):
        client = pika.BlockingConnection(pika.URLParameters(server.uri))
        channel = client.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True)
        try:
            replace(program)
            ORDERS[order](server)
            assert ends(server)
            channel.basic_publish("", queue, b"by the same channel")
            assert channel.basic_get(queue, auto_ack=True)[2] == b"by the same channel"
            callers.go_on()
            assert callers.troubles == [] and len(running(program)) == 1
        finally:
            channel.queue_delete(queue)
        client.close()


@pytest.mark.parametrize("order", ["SIGUSR2", "SIGHUP"])
def test_a_server_that_shuts_down_starts_no_successor(tmp_path, order):
    with shutting_down(tmp_path, lambda server: server.child.send(signal.SIGTERM)) as server:
        ORDERS[order](server)
        server.child.wait_line("upgrade not started.*shutting down")


def test_a_server_drained_over_http_starts_no_successor(tmp_path):
    with shutting_down(tmp_path, lambda server: Ctl(server.http)("drain")) as server:
        assert "shutting down" in Ctl(server.http).fails("upgrade")


@pytest.mark.parametrize("has_manager", [False, True], ids=["by itself", "under a service manager"])
@pytest.mark.parametrize("end", [lambda server: server.child.send(signal.SIGTERM), lambda server: Ctl(server.http)("drain")],
                         ids=["SIGTERM", "drain"])
def test_a_stop_in_the_middle_of_an_upgrade_ends_both_processes(tmp_path, has_manager, end):
    """The successor waits for an upstream that never answers, so that it has not taken over."""
    program = tmp_path / "leveret"
    shutil.copy(binary(), program)
    with contextlib.ExitStack() as stack:
        env = {}
        if has_manager:
            stack.enter_context(Manager(tmp_path / "notify"))
            env["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        upstream = ("--upstream", f"amqp://127.0.0.1:{silent.getsockname()[1]}", "--upstream-timeout", "10m")
        server = stack.enter_context(leveret(tmp_path / "server", *flags(*free_ports(2)), *upstream, program=program, env=env))
        stack.callback(kill_all, program)
        server.child.send(signal.SIGUSR2)
        server.child.wait_line("successor starting")
        assert len(running(program)) == 2
        end(server)
        assert ends(server) and running(program) == []


@contextlib.contextmanager
def shutting_down(tmp_path, end):
    """A server that waits for its last client, and whose binary was replaced; asserts that it exits with success."""
    program = tmp_path / "leveret"
    shutil.copy(binary(), program)
    waiting = ("--data-dir", "off", "--drain-timeout", "1h", "--drain-idle-timeout", "1h")
    with leveret(tmp_path / "server", *flags(*free_ports(2)), *waiting, program=program) as server, Wire(server.port) as client:
        replace(program)
        client.handshake()
        end(server)
        client.expect(CONNECTION_CLOSE)
        try:
            yield server
            client.send_method(0, CONNECTION_CLOSE_OK)
            # The replaced binary's processes do not count.
            assert ends(server) and running(program) == []
        finally:
            end_processes(running(program))


def test_a_stop_ends_the_wait_for_the_objects_of_a_process_that_hangs(tmp_path):
    [port] = free_ports(1)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("not empty")
    definitions = tmp_path / "definitions.json"
    definitions.write_text('{"vhosts": [{"name": "/"}]}')
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(f"\0leveret-takeover/{os.geteuid()}/amqp/127.0.0.1:{port}")
        hanging.listen()
        words = ["serve", "--take-over", "--amqp", f"127.0.0.1:{port}", "--http", "off"]
        words += [word for listener in OPTIONAL_LISTENERS for word in (listener, "off")]
        words += ["--data-dir", tmp_path / "data", "--definitions", definitions]
        child = Child([binary(), *map(str, words)], tmp_path / "leveret.log", env=clean_environment())
        connection, _ = hanging.accept()
        with connection, connection.makefile("rb") as lines:
            assert "version" in json.loads(lines.readline())
            connection.sendall(b'{"version": "0.1.0", "sockets": 0, "shows": true}\n')
            assert json.loads(lines.readline())["show"] == "existing"
            child.send(signal.SIGTERM)
            # The other process is asked for nothing more.
            assert lines.readline() == b""
    assert child.wait() == 1
    assert "take_over: interrupted before this process has taken over" in child.output()


@pytest.mark.parametrize("has_manager", [False, True], ids=["by itself", "under a service manager"])
def test_a_successor_that_cannot_start_changes_nothing(tmp_path, has_manager):
    with contextlib.ExitStack() as stack:
        env = {}
        if has_manager:
            stack.enter_context(Manager(tmp_path / "notify"))
            env["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        server, program, callers = stack.enter_context(replaceable(tmp_path, "--data-dir", "off", env=env))
        other = program.with_suffix(".new")
        other.write_text(f"#!/bin/sh\necho $PPID >{tmp_path}/parent\nexit 3\n")
        other.chmod(0o755)
        other.replace(program)
        told = Ctl(server.http).fails("upgrade")
        assert f"the successor has ended, and the server continues: {'its log says why' if has_manager else 'exit status: 3'}" in told
        # At a stop, systemd kills a main process that was not its child at once, without waiting for the drain.
        assert (int((tmp_path / "parent").read_text()) == server.pid) == (not has_manager)
        # If it were stopped while clients connect, the manager would keep its listeners, where nobody answers.
        callers.go_on()
        assert callers.troubles == []


QUESTIONS = ("user", "vhost", "resource", "topic")
HTTP = [word for what in QUESTIONS for word in (f"--auth-http-{what}-path", "https://127.0.0.1:1/")]
OAUTH = ["--auth-backends", "internal", "--auth-backends", "oauth2", "--oauth2-resource-server-id", "r"]

# Files in a directory, with the flags that name them.
NAMED_FILES = {
    "access_log": ["--access-log", "access.log"],
    "oauth2_jwks": [*OAUTH, "--oauth2-jwks", "keys.json"],
    "oauth2_jwks_ca": [*OAUTH, "--oauth2-jwks", "https://127.0.0.1:1/", "--oauth2-jwks-ca", "ca.pem"],
    "auth_http_ca": ["--auth-backends", "internal", "--auth-backends", "http", *HTTP, "--auth-http-ca", "ca.pem"],
    "upstream_external": ["--upstream-external", "identities.toml"],
}


@pytest.mark.parametrize("setting", NAMED_FILES)
def test_a_successor_that_cannot_use_a_file_lets_the_old_process_go_on(tmp_path, targets, setting):
    """Only one process can use the data directory, so the old process must exit before the new one can serve."""
    ca = TestCa(tmp_path / "files")
    (ca.directory / "keys.json").write_text(json.dumps({"keys": [Key("EdDSA").published()]}))
    (ca.directory / "identities.toml").write_text("")
    *others, name = NAMED_FILES[setting]
    named = [*others, ca.directory / name]
    if setting == "upstream_external":
        certificate, key = TestCa(tmp_path / "tls").issue("server")
        named += ["--amqps", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key, "--tls-verify-client", "optional"]
        named += ["--tls-client-ca", tmp_path / "tls" / "ca.pem"]
        named += ["--spool", '{exchange = "^spooled$"}', "--upstream", f"amqp://127.0.0.1:{targets.upstream.port}"]
    named = [str(word) for word in ("--data-dir", tmp_path / "data", *named)]
    assert run("config", "check", *named) == (0, "", "") and not (ca.directory / "access.log").exists()
    with replaceable(tmp_path, *named) as (server, program, callers):
        replace(program)
        shutil.rmtree(ca.directory)
        assert "the successor has ended, and the server continues" in Ctl(server.http).fails("upgrade")
        server.child.wait_line(f"leveret: {setting}: ")
        code, _, told = run("config", "check", *named)
        assert code != 0 and told.startswith(f"leveret: {setting}: "), told
        callers.go_on()
        assert callers.troubles == [] and running(program) == []
        server.stop()


POLICY = {"vhost": "/", "name": "p", "pattern": "", "definition": {"max-length": 5}}
QUEUE = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False}


def test_a_mistake_in_the_definitions_ends_the_successor_alone(tmp_path):
    with of_definitions(tmp_path) as (server, program, callers, define):
        define(policies=[{**POLICY, "definition": {"max-lenght": 5}}])
        told = Ctl(server.http).fails("upgrade")
        assert "the successor has ended, and the server continues: exit status: 2" in told
        callers.go_on()
        assert callers.troubles == [] and running(program) == [server.pid]


def test_definitions_of_existing_objects_do_not_stop_an_upgrade(tmp_path):
    """An existing queue is left unchanged, whatever the file says."""
    with of_definitions(tmp_path) as (server, program, callers, define):
        Ctl(server.http)("add_vhost", "v")
        define(policies=[{**POLICY, "vhost": "v"}], queues=[{**QUEUE, "arguments": {"x-max-length": -1}}])
        assert "has taken over" in Ctl(server.http)("upgrade")
        callers.go_on()
        assert callers.refusals == []


MISTAKES = {
    "queue": {"queues": [{**QUEUE, "name": "other", "arguments": {"x-max-length": -1}}]},
    "exchange": {"exchanges": [{"name": "x", "vhost": "/", "type": "nope", "durable": True, "auto_delete": False}]},
    "binding": {
        "bindings": [{"source": "none", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "", "arguments": {}}]
    },
}


@pytest.mark.parametrize("of", MISTAKES)
def test_a_mistake_in_the_topology_ends_the_successor_alone(tmp_path, of):
    """Whether it can be declared depends on the objects of the broker, for which the successor asks the old process."""
    with of_definitions(tmp_path) as (server, program, callers, define):
        define(**MISTAKES[of])
        assert "the successor has ended, and the server continues: exit status: 2" in Ctl(server.http).fails("upgrade")
        server.child.wait_line(f"leveret: definitions: .*: {of} ")
        callers.go_on()
        assert callers.troubles == [] and running(program) == [server.pid]


def test_an_upgrade_that_ends_both_processes_is_reported_at_once(tmp_path):
    """A data directory that cannot be used is found only after the old process has exited."""
    with of_definitions(tmp_path) as (server, program, callers, define):
        catalogue = tmp_path / "data" / "definitions.redb"
        assert catalogue.exists()
        # The old process has its files open and does not need their names.
        catalogue.unlink()
        catalogue.mkdir()
        assert "nobody serves; the log says why" in Ctl(server.http).fails("upgrade")
        assert running(program) == [] and ends(server)


@contextlib.contextmanager
def of_definitions(tmp_path):
    """A broker that loads a file at every start, and a function that writes the file."""
    file = tmp_path / "definitions.json"

    def define(queues=(QUEUE,), **sections):
        users = [{"name": "guest", "password": "guest", "tags": "administrator"}]
        permissions = [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}]
        file.write_text(
            json.dumps({"vhosts": [{"name": "/"}], "users": users, "permissions": permissions, "queues": list(queues), **sections})
        )

    define(policies=[POLICY])
    flags = ("--data-dir", str(tmp_path / "data"), "--definitions", str(file), "--definitions-if", "always")
    with replaceable(tmp_path, *flags) as (server, program, callers):
        yield server, program, callers, define


def test_a_reload_of_the_same_program_is_no_upgrade(tmp_path):
    with replaceable(tmp_path, "--data-dir", "off") as (server, program, callers):
        server.child.send(signal.SIGHUP)
        server.child.wait_line("SIGHUP: no setting changed")
        callers.go_on()
        assert callers.troubles == [] and running(program) == [server.pid]
        server.stop()


def test_sockets_of_a_service_manager_are_used(tmp_path):
    [http] = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as kept:
        port = kept.getsockname()[1]
        # A client that connects before the service starts waits for it.
        early = Wire(port)
        server = activated(tmp_path / "leveret.log", kept, *flags(port, http))
        try:
            early.handshake().close()
            server.kill()
            # So does one that connects while it is down.
            late = Wire(port)
            server = activated(tmp_path / "again.log", kept, *flags(port, http))
            late.handshake().close()
        finally:
            server.kill()


def test_a_socket_that_no_listener_has_is_closed(tmp_path):
    amqp, http = free_ports(2)
    with socket.create_server(("127.0.0.1", 0)) as kept:
        server = activated(tmp_path / "leveret.log", kept, *flags(amqp, http))
        try:
            address = "127.0.0.1:{}".format(kept.getsockname()[1])
            server.wait_line(f"closing inherited socket.*{address}")
        finally:
            server.kill()


def test_a_passed_file_descriptor_that_is_no_socket_is_logged(tmp_path):
    amqp, http = free_ports(2)
    with (tmp_path / "file").open("w") as kept:
        server = activated(tmp_path / "leveret.log", kept, *flags(amqp, http))
    server.wait_line("WARN.*unused file descriptor from the service manager.*index=0")
    server.wait_line("^http +listening on")
    assert server.stop() == 0


def test_the_service_manager_gets_sockets_to_keep_and_the_new_main_pid(tmp_path):
    with Manager(tmp_path / "notify") as manager:
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with leveret(tmp_path / "old", "--data-dir", "off", *flags(*free_ports(2)), env=told) as old:
            assert manager.wait("FDSTORE")["FDNAME"] == "listener"
            manager.wait("READY")
            addresses = flags(old.port, old.http.rpartition(":")[2])
            with leveret(tmp_path / "new", "--data-dir", "off", *addresses, "--take-over") as new:
                assert manager.wait("MAINPID")["MAINPID"] == str(new.pid)
                assert old.child.wait() == 0
                new.stop()


def activated(log, kept, *addresses):
    """A server that inherits a socket as in sd_listen_fds(3)."""
    passing = f'exec 3<&{kept.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
    quiet = [word for name in OPTIONAL_LISTENERS for word in (name, "off")]
    argv = ["bash", "-c", passing, "bash", binary(), "serve", "--data-dir", "off", *quiet, *addresses]
    return Child(argv, log, env=clean_environment(), pass_fds=[kept.fileno()])
