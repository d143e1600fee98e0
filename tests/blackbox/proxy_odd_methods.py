"""No method of a client closes a shared upstream connection, and the answers are RabbitMQ's.

ODD_CASES is the number of random cases beside the fixed ones, or `all`; ODD_SEED selects them.
"""

import itertools
import os
import re
import struct

import pytest

from harness.lending import borrow
from harness.management import leveret
from harness.odd_methods import FATAL, HASH_EXCHANGE, QUEUES, every_case, some_cases, table, text
from harness.wire import (
    BODY,
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    HEADER,
    METHOD,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    Closed,
    Wire,
    content_header,
    frame,
    long_string,
    publish_arguments,
    short_string,
)

SEED = int(os.environ.get("ODD_SEED", "15"))
CASES = os.environ.get("ODD_CASES", "60")

EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK = (40, 10), (40, 11)
QOS, QOS_OK = (60, 10), (60, 11)
CONSUME, CONSUME_OK = (60, 20), (60, 21)
# A bit of basic.consume.
NO_WAIT = 8
DELIVER, ACK = (60, 60), (60, 80)
SELECT, SELECT_OK = (85, 10), (85, 11)
# exchange.delete and queue.delete.
DELETES = {(40, 20), (50, 40)}
# FRAME_ERROR, COMMAND_INVALID, UNEXPECTED_FRAME and INTERNAL_ERROR.
UNREAD = {501, 503, 505, 541}
DURABLE = b"\x02"
CANARY = "odd.canary"
GENERATED = re.compile(rb"amq\.(gen|ctag)-[\w-]{22}")
# RabbitMQ may not answer: it waits for an answer of an unrelated process.
SILENCE_SECONDS = 10


def declare_queue(wire, name, bits, arguments=b""):
    wire.send_method(1, QUEUE_DECLARE, struct.pack(">H", 0) + short_string(name) + bits + long_string(arguments))
    wire.expect(QUEUE_DECLARE_OK)


def declare_what_cases_name(port):
    with Wire(port).handshake() as wire:
        wire.open_channel()
        for kind, name in QUEUES.items():
            is_type = kind != "priority"
            argument = ("x-queue-type", "S", text(kind)) if is_type else ("x-max-priority", "B", b"\x05")
            declare_queue(wire, name, DURABLE, table(argument))
        exchange = struct.pack(">H", 0) + short_string(HASH_EXCHANGE) + short_string("x-consistent-hash")
        wire.send_method(1, EXCHANGE_DECLARE, exchange + DURABLE + long_string(b""))
        wire.expect(EXCHANGE_DECLARE_OK)


@pytest.fixture(scope="module")
def upstream():
    server = borrow()
    try:
        declare_what_cases_name(server.port)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def pool(tmp_path_factory, upstream):
    flags = ["--upstream", f"amqp://127.0.0.1:{upstream.port}", "--upstream-connections-max", "1"]
    # At the end no client settles the canary's delivery.
    flags += ["--drain-timeout", "0s"]
    with leveret(tmp_path_factory.mktemp("leveret"), *flags) as ours:
        yield ours


class Canary:
    """Shares its upstream connections: it publishes with confirms, and has an unacknowledged delivery, which would be
    redelivered if a connection were lost."""

    def __init__(self, pool):
        self.pool = pool
        self.published = 0
        self.wire = Wire(pool.server.port).handshake()
        self.wire.open_channel()
        self.wire.send_method(1, SELECT, b"\x00")
        self.wire.expect(SELECT_OK)
        declare_queue(self.wire, CANARY, b"\x00")
        self.wire.open_channel(2)
        self.wire.send_method(2, QOS, struct.pack(">IHB", 0, 1, 0))
        self.wire.expect(QOS_OK)
        names = short_string(CANARY) + short_string("canary")
        self.wire.send_method(2, CONSUME, struct.pack(">H", 0) + names + b"\x00" + long_string(b""))
        self.wire.expect(CONSUME_OK)
        self.sing(also=DELIVER)
        self.connections = self.shared()

    def sing(self, also=None):
        """Publishes, and expects the confirm, the first time also the delivery, and nothing else."""
        publish = struct.pack(">HH", 60, 40) + publish_arguments("", CANARY)
        self.wire.send(frame(METHOD, 1, publish) + frame(HEADER, 1, content_header(1)) + frame(BODY, 1, b"x"))
        self.published += 1
        wanted = {ACK, also} - {None}
        while wanted:
            kind, _, payload = self.wire.read_frame()
            if kind == METHOD:
                wanted.discard(struct.unpack(">HH", payload[:4]))
        if also:
            # The delivery's content may come after the confirm.
            self.wire.send_method(1, QOS, struct.pack(">IHB", 0, 0, 0))
            while self.wire.read_frame()[2][:4] != struct.pack(">HH", *QOS_OK):
                pass

    def shared(self):
        clients = self.pool.get("leveret/clients", user=None)
        return {name for client in clients for name in client["upstream_connections"]}

    def is_well(self):
        self.sing()
        return self.connections <= {each["name"] for each in self.pool.get("leveret/connections", user=None)}


