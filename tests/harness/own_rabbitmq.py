"""Fixtures of modules that do with a RabbitMQ what would disturb others, for modules to import."""

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
    """Leads to it."""
    link = Forwarder(broker.port)
    yield link
    link.stop()
