"""A failed test's report has the last output of its servers and the command that reruns it; a test that hangs fails where it
hangs. Shown by tests that fail on purpose, run separately."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.leveret import ROOT
from harness.patience import PATIENCE, TEST_SECONDS

# Other installed plugins take seconds to load.
PLUGINS = "-p pytest_timeout -p xdist.plugin -p no:cacheprovider"
CONFTEST = 'pytest_plugins = ["harness.failures"]\n'
SETTINGS = f"[pytest]\npythonpath = {ROOT / 'tests'}\npython_files = *.py\naddopts = {PLUGINS} --tb=short\n"
# Starts a server, or a stand-in for one, that logs the number it was given.
BEGINNING = '''
import signal
import pytest
from harness.child import Child

def server(directory, number):
    child = Child(["sh", "-c", f"echo ready as $((6 * {number})); exec sleep infinity"], directory / f"server-{number}.log")
    child.wait_line("ready")
    return child

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    child = server(tmp_path_factory.mktemp("shared"), 2)
    yield child
    child.kill()

def test_before(shared):
    pass
'''
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LEVERET_PATIENCE": str(PATIENCE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
FAILING = '''
@pytest.mark.parametrize("word", ["it's $1 & \\"2\\""])
def test_failing(shared, tmp_path, word):
    child = server(tmp_path, 7)
    assert word == "another"
'''
FAILING_FIXTURE = '''
@pytest.fixture
def broken(tmp_path):
    server(tmp_path, 7)
    raise AssertionError("no fixture")

def test_failing(broken):
    pass
'''
# When most of the timeout is over, its clock is set to the remaining time.
HANGING = '''
def test_failing(tmp_path):
    child = server(tmp_path, 7)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    child.wait_line("this never comes")
'''


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "in a worker"])
@pytest.mark.parametrize("test", [FAILING, FAILING_FIXTURE, HANGING], ids=["failing", "fixture", "hanging"])
def test_the_servers_last_lines_and_the_command(tmp_path, test, workers):
    output = run(tmp_path, test, workers)
    assert "ready as 42" in output
    # A server of an earlier test that logged nothing meanwhile is not reported.
    assert "ready as 12" not in output
    assert "to run it alone" in output


def test_a_hang_is_found_where_it_is(tmp_path):
    output = run(tmp_path, HANGING)
    assert f"Timeout (>{TEST_SECONDS}s)" in output
    assert 'child.wait_line("this never comes")' in output


def test_the_command_runs_that_very_test(tmp_path):
    """Through a shell, make and the shell that make starts, with any characters in the test's name."""
    output = run(tmp_path, FAILING)
    command = re.search(r"^(.*make scenarios ARGS=.*)$", output, re.MULTILINE).group(1)
    (tmp_path / "Makefile").write_text("scenarios:\n\t@printf '%s' $(ARGS)\n")
    # Without the flags of an outer make, whose "Entering directory" would appear in the output.
    given = subprocess.check_output(["sh", "-c", command], cwd=tmp_path, env=ENVIRONMENT, text=True)
    assert given == "test_it.py::test_failing[it's $1 & \"2\"]"
    assert [word for word in shlex.split(command) if word.startswith("LEVERET_PATIENCE=")] == [f"LEVERET_PATIENCE={PATIENCE}"]


def run(directory: Path, test, workers=()):
    """pytest's output for a failing test, in its own directory."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "pytest.ini").write_text(SETTINGS)
    (directory / "test_it.py").write_text(BEGINNING + test)
    argv = [sys.executable, "-m", "pytest", *workers, "test_it.py", "--basetemp", directory / "kept"]
    done = subprocess.run(argv, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE)
    assert "1 passed" in done.stdout and ("1 failed" in done.stdout or "1 error" in done.stdout), done.stdout + done.stderr
    return done.stdout
