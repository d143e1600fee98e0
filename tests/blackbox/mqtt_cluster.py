"""Persistent MQTT sessions at two Leverets in front of a cluster of three RabbitMQ nodes, each of which may be killed: no
acknowledged message is lost between MQTT clients, from MQTT to AMQP, or from AMQP to MQTT; and QoS 2 messages are
published once."""

import collections
import contextlib
import os
import signal
import threading
import time

import pika
import pytest

from harness.leveret import Leveret
from harness.metrics import metric, wait_until
from harness.mqtt_fleet import Fleet
from harness.patience import PATIENCE, TEST_SECONDS
from harness.ports import free_ports
from harness.rabbitmq import Cluster
from harness.releases import release

# `make cluster` kills each of them in turn, this many times, with a configurable number of sessions; the suite kills one of
# each kind.
ROUNDS = int(os.environ.get("LEVERET_CLUSTER_ROUNDS", "0"))
SESSIONS = 1000 if ROUNDS else 40
pytestmark = pytest.mark.timeout(0 if ROUNDS else 2 * TEST_SECONDS)
EXCHANGE, WITNESS, END = "amq.topic", "witness", b"end"
# The only fault during which the cluster has all its nodes.
KILLED = "a Leveret was killed"
# A classic queue is unavailable while its node is down, also with RabbitMQ's own MQTT: so this virtual host uses quorum queues.
VHOST = "fleet"


class Leverets:
    """Two Leverets, each on fixed ports across restarts."""

    def __init__(self, directory, nodes):
        self.directory, self.starts = directory, collections.Counter()
        self.upstreams = [flag for node in nodes for flag in ("--upstream", f"amqp://127.0.0.1:{node.port}")]
        self.amqp, self.mqtt = free_ports(2), free_ports(2)
        self.servers = [self.start(0), self.start(1)]

    def start(self, index):
        # The data directory is reused; each start has its own output directory.
        directory = self.directory / f"leveret-{index}"
        flags = ["--amqp", f"127.0.0.1:{self.amqp[index]}", "--mqtt", f"127.0.0.1:{self.mqtt[index]}", "--mqtt-vhost", VHOST]
        self.starts[index] += 1
        environment = {"STATE_DIRECTORY": str(directory / "state")}
        server = Leveret(directory / f"start-{self.starts[index]}", *self.upstreams, *flags, env=environment)
        server.child.wait_line(r"^mqtt +listening on")
        return server

    def restart(self, index):
        self.servers[index] = self.start(index)

    def stop(self):
        with contextlib.ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.child.kill)
            for server in self.servers:
                server.stop()
            self.servers = []


class Sender:
    """Publishes persistent messages to a fleet's topics over AMQP, with confirms, at either Leveret."""

    def __init__(self, fleet, ports):
        self.fleet, self.ports = fleet, ports
        self.confirmed = {}
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        number = turn = 0
        while not self.ending.is_set():
            try:
                with connected(self.ports[turn % len(self.ports)]) as channel:
                    channel.confirm_delivery()
                    while not self.ending.is_set():
                        body = b"amqp %d" % number
                        self.fleet.excuse(body)
                        key = self.fleet.topic(number).replace("/", ".")
                        channel.basic_publish(EXCHANGE, key, body, pika.BasicProperties(delivery_mode=2), mandatory=True)
                        # The fault may have begun meanwhile.
                        self.fleet.excuse(body)
                        self.confirmed[body] = number % len(self.fleet.clients)
                        number += 1
            except (pika.exceptions.AMQPError, OSError):
                # Republished through the other Leveret.
                turn += 1
                time.sleep(0.2)

    def stop(self):
        self.ending.set()
        self.thread.join(PATIENCE)


@contextlib.contextmanager
def connected(port):
    """A channel in the fleet's virtual host; a lost connection is not closed again."""
    parameters = pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{port}/{VHOST}")
    parameters.blocked_connection_timeout = PATIENCE
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection.channel()
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError, OSError):
            connection.close()


