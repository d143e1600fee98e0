"""What queues keep, for how long, in which order, and where the rest goes: TTL, lengths, priorities, dead letters."""

import time

import pika
from pika.exceptions import NackError

from session import WAIT_SECONDS, Collector, drain, publish, ready, scenario, store, wait_until

TO_DEFAULT_EXCHANGE = {"x-dead-letter-exchange": ""}
# Looks in a row, ten milliseconds apart: a message that went round and round would be seen in some of them.
LOOKS = 20


@scenario
def message_ttl(session):
    channel = session.channel()
    zero = session.queue(channel, "zero", arguments={"x-message-ttl": 0})
    short = session.queue(channel, "short", arguments={"x-message-ttl": 50})
    long = session.queue(channel, "long", arguments={"x-message-ttl": 600_000})
    plain = session.queue(channel, "plain")
    store(session, zero, "nobody waits")
    store(session, short, "not for long")
    for queue in [plain, long]:
        expiring(channel, queue, "not for long", "50")
    gone = [emptied(channel, queue) for queue in [zero, short, long, plain]]
    collector = Collector(channel, zero, auto_ack=True)
    publish(channel, zero, "somebody waits")
    collector.wait(1)
    return {"gone": gone, "to_consumer": collector.bodies}


@scenario
def queue_expires(session):
    queue = session.queue(session.channel(), arguments={"x-expires": 100})
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        # Asking renews the lease, so leave it the time to end.
        time.sleep(0.4)
        answer = session.refused(lambda channel: ready(channel, queue))
        if answer != "accepted" or time.monotonic() > deadline:
            return answer


@scenario
def max_length_drops_the_head(session):
    channel = session.channel()
    few = session.queue(channel, "few", arguments={"x-max-length": 2})
    small = session.queue(channel, "small", arguments={"x-max-length-bytes": 5})
    outcomes = [confirmed(session, few, "1", "2", "3", "4"), confirmed(session, small, "aa", "bb", "cc", "123456")]
    return {"outcomes": outcomes, "few": drain(channel, few), "small": drain(channel, small)}


@scenario
def max_length_rejects(session):
    channel = session.channel()
    dead = session.queue(channel, "dead")
    limits = {"x-max-length": 2, **TO_DEFAULT_EXCHANGE, "x-dead-letter-routing-key": dead}
    silent = session.queue(channel, "silent", arguments={**limits, "x-overflow": "reject-publish"})
    telling = session.queue(channel, "telling", arguments={**limits, "x-overflow": "reject-publish-dlx"})
    outcomes = [confirmed(session, queue, "1", "2", "3", "4") for queue in [silent, telling]]
    letters = [letter(channel, dead), letter(channel, dead)]
    return {"outcomes": outcomes, "silent": drain(channel, silent), "telling": drain(channel, telling), "letters": letters}


@scenario
def dead_letters(session):
    channel = session.channel()
    exchange, dead = session.name("e"), session.queue(channel, "dead")
    channel.exchange_declare(exchange, "fanout")
    channel.queue_bind(dead, exchange, "")
    target = {"x-dead-letter-exchange": exchange}
    observed = {}
    queue = session.queue(channel, "rejected", arguments=target)
    publish(channel, queue, "body")
    reject(channel, queue)
    observed["rejected"] = letter(channel, dead)
    expiring(channel, session.queue(channel, "expired", arguments=target), "body", "20")
    observed["expired"] = letter(channel, dead)
    queue = session.queue(channel, "maxlen", arguments={**target, "x-max-length": 1, "x-dead-letter-routing-key": "new"})
    publish(channel, queue, "body", "other")
    observed["maxlen"] = letter(channel, dead)
    return observed


@scenario
def dead_letters_and_copies(session):
    channel = session.channel()
    dead, copied = session.queue(channel, "dead"), session.queue(channel, "copied")
    renamed = {**TO_DEFAULT_EXCHANGE, "x-dead-letter-routing-key": dead}
    observed = {}
    for short, arguments in [("renamed", renamed), ("kept", TO_DEFAULT_EXCHANGE)]:
        queue = session.queue(channel, short, arguments=arguments)
        properties = pika.BasicProperties(headers={"CC": [copied], "mine": "kept"})
        channel.basic_publish("", queue, b"body", properties)
        # The copy made by publishing is taken out first.
        before = letter(channel, copied)
        reject(channel, queue)
        observed[short] = [before, letter(channel, dead if short == "renamed" else copied)]
    return observed


