"""Fixtures to import, for tests that run with each RabbitMQ release behind the pool."""

import pytest

from harness.instances import leveret
from harness.lending import borrow
from harness.releases import RELEASES, missing


@pytest.fixture(scope="module", params=RELEASES)
def upstream(request):
    if reason := missing(request.param):
        pytest.skip(reason)
    broker = borrow(version=request.param)
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def pool(tmp_path_factory, upstream):
    with leveret(tmp_path_factory.mktemp("leveret"), "--upstream", f"amqp://127.0.0.1:{upstream.port}") as server:
        yield server
        server.stop()
