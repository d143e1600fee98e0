"""Queues and exchanges from declaration to deletion."""

from session import Collector, drain, publish, ready, scenario, store


@scenario
def server_named_queue(session):
    channel = session.channel()
    name = channel.queue_declare("", exclusive=True).method.queue
    # The empty name now means that queue, and an empty key its name.
    channel.queue_bind("", "amq.direct", "")
    channel.basic_publish("amq.direct", name, b"bound")
    received = drain(channel, "")
    publish(channel, name, "1", "2")
    purged = channel.queue_purge("").method.message_count
    publish(channel, name, "3")
    deleted = channel.queue_delete("").method.message_count
    return {
        "name": name,
        "received": received,
        "purged": purged,
        "deleted": deleted,
        "on_another_channel": session.refused(lambda other: other.queue_purge("")),
    }


@scenario
def exclusive_queue(session):
    owner = session.connect()
    queue = session.queue(owner.channel(), exclusive=True)
    stranger = session.connect()
    session.connections.insert(0, session.connections.pop())  # the stranger's connection is the main one from here on
    attempts = {
        "declare": lambda channel: channel.queue_declare(queue, exclusive=True),
        "passive": lambda channel: channel.queue_declare(queue, passive=True),
        "bind": lambda channel: channel.queue_bind(queue, "amq.direct", "any"),
        "get": lambda channel: channel.basic_get(queue),
        "consume": lambda channel: Collector(channel, queue),
        "purge": lambda channel: channel.queue_purge(queue),
        "delete": lambda channel: channel.queue_delete(queue),
    }
    answers = {short: session.refused(action) for short, action in attempts.items()}
    store(session, queue, "publishing is open to all")
    answers["received"] = drain(owner.channel(), queue)
    owner.close()
    answers["after_close"] = session.refused_otherwise(attempts["passive"], answers["passive"])
    again = stranger.channel().queue_declare(queue, exclusive=True).method
    answers["redeclared"] = again.queue == queue
    return answers


@scenario
def auto_delete_queue(session):
    channel = session.channel()
    queue = session.queue(channel, auto_delete=True)
    channel.basic_get(queue)
    after_get = ready(channel, queue)
    collectors = [Collector(channel, queue) for _ in range(2)]
    channel.basic_cancel(collectors[0].tag)
    after_first = ready(channel, queue)
    channel.basic_cancel(collectors[1].tag)
    return {
        "after_get": after_get,
        "after_first_cancel": after_first,
        "after_last_cancel": session.refused(lambda other: ready(other, queue)),
    }


@scenario
def auto_delete_exchange(session):
    channel = session.channel()
    exchange, queue = session.name("e"), session.queue(channel)
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    for key in ["one", "two"]:
        channel.queue_bind(queue, exchange, key)
    channel.queue_unbind(queue, exchange, "one")
    after_first = session.refused(lambda other: other.exchange_declare(exchange, passive=True))
    channel.queue_unbind(queue, exchange, "two")
    after_last = session.refused(lambda other: other.exchange_declare(exchange, passive=True))
    return {"after_first_unbind": after_first, "after_last_unbind": after_last}


@scenario
def passive_declare(session):
    channel = session.channel()
    queue = session.queue(channel)
    store(session, queue, "1", "2")
    consumer = session.channel()
    consumer.basic_qos(prefetch_count=1)
    Collector(consumer, queue).wait(1)
    state = channel.queue_declare(queue, passive=True).method
    missing = session.name("missing")
    return {
        "messages": state.message_count,
        "consumers": state.consumer_count,
        # A passive declaration compares nothing but the name.
        "other_flags": session.refused(lambda other: other.queue_declare(queue, passive=True, durable=True)),
        "queue": session.refused(lambda other: other.queue_declare(missing, passive=True)),
        "exchange": session.refused(lambda other: other.exchange_declare(missing, passive=True)),
    }


@scenario
def purge_and_delete_counts(session):
    channel = session.channel()
    queue = session.queue(channel)
    publish(channel, queue, "1", "2", "3")
    purged = channel.queue_purge(queue).method.message_count
    publish(channel, queue, "4", "5")
    deleted = channel.queue_delete(queue).method.message_count
    missing = channel.queue_delete(queue).method.message_count
    return {"purged": purged, "deleted": deleted, "missing": missing}


@scenario
def if_unused_if_empty(session):
    channel = session.channel()
    queue, exchange = session.queue(channel), session.name("e")
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(queue, exchange, "key")
    in_use = session.refused(lambda other: other.exchange_delete(exchange, if_unused=True))
    store(session, queue, "1")
    not_empty = session.refused(lambda other: other.queue_delete(queue, if_empty=True))
    collector = Collector(channel, queue, auto_ack=True)
    collector.wait(1)
    queue_in_use = session.refused(lambda other: other.queue_delete(queue, if_unused=True))
    channel.basic_cancel(collector.tag)
    channel.queue_delete(queue, if_unused=True, if_empty=True)
    channel.exchange_delete(exchange, if_unused=True)
    return {
        "exchange_in_use": in_use,
        "queue_not_empty": not_empty,
        "queue_in_use": queue_in_use,
        "queue_gone": session.refused(lambda other: ready(other, queue)),
        "exchange_gone": session.refused(lambda other: other.exchange_declare(exchange, passive=True)),
    }
