"""Every method that a client may send on a channel, with every odd value in every field, and odd content."""

import base64
import random
import struct

from harness.wire import BODY, HEADER, METHOD, frame, long_string, short_string

QUEUES = {"classic": "odd.classic", "quorum": "odd.quorum", "stream": "odd.stream", "priority": "odd.priority"}
HASH_EXCHANGE = "odd.hash"
# Replaced by a new name in each run of a case.
NEW = "\x01new"

LONG = "n" * 255
# The suffix of `amq.rabbitmq.reply-to.` encodes an Erlang process; RabbitMQ decodes it without checking.
PROCESS = b"\x83Xv" + struct.pack(">H", 7) + b"reply@1" + struct.pack(">III", 1, 2, 3)
REPLY_TO = [
    "amq.rabbitmq.reply-to",
    "amq.rabbitmq.reply-to.",
    "amq.rabbitmq.reply-to.x",
    "amq.rabbitmq.reply-to.xx.yy",
    "amq.rabbitmq.reply-to.xx.yy.zz",
    f"amq.rabbitmq.reply-to.{base64.b64encode(b'no process').decode()}.key",
    f"amq.rabbitmq.reply-to.{base64.b64encode(PROCESS).decode()}.key",
]
# RabbitMQ cuts the second one inside a character when it repeats it in an error.
TEXTS = ["", LONG, "ü" * 127, "a\r\nb", "a\x00b", "~s~p", "ünïcödé", "none such"]
QUEUE_NAMES = [*TEXTS, *QUEUES.values(), *REPLY_TO, "\namq.rabbitmq.reply-to.xx.yy", "amq.gen-odd", "amq.direct"]
EXCHANGE_NAMES = [
    *TEXTS,
    *(f"amq.{name}" for name in ("direct", "fanout", "topic", "headers", "match", "rabbitmq.trace", "odd")),
    HASH_EXCHANGE,
]
KEYS = ["", LONG, "#", "*.#", "a..b", "1", "0", "-1", "1.5", *QUEUES.values(), *REPLY_TO, f"{REPLY_TO[3]}\n"]
TYPES = ["", "direct", "fanout", "topic", "headers", "x-consistent-hash", "DIRECT", "none such", LONG, "local", "x-~s"]
TAGS = ["", LONG, "tag", "amq.ctag-odd", "a\r\nb"]

QUEUE_ARGUMENTS = [
    *("x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy"),
    *("x-max-length", "x-max-length-bytes", "x-max-in-memory-length", "x-max-in-memory-bytes", "x-max-priority"),
    *("x-overflow", "x-queue-mode", "x-queue-version", "x-single-active-consumer", "x-queue-type", "x-delivery-limit"),
    *("x-quorum-initial-group-size", "x-initial-cluster-size", "x-max-age", "x-stream-max-segment-size-bytes"),
    *("x-queue-leader-locator", "x-queue-master-locator", "x-ha-policy", "x-consumer-timeout", "x-odd"),
]
CONSUME_ARGUMENTS = ["x-priority", "x-cancel-on-ha-failover", "x-stream-offset", "x-credit", "x-odd"]
BINDING_ARGUMENTS = ["x-match", "x-odd", "odd"]
EXCHANGE_ARGUMENTS = ["alternate-exchange", "hash-header", "hash-property", "x-odd"]
HEADERS = ["CC", "BCC", "x-death", "x-delivery-count", "x-match", "odd"]


def table(*entries):
    """A field table of (key, type letter, bytes)."""
    return b"".join(short_string(key) + letter.encode() + data for key, letter, data in entries)


def text(data):
    return long_string(data.encode() if isinstance(data, str) else data)


def nested(levels):
    inner = b""
    for _ in range(levels):
        inner = table(("t", "F", long_string(inner)))
    return inner


