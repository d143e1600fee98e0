"""What a server refuses, with which code and words, and that only the channel pays for it."""

from session import Collector, connection_refused, publish, scenario


@scenario
def redeclare(session):
    channel = session.channel()
    queue, exchange = session.queue(channel), session.name("e")
    channel.exchange_declare(exchange, "direct")
    attempts = {
        "same": lambda channel: channel.queue_declare(queue),
        "durable": lambda channel: channel.queue_declare(queue, durable=True),
        "auto_delete": lambda channel: channel.queue_declare(queue, auto_delete=True),
        "exclusive": lambda channel: channel.queue_declare(queue, exclusive=True),
        "exchange_same": lambda channel: channel.exchange_declare(exchange, "direct"),
        "exchange_type": lambda channel: channel.exchange_declare(exchange, "fanout"),
        "exchange_durable": lambda channel: channel.exchange_declare(exchange, "direct", durable=True),
        "exchange_auto_delete": lambda channel: channel.exchange_declare(exchange, "direct", auto_delete=True),
        "exchange_internal": lambda channel: channel.exchange_declare(exchange, "direct", internal=True),
    }
    return {short: session.refused(action) for short, action in attempts.items()}


@scenario
def redeclare_with_arguments(session):
    channel = session.channel()
    plain, limited = session.queue(channel, "plain"), session.queue(channel, "limited", arguments=ttl(60000))
    attempts = {
        "same": lambda channel: channel.queue_declare(limited, arguments=ttl(60000)),
        "added": lambda channel: channel.queue_declare(plain, arguments=ttl(60000)),
        "missing": lambda channel: channel.queue_declare(limited),
        "different": lambda channel: channel.queue_declare(limited, arguments=ttl(50000)),
        "unknown": lambda channel: channel.queue_declare(plain, arguments={"x-of-no-meaning": "any"}),
    }
    return {short: session.refused(action) for short, action in attempts.items()}


@scenario
def missing_queues_and_exchanges(session):
    queue, missing = session.queue(session.channel()), session.name("missing")
    attempts = {
        "get": lambda channel: channel.basic_get(missing),
        "consume": lambda channel: Collector(channel, missing),
        "purge": lambda channel: channel.queue_purge(missing),
        "bind_missing_queue": lambda channel: channel.queue_bind(missing, "amq.direct", "key"),
        "bind_missing_exchange": lambda channel: channel.queue_bind(queue, missing, "key"),
        "bind_missing_source": lambda channel: channel.exchange_bind("amq.fanout", missing, "key"),
        "bind_missing_destination": lambda channel: channel.exchange_bind(missing, "amq.fanout", "key"),
        "publish": lambda channel: channel.basic_publish(missing, "key", b""),
        "delete_queue": lambda channel: channel.queue_delete(missing),
        "delete_exchange": lambda channel: channel.exchange_delete(missing),
        "unbind": lambda channel: channel.queue_unbind(missing, missing, "key"),
        "no_last_queue": lambda channel: channel.queue_purge(""),
    }
    return {short: session.refused(action) for short, action in attempts.items()}


@scenario
def reserved_names(session):
    attempts = {
        "queue": lambda channel: channel.queue_declare("amq.mine"),
        "exchange": lambda channel: channel.exchange_declare("amq.mine", "direct"),
        "passive": lambda channel: channel.queue_declare("amq.mine", passive=True),
        "delete": lambda channel: channel.exchange_delete("amq.direct"),
        "redeclare": lambda channel: channel.exchange_declare("amq.direct", "direct", durable=True),
        "redeclare_otherwise": lambda channel: channel.exchange_declare("amq.direct", "fanout", durable=True),
    }
    return {short: session.refused(action) for short, action in attempts.items()}


@scenario
def default_exchange_is_fixed(session):
    queue = session.queue(session.channel())
    attempts = {
        "declare": lambda channel: channel.exchange_declare("", "direct", durable=True),
        "passive": lambda channel: channel.exchange_declare("", passive=True),
        "delete": lambda channel: channel.exchange_delete(""),
        "bind": lambda channel: channel.queue_bind(queue, "", "key"),
        "unbind": lambda channel: channel.queue_unbind(queue, "", "key"),
        "source": lambda channel: channel.exchange_bind("amq.fanout", "", "key"),
        "destination": lambda channel: channel.exchange_bind("", "amq.fanout", "key"),
    }
    return {short: session.refused(action) for short, action in attempts.items()}


@scenario
def internal_exchange(session):
    exchange = session.name("e")
    session.channel().exchange_declare(exchange, "fanout", internal=True)
    return {"publish": session.refused(lambda channel: channel.basic_publish(exchange, "", b""))}


@scenario
def unknown_exchange_type(session):
    exchange = session.name("e")
    return connection_refused(session.connect(), lambda channel: channel.exchange_declare(exchange, "no-such-type"))


@scenario
def pipelined_after_an_error(session):
    queue = session.queue(session.channel())

    def action(channel):
        channel.basic_publish(session.name("missing"), "key", b"closes the channel")
        publish(channel, queue, "discarded")

    refused = session.refused(action)
    other = session.channel()
    return {"refused": refused, "stored": other.queue_declare(queue, passive=True).method.message_count}


def ttl(milliseconds):
    return {"x-message-ttl": milliseconds}
