"""P7 with a RabbitMQ cluster of three nodes: a node in maintenance mode, and quorum queues whose leaders move, under load. Clients
of the pool notice neither, and nothing confirmed is lost."""

import urllib.request

import pytest
from harness.ctl import Ctl
from harness.instances import leveret
from harness.load import Load
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE
from harness.rabbitmq import Cluster
from harness.releases import release

pytestmark = pytest.mark.skipif(release().name != "4", reason="RabbitMQ 4 is not behind pools here, and nobody has run this with 3.10")

GENTLY = {"queue_type": "quorum", "interval": "300ms", "publishers": 40, "consumers": 12}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster") / "nodes")
    yield cluster
    cluster.stop()


@pytest.fixture
def pool(tmp_path, cluster):
    upstreams = [flag for node in cluster.nodes for flag in ("--upstream", f"amqp://127.0.0.1:{node.port}")]
    with leveret(tmp_path, *upstreams) as server:
        yield server
        server.stop()


def leaders(node):
    """The number of queues that each node leads."""
    names = node.control("list_queues", "--no-table-headers", "leader").split()
    return {name: names.count(name) for name in set(names)}


def is_ready(server):
    with urllib.request.urlopen(server.http + "/readyz", timeout=PATIENCE) as answer:
        return answer.status == 200


def state(server, node):
    """Whether the pool considers a node reachable, and how many connections it has there."""
    rows = Ctl(server.http).json("list_upstreams")
    [row] = [row for row in rows if row["address"] == f"127.0.0.1:{node.port}"]
    return row["up"], row["connections"]


def up(server, node):
    return state(server, node)[0]


def finish(load):
    accounts = load.finish()
    print(accounts)
    assert accounts["missing"] == []
    assert accounts["unexplained"] == []


def test_p7_a_node_is_drained_and_revived_and_no_client_notices(tmp_path, cluster, pool):
    load = Load(tmp_path, pool.uri, **GENTLY)
    load.go_on()
    # A node with connections of the pool; it only checks those.
    drained = max(cluster.nodes, key=lambda node: state(pool, node)[1])
    other = next(node for node in cluster.nodes if node is not drained)
    assert up(pool, drained)
    with load.trouble():
        drained.tool("rabbitmq-upgrade", "drain")
        wait_until(lambda: metric(pool, "leveret_upstream_addresses_down") == 1)
    # The node runs, but has no listeners, no clients and no leaders.
    assert drained.node not in leaders(other)
    assert is_ready(pool) and not up(pool, drained) and up(pool, other)
    load.go_on()
    drained.tool("rabbitmq-upgrade", "revive")
    wait_until(lambda: metric(pool, "leveret_upstream_addresses_down") == 0)
    assert up(pool, drained)
    load.go_on()
    finish(load)


def test_p7_leaders_of_queues_move_and_no_client_notices(tmp_path, cluster, pool):
    first, other, _ = cluster.nodes
    load = Load(tmp_path, pool.uri, **GENTLY)
    load.go_on()
    # All leaders leave one node, and some come back.
    with load.trouble():
        first.tool("rabbitmq-upgrade", "drain")
        first.tool("rabbitmq-upgrade", "revive")
    assert first.node not in leaders(other)
    wait_until(lambda: metric(pool, "leveret_upstream_addresses_down") == 0)
    lost = metric(pool, "leveret_upstream_recovered_channels_total")
    load.go_on()
    other.tool("rabbitmq-queues", "rebalance", "quorum")
    wait_until(lambda: first.node in leaders(other))
    load.go_on()
    # No connection was lost.
    assert metric(pool, "leveret_upstream_recovered_channels_total") == lost
    finish(load)
