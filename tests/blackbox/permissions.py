"""One definitions file, two brokers: both allow the same users the same operations, and refuse with the same errors."""

import ast
import contextlib
import json
import re

import pika
import pika.exceptions
import pytest

from harness.definitions import operator_policy, permission, policy, topic_permission, user, vhost_limits
from harness.instances import leveret
from harness.patience import PATIENCE
from harness.rabbitmq import RabbitMq
from harness.releases import TAKEN_AFTER

# RabbitMQ is tested as well, to detect wrong expectations.
TARGETS = ["rabbitmq", "leveret"]


def queue(name, **arguments):
    return {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": arguments}


def exchange(name, kind="direct", internal=False, **arguments):
    flags = {"durable": True, "auto_delete": False, "internal": internal}
    return {"name": name, "vhost": "/", "type": kind, **flags, "arguments": arguments}


def binding(source, destination, key, destination_type="queue"):
    ends = {"source": source, "destination": destination, "destination_type": destination_type}
    return {**ends, "vhost": "/", "routing_key": key, "arguments": {}}


DEAD_LETTERS = {"dead-letter-exchange": "amq.fanout", "dead-letter-routing-key": "dead"}
UNRESTRICTED = ["strong", "blank", "topical", "lonely", "narrow", "masked"]
DEFINITIONS = {
    "rabbit_version": "3.10.8",
    "vhosts": [{"name": name} for name in ("/", "full", "shut", "small")],
    "users": [
        user("guest", "administrator"),
        user("strong", algorithm="sha512"),
        {"name": "blank", "password_hash": "", "tags": []},
        user("stranger"),
        user("some"),
        user("topical"),
        user("lonely", limits={"max-connections": 1}),
        user("narrow", limits={"max-channels": 2}),
        user("masked", "impersonator"),
    ],
    "permissions": [
        *(permission("guest", vhost, ".*", ".*", ".*") for vhost in ("/", "full", "shut", "small")),
        *(permission(name, "/", ".*", ".*", ".*") for name in UNRESTRICTED),
        permission("some", "/", configure="^(c|cr)-|^amq\\.gen-", write="^w-", read="^(cr|r)-"),
    ],
    "topic_permissions": [
        topic_permission("topical", "amq.topic", "^{username}\\.{vhost}", "^open\\."),
        topic_permission("topical", "amq.direct", "", ""),
    ],
    "policies": [
        policy("ttl", "^p-", {"message-ttl": 60000, "max-length": 3}, "queues", 1),
        policy("low", "^p-", {"max-length": 1}, "queues", 0),
        policy("short", "^d-", {"max-length": 1, **DEAD_LETTERS}),
        policy("refuse", "^full-", {"max-length": 1, "overflow": "reject-publish"}),
        policy("alternate", "^ae-", {"alternate-exchange": "amq.fanout"}, "exchanges"),
        policy("not mine", "^(?!x-).*-guard$", {"max-length": 2}, "queues"),
        policy("quorum only", "^mixed-", {"delivery-limit": 1, "max-length": 1}, "queues", 5),
    ],
    "parameters": [
        operator_policy("cap", "^(p|c)-", {"max-length": 2}),
        vhost_limits("full", connections=1),
        vhost_limits("shut", connections=0),
        vhost_limits("small", queues=1),
    ],
    "queues": [
        queue("r-queue"),
        queue("w-queue"),
        queue("x-queue"),
        queue("p-there", **{"x-max-length": 1000}),
        queue("defined", **{"x-message-ttl": 60000, "x-dead-letter-exchange": "w-exchange"}),
    ],
    "exchanges": [
        exchange("r-exchange"),
        exchange("w-exchange", "fanout"),
        exchange("x-exchange", **{"alternate-exchange": "w-exchange"}),
        exchange("inner", internal=True),
        exchange("ae-there"),
    ],
    "bindings": [
        binding("r-exchange", "r-queue", "key"),
        binding("w-exchange", "w-queue", ""),
        binding("x-exchange", "inner", "to inner", "exchange"),
    ],
}

OK = "ok"


def refused(what, user="some"):
    return 403, f"ACCESS_REFUSED - access to {what} in vhost '/' refused for user '{user}'"


def of_queue(name):
    return refused(f"queue '{name}'")


def of_exchange(name):
    return refused(f"exchange '{name}'")


def of_topic(key, user="topical"):
    return refused(f"topic '{key}' in exchange 'amq.topic'", user)


def ignore(*_):
    """A consumer callback that ignores the delivery."""


def declare(name, passive=False, **arguments):
    return lambda ch: ch.queue_declare(name, passive=passive, arguments=arguments)


def declare_exchange(name, kind="direct", passive=False, **arguments):
    return lambda ch: ch.exchange_declare(name, kind, passive=passive, arguments=arguments)


def bind(queue, exchange, key="k"):
    return lambda ch: ch.queue_bind(queue, exchange, key)


def unbind(queue, exchange, key="k"):
    return lambda ch: ch.queue_unbind(queue, exchange, key)


def bind_exchange(destination, source):
    return lambda ch: ch.exchange_bind(destination, source, "k")


def unbind_exchange(destination, source):
    return lambda ch: ch.exchange_unbind(destination, source, "k")


def publish(exchange, key="k", **properties):
    def operation(ch):
        ch.confirm_delivery()
        ch.basic_publish(exchange, key, b"", pika.BasicProperties(**properties))

    return operation


def in_transaction(exchange, key="k"):
    def operation(ch):
        ch.tx_select()
        ch.basic_publish(exchange, key, b"")
        ch.tx_commit()

    return operation


# User and operation, and the outcome.
OPERATIONS = {
    "declare": ("some", declare("c-1"), OK),
    "declare without configure": ("some", declare("w-1"), of_queue("w-1")),
    "declare what is there": ("some", declare("r-queue"), of_queue("r-queue")),
    "declare passively": ("some", declare("x-queue", passive=True), OK),
    "declare passively what is missing": (
        "some",
        declare("nope", passive=True),
        (404, "NOT_FOUND - no queue 'nope' in vhost '/'"),
    ),
    "declare with a generated name": ("some", declare(""), OK),
    "declare a reserved name": (
        "some",
        declare("amq.x"),
        (403, "ACCESS_REFUSED - queue name 'amq.x' contains reserved prefix 'amq.*'"),
    ),
    "dead letters need read of the queue": (
        "some",
        declare("c-2", **{"x-dead-letter-exchange": "w-exchange"}),
        of_queue("c-2"),
    ),
    "dead letters need write of the exchange": (
        "some",
        declare("cr-2", **{"x-dead-letter-exchange": "r-exchange"}),
        of_exchange("r-exchange"),
    ),
    "dead letters to the default exchange": (
        "some",
        declare("cr-3", **{"x-dead-letter-exchange": ""}),
        of_exchange("amq.default"),
    ),
    "dead letters": ("some", declare("cr-4", **{"x-dead-letter-exchange": "w-exchange"}), OK),
    "declare an exchange": ("some", declare_exchange("c-1"), OK),
    "declare an exchange without configure": ("some", declare_exchange("w-1"), of_exchange("w-1")),
    "declare a standard exchange": ("some", declare_exchange("amq.direct"), of_exchange("amq.direct")),
    "declare a reserved exchange": ("some", declare_exchange("amq.nope"), of_exchange("amq.nope")),
    "declare an exchange passively": ("some", declare_exchange("x-exchange", passive=True), OK),
    "an alternate exchange needs read of the exchange": (
        "some",
        declare_exchange("c-2", **{"alternate-exchange": "w-exchange"}),
        of_exchange("c-2"),
    ),
    "an alternate exchange needs write of the alternate": (
        "some",
        declare_exchange("cr-2", **{"alternate-exchange": "x-exchange"}),
        of_exchange("x-exchange"),
    ),
    "an alternate exchange": ("some", declare_exchange("cr-3", **{"alternate-exchange": "w-exchange"}), OK),
    "bind": ("some", bind("w-queue", "r-exchange"), OK),
    "bind needs write of the queue": ("some", bind("r-queue", "r-exchange"), of_queue("r-queue")),
    "bind needs read of the exchange": ("some", bind("w-queue", "x-exchange"), of_exchange("x-exchange")),
    "bind a missing queue": ("some", bind("nope", "r-exchange"), of_queue("nope")),
    "bind to a missing exchange": ("some", bind("w-queue", "nope"), of_exchange("nope")),
    "bind to the default exchange": (
        "some",
        bind("w-queue", ""),
        (403, "ACCESS_REFUSED - operation not permitted on the default exchange"),
    ),
    "bind a refused queue to the default exchange": ("some", bind("x-queue", ""), of_queue("x-queue")),
    "unbind": ("some", unbind("w-queue", "r-exchange"), OK),
    "unbind needs write of the queue": ("some", unbind("x-queue", "r-exchange"), of_queue("x-queue")),
    "unbind needs read of the exchange": ("some", unbind("w-queue", "x-exchange"), of_exchange("x-exchange")),
    "bind exchanges": ("some", bind_exchange("w-exchange", "r-exchange"), OK),
    "bind exchanges needs write of the destination": (
        "some",
        bind_exchange("x-exchange", "r-exchange"),
        of_exchange("x-exchange"),
    ),
    "bind exchanges needs read of the source": (
        "some",
        bind_exchange("w-exchange", "x-exchange"),
        of_exchange("x-exchange"),
    ),
    "unbind exchanges": ("some", unbind_exchange("w-exchange", "r-exchange"), OK),
    "unbind exchanges needs write of the destination": (
        "some",
        unbind_exchange("x-exchange", "r-exchange"),
        of_exchange("x-exchange"),
    ),
    "publish": ("some", publish("w-exchange"), OK),
    "publish needs write": ("some", publish("r-exchange"), of_exchange("r-exchange")),
    "publish to a missing exchange": ("some", publish("nope"), of_exchange("nope")),
    "publish to the default exchange": ("some", publish("", "w-queue"), of_exchange("amq.default")),
    "publish to an internal exchange": ("some", publish("inner"), of_exchange("inner")),
    "publish in a transaction": ("some", in_transaction("r-exchange"), of_exchange("r-exchange")),
    "get": ("some", lambda ch: ch.basic_get("r-queue"), OK),
    "get needs read": ("some", lambda ch: ch.basic_get("w-queue"), of_queue("w-queue")),
    "get a missing queue": ("some", lambda ch: ch.basic_get("nope"), of_queue("nope")),
    "consume": ("some", lambda ch: ch.basic_consume("r-queue", ignore), OK),
    "consume needs read": ("some", lambda ch: ch.basic_consume("w-queue", ignore), of_queue("w-queue")),
    "purge": ("some", lambda ch: ch.queue_purge("r-queue"), OK),
    "purge needs read": ("some", lambda ch: ch.queue_purge("w-queue"), of_queue("w-queue")),
    "delete": ("some", lambda ch: ch.queue_delete("c-nope"), OK),
    "delete needs configure": ("some", lambda ch: ch.queue_delete("r-queue"), of_queue("r-queue")),
    "delete an exchange": ("some", lambda ch: ch.exchange_delete("c-nope"), OK),
    "delete an exchange needs configure": (
        "some",
        lambda ch: ch.exchange_delete("r-exchange"),
        of_exchange("r-exchange"),
    ),
    "delete a standard exchange": (
        "some",
        lambda ch: ch.exchange_delete("amq.topic"),
        (403, "ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed"),
    ),
    "a topic of one's own": ("topical", publish("amq.topic", "topical./.any"), OK),
    "a topic of others": ("topical", publish("amq.topic", "other./"), of_topic("other./")),
    "a topic of others in a transaction": ("topical", in_transaction("amq.topic", "other"), of_topic("other")),
    "bind to a topic": ("topical", bind("x-queue", "amq.topic", "open.#"), OK),
    "bind to a topic of others": ("topical", bind("x-queue", "amq.topic", "shut.#"), of_topic("shut.#")),
    "unbind from a topic of others": ("topical", unbind("x-queue", "amq.topic", "shut"), of_topic("shut")),
    "topics of a direct exchange": ("topical", publish("amq.direct", "any"), OK),
    "no topic permissions": ("strong", publish("amq.topic", "any"), OK),
    "somebody else's name": (
        "some",
        publish("w-exchange", user_id="guest"),
        (406, "PRECONDITION_FAILED - user_id property set to 'guest' but authenticated user was 'some'"),
    ),
    "somebody else's name as an impersonator": ("masked", publish("w-exchange", user_id="guest"), OK),
}

LOGIN_REFUSED = (
    403,
    "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.",
)

# User, password and virtual host, and the answer.
LOGINS = {
    "a SHA-256 hash": ("guest", "guest", "/", OK),
    "a SHA-512 hash": ("strong", "strong", "/", OK),
    "a wrong password": ("strong", "Strong", "/", LOGIN_REFUSED),
    "an unknown user": ("nobody", "nobody", "/", LOGIN_REFUSED),
    "a user without a password": ("blank", "blank", "/", LOGIN_REFUSED),
    "an empty password": ("blank", "", "/", LOGIN_REFUSED),
    "no permissions at all": (
        "stranger",
        "stranger",
        "/",
        (530, "NOT_ALLOWED - access to vhost '/' refused for user 'stranger'"),
    ),
    "no permissions in this vhost": (
        "some",
        "some",
        "full",
        (530, "NOT_ALLOWED - access to vhost 'full' refused for user 'some'"),
    ),
    "a missing vhost": ("stranger", "stranger", "nowhere", (530, "NOT_ALLOWED - vhost nowhere not found")),
    "a vhost that takes no connections": (
        "guest",
        "guest",
        "shut",
        (530, "NOT_ALLOWED - access to vhost 'shut' refused for user 'guest': connection limit (0) is reached"),
    ),
}

# A queue, its arguments, and which of the messages 0 to 4 remain; None if the queue exists already.
POLICIES = {
    "the highest priority wins, and an operator policy caps it": ("p-new", {}, "34"),
    "the lower number holds": ("p-own", {"x-max-length": 1}, "4"),
    "a policy lowers an argument": ("p-there", None, "34"),
    "an operator policy alone": ("c-new", {}, "34"),
    "an operator policy lowers an argument": ("c-own", {"x-max-length": 4}, "34"),
    "overflow by policy": ("full-new", {}, "0"),
    "overflow by argument": ("full-own", {"x-overflow": "drop-head"}, "4"),
    "a pattern with look-ahead": ("a-guard", {}, "34"),
    "a pattern with look-ahead that does not match": ("x-a-guard", {}, "01234"),
    "a key of quorum queues on a classic one": ("mixed-classic", {}, "01234"),
    "a key of quorum queues": ("mixed-quorum", {"x-queue-type": "quorum"}, "4"),
    "no policy": ("z-new", {}, "01234"),
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """The port of each server, started with the same definitions when it is first asked for."""
    directory = tmp_path_factory.mktemp("permissions")
    definitions = directory / "definitions.json"
    definitions.write_text(json.dumps(DEFINITIONS))
    with contextlib.ExitStack() as stack:
        started = {}

        def port(name):
            if name not in started:
                if name == "rabbitmq":
                    started[name] = RabbitMq(directory / name, f"load_definitions = {definitions}", version=TAKEN_AFTER)
                    stack.callback(started[name].stop)
                else:
                    started[name] = stack.enter_context(leveret(directory / name, "--definitions", definitions))
            return started[name].port

        yield port


@pytest.fixture
def connect(servers, target_name):
    """Opens connections, which go at the end of the test."""
    with contextlib.ExitStack() as stack:

        def connect(user, vhost="/", password=None):
            credentials = pika.PlainCredentials(user, user if password is None else password)
            connection = pika.BlockingConnection(
                pika.ConnectionParameters("127.0.0.1", servers(target_name), vhost, credentials)
            )
            stack.callback(lambda: connection.is_open and connection.close())
            return connection

        yield connect


def answer(operation, *arguments):
    """The outcome of an operation: OK, or the reply code and text."""
    try:
        operation(*arguments)
    except (pika.exceptions.ConnectionClosedByBroker, pika.exceptions.ChannelClosedByBroker) as closed:
        return closed.reply_code, closed.reply_text
    except (pika.exceptions.ProbableAuthenticationError, pika.exceptions.ProbableAccessDeniedError) as error:
        code, text = re.fullmatch(r"ConnectionClosedByBroker: \((\d+)\) (.*)", error.args[0]).groups()
        return int(code), ast.literal_eval(text)
    return OK


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_permitted_or_refused_by_the_users_permissions(connect, name):
    user, operation, expected = OPERATIONS[name]
    channel = connect(user).channel()
    assert answer(operation, channel) == expected


@pytest.mark.parametrize("name", LOGINS)
def test_logins_are_judged_by_hash_vhost_and_limit(connect, name):
    user, password, vhost, expected = LOGINS[name]
    assert answer(connect, user, vhost, password) == expected


def test_connections_of_a_vhost_are_limited(connect):
    connect("guest", "full")
    text = "NOT_ALLOWED - access to vhost 'full' refused for user 'guest': connection limit (1) is reached"
    assert answer(connect, "guest", "full") == (530, text)


def test_connections_of_a_user_are_limited(connect):
    connect("lonely")
    text = "NOT_ALLOWED - connection refused for user 'lonely': user connection limit (1) is reached"
    assert answer(connect, "lonely") == (530, text)


def test_channels_of_a_user_are_limited(connect):
    connection = connect("narrow")
    connection.channel()
    connection.channel()
    text = "NOT_ALLOWED - number of channels opened for user 'narrow' has reached the maximum allowed user limit of (2)"
    assert answer(connection.channel) == (530, text)


def test_queues_of_a_vhost_are_limited(connect):
    channel = connect("guest", "small").channel()
    channel.queue_declare("one")
    assert answer(channel.queue_declare, "one") == OK
    text = "PRECONDITION_FAILED - cannot declare queue 'two': queue limit in vhost 'small' (1) is reached"
    assert answer(channel.queue_declare, "two") == (406, text)


@pytest.mark.parametrize("name", POLICIES)
def test_policies_are_arguments_by_name(connect, name):
    queue, arguments, left = POLICIES[name]
    channel = connect("guest").channel()
    channel.confirm_delivery()
    if arguments is not None:
        channel.queue_declare(queue, durable=True, arguments=arguments)
    for number in "01234":
        with contextlib.suppress(pika.exceptions.NackError):
            channel.basic_publish("", queue, number.encode())
    bodies = iter(lambda: channel.basic_get(queue, auto_ack=True)[2], None)
    assert b"".join(bodies).decode() == left


def test_dead_letters_and_alternates_follow_policies(connect):
    channel = connect("guest").channel()
    channel.confirm_delivery()
    sink = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(sink, "amq.fanout")
    channel.queue_declare("d-queue")
    channel.exchange_declare("ae-new")
    got = channel.consume(sink, auto_ack=True, inactivity_timeout=PATIENCE)
    for exchange, key, body, at_last in [
        ("", "d-queue", b"old", None),
        ("", "d-queue", b"new", ("dead", b"old")),
        ("ae-there", "nowhere", b"by policy", ("nowhere", b"by policy")),
        ("ae-new", "nowhere", b"by policy", ("nowhere", b"by policy")),
    ]:
        channel.basic_publish(exchange, key, body)
        if at_last:
            method, _, body = next(got)
            assert (method.routing_key, body) == at_last


def test_definitions_make_queues_exchanges_and_bindings(connect):
    connection = connect("guest")
    channel = connection.channel()
    channel.queue_purge("w-queue")
    channel.confirm_delivery()
    channel.basic_publish("w-exchange", "any", b"routed", mandatory=True)
    assert channel.basic_get("w-queue", auto_ack=True)[2] == b"routed"
    text = (
        "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'defined' in vhost '/': "
        "received none but current is the value '60000' of type 'long'"
    )
    assert answer(lambda: channel.queue_declare("defined", durable=True)) == (406, text)
