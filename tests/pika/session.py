"""What every scenario is handed: connections to the target, names of its own, and ways to observe."""

import os
import time

import pika
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

SCENARIOS = {}
# As that of the tests that start this (harness/patience.py).
WAIT_SECONDS = int(os.environ.get("LEVERET_PATIENCE", "180"))


def scenario(function):
    """Registers a scenario under its function's name."""
    SCENARIOS[function.__name__] = function
    return function


class Session:
    def __init__(self, uri, prefix):
        self.uri = uri
        self.prefix = prefix
        self.connections = []

    def name(self, short):
        """A queue's or exchange's name that no other run of any scenario uses."""
        return self.prefix + short

    def parameters(self, **overrides):
        parameters = pika.URLParameters(self.uri)
        parameters.socket_timeout = parameters.stack_timeout = WAIT_SECONDS
        for key, value in overrides.items():
            setattr(parameters, key, value)
        return parameters

    def connect(self, **overrides):
        connection = pika.BlockingConnection(self.parameters(**overrides))
        self.connections.append(connection)
        return connection

    @property
    def connection(self):
        """The scenario's main connection, made on first use."""
        return self.connections[0] if self.connections else self.connect()

    def channel(self):
        return self.connection.channel()

    def queue(self, channel, short="q", **options):
        """Declares a queue of this run and returns its full name."""
        channel.queue_declare(self.name(short), **options)
        return self.name(short)

    def refused(self, action):
        """Runs `action` on a fresh channel; returns the error that closed the channel, the connection staying usable."""
        channel = self.channel()
        try:
            action(channel)
            round_trip(channel)
        except ChannelClosedByBroker as error:
            assert self.channel().queue_declare("", exclusive=True).method.queue
            return {"code": error.reply_code, "text": error.reply_text}
        return "accepted"

    def refused_otherwise(self, action, before):
        """What `refused` gives as soon as that is not `before`: RabbitMQ 4 deletes an exclusive queue some time after it has answered its
        owner's close."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (now := self.refused(action)) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        return now

    def close(self):
        for connection in self.connections:
            if connection.is_open:
                connection.close()


class Collector:
    """A consumer that keeps what it is given."""

    def __init__(self, channel, queue, **options):
        self.channel = channel
        self.deliveries = []
        self.tag = channel.basic_consume(queue, self.take, **options)

    def take(self, _channel, method, properties, body):
        self.deliveries.append((method, properties, body))

    def wait(self, count):
        wait_until(self.channel.connection, lambda: len(self.deliveries) >= count)
        return self.deliveries

    @property
    def bodies(self):
        return [body.decode() for _, _, body in self.deliveries]


def wait_until(connection, condition, pause=1):
    """Serves the connection's events until `condition` holds; asks again after `pause` seconds without events."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        connection.process_data_events(time_limit=pause)


def connection_refused(connection, action):
    """Runs `action` on a fresh channel; returns the error that closed the whole connection, or says that it closed the channel alone."""
    try:
        channel = connection.channel()
        action(channel)
        round_trip(channel)
    except ConnectionClosedByBroker as error:
        return {"code": error.reply_code, "text": error.reply_text}
    except ChannelClosedByBroker as error:
        return {"code": error.reply_code, "text": error.reply_text, "closed": "channel"}
    return "accepted"


def round_trip(channel):
    """Returns once the server has handled everything sent on `channel`, raising what it objected to."""
    channel.exchange_declare("amq.direct", passive=True)


def publish(channel, queue, *bodies):
    for body in bodies:
        channel.basic_publish("", queue, body.encode())


def store(session, queue, *bodies):
    """Publishes and returns once the queue has them all, for what is to be counted or taken on another channel."""
    channel = session.channel()
    channel.confirm_delivery()
    publish(channel, queue, *bodies)
    channel.close()


def ready(channel, queue):
    return channel.queue_declare(queue, passive=True).method.message_count


def drain(channel, queue):
    """Gets and acknowledges everything in `queue`; the bodies in order."""
    return [body for body, _ in get_all(channel, queue, auto_ack=True)]


def seen_again(channel, queue, count):
    """Gets everything in `queue` once that many are back: body and whether it was marked as redelivered.
    A server may answer a close before its queue has the messages."""
    wait_until(channel.connection, lambda: ready(channel, queue) == count, pause=0.01)
    return [[body, method.redelivered] for body, method in get_all(channel, queue)]


def get_all(channel, queue, auto_ack=False):
    """Gets everything in `queue`: (body, method) in order."""
    taken = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=auto_ack)
        if method is None:
            return taken
        taken.append((body.decode(), method))
