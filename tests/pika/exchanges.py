"""Each exchange type routes by its own rule, and exchanges feed exchanges."""

import pika

from session import drain, publish, scenario, wait_until

TOPIC_PATTERNS = ["*.orange.*", "*.*.rabbit", "lazy.#", "#", "*", "#.orange.#", "a.#.b", "", "lazy"]
TOPIC_KEYS = [
    "quick.orange.rabbit",
    "lazy.orange.elephant",
    "lazy.brown.fox",
    "lazy",
    "orange",
    "a.b",
    "a.x.y.b",
    "quick.orange.male.rabbit",
    "",
]


@scenario
def default_exchange(session):
    channel = session.channel()
    queue = session.queue(channel)
    publish(channel, queue, "by name")
    publish(channel, session.name("missing"), "dropped in silence")
    return {"received": drain(channel, queue)}


@scenario
def predeclared_exchanges(session):
    channel = session.channel()
    queue = session.queue(channel)
    names = ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"]
    for exchange in names:
        channel.queue_bind(queue, exchange, queue, arguments={"run": queue})
        send(channel, exchange, queue, exchange, {"run": queue})
    return {"received": drain(channel, queue)}


@scenario
def direct_exchange(session):
    channel = session.channel()
    exchange, queue = declare(session, channel, "direct"), session.queue(channel)
    for key in ["red", "green"]:
        channel.queue_bind(queue, exchange, key)
    for key in ["red", "blue", "green", "red.green"]:
        send(channel, exchange, key, key)
    channel.queue_unbind(queue, exchange, "red")
    for key in ["red", "green"]:
        send(channel, exchange, key, key + " after unbind")
    return {"received": drain(channel, queue)}


@scenario
def fanout_exchange(session):
    channel = session.channel()
    exchange = declare(session, channel, "fanout")
    first, second = session.queue(channel, "first"), session.queue(channel, "second")
    channel.queue_bind(first, exchange, "one")
    channel.queue_bind(first, exchange, "another")
    channel.queue_bind(second, exchange, "")
    for body in ["1", "2"]:
        send(channel, exchange, "any", body)
    return {"first": drain(channel, first), "second": drain(channel, second)}


@scenario
def topic_exchange(session):
    channel = session.channel()
    exchange = declare(session, channel, "topic")
    queues = {}
    for number, pattern in enumerate(TOPIC_PATTERNS):
        queues[pattern] = session.queue(channel, f"q{number}")
        channel.queue_bind(queues[pattern], exchange, pattern)
    for key in TOPIC_KEYS:
        send(channel, exchange, key, key)
    return {pattern: drain(channel, queue) for pattern, queue in queues.items()}


@scenario
def headers_exchange(session):
    channel = session.channel()
    exchange = declare(session, channel, "headers")
    bindings = {
        "all": {"x-match": "all", "colour": "red", "size": 1},
        "any": {"x-match": "any", "colour": "red", "size": 1},
        "unsaid": {"colour": "red", "size": 1},
        "present": {"x-match": "all", "colour": None},
    }
    queues = {short: session.queue(channel, short) for short in bindings}
    for short, arguments in bindings.items():
        channel.queue_bind(queues[short], exchange, "", arguments=arguments)
    messages = {
        "both": {"colour": "red", "size": 1, "more": "x"},
        "colour": {"colour": "red", "size": 2},
        "other": {"colour": "blue"},
        "none": {},
    }
    for body, headers in messages.items():
        send(channel, exchange, "", body, headers)
    return {short: drain(channel, queue) for short, queue in queues.items()}


@scenario
def exchange_to_exchange(session):
    channel = session.channel()
    source = declare(session, channel, "topic", "source")
    middle = declare(session, channel, "fanout", "middle")
    queue = session.queue(channel)
    channel.queue_bind(queue, middle, "")
    channel.exchange_bind(middle, source, "to.#")
    send(channel, source, "to.you", "bound")
    send(channel, source, "elsewhere", "not matched")
    channel.exchange_unbind(middle, source, "to.#")
    send(channel, source, "to.you", "unbound")
    return {"received": drain(channel, queue)}


@scenario
def alternate_exchange(session):
    channel = session.channel()
    alternate = declare(session, channel, "fanout", "alternate")
    main = declare(session, channel, "direct", "main", arguments={"alternate-exchange": alternate})
    known, unknown = session.queue(channel, "known"), session.queue(channel, "unknown")
    channel.queue_bind(known, main, "known")
    channel.queue_bind(unknown, alternate, "")
    returned = []
    channel.add_on_return_callback(lambda *message: returned.append(message[3].decode()))
    for key in ["known", "unknown"]:
        channel.basic_publish(main, key, key.encode(), mandatory=True)
    # A message that is returned for certain, so that no other return can still be on its way.
    channel.basic_publish("", session.name("missing"), b"nowhere", mandatory=True)
    wait_until(session.connection, lambda: returned)
    return {"known": drain(channel, known), "unknown": drain(channel, unknown), "returned": returned}


def declare(session, channel, kind, short="e", **options):
    channel.exchange_declare(session.name(short), kind, **options)
    return session.name(short)


def send(channel, exchange, key, body, headers=None):
    channel.basic_publish(exchange, key, body.encode(), pika.BasicProperties(headers=headers))
