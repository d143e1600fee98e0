"""Duplicate keys in a field table, a request body or definitions have the same effect as in RabbitMQ."""

import struct

import pytest

from harness.management import leveret, rabbitmq
from harness.wire import (
    BASIC_PUBLISH,
    BODY,
    CHANNEL_CLOSE,
    HEADER,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    Wire,
    close_of,
    frame,
    long_string,
    publish_arguments,
    short_string,
)

QUEUE_BIND, QUEUE_BIND_OK = (50, 20), (50, 21)
BASIC_GET, BASIC_GET_OK = (60, 70), (60, 71)
BASIC_ACK = (60, 80)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)
DURABLE = b"\x02"


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    with rabbitmq() as theirs, leveret(tmp_path_factory.mktemp("leveret")) as ours:
        yield ours, theirs


BODIES = {
    "queue": (
        "PUT",
        "queues/%2F/by-http",
        '{"durable": false, "durable": true, "arguments": {"x-max-length": 1, "x-max-length": 2}}',
        "queues/%2F/by-http",
        ("durable", "arguments"),
    ),
    "whole arguments": (
        "PUT",
        "queues/%2F/by-http-2",
        '{"durable": true, "arguments": {"x-max-length": 1}, "arguments": {"x-expires": 900000}}',
        "queues/%2F/by-http-2",
        ("durable", "arguments"),
    ),
    "exchange": (
        "PUT",
        "exchanges/%2F/by-http",
        '{"type": "fanout", "type": "topic", "durable": true}',
        "exchanges/%2F/by-http",
        ("type", "durable"),
    ),
    "user": (
        "PUT",
        "users/by-http",
        '{"password": "x", "tags": "monitoring", "tags": "management"}',
        "users/by-http",
        ("tags",),
    ),
    "policy": (
        "PUT",
        "policies/%2F/by-http",
        '{"pattern": "^a", "pattern": "^none", "definition": {"max-length": 1, "max-length": 2}, "priority": 1, "priority": 2}',
        "policies/%2F/by-http",
        ("pattern", "definition", "priority"),
    ),
    "permission": (
        "PUT",
        "permissions/%2F/guest",
        '{"configure": "x", "configure": ".*", "write": "x", "write": ".*", "read": ".*"}',
        "permissions/%2F/guest",
        ("configure", "write", "read"),
    ),
    "global parameter": (
        "PUT",
        "global-parameters/by-http",
        '{"value": {"a": 1, "b": 3, "a": 2}}',
        "global-parameters/by-http",
        ("value",),
    ),
    "definitions": (
        "POST",
        "definitions/%2F",
        '{"queues": [{"name": "lost", "durable": true, "auto_delete": false, "arguments": {}}], "queues": [{"name": "defined",'
        ' "durable": true, "auto_delete": false, "arguments": {"x-max-length": 1, "x-max-length": 2}}]}',
        "queues/%2F",
        None,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_key_that_is_twice_in_a_body(both, name):
    method, where, body, shown, keys = BODIES[name]
    outcomes = []
    for management in both:
        answer = management.status(method, where, body)
        found = management.get(shown)
        if keys is None:
            outcome = sorted((queue["name"], str(queue["arguments"])) for queue in found if queue["name"] in ("lost", "defined"))
        else:
            outcome = {key: found[key] for key in keys}
        outcomes.append((answer, outcome))
    assert outcomes[0] == outcomes[1], outcomes


def table(*pairs):
    """A field table of 32-bit integers in this order, duplicates included."""
    return long_string(b"".join(short_string(key) + b"I" + struct.pack(">i", value) for key, value in pairs))


def declare(wire, queue, arguments):
    wire.send_method(1, QUEUE_DECLARE, b"\0\0" + short_string(queue) + DURABLE + arguments)


def answer(wire, expected):
    """`None` if the next method is this one, else the code and text with which the channel is closed."""
    _, _, payload = wire.read_frame()
    method = struct.unpack(">HH", payload[:4])
    assert method in (expected, CHANNEL_CLOSE)
    return close_of(payload[4:]) if method == CHANNEL_CLOSE else None


ARGUMENTS = {
    "both are valid": [("x-max-length", 1), ("x-max-length", 2)],
    "the greater first": [("x-max-length", 2), ("x-max-length", 1)],
    "the first is invalid": [("x-max-length", -1), ("x-max-length", 2)],
    "the second is invalid": [("x-max-length", 2), ("x-max-length", -1)],
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_first_of_an_argument_of_a_queue_is_in_effect(both, name):
    outcomes = []
    for management in both:
        with Wire(management.server.port) as wire:
            wire.handshake().open_channel()
            declare(wire, name, table(*ARGUMENTS[name]))
            refused = answer(wire, QUEUE_DECLARE_OK)
            left = None
            if not refused:
                wire.send_method(1, CONFIRM_SELECT, b"\0")
                wire.expect(CONFIRM_SELECT_OK)
                for _ in range(3):
                    publish(wire, "", table(), key=name)
                    wire.expect(BASIC_ACK)
                # Redeclared with the first value only, it is equivalent.
                declare(wire, name, table(ARGUMENTS[name][0]))
                declared = wire.expect(QUEUE_DECLARE_OK)
                [left] = struct.unpack_from(">I", declared, 1 + declared[0])
            outcomes.append((refused, left))
    assert outcomes[0] == outcomes[1]
    first = ARGUMENTS[name][0][1]
    assert outcomes[0][1] == (first if first > 0 else None)


def publish(wire, exchange, headers, key="k"):
    wire.send_method(1, BASIC_PUBLISH, publish_arguments(exchange, key))
    wire.send(frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 1, 1 << 13) + headers))
    wire.send(frame(BODY, 1, b"x"))


@pytest.mark.parametrize("first, second", [(1, 2), (2, 1)])
def test_the_first_of_a_header_is_matched_and_both_are_delivered(both, first, second):
    outcomes = []
    for management in both:
        with Wire(management.server.port) as wire:
            wire.handshake().open_channel()
            queues = [f"header-{value}-{first}" for value in (1, 2)]
            for value, queue in enumerate(queues, 1):
                declare(wire, queue, table())
                wire.expect(QUEUE_DECLARE_OK)
                names = b"\0\0" + short_string(queue) + short_string("amq.headers") + short_string("")
                wire.send_method(1, QUEUE_BIND, names + b"\0" + table(("h", value), ("only", first)))
                wire.expect(QUEUE_BIND_OK)
            publish(wire, "amq.headers", table(("h", first), ("h", second), ("only", first)))
            delivered = []
            for queue in queues:
                wire.send_method(1, BASIC_GET, b"\0\0" + short_string(queue) + b"\1")
                _, _, payload = wire.read_frame()
                got = struct.unpack(">HH", payload[:4]) == BASIC_GET_OK
                delivered.append([wire.read_frame(), wire.read_frame()] if got else None)
            outcomes.append(delivered)
    assert outcomes[0] == outcomes[1]
    assert [bool(frames) for frames in outcomes[0]] == [first == 1, first == 2]


def test_the_first_of_a_client_property_is_in_effect(both):
    names = b"".join(short_string("connection_name") + b"S" + long_string(name) for name in (b"one", b"two"))
    shown = []
    for management in both:
        with Wire(management.server.port) as wire:
            wire.handshake(properties=names)
            [connection] = management.eventually(
                "connections", lambda found: [each for each in found if "client_properties" in each]
            )
            assert connection["user_provided_name"] == "one"
            shown.append(connection["client_properties"])
    # RabbitMQ's HTTP API shows the last of equal keys, also for arguments, although the first is in effect.
    assert shown == [{"connection_name": "one"}, {"connection_name": "two"}]
