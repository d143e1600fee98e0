"""Two hosts with a spool each in front of one cluster, with pika, the Java client and php-amqplib: a node is killed in
between."""

import contextlib
import signal

import pytest
from harness.amqp import connect
from harness.metrics import metric, wait_until
from harness.patience import TEST_SECONDS
from harness.publishers import COMMANDS, ConfirmedPublisher
from harness.rabbitmq import Cluster
from harness.spool import spooling, waiting

QUEUE = "of-two-hosts"
PART = 100
# The first number that the second host publishes.
SECOND = 1_000_000
pytestmark = pytest.mark.timeout(2 * TEST_SECONDS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster") / "nodes")
    yield cluster
    cluster.stop()


class Queue:
    """A quorum queue with its leader on the second node, and the messages taken from it: each number with its id, in the
    order of their first arrival."""

    def __init__(self, cluster):
        self.node, self.found = cluster.nodes[1], {}
        with self.connected() as direct:
            channel = direct.channel()
            channel.queue_delete(QUEUE)
            channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})

    def connected(self):
        return connect(self.node)

    def take(self):
        with self.connected() as direct:
            channel = direct.channel()
            while (got := channel.basic_get(QUEUE, auto_ack=True))[0] is not None:
                _, properties, body = got
                name = properties.headers["x-leveret-spool-id"]
                assert self.found.setdefault(int(body), name) == name, "another id for the same message"
        return len(self.found)


@pytest.mark.parametrize("language", COMMANDS)
def test_everything_of_both_hosts_arrives_in_order_although_a_node_is_killed(tmp_path, cluster, language):
    first, *others = [f"amqp://127.0.0.1:{node.port}" for node in cluster.nodes]
    flags = [flag for url in others for flag in ("--upstream", url)]
    queue = Queue(cluster)
    with contextlib.ExitStack() as stack:
        hosts = [
            (stack.enter_context(spooling(tmp_path / name, first, *flags)), begin) for name, begin in [("one", 0), ("two", SECOND)]
        ]
        publishers = [(stack.enter_context(ConfirmedPublisher(language, server.uri)), begin) for server, begin in hosts]
        for part in range(3):
            if part == 1:
                cluster.nodes[0].end(signal.SIGKILL)
            for publisher, begin in publishers:
                publisher.send(QUEUE, range(begin + part * PART, begin + (part + 1) * PART))
            for publisher, _ in publishers:
                publisher.confirmed()
            if part == 1:
                cluster.nodes[0].start()
        for publisher, _ in publishers:
            publisher.close()
        wait_until(lambda: queue.take() >= 6 * PART)
        for server, begin in hosts:
            wait_until(lambda server=server: waiting(server) == 0)
            assert metric(server, "leveret_spool_parked_messages") == 0
            own = [number for number in queue.found if begin <= number < begin + SECOND]
            assert own == list(range(begin, begin + 3 * PART))
        assert len(set(queue.found.values())) == 6 * PART, "an id that two messages have"
        for server, _ in hosts:
            server.stop()
