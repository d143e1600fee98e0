"""Fixtures for modules that need a RabbitMQ for themselves, because they would disturb other tests."""

import pytest

from harness.forwarder import Forwarder
from harness.lending import borrow


@pytest.fixture(scope="module")
def broker():
    broker = borrow()
    yield broker
    broker.stop()


@pytest.fixture
def link(broker):
    """A link to that RabbitMQ."""
    link = Forwarder(broker.port)
    yield link
    link.stop()
