"""Fixtures for modules that need their own RabbitMQ, because they would disturb other tests."""

import pytest

from harness.forwarder import Forwarder
from harness.rabbitmq import RabbitMq


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    broker = RabbitMq(tmp_path_factory.mktemp("broker") / "rabbitmq")
    yield broker
    broker.stop()


@pytest.fixture
def link(broker):
    """A link to that RabbitMQ."""
    link = Forwarder(broker.port)
    yield link
    link.stop()