# One value of each type, and the extreme values.
VALUES = [
    ("t", b"\x01"),
    ("b", b"\xff"),
    ("B", b"\x05"),
    ("s", b"\x80\x00"),
    ("u", b"\xff\xff"),
    ("I", struct.pack(">i", 0)),
    ("I", struct.pack(">i", 2)),
    ("I", struct.pack(">i", -1)),
    ("i", struct.pack(">I", 2**32 - 1)),
    ("l", struct.pack(">q", 2**63 - 1)),
    ("l", struct.pack(">q", -(2**63))),
    ("L", struct.pack(">q", 3)),
    ("f", struct.pack(">f", 1.5)),
    ("d", struct.pack(">d", -2.5)),
    ("d", struct.pack(">d", float("nan"))),
    ("f", struct.pack(">f", float("inf"))),
    ("D", b"\x02" + struct.pack(">I", 314)),
    ("S", text("")),
    ("S", text("none such")),
    ("S", text("classic")),
    ("S", text("quorum")),
    ("S", text("1")),
    ("S", text(b"\xff\xfe")),
    ("S", text(REPLY_TO[3])),
    ("A", text(b"")),
    ("A", text(b"S" + text(REPLY_TO[3]))),
    ("A", text(b"I" + struct.pack(">i", 1))),
    ("A", text(b"F" + text(table(("queue", "S", text("q")))))),
    ("T", struct.pack(">Q", 2**64 - 1)),
    ("F", text(b"")),
    ("F", text(table(("k", "d", struct.pack(">d", float("-inf")))))),
    ("V", b""),
    ("x", text(b"\x00\xff")),
]
NOT_A_NUMBER = table(("k", "d", struct.pack(">d", float("nan"))))
ODD_TABLES = [
    nested(60),
    table(("", "V", b"")),
    table(("x-odd", "V", b""), ("x-odd", "t", b"\x00")),
    table(("x-queue-type", "S", text("classic")), ("x-queue-type", "F", text(b""))),
    *(table(("k", chr(letter), bytes(8))) for letter in b"?Uan\x00~"),
    table(("k", "S", text("cut")))[:-1],
]


def tables(keys):
    yield from ODD_TABLES
    for key in keys:
        yield from (table((key, letter, data)) for letter, data in VALUES)


BITS, TINY, SHORT, LONG_LONG, NAME, TABLE = "bits", "octet", "short", "longlong", "name", "table"
NUMBERS = {SHORT: [0, 1, 2**16 - 1], LONG_LONG: [0, 1, 2**63, 2**64 - 1]}

