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


@scenario
def headers_matching(session):
    channel = session.channel()
    exchange = declare(session, channel, "headers")
    bindings = {
        "present": {"x-match": "any", "colour": None},
        "all": {"x-match": "all", "colour": "red", "x-size": 1},
        "all-with-x": {"x-match": "all-with-x", "colour": "red", "x-size": 1},
        "any": {"x-match": "any", "colour": "red", "x-size": 1},
        "any-with-x": {"x-match": "any-with-x", "colour": "red", "x-size": 1},
        "nothing to match all": {"x-match": "all"},
        "nothing to match any": {"x-match": "any", "x-size": 1},
    }
    queues = {}
    for number, (short, arguments) in enumerate(bindings.items()):
        queues[short] = session.queue(channel, f"q{number}")
        channel.queue_bind(queues[short], exchange, "", arguments=arguments)
    messages = {
        "red": {"colour": "red"},
        "red of size 1": {"colour": "red", "x-size": 1},
        "size 1": {"x-size": 1},
        "blue": {"colour": "blue"},
        "void": {"colour": None},
        "none": {},
    }
    for body, headers in messages.items():
        send(channel, exchange, "", body, headers)

    def bind(match):
        return lambda other: other.queue_bind(queues["any"], exchange, "", arguments={"x-match": match, "colour": "red"})

    received = {short: drain(channel, queue) for short, queue in queues.items()}
    return {**received, "wrong": session.refused(bind("some")), "of a wrong type": session.refused(bind(5))}


@scenario
def consistent_hash_exchange(session):
    channel = session.channel()
    exchange = declare(session, channel, "x-consistent-hash")
    light, heavy = session.queue(channel, "light"), session.queue(channel, "heavy")
    channel.queue_bind(light, exchange, "1")
    channel.queue_bind(heavy, exchange, "3")
    keys = [f"key {number}" for number in range(400)]

    def placed():
        for key in keys:
            send(channel, exchange, key, key)
        return drain(channel, light), drain(channel, heavy)

    first, again = placed(), placed()
    channel.queue_unbind(light, exchange, "1")
    attempts = {
        "weight": lambda other: other.queue_bind(light, exchange, "heavy"),
        "negative": lambda other: other.queue_bind(light, exchange, "-1"),
        "type": lambda other: other.exchange_declare(exchange, "direct"),
        "two_ways": lambda other: other.exchange_declare(
            session.name("two"), "x-consistent-hash", arguments={"hash-header": "h", "hash-property": "message_id"}
        ),
        "property": lambda other: other.exchange_declare(
            session.name("odd"), "x-consistent-hash", arguments={"hash-property": "odd"}
        ),
    }
    return {
        "each_once": sorted(first[0] + first[1]) == sorted(keys),
        "same_key_same_queue": first == again,
        "three_times_as_many": 2 < len(first[1]) / len(first[0]) < 4.5,
        "after_unbind": [len(bodies) for bodies in placed()],
        **{short: session.refused(action) for short, action in attempts.items()},
    }


@scenario
def consistent_hash_of_headers_and_properties(session):
    channel = session.channel()
    observed = {}
    for short, arguments in {"header": {"hash-header": "who"}, "property": {"hash-property": "message_id"}}.items():
        exchange = declare(session, channel, "x-consistent-hash", short, arguments=arguments)
        queues = [session.queue(channel, f"{short}{number}") for number in range(2)]
        for queue in queues:
            channel.queue_bind(queue, exchange, "1")
        for number in range(200):
            properties = pika.BasicProperties(headers={"who": str(number % 20)}, message_id=str(number % 20))
            channel.basic_publish(exchange, str(number), str(number % 20).encode(), properties)
        bodies = [drain(channel, queue) for queue in queues]
        observed[short] = {
            "all": sum(len(each) for each in bodies),
            "together": not set(bodies[0]) & set(bodies[1]),
            "spread": all(bodies),
        }
    return observed


@scenario
def circles(session):
    channel = session.channel()
    first, second = declare(session, channel, "fanout", "first"), declare(session, channel, "fanout", "second")
    queue = session.queue(channel)
    channel.exchange_bind(first, second)
    channel.exchange_bind(second, first)
    channel.queue_bind(queue, second)
    send(channel, first, "", "once round")
    # Each is the alternate of the other, or of nobody.
    one, other = session.name("one"), session.name("other")
    channel.exchange_declare(one, "direct", arguments={"alternate-exchange": other})
    channel.exchange_declare(other, "direct", arguments={"alternate-exchange": one})
    lost = declare(session, channel, "direct", "lost", arguments={"alternate-exchange": session.name("missing")})
    returned = []
    channel.add_on_return_callback(lambda *message: returned.append(message[3].decode()))
    for exchange, body in [(one, "by nobody"), (lost, "alternate is missing")]:
        channel.basic_publish(exchange, "nowhere", body.encode(), mandatory=True)
    wait_until(session.connection, lambda: len(returned) == 2)
    return {"received": drain(channel, queue), "returned": returned}


@scenario
def auto_delete_source(session):
    channel = session.channel()
    source, destination = session.name("source"), declare(session, channel, "fanout", "destination")
    channel.exchange_declare(source, "fanout", auto_delete=True)
    channel.exchange_bind(destination, source)
    before = session.refused(lambda other: other.exchange_declare(source, passive=True))
    channel.exchange_unbind(destination, source)
    return {"bound": before, "unbound": session.refused(lambda other: other.exchange_declare(source, passive=True))}


def declare(session, channel, kind, short="e", **options):
    channel.exchange_declare(session.name(short), kind, **options)
    return session.name(short)


def send(channel, exchange, key, body, headers=None):
    channel.basic_publish(exchange, key, body.encode(), pika.BasicProperties(headers=headers))
