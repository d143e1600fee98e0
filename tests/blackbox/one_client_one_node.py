"""A pool client uses a single node of a cluster, as it would without the pool: it finds what it has declared. In a cluster,
other nodes learn of a queue a moment after declare-ok; in this test they never do."""

import contextlib

import pika
import pytest

from harness.instances import leveret
from harness.patience import PATIENCE


@pytest.fixture
def pool(tmp_path):
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(leveret(tmp_path / f"node{number}", "--data-dir", "off")) for number in range(3)]
        upstreams = [word for node in nodes for word in ("--upstream", f"amqp://{node.address}")]
        yield stack.enter_context(leveret(tmp_path / "pool", *upstreams))


@pytest.mark.parametrize("round", range(3))
def test_a_client_can_use_a_declared_queue_at_once_on_any_channel(pool, round):
    with contextlib.ExitStack() as stack:
        for number in range(12):
            # They stay open, so that the connections to all nodes are shared and busy.
            connection = stack.enter_context(pika.BlockingConnection(pika.URLParameters(pool.uri)))
            channel = connection.channel()
            channel.confirm_delivery()
            queue = f"of-{round}-{number}"
            channel.queue_declare(queue)
            # pika raises if it is returned as unroutable.
            channel.basic_publish("", queue, b"first", mandatory=True)
            other = connection.channel()
            other.confirm_delivery()
            other.basic_publish("", queue, b"second", mandatory=True)
            assert take(other, queue, auto_ack=False) == b"first"
            # Without acknowledgements it gets a dedicated upstream connection.
            assert take(connection.channel(), queue, auto_ack=True) == b"second"


def take(channel, queue, auto_ack):
    channel.basic_qos(prefetch_count=1)
    for method, _, body in channel.consume(queue, auto_ack=auto_ack, inactivity_timeout=PATIENCE):
        if not auto_ack:
            channel.basic_ack(method.delivery_tag)
        channel.cancel()
        return body