class Story:
    """The load, the faults, and the resulting accounts."""

    def __init__(self, directory):
        self.cluster = Cluster(directory / "nodes")
        with contextlib.ExitStack() as stack:
            stack.callback(self.cluster.stop)
            first = self.cluster.nodes[0]
            first.control("add_vhost", VHOST, "--default-queue-type", "quorum")
            first.control("set_permissions", "-p", VHOST, "guest", ".*", ".*", ".*")
            self.leverets = Leverets(directory, self.cluster.nodes)
            stack.callback(self.leverets.stop)
            with connected(first.port) as channel:
                channel.queue_declare(WITNESS, durable=True)
                channel.queue_bind(WITNESS, EXCHANGE, "fleet.#")
            self.fleet = Fleet(self.leverets.mqtt, SESSIONS)
            stack.callback(self.fleet.finish)
            self.sender = Sender(self.fleet, self.leverets.amqp)
            stack.callback(self.sender.stop)
            self.fleet.go_on()
            self.run()
            self.sender.stop()
            self.settle()

    def run(self):
        nodes, leverets = ([self.cluster.nodes[0]], [0]) if ROUNDS == 0 else (self.cluster.nodes, [0, 1])
        for _ in range(max(ROUNDS, 1)):
            for node in nodes:
                self.kill_node(node)
            for index in leverets:
                self.kill_leveret(index)

    def kill_node(self, node):
        with self.fleet.trouble("a node was killed"):
            node.end(signal.SIGKILL)
        # Two nodes of three are a majority.
        self.fleet.go_on()
        with self.fleet.trouble("a node came back"):
            node.start()
            wait_until(lambda: all(metric(server, "leveret_upstream_addresses_down") == 0 for server in self.leverets.servers))
        self.fleet.go_on()

    def kill_leveret(self, index):
        with self.fleet.trouble(KILLED):
            self.leverets.servers[index].kill()
        # All clients have moved to the other Leveret.
        self.fleet.go_on()
        self.leverets.restart(index)
        self.fleet.go_on()

    def settle(self):
        """Waits for all promised messages, and reads what the cluster has seen."""
        promised = self.fleet.acknowledged | self.sender.confirmed
        self.expected = collections.defaultdict(set)
        for body, number in promised.items():
            self.expected[number].add(body)
        self.fleet.wait_for(self.expected)
        self.seen = collections.Counter()
        with connected(self.leverets.amqp[0]) as channel:
            channel.confirm_delivery()
            channel.basic_publish(EXCHANGE, "fleet.end", END)
            for _, _, body in channel.consume(WITNESS, auto_ack=True, inactivity_timeout=PATIENCE):
                assert body is not None, "the end has not arrived"
                if body == END:
                    break
                self.seen[body] += 1
        came = {client.number: client.came.keys() for client in self.fleet.clients}
        self.missing = {number: bodies - came[number] for number, bodies in self.expected.items() if bodies - came[number]}
        self.orphans = self.unacknowledged_by_nobody() if self.missing else {}

    def unacknowledged_by_nobody(self):
        """For each queue, the messages that RabbitMQ considers delivered to closed channels (its issue 15473), once nobody
        is connected."""
        self.leverets.stop()
        node = self.cluster.nodes[0]
        wait_until(lambda: node.control("list_connections", "--no-table-headers", "pid").strip() == "")
        listed = node.control("list_queues", "--no-table-headers", "-p", VHOST, "name", "messages_unacknowledged").splitlines()
        return {name: int(count) for name, count in (line.split("\t") for line in listed)}


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    if release().name != "4":
        pytest.skip("RabbitMQ 3.10 has no virtual hosts whose queues are quorum queues by default")
    story = Story(tmp_path_factory.mktemp("story"))
    repeated = [body for body, count in story.seen.items() if count > 1 and body in story.fleet.acknowledged]
    again = collections.Counter((body[-4:].decode(), story.fleet.excused.get(body, "no trouble")) for body in repeated)
    print(f"acknowledged: {len(story.fleet.acknowledged)}, confirmed: {len(story.sender.confirmed)}, published again: {dict(again)}")
    print(f"missing: {story.missing}, with channels that are gone: { {name: count for name, count in story.orphans.items() if count} }")
    return story


def test_clients_get_no_wrong_answers_or_deliveries(story):
    assert story.fleet.faults == []


def test_every_acknowledged_message_has_reached_the_cluster(story):
    assert [body for body in story.fleet.acknowledged if not story.seen[body]] == []
    assert [body for body in story.sender.confirmed if not story.seen[body]] == []


def test_every_acknowledged_message_has_reached_its_session(story):
    # No client can receive messages that RabbitMQ holds for a closed channel.
    orphans = {number: story.orphans.get(f"mqtt-subscription-fleet-{number}qos1", 0) for number in story.missing}
    assert {number: bodies for number, bodies in story.missing.items() if len(bodies) > orphans[number]} == {}


def test_nothing_of_quality_2_was_published_twice_unless_it_was_under_way_while_a_server_was_lost(story):
    twice = [body for body, count in story.seen.items() if count > 1 and body.endswith(b"at 2")]
    assert [body for body in twice if body not in story.fleet.excused] == []


def test_redelivered_messages_of_a_session_have_the_dup_flag(story):
    # A republished message reaches a queue twice, or once if the queue had no leader the first time; the witness is
    # inconclusive then.
    certain = {body for body in story.seen if story.fleet.excused.get(body) in (None, KILLED)}
    came = [(body, count) for client in story.fleet.clients for body, count in client.came_new.items() if body in certain]
    assert len(certain) > len(story.fleet.clients)
    assert [(body, count) for body, count in came if count > story.seen[body]] == []
