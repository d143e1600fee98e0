"""Opening, negotiating and keeping connections and channels."""

import hashlib
import re
import time

import pika
from pika.exceptions import AMQPConnectionError

from session import Collector, publish, ready, round_trip, scenario


@scenario
def connect(session):
    implementation = session.connection._impl
    properties = implementation.server_properties
    return {
        "capabilities": properties["capabilities"],
        "properties": sorted(properties),
        "channel_max": implementation.params.channel_max,
        "frame_max": implementation.params.frame_max,
        "heartbeat": implementation.params.heartbeat,
    }


@scenario
def wrong_password(session):
    return login_refused(session, credentials=pika.PlainCredentials("guest", "not-the-password"))


@scenario
def wrong_vhost(session):
    return login_refused(session, virtual_host="nowhere")


def login_refused(session, **overrides):
    try:
        session.connect(**overrides)
    except AMQPConnectionError as error:
        # pika wraps the server's connection.close in an error of its own and keeps only its text.
        code, text = re.search(r"\((\d+)\) ['\"](.*)['\"]$", str(error.args[0])).groups()
        return {"code": int(code), "text": text}
    return "accepted"


@scenario
def heartbeat_two_seconds(session):
    connection = session.connect(heartbeat=2)
    # pika raises here should the server's heartbeats fail to arrive, as the server hangs up should pika's.
    idle_until = time.monotonic() + 5
    while time.monotonic() < idle_until:
        connection.process_data_events(time_limit=1)
    round_trip(connection.channel())
    return {"heartbeat": connection._impl.params.heartbeat, "alive": connection.is_open}


@scenario
def frame_max_4096(session):
    return through_frames_of(session, 4096)


@scenario
def frame_max_131072(session):
    return through_frames_of(session, 131072)


def through_frames_of(session, frame_max):
    connection = session.connect(frame_max=frame_max)
    channel = connection.channel()
    queue = session.queue(channel)
    collector = Collector(channel, queue, auto_ack=True)
    sizes = [0, 1, frame_max - 8, frame_max - 7, 1_048_576]
    bodies = [patterned(size) for size in sizes]
    for body in bodies:
        channel.basic_publish("", queue, body)
    got = [body for _, _, body in collector.wait(len(sizes))]
    return {
        "frame_max": connection._impl.params.frame_max,
        "intact": [len(body) for body, sent in zip(got, bodies) if digest(body) == digest(sent)],
    }


@scenario
def many_channels(session):
    channels = [session.channel() for _ in range(500)]
    queues = [channel.queue_declare("", exclusive=True).method.queue for channel in channels]
    for number, (channel, queue) in enumerate(zip(channels, queues)):
        publish(channel, queue, str(number))
    own = 0
    for number, (channel, queue) in enumerate(zip(channels, queues)):
        own += channel.basic_get(queue, auto_ack=True)[2] == str(number).encode()
    return {"channels": len(channels), "own_messages": own}


@scenario
def ten_connections(session):
    queue = session.queue(session.channel())
    channels = [session.connect().channel() for _ in range(10)]
    for channel in channels:
        channel.confirm_delivery()
    for number in range(100):
        for publisher, channel in enumerate(channels):
            publish(channel, queue, f"{publisher} {number}")
    stored = ready(session.channel(), queue)
    collector = Collector(session.channel(), queue, auto_ack=True)
    collector.wait(1000)
    by_publisher = {}
    for body in collector.bodies:
        publisher, number = body.split()
        by_publisher.setdefault(publisher, []).append(int(number))
    return {"stored": stored, "in_order": sum(numbers == list(range(100)) for numbers in by_publisher.values())}


def patterned(size):
    """A body whose every part differs, so that a lost or swapped frame shows."""
    return b"".join(number.to_bytes(4, "big") for number in range(size // 4 + 1))[:size]


def digest(body):
    return hashlib.sha256(body).hexdigest()
