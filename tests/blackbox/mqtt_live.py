"""Live subscribers of MQTT in front of RabbitMQ get all that is published from their SUBACK on, however slowly they acknowledge and
however they change their subscriptions."""

from contextlib import closing

import pytest

from harness.mqtt5_wire import Mqtt5Wire
from harness.mqtt_pool import MqttPool
from harness.mqtt_wire import PUBACK
from harness.releases import RELEASES, missing


@pytest.fixture(scope="module", params=RELEASES)
def pool(request, tmp_path_factory):
    if reason := missing(request.param):
        pytest.skip(reason)
    pool = MqttPool(request.param, tmp_path_factory.mktemp("pool"))
    yield pool
    pool.stop()


@pytest.mark.parametrize("window", [1, 3])
def test_a_subscriber_that_acknowledges_late_gets_all_in_order(pool, window):
    count = 400
    with closing(Mqtt5Wire(pool.mqtt)) as slow, closing(Mqtt5Wire(pool.mqtt)) as writer:
        slow.connect(f"slow{window}", ReceiveMaximum=window)
        assert slow.subscribe((f"late/{window}", 1))["reasons"] == [1]
        writer.connect("writer")
        for number in range(count):
            writer.publish(f"late/{window}", str(number).encode())
        came = []
        unacknowledged = []
        while len(came) < count:
            # Not before the window is full does the client acknowledge anything.
            while len(unacknowledged) < window and len(came) < count:
                message = slow.answer()
                came.append(int(message["body"]))
                unacknowledged.append(message["id"])
            # A request is answered meanwhile.
            assert slow.subscribe(("aside", 0))["reasons"] == [0]
            while unacknowledged:
                slow.ack(PUBACK, unacknowledged.pop(0))
        assert came == list(range(count))
