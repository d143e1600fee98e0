"""Direct reply-to, copies by header, and properties that the server looks at."""

import pika
from pika.exceptions import UnroutableError

from session import Collector, connection_refused, drain, scenario
from retention import taken

REPLY_TO = "amq.rabbitmq.reply-to"


@scenario
def direct_reply_to(session):
    channel, server = session.channel(), session.connect().channel()
    queue = session.queue(channel)
    replies = Collector(channel, REPLY_TO, auto_ack=True)
    request(channel, queue)
    _, properties, _ = taken(server, queue, auto_ack=True)
    secret = properties.reply_to
    declared = server.queue_declare(secret, passive=True).method
    server.confirm_delivery()
    server.basic_publish("", secret, b"reply", pika.BasicProperties(correlation_id="1"))
    returned = False
    try:
        server.basic_publish("", secret, b"counts as unroutable", mandatory=True)
    except UnroutableError:
        returned = True
    replies.wait(2)
    method = replies.deliveries[0][0]
    observed = {
        "pattern": secret.startswith(REPLY_TO + "."),
        "found": [declared.message_count, declared.consumer_count, declared.queue == secret],
        "bodies": replies.bodies,
        "returned": returned,
        "exchange": method.exchange,
        "key_is_secret": method.routing_key == secret,
        "get": told(connection_refused(session.connect(), lambda other: other.basic_get(secret)), secret),
        "bind": told(connection_refused(session.connect(), lambda other: other.queue_bind(secret, "amq.direct", "key")), secret),
    }
    channel.basic_cancel(replies.tag)
    server.basic_publish("", secret, b"nobody there")
    observed["after_cancel"] = told(connection_refused(session.connect(), lambda other: other.queue_declare(secret, passive=True)), secret)
    return observed


@scenario
def direct_reply_to_refused(session):
    queue = session.queue(session.channel())

    def cancelled(channel):
        channel.basic_cancel(Collector(channel, REPLY_TO, auto_ack=True).tag)
        request(channel, queue)

    attempts = {
        "acknowledging": lambda channel: Collector(channel, REPLY_TO),
        "twice": lambda channel: [Collector(channel, REPLY_TO, auto_ack=True) for _ in range(2)],
        "without_consumer": lambda channel: request(channel, queue),
        "after_cancel": cancelled,
        "declare": lambda channel: channel.queue_declare(REPLY_TO),
        "declare_secret": lambda channel: channel.queue_declare(REPLY_TO + ".guessed", passive=True),
        "get": lambda channel: channel.basic_get(REPLY_TO),
    }
    return {short: connection_refused(session.connect(), action) for short, action in attempts.items()}


@scenario
def copies(session):
    channel = session.channel()
    queues = {short: session.queue(channel, short) for short in ["to", "cc", "bcc"]}
    headers = {"CC": [queues["cc"], queues["to"]], "BCC": [queues["bcc"]], "mine": "kept"}
    channel.basic_publish("", queues["to"], b"body", pika.BasicProperties(headers=headers))
    observed = {}
    for short, queue in queues.items():
        method, properties, body = taken(channel, queue, auto_ack=True)
        observed[short] = [body.decode(), method.routing_key, properties.headers]
    observed["left"] = [drain(channel, queue) for queue in queues.values()]
    no_array = pika.BasicProperties(headers={"CC": queues["cc"]})
    observed["no_array"] = session.refused(lambda other: other.basic_publish("", queues["to"], b"", no_array))
    return observed


@scenario
def judged_properties(session):
    queue = session.queue(session.channel())
    attempts = {
        "user_id": {"user_id": "somebody"},
        "own_user_id": {"user_id": "guest"},
        "expiration_of_words": {"expiration": "soon"},
        "expiration_empty": {"expiration": ""},
        "expiration_negative": {"expiration": "-1"},
        "expiration_with_unit": {"expiration": "5s"},
    }

    def attempt(properties):
        return session.refused(lambda other: other.basic_publish("", queue, b"", pika.BasicProperties(**properties)))

    return {short: attempt(properties) for short, properties in attempts.items()}


@scenario
def through_an_internal_exchange(session):
    channel = session.channel()
    queue, outer, inner = session.queue(channel), session.name("outer"), session.name("inner")
    channel.exchange_declare(outer, "fanout")
    channel.exchange_declare(inner, "fanout", internal=True)
    channel.exchange_bind(inner, outer)
    channel.queue_bind(queue, inner)
    channel.basic_publish(outer, "", b"through both")
    return {"received": [taken(channel, queue, auto_ack=True)[2].decode()]}


@scenario
def channel_flow(session):
    return {
        "active": session.channel().flow(True),
        "inactive": connection_refused(session.connect(), lambda channel: channel.flow(False)),
    }


@scenario
def update_secret(session):
    connection = session.connect()
    connection.update_secret("guest", "because it is time")
    return {"still_open": connection.channel().queue_declare("", exclusive=True).method.message_count == 0}


def request(channel, queue):
    channel.basic_publish("", queue, b"request", pika.BasicProperties(reply_to=REPLY_TO, correlation_id="1"))


def told(answer, secret):
    """An error whose text must not hold what is different in each run."""
    return {**answer, "text": answer["text"].replace(secret, "SECRET")}
