"""Options, and the servers and drivers that a run shares."""

import pytest
from pika.connection import Parameters

from harness.drivers import COMMANDS, Drivers
from harness.patience import PATIENCE
from harness.targets import NAMES, Targets, missing_target

# The defaults for pika connections in tests: pika's own (10 s for TCP, 15 s including the login) are too short for a busy
# machine.
Parameters.DEFAULT_SOCKET_TIMEOUT = Parameters.DEFAULT_STACK_TIMEOUT = PATIENCE

pytest_plugins = ["harness.exceptions", "harness.failures", "harness.lending", "harness.longest_first"]


def pytest_addoption(parser):
    parser.addoption("--target", default=",".join(NAMES), help="the servers to test, by commas")
    parser.addoption("--client", default=",".join(COMMANDS), help="the clients to test with, by commas")
    parser.addoption("--trials", default="pool", help="the servers that frameworks/no_restart.py stops and kills, by commas, or all")


def chosen(config, option, known):
    names = config.getoption(option).split(",")
    if unknown := set(names) - set(known):
        raise pytest.UsageError(f"{option}: unknown {', '.join(sorted(unknown))}")
    return [name for name in known if name in names]


def pytest_generate_tests(metafunc):
    for option, fixture, known in [("--target", "target_name", NAMES), ("--client", "client", list(COMMANDS))]:
        if fixture in metafunc.fixturenames:
            # A module may support a subset of the targets.
            offered = [name for name in known if name in getattr(metafunc.module, "TARGETS", known) or fixture == "client"]
            names = [name for name in offered if name in chosen(metafunc.config, option, known)]
            metafunc.parametrize(fixture, names, scope="session")


@pytest.fixture(scope="session")
def targets(tmp_path_factory):
    targets = Targets(tmp_path_factory.mktemp("targets"))
    yield targets
    targets.stop()


@pytest.fixture(scope="session")
def drivers(tmp_path_factory):
    drivers = Drivers(tmp_path_factory.mktemp("drivers"))
    yield drivers
    drivers.stop()


@pytest.fixture
def target(targets, target_name):
    """A shared server."""
    if reason := missing_target(target_name):
        pytest.skip(reason)
    return targets[target_name]