# Class and method, then each field: its kind, its usual value, and odd values.
ZERO = (SHORT, 0, [1, 65535])
METHODS = {
    "channel.open": (20, 10, [(NAME, "", TEXTS)]),
    "channel.flow": (20, 20, [(BITS, 1, [0, 1, 255])]),
    "channel.flow-ok": (20, 21, [(BITS, 1, [0, 1, 255])]),
    "channel.close-ok": (20, 41, []),
    "access.request": (30, 10, [(NAME, "/data", TEXTS), (BITS, 31, range(0, 256, 17))]),
    "exchange.declare": (
        *(40, 10),
        [
            *(ZERO, (NAME, NEW, EXCHANGE_NAMES), (NAME, "direct", TYPES), (BITS, 2, range(32))),
            (TABLE, b"", list(tables(EXCHANGE_ARGUMENTS))),
        ],
    ),
    "exchange.delete": (40, 20, [ZERO, (NAME, NEW, EXCHANGE_NAMES), (BITS, 0, range(4))]),
    **{
        name: (
            *(40, method),
            [
                *(ZERO, (NAME, "amq.fanout", EXCHANGE_NAMES), (NAME, "amq.topic", EXCHANGE_NAMES)),
                *((NAME, "", KEYS), (BITS, 0, range(2)), (TABLE, b"", list(tables(BINDING_ARGUMENTS)))),
            ],
        )
        for name, method in [("exchange.bind", 30), ("exchange.unbind", 40)]
    },
    "queue.declare": (
        *(50, 10),
        [ZERO, (NAME, NEW, QUEUE_NAMES), (BITS, 2, range(32)), (TABLE, b"", list(tables(QUEUE_ARGUMENTS)))],
    ),
    "queue.declare of a server-named one": (
        *(50, 10),
        [ZERO, (NAME, "", []), (BITS, 0, range(32)), (TABLE, b"", list(tables(QUEUE_ARGUMENTS)))],
    ),
    "queue.declare of a quorum queue": (
        *(50, 10),
        [
            *(ZERO, (NAME, NEW, []), (BITS, 2, range(16))),
            (
                *(TABLE, b""),
                [table(("x-queue-type", "S", text("quorum"))) + more for more in tables(["x-delivery-limit", "x-overflow"])],
            ),
        ],
    ),
    "queue.bind": (
        *(50, 20),
        [
            *(ZERO, (NAME, QUEUES["classic"], QUEUE_NAMES), (NAME, "amq.topic", EXCHANGE_NAMES), (NAME, "", KEYS)),
            *((BITS, 0, range(2)), (TABLE, b"", list(tables(BINDING_ARGUMENTS)))),
        ],
    ),
    "queue.bind to amq.headers": (
        *(50, 20),
        [
            *(ZERO, (NAME, QUEUES["classic"], []), (NAME, "amq.headers", []), (NAME, "", [])),
            *((BITS, 0, []), (TABLE, b"", list(tables(BINDING_ARGUMENTS)))),
        ],
    ),
    "queue.unbind": (
        *(50, 50),
        [
            *(ZERO, (NAME, QUEUES["classic"], QUEUE_NAMES), (NAME, "amq.topic", EXCHANGE_NAMES), (NAME, "", KEYS)),
            (TABLE, b"", list(tables(BINDING_ARGUMENTS))),
        ],
    ),
    "queue.purge": (50, 30, [ZERO, (NAME, QUEUES["classic"], QUEUE_NAMES), (BITS, 0, range(2))]),
    "queue.delete": (50, 40, [ZERO, (NAME, NEW, [*TEXTS, *REPLY_TO]), (BITS, 0, range(8))]),
    **{
        f"queue.delete of a {kind} queue in use or not empty": (50, 40, [ZERO, (NAME, name, []), (BITS, 2, [3])])
        for kind, name in QUEUES.items()
    },
    "basic.qos": (60, 10, [("long", 0, [1, 2**32 - 1]), (SHORT, 1, NUMBERS[SHORT]), (BITS, 0, range(2))]),
    "basic.consume": (
        *(60, 20),
        [
            *(ZERO, (NAME, QUEUES["priority"], QUEUE_NAMES), (NAME, "", TAGS), (BITS, 0, range(16))),
            (TABLE, b"", list(tables(CONSUME_ARGUMENTS))),
        ],
    ),
    "basic.cancel": (60, 30, [(NAME, "none", TAGS), (BITS, 0, range(2))]),
    "basic.get": (60, 70, [ZERO, (NAME, QUEUES["priority"], QUEUE_NAMES), (BITS, 0, range(2))]),
    "basic.ack": (60, 80, [(LONG_LONG, 1, NUMBERS[LONG_LONG]), (BITS, 0, range(2))]),
    "basic.reject": (60, 90, [(LONG_LONG, 1, NUMBERS[LONG_LONG]), (BITS, 0, range(2))]),
    "basic.nack": (60, 120, [(LONG_LONG, 1, NUMBERS[LONG_LONG]), (BITS, 0, range(4))]),
    "basic.recover-async": (60, 100, [(BITS, 1, range(2))]),
    "basic.recover": (60, 110, [(BITS, 1, range(2))]),
    "confirm.select": (85, 10, [(BITS, 0, range(2))]),
    "tx.select": (90, 10, []),
    "tx.commit": (90, 20, []),
    "tx.rollback": (90, 30, []),
    # Methods that only a server sends, methods of channel 0, and unknown methods.
    **{
        f"method {class_id}.{method}": (class_id, method, [])
        for class_id, method in [
            *((10, 10), (10, 30), (10, 50), (10, 60), (10, 70), (20, 11), (30, 11), (40, 11), (40, 51), (50, 11)),
            *((50, 51), (60, 11), (60, 21), (60, 31), (60, 71), (60, 72), (60, 111), (60, 200), (85, 11), (90, 11), (0, 0)),
        ]
    },
}
PUBLISH = [ZERO, (NAME, "", EXCHANGE_NAMES), (NAME, QUEUES["classic"], KEYS), (BITS, 0, range(4))]

# The flag of each property in a content header, and odd values.
PROPERTIES = {
    15: [short_string(value) for value in TEXTS],
    14: [short_string(LONG)],
    13: [long_string(each) for each in tables(HEADERS)],
    12: [bytes([value]) for value in (0, 1, 2, 3, 255)],
    11: [bytes([value]) for value in (0, 10, 255)],
    10: [short_string(LONG)],
    9: [short_string(value) for value in REPLY_TO],
    8: [short_string(value) for value in ("", "0", "-1", "1.5", "x", "9" * 255, " 1", "4294967296")],
    7: [short_string("")],
    6: [bytes(8), b"\xff" * 8],
    5: [short_string(LONG)],
    4: [short_string("nobody"), short_string("guest")],
    3: [short_string(LONG)],
    2: [short_string(LONG)],
}


def encode(kind, value, new):
    if kind == NAME:
        return short_string(value.replace(NEW, new))
    if kind == TABLE:
        return long_string(value)
    return struct.pack({BITS: ">B", SHORT: ">H", "long": ">I", LONG_LONG: ">Q"}[kind], value)


class Case:
    """A method, and its content, on channel 1."""

    def __init__(self, name, fields, values, ids, content=b""):
        self.name, self.fields, self.values, self.ids, self.content = name, fields, values, ids, content

    def frames(self, new):
        kinds = [kind for kind, _, _ in self.fields]
        arguments = b"".join(encode(kind, value, new) for kind, value in zip(kinds, self.values, strict=True))
        return frame(METHOD, 1, struct.pack(">HH", *self.ids) + arguments) + self.content

    def __str__(self):
        return f"{self.name} {self.values} {self.content[:200]}"


