"""A paho MQTT client with the waits that tests need."""

import queue
import threading

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from harness.patience import PATIENCE

V311, V5 = paho.MQTTv311, paho.MQTTv5
# What `reason_of` returns for a message that is not permitted, by QoS. At QoS 2, paho sends PUBREL even for a refused message,
# and reports the answer to that: packet identifier not found (MQTT 5, 4.3.3).
REFUSED = {1: 0x87, 2: 0x92}


def persistent_session(version):
    """Options of a client with a persistent session; with MQTT 5.0 it expires after an hour."""
    return {"keep": True, "expiry": 3600 if version == V5 else None}


class Client(paho.Client):
    """`handled` has the messages that paho has acknowledged. It acknowledges a message after its callback returns; if the
    callback told the test, the test's DISCONNECT could come first."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.arrived, self.handled = [], queue.Queue()

    def _packet_handle(self):
        try:
            return super()._packet_handle()
        finally:
            while self.arrived:
                self.handled.put(self.arrived.pop(0))


class MqttClient:
    """A connected client. Received messages are in `messages`; `subscribe` returns the reason codes of the SUBACK."""

    def __init__(self, port, name, version=V311, *, keep=False, expiry=None, will=None, user="guest", password="guest",
                 transport="tcp", path="/ws", tls=None, manual_ack=False, inflight=20):
        options = {"clean_session": not keep} if version == V311 else {}
        self.client = Client(paho.CallbackAPIVersion.VERSION2, name, protocol=version, transport=transport,
                             manual_ack=manual_ack, reconnect_on_failure=False, **options)
        if transport == "websockets":
            self.client.ws_set_options(path=path)
        if tls:
            self.client.tls_set_context(tls)
        self.client.max_inflight_messages_set(inflight)
        if user is not None:
            self.client.username_pw_set(user, password)
        if will:
            self.client.will_set(*will)
        self.messages = self.client.handled
        self.connected, self.gone = queue.Queue(), threading.Event()
        self.answers = queue.Queue()
        self.client.on_connect = lambda _c, _u, flags, reason, properties: self.connected.put(
            (flags.session_present, reason, properties)
        )
        self.client.on_message = lambda _c, _u, message: self.client.arrived.append(message)
        self.client.on_subscribe = lambda _c, _u, _mid, reasons, _properties: self.answers.put(reasons)
        self.client.on_unsubscribe = lambda _c, _u, _mid, reasons, _properties: self.answers.put(reasons)
        self.client.on_disconnect = lambda *_: self.gone.set()
        arguments = {}
        if version == V5:
            properties = Properties(PacketTypes.CONNECT)
            if expiry is not None:
                properties.SessionExpiryInterval = expiry
            arguments = {"clean_start": not keep, "properties": properties}
        self.client.connect("localhost" if tls else "127.0.0.1", port, keepalive=60, **arguments)
        self.client.loop_start()
        self.session_present, self.reason, self.properties = self.connected.get(timeout=PATIENCE)

    def subscribe(self, *arguments, **options):
        self.client.subscribe(*arguments, **options)
        return [reason.value for reason in self.answers.get(timeout=PATIENCE)]

    def unsubscribe(self, topic):
        self.client.unsubscribe(topic)
        self.answers.get(timeout=PATIENCE)

    def publish(self, topic, payload=b"", qos=1, retain=False, properties=None):
        """Returns once the message is acknowledged, or sent if it has QoS 0."""
        info = self.client.publish(topic, payload, qos, retain, properties)
        info.wait_for_publish(PATIENCE)
        assert info.is_published()

    def reason_of(self, topic, payload, qos=1, retain=False):
        """Publishes an MQTT 5.0 message; returns the reason code of its acknowledgement."""
        reasons = queue.Queue()
        self.client.on_publish = lambda _c, _u, _mid, reason, _properties: reasons.put(reason.value)
        self.publish(topic, payload, qos, retain)
        return reasons.get(timeout=PATIENCE)

    def message(self):
        return self.messages.get(timeout=PATIENCE)

    def take(self, count):
        return [self.message() for _ in range(count)]

    def close(self):
        self.client.disconnect()
        assert self.gone.wait(PATIENCE)
        self.client.loop_stop()

    def vanish(self):
        """Closes the socket without a DISCONNECT."""
        self.client._sock.close() if self.client._sock else None
        self.client.loop_stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.gone.is_set():
            self.client.disconnect()
        self.client.loop_stop()


def publish_properties(**values):
    properties = Properties(PacketTypes.PUBLISH)
    for name, value in values.items():
        setattr(properties, name, value)
    return properties
