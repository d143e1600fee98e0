"""A pytest plugin that adds to a failed test's report the last lines of its servers' output and the command that reruns the
test. A test that hangs fails after a timeout, with a traceback of where it hangs."""

import os
import shlex

import pytest

from harness import child
from harness.patience import TEST_SECONDS

# The prefix of settings that change what a test does.
SETTINGS = "LEVERET_"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Sets the timeout of each test, which pytest-timeout enforces; `--timeout` and a test's mark override it."""
    if config.option.timeout is None:
        config.option.timeout = TEST_SECONDS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    child.forget_ended()
    item.stash[SAID] = {process: process.said() for process in child.started}
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        report.sections += [(f"the end of {process.log}", process.last_lines()) for process in used(item)]
        report.sections.append(("to run it alone", command(item.nodeid)))
    return report


SAID = pytest.StashKey()
"""How much each process had said when the test began."""


def used(item):
    """The servers to report: those that the test started or that logged something during it, and all shared ones if the test
    uses them."""
    shares = "targets" in item.fixturenames
    return [process for process in child.started if shares or process.said() != item.stash[SAID].get(process)]


def command(test):
    """The shell command that reruns one test with the settings of this run."""
    settings = [f"{key}={shlex.quote(value)}" for key, value in sorted(os.environ.items()) if key.startswith(SETTINGS)]
    # Quoted for this shell, then for make (dollars), then for the shell that make starts.
    arguments = shlex.quote(test).replace("$", "$$")
    for special in '\\"$`':
        arguments = arguments.replace(special, "\\" + special)
    return " ".join([*settings, "make", "scenarios", f'ARGS="{arguments}"'])
