"""Two clients concurrently publish retained messages to the same topics: the retained message is the one that subscribers
received last."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.mqtt_broker import Broker
from harness.mqtt_client import MqttClient
from harness.patience import PATIENCE

TOPICS = [f"race/{number:04}" for number in range(4000)]
END = "end"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    broker = Broker("leveret", tmp_path_factory.mktemp("race"))
    yield broker
    broker.stop()


def retain(writer, body, qos):
    for info in [writer.client.publish(topic, body, qos, retain=True) for topic in TOPICS]:
        info.wait_for_publish(PATIENCE)
        assert info.is_published()


def last_of_each(reader):
    """The last message of each topic, once everything before the marker has arrived."""
    last = {}
    while (message := reader.message()).topic != END:
        last[message.topic] = message.payload
    return last


@pytest.mark.parametrize("qos", [(1, 1), (1, 2)])
def test_the_retained_message_is_the_last_one_delivered_to_subscribers(broker, qos):
    with (
        MqttClient(broker.mqtt, "one", inflight=1000) as one,
        MqttClient(broker.mqtt, "other", inflight=1000) as other,
        MqttClient(broker.mqtt, "first reader") as first,
        MqttClient(broker.mqtt, "second reader") as second,
    ):
        for reader in (first, second):
            assert reader.subscribe([("race/#", 1), (END, 1)]) == [1, 1]
        with ThreadPoolExecutor() as threads:
            list(threads.map(retain, (one, other), (b"one", b"other"), qos))
        # Everything acknowledged is in all queues, so this comes after it.
        one.publish(END)
        last = last_of_each(first)
        assert last.keys() == set(TOPICS) and last_of_each(second) == last
    with MqttClient(broker.mqtt, "late reader") as late:
        late.subscribe("race/#", 1)
        retained = {message.topic: message.payload for message in late.take(len(TOPICS))}
    differing = {topic for topic in TOPICS if retained[topic] != last[topic]}
    assert not differing, f"{len(differing)} topics"
