"""A pytest plugin. A failing test shows, beside its traceback, the last lines of the servers that it used and the command that
runs it alone. A test that hangs fails once its bound is over, with a traceback of the place where it hangs."""

import os
import shlex

import pytest

from harness import child
from harness.patience import TEST_SECONDS

# Settings that change what a test does.
SETTINGS = "LEVERET_"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """A bound for each test as a whole, of which pytest-timeout takes care; `--timeout` and a mark of the test say others."""
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
    """Those that a test has started or made say something; and all, if it uses the servers that tests share."""
    shares = "targets" in item.fixturenames
    return [process for process in child.started if shares or process.said() != item.stash[SAID].get(process)]


def command(test):
    """What a shell runs that one test by, with the settings of this run."""
    settings = [f"{key}={shlex.quote(value)}" for key, value in sorted(os.environ.items()) if key.startswith(SETTINGS)]
    # One level of quotes for this shell, a dollar for make, and one more level for the shell that make starts.
    arguments = shlex.quote(test).replace("$", "$$")
    for special in '\\"$`':
        arguments = arguments.replace(special, "\\" + special)
    return " ".join([*settings, "make", "scenarios", f'ARGS="{arguments}"'])
