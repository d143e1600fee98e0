"""Policies and limits of queues, and their nodes and types over HTTP, as in RabbitMQ."""

import contextlib
import json

import pytest
from pika.exceptions import NackError

from harness.management import beside
from harness.mqtt_broker import channel_of
from harness.patience import PATIENCE
from harness.releases import RELEASES

KEYS = {
    "queue-version": 2, "max-in-memory-length": 4, "max-in-memory-bytes": 4, "queue-leader-locator": "balanced",
    "queue-master-locator": "random", "queue-mode": "lazy", "delivery-limit": 3, "dead-letter-strategy": "at-most-once",
    "target-group-size": 3, "consumer-timeout": 60000, "consumer-disconnected-timeout": 60000,
    "delayed-retry-min": 1, "delayed-retry-max": 2, "initial-cluster-size": 3, "max-age": "1h",
    "stream-max-segment-size-bytes": 1000000, "stream-filter-size-bytes": 20, "ha-mode": "all",
    "alternate-exchange": "x", "overflow": "drop-head", "expires": 600000,
}  # fmt: skip


MESSAGE = {"routing_key": "bound", "payload": "x", "payload_encoding": "string"}
# RabbitMQ fails with 500 for values of some other types.
DEFINITIONS = [
    {"ha-mode": "all"}, {"ha-mode": "odd"}, {"ha-mode": "all", "ha-params": 2},
    {"ha-mode": "exactly"}, {"ha-mode": "exactly", "ha-params": 2}, {"ha-mode": "exactly", "ha-params": 0},
    {"ha-mode": "nodes"}, {"ha-mode": "nodes", "ha-params": ["a"]}, {"ha-mode": "nodes", "ha-params": []}, {"ha-params": 2},
    {"ha-sync-mode": "automatic"}, *({"ha-mode": "all", "ha-sync-mode": mode} for mode in ("automatic", "manual", "odd")),
    {"ha-sync-batch-size": 5}, *({"ha-mode": "all", "ha-sync-batch-size": size} for size in (5, 0, "x")),
    {"ha-promote-on-failure": "always"}, {"ha-mode": "all", "ha-promote-on-failure": "odd"},
    {"ha-mode": "all", "ha-promote-on-shutdown": "when-synced"}, {"ha-mode": "all", "ha-promote-on-shutdown": "odd"},
    *({"target-group-size": size} for size in (3, 0, -1, "3", 1.5, None)),
    *({"delayed-retry-type": kind} for kind in ("all", "failed", "returned", "disabled", "odd", 5)),
    *({"delayed-retry-type": kind, "delayed-retry-min": 1} for kind in ("all", "failed", "returned", "disabled", "odd")),
    *({f"delayed-retry-{end}": delay} for end in ("min", "max") for delay in (1, 0, -1, "x")),
    {"delayed-retry-min": 2, "delayed-retry-max": 1}, {"delayed-retry-min": 2, "delayed-retry-max": 2},
    *({f"consumer-{key}": timeout} for key in ("timeout", "disconnected-timeout") for timeout in (0, -1, "x", None)),
    *({"queue-version": version} for version in (0, 1, 2, 3, "x")),
    *({f"max-in-memory-{key}": most} for key in ("length", "bytes") for most in (0, -1, "x")),
    *({"queue-leader-locator": locator} for locator in ("client-local", "balanced", "random", "least-leaders", "odd")),
    *({"queue-master-locator": locator} for locator in ("client-local", "min-masters", "random", "odd")),
    *({"initial-cluster-size": size} for size in (0, 1, "x")),
]  # fmt: skip


@pytest.fixture(scope="module", params=RELEASES)
def both(request, tmp_path_factory):
    with beside(tmp_path_factory, request.param) as sides:
        yield sides


def same(both, step):
    ours, theirs = (step(management) for management in both)
    assert ours == theirs
    return theirs


def publish(channel, queue, count):
    """Publishes messages; returns how many the queue confirms."""
    confirmed = 0
    for number in range(count):
        with contextlib.suppress(NackError):
            channel.basic_publish("", queue, str(number))
            confirmed += 1
    return confirmed


def declare(channel, queue, kind, **arguments):
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **arguments})