@scenario
def dead_letter_cycles(session):
    channel = session.channel()
    names = [session.name("one"), session.name("two")]
    for name, other in [names, names[::-1]]:
        arguments = {**TO_DEFAULT_EXCHANGE, "x-dead-letter-routing-key": other, "x-message-ttl": 50}
        channel.queue_declare(name, arguments=arguments)
    store(session, names[0], "goes round once")
    dropped = stay_empty(channel, names)
    queue = session.queue(channel, "self", arguments=TO_DEFAULT_EXCHANGE)
    publish(channel, queue, "rejected over and over")
    for _ in range(3):
        reject(channel, queue)
    return {"dropped": dropped, "rejected": letter(channel, queue)}


@scenario
def priorities(session):
    channel = session.channel()
    queue = session.queue(channel, arguments={"x-max-priority": 5})
    for priority in [1, 5, None, 3, 0, 9, 1]:
        channel.basic_publish("", queue, str(priority or 0).encode(), pika.BasicProperties(priority=priority))
    # Taken on the channel that has published, so that nothing is still on its way.
    publish(channel, queue, "last")
    return {"order": drain(channel, queue)}


@scenario
def single_active_consumer(session):
    channel = session.channel()
    queue = session.queue(channel, arguments={"x-single-active-consumer": True})
    first = Collector(channel, queue, auto_ack=True)
    second = Collector(channel, queue, auto_ack=True)
    publish(channel, queue, "1", "2", "3")
    first.wait(3)
    channel.basic_cancel(first.tag)
    publish(channel, queue, "4")
    second.wait(1)
    return {"first": first.bodies, "second": second.bodies}


@scenario
def quorum_queue(session):
    channel = session.channel()
    dead = session.queue(channel, "dead")
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 1, **TO_DEFAULT_EXCHANGE, "x-dead-letter-routing-key": dead}
    queue = session.queue(channel, durable=True, arguments=arguments)
    store(session, queue, "body")
    seen = []
    for _ in range(2):
        # What counts as a failure for every release is a channel that goes.
        taker = session.channel()
        method, properties, _ = taken(taker, queue)
        seen.append([method.redelivered, (properties.headers or {}).get("x-delivery-count")])
        taker.close()
    observed = {"seen": seen, "letter": letter(channel, dead)}
    channel.queue_delete(queue)
    transient = {"x-queue-type": "quorum"}
    observed["transient"] = session.refused(lambda other: session.queue(other, "transient", arguments=transient))
    return observed


def confirmed(session, queue, *bodies):
    """Publishes one after the other; what became of each."""
    channel = session.channel()
    channel.confirm_delivery()
    outcomes = []
    for body in bodies:
        try:
            publish(channel, queue, body)
            outcomes.append("ack")
        except NackError:
            outcomes.append("nack")
    channel.close()
    return outcomes


def expiring(channel, queue, body, expiration):
    channel.basic_publish("", queue, body.encode(), pika.BasicProperties(expiration=expiration))


def reject(channel, queue):
    method, _, _ = taken(channel, queue)
    channel.basic_reject(method.delivery_tag, requeue=False)


def taken(channel, queue, auto_ack=False):
    """Waits for a message, which may have been sent on its way by something that has no answer."""
    got = []

    def arrived():
        got[:] = channel.basic_get(queue, auto_ack=auto_ack)
        return got[0] is not None

    wait_until(channel.connection, arrived, pause=0.01)
    return got


def emptied(channel, queue):
    """Waits until nothing is in `queue`; how much is left."""
    wait_until(channel.connection, lambda: ready(channel, queue) == 0, pause=0.01)
    return ready(channel, queue)


def stay_empty(channel, queues):
    """Waits until several looks in a row find nothing in any of `queues`; how much is left in each."""
    looks = []
    wait_until(channel.connection, lambda: looks.append([ready(channel, queue) for queue in queues]) or stays_empty(looks), pause=0.01)
    return looks[-1]


def stays_empty(looks):
    return len(looks) >= LOOKS and not any(map(any, looks[-LOOKS:]))


def letter(channel, queue):
    """A message as dead-lettering has left it, without the times of death."""
    method, properties, body = taken(channel, queue, auto_ack=True)
    headers = dict(properties.headers or {})
    for death in headers.get("x-death", []):
        assert death.pop("time")
    return {
        "body": body.decode(),
        "exchange": method.exchange,
        "routing_key": method.routing_key,
        "expiration": properties.expiration,
        "headers": headers,
    }


@scenario
def requeue_into_a_full_queue(session):
    channel = session.channel()
    queue = session.queue(channel, arguments={"x-max-length": 2})
    publish(channel, queue, "1", "2")
    tag = channel.basic_get(queue)[0].delivery_tag
    store(session, queue, "3")
    # What is unacknowledged does not count.
    counted = ready(channel, queue)
    channel.basic_nack(tag)
    return {"counted": counted, "left": drain(channel, queue)}
