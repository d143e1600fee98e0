"""Five clients get the same answers from RabbitMQ, from Leveret, and from Leveret in front of RabbitMQ."""

import pytest

from harness.drivers import COMMANDS
from scenarios.catalogue import EXPECTED
from scenarios.left_out import LEFT_OUT, expected_of


@pytest.mark.parametrize("scenario", EXPECTED)
def test_same_answers(target, drivers, client, scenario):
    if (client, scenario) in LEFT_OUT:
        pytest.skip(LEFT_OUT[client, scenario])
    observed = drivers[client].observe(scenario, target.uri)
    assert observed == expected_of(client, EXPECTED)[scenario]


def test_every_client_runs_every_scenario(drivers, client):
    assert sorted(drivers[client].scenarios) == sorted(expected_of(client, EXPECTED))


def test_what_is_left_out_exists():
    for client, path in LEFT_OUT:
        scenario, _, part = path.partition(".")
        assert client in COMMANDS
        assert scenario in EXPECTED
        assert not part or part in EXPECTED[scenario]