def bodies(channel, queue):
    """Takes all messages out of the queue."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0]:
        found.append(got[2].decode())
    return found


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("component", ["policies", "operator-policies"])
def test_a_policy_applies_to_the_same_queues(both, component, kind):
    def each_key(management):
        answers = {}
        with channel_of(management.server) as channel:
            for key, value in KEYS.items():
                queue = f"{component}-{kind}-{key}"
                policy = {"pattern": f"^{queue}$", "definition": {key: value, "max-length": 2}, "apply-to": "queues"}
                # Before its queue, to which it then applies at once.
                status = management.status("PUT", f"{component}/%2F/{queue}", policy)
                declare(channel, queue, kind)
                publish(channel, queue, 4)
                answers[key] = status, len(bodies(channel, queue))
                channel.queue_delete(queue)
                management.status("DELETE", f"{component}/%2F/{queue}")
        return answers

    assert {count for _, count in same(both, each_key).values()} == {2, 4}


@pytest.mark.parametrize("component", ["policies", "operator-policies"])
def test_the_values_of_keys_without_effect_are_checked_as_well(both, component):
    def put(management):
        body = {"pattern": "^nothing$", "apply-to": "queues"}
        name = f"{component}/%2F/checked"
        answers = {}
        for definition in DEFINITIONS:
            answers[json.dumps(definition)] = management.status("PUT", name, body | {"definition": definition})
            management.status("DELETE", name)
        return answers

    assert set(same(both, put).values()) == {201, 400}


def test_a_full_quorum_queue_with_reject_publish_dlx_drops_its_oldest_messages(both):
    def fill(management):
        with channel_of(management.server) as channel:
            channel.queue_declare("dead", durable=True)
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            declare(channel, "full", "quorum", **{"x-max-length": 2, "x-overflow": "reject-publish-dlx"}, **dead)
            confirmed = publish(channel, "full", 6)
            letters = [body for _, _, body in (next(channel.consume("dead", auto_ack=True)) for _ in range(4))]
            channel.cancel()
            left = bodies(channel, "full")
            for queue in ("full", "dead"):
                channel.queue_delete(queue)
        return confirmed, letters, left

    assert same(both, fill) == (6, [b"0", b"1", b"2", b"3"], ["4", "5"])


# In a quorum queue a message at the head can be fetched within the millisecond in which it arrived: no limit puts it there.
@pytest.mark.parametrize(
    "kind, letters, limit",
    [
        *(("classic", letters, limit) for letters in (False, True) for limit in ({}, {"max-length": 2})),
        *(("quorum", letters, {}) for letters in (False, True)),
    ],
)
def test_a_ttl_of_zero_set_later_applies_to_new_messages_behind_older_ones(both, kind, letters, limit):
    """A classic queue without a dead-letter exchange drops them on arrival; in other queues they expire at the head."""

    def fill(management):
        with channel_of(management.server) as channel:
            channel.queue_declare("dead", durable=True)
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"} if letters else {}
            declare(channel, "behind", kind, **dead)
            assert publish(channel, "behind", 2) == 2
            policy = {"pattern": "^behind$", "definition": {"message-ttl": 0, **limit}, "apply-to": "queues"}
            assert management.status("PUT", "policies/%2F/behind", policy) in (201, 204)
            for body in ("new", "newer"):
                channel.basic_publish("", "behind", body)
            waiting = None
            if kind == "classic":
                # RabbitMQ counts those of a quorum queue a little later.
                waiting = channel.queue_declare("behind", passive=True).method.message_count
            left = bodies(channel, "behind")
            found = [next(channel.consume("dead", auto_ack=True))[2].decode() for _ in range(2)] if letters else []
            channel.cancel()
            management.status("DELETE", "policies/%2F/behind")
            for queue in ("behind", "dead"):
                channel.queue_delete(queue)
        return waiting, left, found

    waiting, left, found = same(both, fill)
    if kind == "classic" and not letters:
        assert (waiting, left, found) == (2, ["0", "1"], [])


def test_a_ttl_of_zero_set_later_leaves_a_message_that_a_consumer_takes_at_once(both):
    def consume(management):
        with channel_of(management.server) as channel, channel_of(management.server) as consuming:
            declare(channel, "behind", "classic")
            consuming.basic_qos(prefetch_count=1)
            seen = []
            deliveries = consuming.consume("behind", inactivity_timeout=PATIENCE)

            def take():
                method, _, body = next(deliveries)
                assert method, "nothing was delivered"
                seen.append(body.decode())
                consuming.basic_ack(method.delivery_tag)

            # The first is with the consumer, the second waits.
            publish(channel, "behind", 2)
            policy = {"pattern": "^behind$", "definition": {"message-ttl": 0}, "apply-to": "queues"}
            assert management.status("PUT", "policies/%2F/behind", policy) in (201, 204)
            channel.basic_publish("", "behind", "new")
            take()
            take()
            # Nothing is unsettled, so the consumer has credit.
            consuming.queue_declare("behind", passive=True)
            channel.basic_publish("", "behind", "last")
            take()
            consuming.cancel()
            management.status("DELETE", "policies/%2F/behind")
            channel.queue_delete("behind")
        return seen

    assert same(both, consume) == ["0", "1", "last"]


@pytest.mark.parametrize("component", ["policies", "operator-policies"])
def test_a_negative_delivery_limit_of_a_queue_does_not_lift_a_policys(both, component):
    if not any(side.get("overview")["rabbitmq_version"].startswith("4") for side in both):
        pytest.skip("3.10 limits nothing by a negative number")

    def deliver(management):
        limit = {"pattern": "^limited$", "definition": {"delivery-limit": 3}, "apply-to": "queues"}
        assert management.status("PUT", f"{component}/%2F/limited", limit) in (201, 204)
        with channel_of(management.server) as channel:
            beyond = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "beyond"}
            declare(channel, "beyond", "classic")
            declare(channel, "limited", "quorum", **{"x-delivery-limit": -1}, **beyond)
            publish(channel, "limited", 1)
            deliveries = []

            def take(_, method, __, body):
                if method.consumer_tag == "limited" and len(deliveries) < 8:
                    deliveries.append(body)
                    channel.basic_reject(method.delivery_tag, requeue=True)
                else:
                    channel.stop_consuming()

            # It is delivered to either queue's consumer: without a limit, always to the first.
            for queue in ("limited", "beyond"):
                channel.basic_consume(queue, take, consumer_tag=queue)
            channel.start_consuming()
            for queue in ("limited", "beyond"):
                channel.queue_delete(queue)
        management.status("DELETE", f"{component}/%2F/limited")
        return len(deliveries)

    assert same(both, deliver) == 4


def test_a_node_that_is_not_there_gets_no_queue(both):
    def put(management):
        node = management.get("overview")["node"]
        answers = [
            management.status("PUT", "queues/%2F/placed", {"node": each})
            for each in ("nope", "nope@localhost", "", node, node.split("@")[0])
        ]
        management.status("DELETE", "queues/%2F/placed")
        return answers

    assert same(both, put) == [400, 400, 400, 201, 204]


def test_a_default_queue_type_may_have_its_older_name(both):
    def put(management):
        old, new = {"defaultqueuetype": "quorum"}, {"defaultqueuetype": "quorum", "default_queue_type": "classic"}
        answers = []
        for body in (old, new):
            assert management.status("PUT", "vhosts/typed", body) == 201
            assert management.status("PUT", "queues/typed/q", {"durable": True}) == 201
            answers.append(management.get("queues/typed/q")["type"])
            management.status("DELETE", "vhosts/typed")
        return answers

    found = [put(management) for management in both]
    is_4 = both[0].get("overview")["rabbitmq_version"].startswith("4")
    # Whatever 3.10 has by default, its own queues are classic.
    assert found[0] == (["quorum", "classic"] if is_4 else ["classic", "classic"])
    assert not is_4 or found[1] == found[0]


@pytest.mark.parametrize(
    "method, path, body",
    [
        ("PUT", "queues/%2F/null", {"arguments": None}),
        ("PUT", "exchanges/%2F/null", {"type": "topic", "arguments": None}),
        ("POST", "bindings/%2F/e/amq.topic/q/bound", {"routing_key": "a", "arguments": None}),
        ("POST", "exchanges/%2F/amq.default/publish", MESSAGE | {"properties": None}),
    ],
)
def test_null_is_no_object(both, method, path, body):
    ours, theirs = both
    for management in both:
        assert management.status("PUT", "queues/%2F/bound", {}) in (201, 204)
    # It fails there, which is no answer to imitate.
    assert (ours.status(method, path, body), theirs.status(method, path, body)) == (400, 500)
