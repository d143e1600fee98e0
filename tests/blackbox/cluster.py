"""P7 with a RabbitMQ cluster of three nodes and quorum queues: any node may be killed under load."""

import os
import signal

import pytest

from harness.instances import leveret
from harness.load import Load
from harness.metrics import metric, wait_until
from harness.patience import TEST_SECONDS
from harness.rabbitmq import Cluster

# `make cluster` kills each node in turn, this many times; the suite kills one of them.
ROUNDS = int(os.environ.get("LEVERET_CLUSTER_ROUNDS", "0"))
pytestmark = pytest.mark.timeout(0 if ROUNDS else TEST_SECONDS)
# Three nodes and their clients share one machine: at full speed they would starve each other.
GENTLY = {"queue_type": "quorum", "interval": "300ms"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster") / "nodes")
    yield cluster
    cluster.stop()


def kills(cluster):
    """The nodes to kill, in order."""
    return [cluster.nodes[0]] if ROUNDS == 0 else cluster.nodes * ROUNDS


def test_p7_any_node_is_killed_and_nothing_confirmed_is_lost(tmp_path, cluster):
    upstreams = [flag for node in cluster.nodes for flag in ("--upstream", f"amqp://127.0.0.1:{node.port}")]
    with leveret(tmp_path, *upstreams) as server:
        load = Load(tmp_path, server.uri, **GENTLY)
        load.go_on()
        for node in kills(cluster):
            with load.trouble():
                node.end(signal.SIGKILL)
            # Two nodes of three are a majority.
            load.go_on()
            node.start()
            wait_until(lambda: metric(server, "leveret_upstream_addresses_down") == 0)
            load.go_on()
        accounts = load.finish()
        print(accounts)
        # RabbitMQ nacks what it cannot enqueue while a queue has no leader; the load generator publishes it again.
        assert accounts["missing"] == []
        assert accounts["unexplained"] == []
        server.stop()