def content(properties=b"\x00\x00", size=1, weight=0, class_id=60, body=b"x"):
    head = struct.pack(">HHQ", class_id, weight, size) + properties
    return frame(HEADER, 1, head) + (frame(BODY, 1, body) if body else b"")


def contents():
    yield from (content(struct.pack(">H", 1 << bit) + value) for bit, values in PROPERTIES.items() for value in values)
    yield from (content(weight=weight) for weight in (1, 255, 65535))
    yield from (content(class_id=class_id) for class_id in (0, 10, 50, 61, 65535))
    yield from (content(struct.pack(">H", flags)) for flags in (0x8000, 0xFFFC))
    yield content(b"")
    yield content(b"\x00")
    yield content(b"\x00\x00left over")
    yield content(size=0, body=b"")
    yield content(size=0, body=b"x")
    yield content(size=1, body=b"xx")
    yield content(size=2, body=b"x")
    yield frame(HEADER, 1, b"\x00\x3c")
    yield frame(HEADER, 1, b"")
    yield frame(BODY, 1, b"x")


def usual(fields):
    return [value for _, value, _ in fields]


def one_odd(fields):
    """Each field with each of its odd values, the other fields as usual."""
    yield usual(fields)
    for place, (_, _, odd) in enumerate(fields):
        for value in odd:
            yield [*usual(fields[:place]), value, *usual(fields[place + 1 :])]


def every_case():
    for name, (class_id, method, fields) in METHODS.items():
        for values in one_odd(fields):
            yield Case(name, fields, values, (class_id, method))
    for values in one_odd(PUBLISH):
        yield Case("basic.publish", PUBLISH, values, (60, 40), content())
    for each in contents():
        yield Case("basic.publish", PUBLISH, usual(PUBLISH), (60, 40), each)
    # How consistent-hash, headers and direct exchanges handle odd headers.
    for exchange in (HASH_EXCHANGE, "amq.headers"):
        for headers in PROPERTIES[13]:
            values = [0, exchange, "", 0]
            yield Case("basic.publish", PUBLISH, values, (60, 40), content(b"\x20\x00" + headers))


# Cases that once closed shared upstream connections; every run tries them.
FATAL = [
    Case("channel.flow-ok", METHODS["channel.flow-ok"][2], [1], (20, 21)),
    Case("basic.publish", PUBLISH, [0, "", REPLY_TO[3], 0], (60, 40), content()),
    Case("basic.publish", PUBLISH, [0, "", REPLY_TO[6], 0], (60, 40), content()),
    Case("basic.publish", PUBLISH, usual(PUBLISH), (60, 40), content(weight=1)),
    Case("basic.publish", PUBLISH, usual(PUBLISH), (60, 40), content(b"\x20\x00" + long_string(NOT_A_NUMBER))),
    Case(
        *("basic.publish", PUBLISH, usual(PUBLISH), (60, 40)),
        content(b"\x20\x00" + long_string(table(("CC", "A", text(b"S" + text(REPLY_TO[3])))))),
    ),
    *(
        Case("queue.declare", METHODS["queue.declare"][2], [0, name, bits, arguments], (50, 10))
        for name, bits, arguments in [
            ("", 0, table(("x-queue-type", "S", text("none such")))),
            ("", 0, table(("x-queue-type", "F", text(b"")))),
            ("", 0, table(("x-queue-master-locator", "S", text("none such")))),
            (NEW, 0, table(("x-queue-type", "S", text(b"\xff\xfe")))),
            (NEW, 0, NOT_A_NUMBER),
            (REPLY_TO[3], 0, b""),
            (REPLY_TO[3], 1, b""),
            ("ü" * 127, 1, b""),
        ]
    ),
]


def some_cases(seed, count):
    """A random sample of all cases, and as many cases with several odd values at once."""
    chance = random.Random(seed)
    yield from chance.sample(list(every_case()), count)
    every_content = list(contents())

    def draw(fields):
        return [chance.choice([value, *odd]) if odd else value for _, value, odd in fields]

    for _ in range(count):
        name = chance.choice([*METHODS, *["basic.publish"] * 8])
        if name == "basic.publish":
            yield Case(name, PUBLISH, draw(PUBLISH), (60, 40), chance.choice(every_content))
        else:
            class_id, method, fields = METHODS[name]
            yield Case(name, fields, draw(fields), (class_id, method))
