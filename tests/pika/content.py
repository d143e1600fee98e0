"""Messages arrive as they were sent: properties, header values, bodies of any size."""

import datetime
import decimal

import pika

from connecting import digest, patterned
from session import Collector, scenario

TIMESTAMP = 1_700_000_000
SIZES = [0, 1, 4088, 4089, 131_064, 131_065, 1_048_576, 16_777_216]


@scenario
def properties(session):
    sent = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="identity",
        headers={"animal": "hare"},
        delivery_mode=2,
        priority=5,
        correlation_id="correlation",
        reply_to="reply",
        expiration="60000",
        message_id="message",
        timestamp=TIMESTAMP,
        type="greeting",
        user_id="guest",
        app_id="scenarios",
        cluster_id="cluster",
    )
    method, got, body = through_queue(session, sent, "häre".encode())
    return {
        **{key: getattr(got, key) for key in vars(sent)},
        "body": body.decode(),
        "exchange": method.exchange,
        "routing_key": method.routing_key,
        "redelivered": method.redelivered,
    }


@scenario
def header_values(session):
    moment = datetime.datetime.fromtimestamp(TIMESTAMP, datetime.timezone.utc)
    headers = {
        "true": True,
        "false": False,
        "byte": -8,
        "short": -300,
        "int": -100_000,
        "long": 1 << 40,
        "decimal": decimal.Decimal("1.25"),
        "text": "häre",
        "empty": "",
        "binary": b"\x00\x01\xff",
        "timestamp": moment.replace(tzinfo=None),
        "void": None,
        "list": [1, "two", True, None, [3]],
        "table": {"inner": {"deep": 7}},
    }
    _, got, _ = through_queue(session, pika.BasicProperties(headers=headers), b"")
    return plain(got.headers)


def through_queue(session, sent, body):
    channel = session.channel()
    queue = session.queue(channel)
    collector = Collector(channel, queue, auto_ack=True)
    channel.basic_publish("", queue, body, sent)
    return collector.wait(1)[0]


def plain(value):
    """A field value as JSON shows it: decimals as text, bytes in hex, timestamps in seconds."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, datetime.datetime):
        return int(value.replace(tzinfo=datetime.timezone.utc).timestamp())
    return value


@scenario
def body_sizes(session):
    channel = session.channel()
    queue = session.queue(channel)
    collector = Collector(channel, queue)
    intact = []
    for size in SIZES:
        sent = patterned(size)
        channel.basic_publish("", queue, sent)
        method, _, body = collector.wait(1)[0]
        channel.basic_ack(method.delivery_tag)
        collector.deliveries.clear()
        if digest(body) == digest(sent):
            intact.append(len(body))
    return {"intact": intact}
