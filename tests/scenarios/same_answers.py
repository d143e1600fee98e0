"""B1: five clients get the same answers from RabbitMQ, from the compatible Leveret, and from Leveret in front of RabbitMQ,
for both releases."""

import concurrent.futures

import pytest

from harness.drivers import COMMANDS
from harness.targets import BROKER, RABBITMQ, release_of
from scenarios import rabbitmq4
from scenarios.catalogue import EXPECTED
from scenarios.left_out import LEFT_OUT, expected_of


# This scenario waits for seconds, so all clients run it at the same time.
SLOW_SCENARIO = "heartbeat_two_seconds"


@pytest.fixture(scope="session")
def observed_concurrently(request, targets, drivers):
    """A client's observations in that scenario. The first caller runs it for all clients that are selected."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    asked = {(each.get("target_name"), each.get("client"), each.get("scenario")) for each in parameters}
    futures = {}

    def observed(target, client):
        if (target, client) not in futures:
            uri = targets[target].uri
            for other in COMMANDS:
                if (target, other, SLOW_SCENARIO) in asked and (other, SLOW_SCENARIO) not in LEFT_OUT:
                    futures[target, other] = threads.submit(drivers[other].observe, SLOW_SCENARIO, uri)
            # Each driver runs one scenario at a time.
            concurrent.futures.wait(futures.values())
        return futures[target, client].result()

    with concurrent.futures.ThreadPoolExecutor(len(COMMANDS)) as threads:
        yield observed


def expected_answers(target_name):
    """The expected observations of every client."""
    if release_of(target_name) == "3.10":
        return EXPECTED
    return EXPECTED | rabbitmq4.OTHERWISE | (rabbitmq4.NOT_FOLLOWED if target_name in BROKER else {})


def left_out(client, target_name, scenario):
    """Why there is nothing to observe; `None` if there is."""
    reasons = dict(LEFT_OUT)
    if release_of(target_name) == "4":
        reasons |= {(client, name): reason for name, reason in rabbitmq4.UNSUPPORTED.items()}
        if target_name in RABBITMQ:
            reasons |= {(client, name): reason for name, reason in rabbitmq4.REFUSED_AT_LOGIN.items()}
    return reasons.get((client, scenario))


@pytest.mark.parametrize("scenario", EXPECTED)
def test_same_answers(target, target_name, drivers, client, scenario, observed_concurrently):
    if reason := left_out(client, target_name, scenario):
        pytest.skip(reason)
    observed = observed_concurrently(target_name, client) if scenario == SLOW_SCENARIO else drivers[client].observe(scenario, target.uri)
    assert observed == expected_of(client, expected_answers(target_name))[scenario]


def test_every_client_runs_every_scenario(drivers, client):
    assert sorted(drivers[client].scenarios) == sorted(expected_of(client, EXPECTED))


def test_every_left_out_scenario_exists():
    for client, path in LEFT_OUT:
        scenario, _, part = path.partition(".")
        assert client in COMMANDS
        assert scenario in EXPECTED
        assert not part or part in EXPECTED[scenario]
    for scenario in [*rabbitmq4.OTHERWISE, *rabbitmq4.NOT_FOLLOWED, *rabbitmq4.UNSUPPORTED, *rabbitmq4.REFUSED_AT_LOGIN]:
        assert scenario in EXPECTED
