"""A new broker creates the first user that its operator configures, and loads definitions when `definitions_if` says so."""

import json
import socket

import pika
import pika.exceptions
import pytest

from harness.ctl import Ctl
from harness.definitions import permission, user
from harness.instances import leveret, restartable
from harness.leveret import run
from harness.management import Management

SECRET = "hunter2"


def may_log_in(server, name, password, vhost="/"):
    parameters = pika.ConnectionParameters("127.0.0.1", server.port, vhost, pika.PlainCredentials(name, password))
    try:
        pika.BlockingConnection(parameters).close()
    except pika.exceptions.AMQPConnectionError:
        return False
    return True


@pytest.mark.parametrize("prefix, password", [("LEVERET_DEFAULT", "PASSWORD"), ("RABBITMQ_DEFAULT", "PASS")])
def test_the_first_user_is_the_one_that_variables_name(tmp_path, prefix, password):
    names = {f"{prefix}_{password}": SECRET, f"{prefix}_USER": "ann", f"{prefix}_VHOST": "shop"}
    with leveret(tmp_path, env=names) as server:
        assert may_log_in(server, "ann", SECRET, "shop") and not may_log_in(server, "guest", "guest")
        assert Management(server, server.http).get("vhosts", user=f"ann:{SECRET}")[0]["name"] == "shop"
        server.child.wait_line('created administrator and virtual host.*user="ann" vhost="shop"')
        # The password is not in any setting, log or command line.
        assert SECRET not in json.dumps(Ctl(server.http, "ann", SECRET).json("environment"))
        server.stop()
        assert SECRET not in server.child.output()


def test_a_password_may_be_in_a_file_and_on_no_command_line(tmp_path):
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    flags = ["--default-user", "ann", "--default-password-file", str(file)]
    with leveret(tmp_path / "server", *flags) as server:
        assert may_log_in(server, "ann", SECRET)
        server.stop()
    code, _, error = run("serve", "--default-password", SECRET)
    assert code == 2 and "unexpected argument '--default-password'" in error and SECRET not in error
    code, _, error = run("config", "check", "--default-user", "ann")
    assert (code, error) == (2, "leveret: --default-user: needs default_password or default_password_file\n")
    code, _, error = run("config", "check", "--default-password-file", tmp_path / "none")
    assert code == 2 and error.startswith(f"leveret: default_password_file: {tmp_path}/none: No such file")


def test_the_first_user_is_made_once_and_a_changed_password_stays_changed(tmp_path):
    first = {"LEVERET_DEFAULT_USER": "ann", "LEVERET_DEFAULT_PASSWORD": SECRET}
    data = ("--data-dir", str(tmp_path / "data"))
    with leveret(tmp_path / "first", *data, env=first) as server:
        Ctl(server.http, "ann", SECRET)("change_password", "ann", LEVERET_CTL_NEW_PASSWORD="better")
        server.stop()
    with leveret(tmp_path / "second", *data, env=first) as server:
        assert may_log_in(server, "ann", "better") and not may_log_in(server, "ann", SECRET)
        server.child.wait_line('WARN.*default_password ignored.*user="ann"')
        server.stop()
    with leveret(tmp_path / "third", *data, env=first | {"LEVERET_DEFAULT_USER": "bob"}) as server:
        server.child.wait_line('WARN.*default_user ignored.*leveret ctl add_user.*user="bob"')
        server.stop()


def test_a_nonlocal_listener_with_guest_as_only_user_logs_a_warning(tmp_path):
    with leveret(tmp_path / "open", amqp="0.0.0.0:0") as server:
        server.child.wait_line("WARN.*amqp listens on 0.0.0.0:0, but guest, who may log in from this machine only")
        server.stop()
    with leveret(tmp_path / "local") as server:
        server.stop()
        assert "from this machine only" not in server.child.output()


def definitions(directory, password, **sections):
    file = directory / "definitions.json"
    people = [user("ann") | {"password": password}]
    file.write_text(json.dumps({"vhosts": [{"name": "/"}], "users": people, "permissions": [permission("ann", "/", ".*")]} | sections))
    return file


def test_definitions_are_loaded_at_the_first_start_and_logged(tmp_path):
    queue = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    flags = ["--definitions", str(definitions(tmp_path, "first", queues=[queue]))]
    with restartable(tmp_path, *flags) as server:
        server.child.wait_line("INFO.*definitions loaded: 1 user, 1 vhost, 1 permission, 1 queue from=.*definitions.json")
        assert may_log_in(server, "ann", "first") and not may_log_in(server, "guest", "guest")
        server.kill()
    definitions(tmp_path, "second")
    with restartable(tmp_path, *flags) as server:
        server.child.wait_line("INFO.*definitions not loaded: already loaded")
        assert may_log_in(server, "ann", "first")
        server.stop()
    with restartable(tmp_path, *flags, "--definitions-if", "always") as server:
        server.child.wait_line("INFO.*definitions loaded: 1 permission")
        server.child.wait_line('WARN.*the password of a user was overwritten.*user="ann"')
        assert may_log_in(server, "ann", "second")
        server.stop()


