"""Confirms and returns, with many messages in flight (pika's SelectConnection, which does not wait for each)."""

import pika

from session import WAIT_SECONDS, connection_refused, drain, ready, scenario

IN_FLIGHT = 1000


@scenario
def confirms(session):
    channel = session.channel()
    queue = session.queue(channel)
    publisher = Publisher(session, [("", queue, str(number), False) for number in range(IN_FLIGHT)], window=IN_FLIGHT)
    publisher.run()
    return {
        "acked": sum(event == "ack" for event in publisher.events),
        "nacked": sum(event == "nack" for event in publisher.events),
        "stored": ready(channel, queue),
        "in_order": drain(channel, queue) == [str(number) for number in range(IN_FLIGHT)],
    }


@scenario
def mandatory_return(session):
    channel = session.channel()
    queue = session.queue(channel)
    missing = session.name("missing")
    publisher = Publisher(
        session, [("", missing, "returned", True), ("", queue, "kept", True), ("", missing, "dropped", False)], window=1
    )
    publisher.run()
    return {"events": publisher.events, "received": drain(channel, queue)}


@scenario
def immediate(session):
    def action(channel):
        method = pika.spec.Basic.Publish(exchange="", routing_key="any", immediate=True)
        channel._impl._send_method(method, (pika.BasicProperties(), b""))

    return connection_refused(session.connect(), action)


class Publisher:
    """Publishes `messages` with at most `window` unconfirmed, noting returns and confirms in the order they arrive."""

    def __init__(self, session, messages, window):
        self.parameters = session.parameters()
        self.messages = messages
        self.window = window
        self.sent = 0
        self.confirmed = 0
        self.events = []

    def run(self):
        self.connection = pika.SelectConnection(
            self.parameters,
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.on_channel),
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )
        self.connection.ioloop.call_later(WAIT_SECONDS, self.connection.ioloop.stop)
        self.connection.ioloop.start()
        assert self.confirmed == len(self.messages), self.events

    def on_channel(self, channel):
        self.channel = channel
        channel.add_on_return_callback(self.on_return)
        channel.confirm_delivery(self.on_confirm, callback=lambda _: self.publish())

    def publish(self):
        while self.sent < len(self.messages) and self.sent - self.confirmed < self.window:
            exchange, key, body, mandatory = self.messages[self.sent]
            self.sent += 1
            self.channel.basic_publish(exchange, key, body.encode(), mandatory=mandatory)

    def on_return(self, _channel, method, _properties, body):
        self.events.append(f"return {method.reply_code} {method.reply_text} {body.decode()}")

    def on_confirm(self, frame):
        event = "ack" if isinstance(frame.method, pika.spec.Basic.Ack) else "nack"
        tag = frame.method.delivery_tag
        # Without `multiple` RabbitMQ confirms messages in any order, so only their number is kept.
        count = tag - self.confirmed if frame.method.multiple else 1
        self.events.extend([event] * count)
        self.confirmed += count
        self.publish()
        if self.confirmed == len(self.messages):
            self.connection.close()
