"""A RabbitMQ 4 that denies all deprecated features, with quorum queues as the default type: clients of the pool get its
errors, no other client's connection is closed, and P4 and P7 still hold."""

import contextlib
import uuid

import pika
import pytest
from harness.amqp import connect
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE
from harness.rabbitmq import RabbitMq
from harness.releases import missing

pytestmark = pytest.mark.skipif(bool(missing("4")), reason=str(missing("4")))
FEATURES = [
    "transient_nonexcl_queues",
    "global_qos",
    "classic_queue_mirroring",
    "queue_master_locator",
    "ram_node_type",
    "management_metrics_collection",
]
RECOVERED = "leveret_upstream_recovered_channels_total"
REFUSED = (pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    settings = [f"deprecated_features.permit.{name} = false" for name in FEATURES]
    settings += ["default_queue_type = quorum", "max_message_size = 100000"]
    broker = RabbitMq(tmp_path_factory.mktemp("denied") / "rabbitmq", *settings, version="4")
    try:
        broker.control("enable_feature_flag", "all")
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def pool(tmp_path, upstream):
    with leveret(tmp_path, "--upstream", f"amqp://127.0.0.1:{upstream.port}") as server:
        yield server
        server.stop()


def without_heartbeats(server):
    """A connection without heartbeats: while a server starts, nobody reads from this client's socket."""
    return connect(server, heartbeat=0)


def outcome(server, ask):
    """A server's error, or its answer."""
    connection = without_heartbeats(server)
    try:
        answer = ask(connection.channel())
    except REFUSED as refused:
        answer = type(refused), refused.reply_code, refused.reply_text
    if connection.is_open:
        connection.close()
    return answer


def consume_with_global_qos(channel):
    channel.basic_qos(prefetch_count=3, global_qos=True)
    return channel.basic_consume("asked", lambda *_: None, consumer_tag="tag")


def declare(channel, queue, arguments=None, **options):
    return channel.queue_declare(queue, arguments=arguments, **options).method.queue


ASKED = {
    "transient": lambda channel: declare(channel, "transient"),
    "transient auto-delete": lambda channel: declare(channel, "transient", auto_delete=True),
    "transient again": lambda channel: declare(channel, "transient"),
    "master locator": lambda channel: declare(channel, "l", {"x-queue-master-locator": "min-masters"}, durable=True),
    "global qos": consume_with_global_qos,
    "too large": lambda channel: (channel.confirm_delivery(), channel.basic_publish("", "asked", b"x" * 100_001)),
    # RabbitMQ deletes it some time after its connection is closed, so each run uses another name.
    "exclusive": lambda channel: bool(declare(channel, f"exclusive {uuid.uuid4()}", exclusive=True)),
    "server-named exclusive": lambda channel: declare(channel, "", exclusive=True).startswith("amq.gen-"),
    "default type": lambda channel: declare(channel, "asked", durable=True),
    "the other type": lambda channel: declare(channel, "asked", {"x-queue-type": "classic"}, durable=True),
    "durable auto-delete": lambda channel: declare(channel, "auto", durable=True, auto_delete=True),
    "not implemented": lambda channel: channel.queue_delete("asked", if_empty=True),
}


def test_p2_every_refusal_reads_as_the_brokers_and_ends_one_client_alone(upstream, pool):
    with contextlib.closing(without_heartbeats(upstream)) as connection:
        declare(connection.channel(), "asked", durable=True)
        declare(connection.channel(), "beside", durable=True)
    with contextlib.closing(without_heartbeats(pool)) as neighbour:
        consumed, channel = neighbour.channel(), neighbour.channel()
        channel.confirm_delivery()
        seen = []
        consumed.basic_consume("beside", lambda at, method, _, body: (seen.append(int(body)), at.basic_ack(method.delivery_tag)))
        lost = None
        for number, (name, ask) in enumerate(ASKED.items()):
            theirs = outcome(upstream, ask)
            assert outcome(pool, ask) == theirs, name
            channel.basic_publish("", "beside", str(number))
            if lost is None:
                # The first refusal teaches the pool that such requests close a connection. Its consumer was recovered.
                wait_until(lambda: neighbour.process_data_events(time_limit=1) or seen)
                lost = metric(pool, RECOVERED)
        wait_until(lambda: neighbour.process_data_events(time_limit=1) or len(seen) >= len(ASKED))
        assert seen == list(range(len(ASKED)))
        assert metric(pool, RECOVERED) == lost, "a shared connection ended"


def test_p4_queues_of_one_client_are_its_own_where_quorum_is_the_default(upstream, pool):
    with contextlib.closing(without_heartbeats(pool)) as owner, contextlib.closing(without_heartbeats(pool)) as other:
        channel = owner.channel()
        names = [declare(channel, "", exclusive=True), declare(channel, "mine", exclusive=True)]
        channel.confirm_delivery()
        for name in names:
            channel.basic_publish("", name, name.encode(), mandatory=True)
            assert channel.basic_get(name, auto_ack=True)[2] == name.encode()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
                other.channel().basic_get(name)
            assert refused.value.reply_code == 405
    with contextlib.closing(without_heartbeats(upstream)) as connection:
        # RabbitMQ 4 answers the close before it deletes the queue, which is still exclusive (405) meanwhile.
        for name in names:
            wait_until(lambda name=name: why_not_there(connection, name) == 404)


def why_not_there(connection, queue):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        connection.channel().queue_declare(queue, passive=True)
    return refused.value.reply_code


def test_p7_transient_objects_and_consumers_are_restored_after_a_restart(upstream, pool):
    with contextlib.closing(without_heartbeats(pool)) as client:
        channel = client.channel()
        channel.exchange_declare("transient-exchange", "fanout", auto_delete=True)
        # A quorum queue cannot be auto-delete: RabbitMQ declares a classic one, or refuses.
        channel.queue_declare("kept", durable=True)
        channel.queue_bind("kept", "transient-exchange")
        seen = []
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume("kept", lambda channel, method, _, body: (seen.append(body), channel.basic_ack(method.delivery_tag)))
        channel.confirm_delivery()
        channel.basic_publish("transient-exchange", "", b"before", mandatory=True)
        upstream.end()
        upstream.start()
        channel.basic_publish("transient-exchange", "", b"after", mandatory=True)
        wait_until(lambda: client.process_data_events(time_limit=1) or b"after" in seen, PATIENCE)
