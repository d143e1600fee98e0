"""docs/how-to/browsers.md: the clients of pages meet at one exchange, as a user with few permissions, and other origins are
kept out."""

import pika
import pytest

from harness.amqp import connect
from harness.how_to import HowTo
from harness.leveret import ROOT
from harness.metrics import metric, wait_until
from harness.ports import free_ports
from harness.reader import Reader
from harness.websocket import Refused, WebSocketWire

# As each client shows the place that a message was published to.
SHOWN = {"mqtt": "sensors/kitchen", "stomp": "/topic/sensors.kitchen", "amqp": "sensors.kitchen"}
SENT = {"from MQTT", "from STOMP", "from AMQP"}


@pytest.fixture
def reader(tmp_path):
    with Reader(tmp_path) as reader:
        # As `npm install` would leave it.
        (tmp_path / "node_modules").symlink_to(ROOT / "tests" / "websocket" / "node_modules")
        yield reader


def test_three_clients_meet_at_one_exchange(reader):
    page = HowTo("browsers")
    [port] = free_ports(1)
    here = {"127.0.0.1:15670": f"127.0.0.1:{port}"}
    reader.write("leveret.toml", page.file("leveret.toml", {"0.0.0.0:15670": f"127.0.0.1:{port}"}))
    server = reader.serve("leveret serve --config leveret.toml --amqp 127.0.0.1:0 --http 127.0.0.1:0", LEVERET_WS="")
    guest = {"LEVERET_CTL_URL": server.http, "LEVERET_CTL_PASSWORD": "guest"}
    reader.run(page.block("sh"), **guest)
    clients = {}
    for subscribed, (name, place) in enumerate(SHOWN.items(), 1):
        reader.write(f"{name}.mjs", page.file(f"{name}.mjs", here))
        clients[name] = reader.start(f"node --no-warnings --experimental-websocket {name}.mjs")
        clients[name].wait_line(f"^{place} from {name.upper()}$")
        wait_until(lambda: metric(server, "rabbitmq_consumers") == subscribed)
    # A client has not seen what was published before it subscribed: everything is sent once more, with bodies of its own.
    again = [f"{body} again" for body in SENT]
    with connect(server) as connection:
        for body in again:
            connection.channel().basic_publish("amq.topic", "sensors.kitchen", body)
    for name, place in SHOWN.items():
        for body in again:
            clients[name].wait_line(f"^{place} {body}$")
    page.finish()
    assert may_connect(port, "https://app.example.com") and may_connect(port, "http://localhost:8080")
    assert not may_connect(port, "https://elsewhere.example.com")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
        # Its messages meet at amq.topic, and it may have queues of its own, but nobody else's.
        with pika.BlockingConnection(pika.URLParameters(server.uri.replace("guest:guest", "page:secret"))) as connection:
            connection.channel().queue_declare("orders")


def test_the_other_rows_of_the_tables_are_true(reader):
    """Topics with dots, destinations of exchanges and queues, and the ports that RabbitMQ has for them."""
    [port, web_mqtt, web_stomp] = free_ports(3)
    flags = f"--ws 127.0.0.1:{port} --web-mqtt 127.0.0.1:{web_mqtt} --web-stomp 127.0.0.1:{web_stomp}"
    on = dict.fromkeys(("LEVERET_WS", "LEVERET_WEB_MQTT", "LEVERET_WEB_STOMP"), "")
    server = reader.serve(f"leveret serve {flags} --amqp 127.0.0.1:0 --http 127.0.0.1:0", **on)
    with connect(server) as connection:
        channel = connection.channel()
        channel.exchange_declare("orders")
        bound = {"dots": ("amq.topic", "hosts.web1/example.up"), "new": ("orders", "new")}
        for queue, (exchange, key) in bound.items():
            channel.queue_declare(queue)
            channel.queue_bind(queue, exchange, key)
        channel.queue_declare("jobs")
        for path in (f"{web_mqtt}/ws", f"{web_mqtt}/mqtt", f"{port}/ws/mqtt"):
            reader.run(f"node --no-warnings --input-type=module -e '{MQTT % path}'")
        for path in (f"{web_stomp}/ws", f"{port}/ws/stomp"):
            reader.run(f"node --no-warnings --experimental-websocket --input-type=module -e '{STOMP % path}'")
        ready = lambda queue: channel.queue_declare(queue, passive=True).method.message_count
        wait_until(lambda: {queue: ready(queue) for queue in ("dots", "new", "jobs")} == {"dots": 3, "new": 2, "jobs": 2})
        wait_until(lambda: ready("made") == 2)
    told = set(HowTo("browsers").path.read_text().split("`"))
    assert {SHOWN["mqtt"], SHOWN["stomp"], "/exchange/orders/new", "/amq/queue/jobs"} <= told


MQTT = """
import mqtt from "mqtt";
const client = await mqtt.connectAsync("ws://127.0.0.1:%s", { username: "guest", password: "guest" });
await client.publishAsync("hosts/web1.example/up", "x", { qos: 1 });
await client.endAsync();
"""
STOMP = """
import { Client } from "@stomp/stompjs";
const connectHeaders = { login: "guest", passcode: "guest", host: "/" };
const client = new Client({ brokerURL: "ws://127.0.0.1:%s", connectHeaders });
await new Promise((resolve) => {
  client.onConnect = resolve;
  client.activate();
});
for (const destination of ["/exchange/orders/new", "/amq/queue/jobs", "/queue/made"])
  await new Promise((resolve) => {
    client.watchForReceipt(destination, resolve);
    client.publish({ destination, body: "x", headers: { receipt: destination } });
  });
await client.deactivate();
process.exit(0);
"""


def may_connect(port, origin):
    try:
        WebSocketWire(port, "/ws/amqp", Origin=origin, Sec_WebSocket_Protocol="amqp").close()
    except Refused as refused:
        assert refused.status == 403
        return False
    return True
