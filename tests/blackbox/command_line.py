"""The command-line interface that scripts rely on: exit codes, one line per mistake, the precedence of layers, the output."""

import json
import re
import socket

import pytest

from harness.child import Child, clean_environment
from harness.instances import leveret
from harness.leveret import binary, run
from harness.wire import Wire

# Input (arguments, environment, file), and what the error line must name.
MISTAKES = {
    "an unknown flag": (["--amqq", "off"], {}, "", "--amqq"),
    "an address without a port": (["--amqp", "localhost"], {}, "", "amqp"),
    "a port out of range": (["--http", "127.0.0.1:70000"], {}, "", "http"),
    "an upstream of another kind": (["--upstream", "http://localhost"], {}, "", "upstream"),
    "a frame size below the least": (["--frame-max", "4095"], {}, "", "frame_max|frame-max"),
    "a wrong variable": ([], {"LEVERET_AMQP": "nonsense"}, "", "LEVERET_AMQP|amqp"),
    "an unknown key": ([], {}, "amqq = 'off'\n", "amqq"),
    "a wrong value in the file": ([], {}, "http = 17\n", "http"),
    "a file that is no TOML": ([], {}, "amqp = \n", "leveret.toml"),
    "a level that does not exist": (["--log", "loud"], {}, "", "log"),
}


@pytest.mark.parametrize("command", [["serve"], ["config", "check"], ["config", "print"]], ids=" ".join)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_in_one_line_with_exit_code_2(tmp_path, command, mistake):
    arguments, env, text, named = MISTAKES[mistake]
    code, out, error = run(*command, *layers(tmp_path, text), *arguments, env=env)
    assert (code, out) == (2, ""), error
    [line] = error.splitlines()
    assert line.startswith("leveret: ")
    assert re.search(named, line)


def test_a_file_that_does_not_exist_is_a_mistake(tmp_path):
    code, _, error = run("config", "check", "--config", tmp_path / "missing.toml")
    assert code == 2
    assert "missing.toml" in error


@pytest.mark.parametrize("arguments", [[], ["dance"], ["config"]])
def test_a_command_that_is_none_has_exit_code_2(arguments):
    assert run(*arguments)[0] == 2


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["serve", "--help"], ["config", "--help"]])
def test_help_and_version_have_exit_code_0(arguments):
    code, out, error = run(*arguments)
    assert (code, error) == (0, "")
    assert out


def test_a_flag_wins_over_a_variable_over_the_file_over_the_default(tmp_path):
    assert printed(tmp_path, "heartbeat") == "60"
    assert printed(tmp_path, "heartbeat", text="heartbeat = 10\n") == "10"
    assert printed(tmp_path, "heartbeat", env={"LEVERET_HEARTBEAT": "20"}, text="heartbeat = 10\n") == "20"
    everything = {"env": {"LEVERET_HEARTBEAT": "20"}, "text": "heartbeat = 10\n"}
    assert printed(tmp_path, "heartbeat", "--heartbeat", "30", **everything) == "30"


def test_an_upstream_moves_the_default_port(tmp_path):
    assert printed(tmp_path, "amqp") == json.dumps("127.0.0.1:5672")
    assert printed(tmp_path, "amqp", "--upstream", "amqp://localhost") == json.dumps("127.0.0.1:5673")


def test_a_printed_configuration_can_be_read_back(tmp_path):
    code, out, _ = run("config", "print", "--heartbeat", "7", "--upstream", "amqp://localhost:5999")
    assert code == 0
    assert printed(tmp_path, "heartbeat", text=out) == "7"
    assert "5999" in printed(tmp_path, "upstream", text=out)


def test_a_good_configuration_passes_in_silence(tmp_path):
    assert run("config", "check", *layers(tmp_path, 'amqp = "127.0.0.1:0"\n')) == (0, "", "")


def test_each_listener_on_port_0_prints_one_line_with_its_actual_port(tmp_path):
    with leveret(tmp_path) as server:
        lines = [line for line in server.child.lines if " listening on " in line]
        assert [line.split()[0] for line in lines] == ["amqp", "http"]
        assert all(re.fullmatch(r"\S+ +listening on (amqp|http)://127\.0\.0\.1:[1-9]\d*/?", line) for line in lines)
        server.stop()


def test_a_unix_socket_is_served_and_removed(tmp_path):
    path = tmp_path / "amqp.sock"
    argv = [binary(), "serve", "--amqp", f"unix:{path}", "--ws", "off", "--http", "off"]
    child = Child(argv, tmp_path / "leveret.log", env=clean_environment(STATE_DIRECTORY=str(tmp_path)))
    try:
        child.wait_line(re.escape(str(path)))
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(path))
            peer.sendall(b"GET / HT")
            assert peer.recv(8) == b"AMQP\x00\x00\x09\x01"
        assert child.stop() == 0
    finally:
        child.kill()
    assert not path.exists()


def test_a_port_in_use_is_reported_with_exit_code_1():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, error = run("serve", "--amqp", address, "--ws", "off", "--http", "off", "--log", "off")
    assert code == 1
    [line] = error.splitlines()
    assert "amqp" in line and address in line


def test_settings_reach_the_protocol(tmp_path):
    with leveret(tmp_path, env={"LEVERET_CHANNEL_MAX": "9", "LEVERET_HEARTBEAT": "7"}) as server:
        with Wire(server.port) as client:
            client.start()
            assert client.expect((10, 30)) == b"\x00\x09" + (131072).to_bytes(4, "big") + b"\x00\x07"
        server.stop()


def layers(directory, text):
    """The arguments for a configuration file with this text; none if there is no text."""
    if not text:
        return []
    file = directory / "leveret.toml"
    file.write_text(text)
    return ["--config", file]


def printed(directory, key, *arguments, env=None, text=""):
    """A key's value in the output of `config print`, as TOML."""
    code, out, error = run("config", "print", *layers(directory, text), *arguments, env=env)
    assert code == 0, error
    [value] = re.findall(rf"^{key} = ([^#\n]*?)\s*(?:#.*)?$", out, re.MULTILINE)
    return value