def test_a_first_start_that_fails_is_followed_by_another_first_start(tmp_path):
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"vhosts": [{"name": "v"}], "permissions": [permission("nobody", "v")]}))
    code, _, error = run("serve", "--data-dir", tmp_path / "data", "--definitions", file, "--amqp", "127.0.0.1:0")
    assert code == 2 and "user 'nobody' does not exist" in error
    with restartable(tmp_path, "--definitions", str(definitions(tmp_path, "first"))) as server:
        assert may_log_in(server, "ann", "first")
        server.stop()


@pytest.mark.parametrize("listener", ["amqp", "http"])
def test_a_first_start_that_finds_a_port_taken_leaves_nothing(tmp_path, listener):
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = {"--amqp": "127.0.0.1:0", "--http": "127.0.0.1:0", f"--{listener}": f"127.0.0.1:{taken.getsockname()[1]}"}
        addresses |= dict.fromkeys(["--mqtt", "--stomp", "--ws", "--web-mqtt", "--web-stomp"], "off")
        flags = [word for pair in addresses.items() for word in pair]
        code, out, error = run("serve", "--data-dir", data, *flags)
        assert (code, out) == (1, "") and f"leveret: {listener}: cannot listen on" in error
        assert not data.exists()
        spool = tmp_path / "spool.toml"
        spool.write_text('[[spool]]\nexchange = "orders"\n')
        upstream = ["--upstream", "amqp://127.0.0.1:1"]
        code, _, error = run("serve", "--config", spool, "--data-dir", data, *upstream, *flags)
        assert code == 1 and f"leveret: {listener}: cannot listen on" in error, error
        assert not data.exists()


def test_definitions_and_a_first_user_go_together(tmp_path):
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"vhosts": [{"name": "/"}], "global_parameters": []}))
    env = {"LEVERET_DEFAULT_USER": "ann", "LEVERET_DEFAULT_PASSWORD": SECRET}
    with leveret(tmp_path / "both", "--definitions", str(file), env=env) as server:
        assert may_log_in(server, "ann", SECRET)
        server.stop()
    data = ("--data-dir", str(tmp_path / "neither"))
    with leveret(tmp_path / "first", *data, "--definitions", str(file)) as server:
        server.child.wait_line("WARN.*nobody can log in: no user has both a password and permissions")
        server.stop()
    # As the warning says, a first user helps, also on a later start.
    with leveret(tmp_path / "second", *data, env=env) as server:
        assert may_log_in(server, "ann", SECRET)
        server.stop()


def test_a_broker_for_which_nothing_was_defined_yet_takes_definitions_and_a_first_user_later(tmp_path):
    data = ("--data-dir", str(tmp_path / "data"))
    with leveret(tmp_path / "first", *data) as server:
        # Objects that an application declares do not prevent it.
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port)) as connection:
            connection.channel().queue_declare("jobs", durable=True)
        server.stop()
    for run_of, password in [("second", "first"), ("third", "second")]:
        flags = ["--definitions", str(definitions(tmp_path, password))]
        env = {"LEVERET_DEFAULT_USER": "bob", "LEVERET_DEFAULT_PASSWORD": SECRET}
        with leveret(tmp_path / run_of, *data, *flags, env=env) as server:
            assert may_log_in(server, "ann", "first") and may_log_in(server, "bob", SECRET)
            if run_of == "second":
                server.child.wait_line("INFO.*definitions loaded: 1 user, 1 permission")
                server.child.wait_line("WARN.*the user guest of an earlier start is still there")
            else:
                server.child.wait_line("INFO.*definitions not loaded: already loaded")
            server.stop()


def test_definitions_that_a_broker_with_users_does_not_load_are_warned_of(tmp_path):
    with restartable(tmp_path) as server:
        Ctl(server.http)("add_user", "ann", LEVERET_CTL_NEW_PASSWORD="better")
        server.stop()
    with restartable(tmp_path, "--definitions", str(definitions(tmp_path, "first"))) as server:
        server.child.wait_line("WARN.*definitions not loaded: would overwrite.*definitions.json")
        assert not may_log_in(server, "ann", "first")
        server.stop()


def test_the_file_of_a_password_that_is_not_needed_any_more_may_be_gone(tmp_path):
    file = tmp_path / "password"
    file.write_text(SECRET)
    flags = ["--default-user", "ann", "--default-password-file", str(file)]
    with restartable(tmp_path, *flags) as server:
        server.stop()
    file.unlink()
    with restartable(tmp_path, *flags) as server:
        server.child.wait_line("WARN.*default_password_file: .*No such file.*ignored: broker already has users")
        assert may_log_in(server, "ann", SECRET)
        server.stop()
    code, _, error = run("serve", "--data-dir", tmp_path / "new", "--amqp", "127.0.0.1:0", *flags)
    assert code == 2 and error.splitlines()[-1].startswith("leveret: default_password_file: ")


def test_an_unknown_section_is_named(tmp_path):
    with leveret(tmp_path, "--definitions", str(definitions(tmp_path, "x", queue=[]))) as server:
        server.child.wait_line('WARN.*an unknown section is ignored; the sections are .*queues.*section="queue"')
        posted = Management(server, server.http)
        assert posted.status("POST", "definitions", {"user": []}, user="ann:x") in (401, 403)
        server.stop()
    with leveret(tmp_path / "second") as server:
        assert Management(server, server.http).status("POST", "definitions", {"user": []}) == 204
        server.child.wait_line('definitions loaded: nothing new from="guest"')
        server.child.wait_line('WARN.*an unknown section is ignored.*from="guest" section="user"')
        server.stop()