def ask(port, case, new):
    """A server's answers on a new connection: methods by number, or the close of the channel or connection."""
    events = []
    with Wire(port) as wire:
        wire.handshake().open_channel()
        # Opens the upstream channel before the case runs.
        wire.send_method(1, QOS, struct.pack(">IHB", 0, 5, 0))
        wire.expect(QOS_OK)
        wire.socket.settimeout(SILENCE_SECONDS)
        # RabbitMQ's queue process answers this while the channel continues; through the pool, later methods wait for it.
        awaited = {QOS_OK, CONSUME_OK} if case.ids == CONSUME and not case.values[3] & NO_WAIT else {QOS_OK}
        try:
            wire.send(case.frames(new) + frame(METHOD, 1, struct.pack(">HHIHB", *QOS, 0, 7, 0)))
            while True:
                kind, _, payload = wire.read_frame()
                if kind != METHOD:
                    continue
                ids = struct.unpack(">HH", payload[:4])
                if ids == CONNECTION_CLOSE:
                    wire.send_method(0, CONNECTION_CLOSE_OK)
                if ids in (CHANNEL_CLOSE, CONNECTION_CLOSE):
                    code, size = struct.unpack(">HB", payload[4:7])
                    words = GENERATED.sub(b"amq.", payload[7 : 7 + size].replace(new.encode(), b"NEW"))
                    return [*events, (ids, code, words)]
                awaited.discard(ids)
                if not awaited:
                    return [*events, "fine"]
                if ids != QOS_OK and (case.ids != CONSUME or ids not in (CONSUME_OK, DELIVER)):
                    events.append(ids)
        except (Closed, ConnectionError):
            return [*events, "closed"]
        except TimeoutError:
            return [*events, "silent"]


def is_same(ours, theirs):
    """Unparsable content closes the connection, with one code or another, or with a bare close of the socket if RabbitMQ's
    connection process crashes. If there are several faults, either may be reported."""
    if theirs == ["closed"]:
        return ours[-1] == "closed" or ours[-1][0] == CONNECTION_CLOSE
    unread = theirs[-1][0] == CONNECTION_CLOSE and theirs[-1][1] in UNREAD
    return ours == theirs or (unread and ours[-1][0] == CONNECTION_CLOSE and ours[-1][1] in {502, 540} | UNREAD)


def test_p2_odd_methods_end_nobody_elses_connection_and_are_answered_as_rabbitmq_answers(upstream, pool):
    chosen = every_case() if CASES == "all" else some_cases(SEED, int(CASES))
    canary = Canary(pool)
    numbers = itertools.count()
    wrong = []
    for case in itertools.chain(FATAL, chosen):
        theirs = ask(upstream.port, case, f"odd.new.{next(numbers):06}")
        ours = ask(pool.server.port, case, f"odd.new.{next(numbers):06}")
        if not canary.is_well():
            wrong.append(f"{case}: a connection that others share has ended")
            canary = Canary(pool)
        elif not is_same(ours, theirs):
            wrong.append(f"{case}: {ours}, RabbitMQ: {theirs}")
        if case.ids in DELETES:
            declare_what_cases_name(upstream.port)
    assert not wrong, f"seed {SEED}, {len(wrong)} cases\n" + "\n".join(wrong)
