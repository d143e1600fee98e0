"""The firehose: published and delivered messages of a traced virtual host are reported as RabbitMQ reports them: routing
keys, headers with types and order, properties and bodies. Nothing is reported once tracing is off."""

import contextlib
import itertools
import time

import pika
import pytest

from harness.ctl import Ctl
from harness.leveret import Leveret
from harness.management import Management, path
from harness.metrics import metric, wait_until
from harness.mqtt_broker import ANY, listening
from harness.mqtt_client import PATIENCE, MqttClient
from harness.rabbitmq import PLUGINS, RabbitMq, free_ports
from harness.releases import TAKEN_AFTER
from harness.stomp_client import Client as StompClient

TRACE = "amq.rabbitmq.trace"
DEFAULT = path("vhosts", "/")
EVERYTHING = {
    "content_type": "text/x",
    "content_encoding": "gzip",
    "headers": {"a": 1, "n": {"x": [1, "y", None, True]}, "CC": ["copy"], "BCC": ["blind"]},
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": 1_700_000_000,
    "type": "t",
    "user_id": "guest",
    "app_id": "a",
    "cluster_id": "u",
}
# The body of the message that marks the end of a trace.
END = b"the end"


class Site:
    """A server with every protocol that publishes messages."""

    def __init__(self, kind, directory):
        self.kind = kind
        if kind == "leveret":
            self.server = Leveret(directory, "--mqtt", ANY, "--stomp", ANY)
            self.mqtt, self.stomp = listening(self.server, "mqtt", "mqtt"), listening(self.server, "stomp", "stomp")
            url = self.server.http
        else:
            http, self.mqtt, self.stomp = free_ports(3)
            settings = [
                f"management.tcp.port = {http}",
                "management.tcp.ip = 127.0.0.1",
                "collect_statistics_interval = 500",
                f"mqtt.listeners.tcp.1 = 127.0.0.1:{self.mqtt}",
                f"stomp.listeners.tcp.1 = 127.0.0.1:{self.stomp}",
            ]
            plugins = f"{PLUGINS},rabbitmq_management,rabbitmq_mqtt,rabbitmq_stomp"
            self.server = RabbitMq(directory, *settings, plugins=plugins, version=TAKEN_AFTER)
            url = f"http://127.0.0.1:{http}"
        self.api = Management(self.server, url)
        self.ctl = Ctl(url)

    def connect(self):
        return pika.BlockingConnection(pika.URLParameters(self.server.uri))

    @contextlib.contextmanager
    def channel(self):
        """An AMQP channel in confirm mode, for the length of a `with`."""
        with self.connect() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel

    def switch(self, tracing):
        assert self.api.status("PUT", DEFAULT, {"tracing": tracing, "description": "Default virtual host"}) == 204

    @contextlib.contextmanager
    def tapped(self, key="#"):
        """Traces everything for the length of a `with`; yields a function that waits for a number of trace messages and
        returns all that belong to these channels."""
        with self.connect() as connection:
            channel = connection.channel()
            queue = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_bind(queue, TRACE, key)
            self.switch(True)
            try:
                yield lambda count, *channels: everything(channel, queue, count, channels)
            finally:
                self.switch(False)


def everything(tap, queue, count, channels):
    """Waits for this many trace messages; returns all that belong to these channels."""
    messages = until_the_end(tap, queue)
    traced = list(itertools.islice(messages, count))
    # RabbitMQ reports a delivery after it was sent, but before the channel answers the next request.
    for channel in channels:
        channel.exchange_declare("amq.direct", "direct", passive=True)
    tap.basic_publish("", queue, END)
    return traced + list(messages)


def until_the_end(tap, queue):
    """The trace messages as tuples of routing key, exchange, redelivered, properties and body, up to the end marker. The
    marker is published to the queue itself, and is traced as well."""
    keys = []
    for method, properties, body in tap.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE):
        assert method is not None, f"nothing comes after {keys}"
        if body != END:
            keys.append(method.routing_key)
            yield method.routing_key, method.exchange, method.redelivered, properties, body
        elif not method.exchange:
            return


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    with contextlib.ExitStack() as stack:
        sites = []
        for kind in ("leveret", "rabbitmq"):
            sites.append(Site(kind, tmp_path_factory.mktemp(kind) / "server"))
            stack.callback(sites[-1].server.stop)
        yield sites


def plain(traced, without=("node", "connection")):
    """A trace message without the names of servers and connections; the headers are a list, because their order and types
    matter."""
    routing_key, exchange, redelivered, properties, body = traced
    headers = [(key, value) for key, value in properties.headers.items() if key not in without]
    others = {key: value for key, value in vars(properties).items() if key != "headers" and value is not None}
    # pika's type for 64-bit integers shows in the text.
    return routing_key, exchange, redelivered, others, repr(headers), body


def publish(channel, exchange, key, body=b"x", mandatory=False, **properties):
    with contextlib.suppress(pika.exceptions.UnroutableError):
        channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties), mandatory=mandatory)


def bound(channel, *queues, exchange="amq.direct", key="k"):
    for queue in queues:
        channel.queue_declare(queue)
        channel.queue_bind(queue, exchange, key)


def got(channel, queue, **options):
    """The queue's next message, waiting for it."""
    deadline = time.monotonic() + PATIENCE
    while (found := channel.basic_get(queue, **options))[0] is None:
        assert time.monotonic() < deadline, f"nothing in {queue}"
        time.sleep(0.05)
    return found


def length(channel, queue):
    return channel.queue_declare(queue, passive=True).method.message_count


def every_property(_, channel):
    bound(channel, "b", "a")
    publish(channel, "amq.direct", "k", b"hello", **EVERYTHING)
    got(channel, "a", auto_ack=True)
    return {"publish.amq.direct": 1, "deliver.a": 1}


def no_property(_, channel):
    bound(channel, "a")
    publish(channel, "amq.direct", "k", b"")
    publish(channel, "amq.direct", "k", b"", headers={})
    return {"publish.amq.direct": 2}


def large_bodies(_, channel):
    bound(channel, "a")
    publish(channel, "amq.direct", "k", bytes(range(256)) * 2000)
    got(channel, "a", auto_ack=True)
    return {"publish.amq.direct": 1, "deliver.a": 1}


def unroutable(_, channel):
    publish(channel, "amq.direct", "nowhere")
    publish(channel, "amq.direct", "nowhere", mandatory=True)
    return {"publish.amq.direct": 2}


def the_default_exchange(_, channel):
    """Its routing keys are reported as queues, existing or not, each once and in order."""
    channel.queue_declare("a")
    publish(channel, "", "nowhere", mandatory=True)
    publish(channel, "", "a", headers={"CC": ["z", "b", "a"], "BCC": ["c"]})
    got(channel, "a", auto_ack=True)
    return {"publish.": 2, "deliver.a": 1}


def an_alternate_exchange_and_others_behind(_, channel):
    channel.exchange_declare("first", "topic", arguments={"alternate-exchange": "second"})
    channel.exchange_declare("second", "fanout")
    channel.exchange_bind("amq.fanout", "second")
    bound(channel, "b", "a", exchange="amq.fanout")
    publish(channel, "first", "k")
    channel.exchange_delete("first")
    channel.exchange_delete("second")
    return {"publish.first": 1}


def redelivered(_, channel):
    channel.queue_declare("a")
    publish(channel, "", "a")
    channel.basic_reject(got(channel, "a")[0].delivery_tag, requeue=True)
    channel.basic_ack(got(channel, "a")[0].delivery_tag)
    return {"publish.": 1, "deliver.a": 2}


def consumed(_, channel):
    """Consumes on a channel with another number."""
    other = channel.connection.channel()
    channel.queue_declare("a")
    for body in (b"1", b"2", b"3"):
        publish(channel, "", "a", body)
    deliveries = other.consume("a")
    for _ in range(3):
        method, _, _ = next(deliveries)
        other.basic_ack(method.delivery_tag)
    other.cancel()
    other.close()
    return {"publish.": 3, "deliver.a": 3}


def quorum_queues(_, channel):
    """Their deliveries have the header x-delivery-count."""
    channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum"})
    publish(channel, "", "quorum")
    channel.basic_reject(got(channel, "quorum")[0].delivery_tag, requeue=True)
    got(channel, "quorum", auto_ack=True)
    channel.queue_delete("quorum")
    return {"publish.": 1, "deliver.quorum": 2}


def transactions(_, channel):
    """Traced when they are published, even if the transaction is rolled back."""
    transacted = channel.connection.channel()
    transacted.tx_select()
    bound(channel, "a")
    publish(transacted, "amq.direct", "k", b"rolled back")
    transacted.tx_rollback()
    publish(transacted, "amq.direct", "k", b"committed")
    transacted.tx_commit()
    got(channel, "a", auto_ack=True)
    return {"publish.amq.direct": 2, "deliver.a": 1}


def dead_letters(_, channel):
    """Dead-lettering is not reported as a publish; the delivery of dead letters is reported."""
    channel.queue_declare("a")
    channel.queue_declare("dies", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a", "x-expires": 60_000})
    publish(channel, "", "dies")
    channel.basic_reject(got(channel, "dies")[0].delivery_tag, requeue=False)
    got(channel, "a", auto_ack=True)
    return {"publish.": 1, "deliver.dies": 1, "deliver.a": 1}


def replies(_, channel):
    """The request and the reply are reported, but not the delivery of the reply, which involves no queue."""
    asking = channel.connection.channel()
    heard = []
    asking.basic_consume("amq.rabbitmq.reply-to", lambda *delivery: heard.append(delivery), auto_ack=True)
    channel.queue_declare("a")
    asking.basic_publish("", "a", b"request", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    _, properties, _ = got(channel, "a", auto_ack=True)
    publish(channel, "", properties.reply_to, b"reply")
    wait_until(lambda: channel.connection.process_data_events(0.05) or heard)
    asking.close()
    return {"publish.": 2, "deliver.a": 1}


def the_http_api(site, channel):
    bound(channel, "a")
    message = {"routing_key": "k", "properties": {"headers": {"h": "v"}}, "payload": "http", "payload_encoding": "string"}
    assert site.api.ask("POST", path("exchanges", "/", "amq.direct", "publish"), message)[0] == 200
    wanted = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert site.api.ask("POST", path("queues", "/", "a", "get"), wanted)[0] == 200
    return {"publish.amq.direct": 1, "deliver.a": 1}


def mqtt(site, _):
    client = MqttClient(site.mqtt, "firehose")
    for quality in (0, 1):
        assert client.subscribe(f"fire/{quality}", quality) == [quality]
        client.publish(f"fire/{quality}", b"mqtt", quality)
        assert client.message().payload == b"mqtt"
        client.unsubscribe(f"fire/{quality}")
    client.close()
    return {"publish.amq.topic": 2, "deliver.mqtt-subscription-firehoseqos0": 1, "deliver.mqtt-subscription-firehoseqos1": 1}


def stomp(site, channel):
    channel.queue_declare("stomps", durable=True)
    client = StompClient(site.stomp)
    client.connection.subscribe("/amq/queue/stomps", "1", ack="auto")
    client.connection.send("/amq/queue/stomps", "stomp", headers={"own": "header", "priority": "4"})
    assert client.message().body == "stomp"
    client.do("unsubscribe", "1")
    client.close()
    channel.queue_delete("stomps")
    return {"publish.": 1, "deliver.stomps": 1}


SCENARIOS = [
    every_property, no_property, large_bodies, unroutable, the_default_exchange, an_alternate_exchange_and_others_behind,
    redelivered, consumed, quorum_queues, transactions, dead_letters, replies, the_http_api, mqtt, stomp,
]  # fmt: skip
# RabbitMQ's MQTT adapter has a channel for each QoS, with arbitrary numbers.
LEFT_OUT = {mqtt: {"channel"}}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.__name__ for scenario in SCENARIOS])
def test_traced_messages_match_those_of_rabbitmq(sites, scenario):
    both = []
    for site in sites:
        with site.channel() as channel, site.tapped() as traced:
            expected = scenario(site, channel)
            all_traced = traced(sum(expected.values()), channel)
            for queue in ("a", "b", "dies"):
                channel.queue_delete(queue)
        counts = {key: [each[0] for each in all_traced].count(key) for key in expected}
        assert (counts, len(all_traced)) == (expected, sum(expected.values())), site.kind
        both.append([comparable(each, LEFT_OUT.get(scenario, set())) for each in all_traced])
    # The order of trace messages from different channels may vary.
    assert sorted(both[0]) == sorted(both[1])


def comparable(traced, without):
    """Without what varies: names of servers and connections, generated names, and the time of a death."""
    properties = traced[3].headers["properties"]
    if str(properties.get("reply_to", "")).startswith("amq.rabbitmq.reply-to."):
        properties["reply_to"] = "token"
    keys = traced[3].headers["routing_keys"]
    traced[3].headers["routing_keys"] = [key if not key.startswith("amq.rabbitmq.reply-to.") else "token" for key in keys]
    headers = properties.get("headers", {})
    # RabbitMQ's STOMP adapter forwards the frame's own header.
    headers.pop("content-length", None)
    for death in headers.get("x-death", []):
        del death["time"]
    return repr(plain(traced, {"node", "connection"} | without))


def test_a_publish_is_traced_before_the_delivery_of_its_message(sites):
    """A reader of the firehose sees a message's publish before its delivery."""
    for site in sites:
        with site.channel() as channel, site.tapped() as traced:
            channel.queue_declare("a", exclusive=True)
            for number in range(100):
                publish(channel, "", "a", str(number).encode())
                channel.basic_get("a", auto_ack=True)
            kinds = [(each[0], each[4]) for each in traced(200, channel)]
        bodies = [str(number).encode() for number in range(100)]
        assert [body for key, body in kinds if key == "publish."] == bodies, site.kind
        assert all(kinds.index(("publish.", body)) < kinds.index(("deliver.a", body)) for body in bodies), site.kind


def test_the_connection_is_named_as_operators_see_it(sites):
    for site in sites:
        with site.channel() as channel, site.tapped() as traced:
            publish(channel, "amq.direct", "k")
            headers = traced(1, channel)[0][3].headers
            # RabbitMQ lists a connection some time after it was opened.
            site.api.eventually("connections", lambda all: headers["connection"] in {each.get("name") for each in all})
        assert headers["node"] == site.api.get("overview")["node"], site.kind


def test_messages_from_the_trace_exchange_are_not_traced_again(sites):
    """Neither those published to the trace exchange itself, nor those routed through an exchange bound to it."""
    for site in sites:
        with site.channel() as channel, site.tapped() as traced:
            channel.exchange_declare("behind", "fanout", auto_delete=True)
            channel.exchange_bind("behind", TRACE, "publish.#")
            queue = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_bind(queue, "behind")
            publish(channel, "amq.direct", "k", b"once")
            method, _, body = got(channel, queue, auto_ack=True)
            assert (method.exchange, method.routing_key, body) == (TRACE, "publish.amq.direct", b"once")
            assert [each[0] for each in traced(1, channel)] == ["publish.amq.direct"], site.kind


def test_binding_keys_select_the_traced_messages(sites):
    for site in sites:
        with site.channel() as channel, site.tapped("deliver.a") as traced:
            bound(channel, "a", "b")
            publish(channel, "amq.direct", "k")
            for queue in ("a", "b"):
                got(channel, queue, auto_ack=True)
            assert [each[0] for each in traced(1, channel)] == ["deliver.a"], site.kind
            for queue in ("a", "b"):
                channel.queue_delete(queue)


def test_messages_are_traced_only_while_tracing_is_on(sites):
    """Also for channels that were open before."""
    for site in sites:
        with site.channel() as channel:
            channel.queue_declare("a", exclusive=True)
            publish(channel, "", "a", b"before")
            with site.tapped() as traced:
                publish(channel, "", "a", b"while")
                assert got(channel, "a", auto_ack=True)[2] == b"before"
                all_traced = [(each[0], each[4]) for each in traced(2, channel)]
                assert all_traced == [("publish.", b"while"), ("deliver.a", b"before")], site.kind
                site.switch(False)
                publish(channel, "", "a", b"after")
                assert got(channel, "a", auto_ack=True)[2] == b"while"
                site.switch(True)
                publish(channel, "", "a", b"again")
                assert [(each[0], each[4]) for each in traced(1, channel)] == [("publish.", b"again")], site.kind


def test_its_exchange_can_be_bound_and_not_published_to(sites):
    for site in sites:
        exchange = site.api.get(path("exchanges", "/", TRACE))
        shown = {key: exchange[key] for key in ("type", "durable", "auto_delete", "internal")}
        assert shown == {"type": "topic", "durable": True, "auto_delete": False, "internal": True}
        with site.connect() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
                channel.basic_publish(TRACE, "publish.forged", b"x")
            text = f"ACCESS_REFUSED - cannot publish to internal exchange '{TRACE}' in vhost '/'"
            assert (refused.value.reply_code, refused.value.reply_text) == (403, text)
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
                connection.channel().exchange_delete(TRACE)
            assert refused.value.reply_code == 403


def test_a_user_without_read_permission_cannot_bind_the_trace_exchange(sites):
    for site in sites:
        assert site.api.status("PUT", path("users", "nosy"), {"password": "x", "tags": ""}) in (201, 204)
        limited = {"configure": ".*", "write": ".*", "read": "mine"}
        assert site.api.status("PUT", path("permissions", "/", "nosy"), limited) in (201, 204)
        parameters = pika.URLParameters(site.server.uri)
        parameters.credentials = pika.PlainCredentials("nosy", "x")
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.queue_declare("mine", exclusive=True)
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
                channel.queue_bind("mine", TRACE, "#")
        text = f"ACCESS_REFUSED - access to exchange '{TRACE}' in vhost '/' refused for user 'nosy'"
        assert (refused.value.reply_code, refused.value.reply_text) == (403, text), site.kind


def test_traced_messages_are_not_counted_as_published(sites):
    for site in sites:
        with site.channel() as channel, site.tapped():
            channel.queue_declare("hears", exclusive=True)
            channel.queue_bind("hears", TRACE, "publish.amq.fanout")
            publish(channel, "amq.fanout", "k")
            got(channel, "hears", auto_ack=True)
            queue = site.api.eventually(path("queues", "/", "hears"), lambda queue: queue.get("message_stats", {}).get("get_no_ack") == 1)
            assert "publish" not in queue["message_stats"], site.kind
            assert "message_stats" not in site.api.get(path("exchanges", "/", TRACE)), site.kind


ANSWERS = [
    ({"tracing": True}, True),
    ({"tracing": "false"}, False),
    ({"tracing": "true"}, True),
    ({"description": "d", "tags": "a,b"}, True),
    ({"tracing": "x"}, True),
    ({"tracing": None}, True),
    ({"tracing": 1}, True),
    (None, True),
    ({"tracing": False}, False),
]


def test_it_is_switched_and_shown_over_http(sites):
    both = []
    for site in sites:
        answers = []
        assert site.api.status("PUT", "vhosts/switched", {"tracing": True}) == 201
        assert site.api.get("vhosts/switched")["tracing"] is True
        for body, tracing in ANSWERS:
            status, _, answer = site.api.ask("PUT", "vhosts/switched", body)
            shown = site.api.get("vhosts/switched")
            assert shown["tracing"] is tracing, (site.kind, body)
            answers.append((status, answer, shown["description"], shown["tags"]))
        listed = {each["name"]: each["tracing"] for each in site.api.get("vhosts")}
        assert listed == {"/": False, "switched": False}, site.kind
        assert all("tracing" not in vhost for vhost in site.api.get("definitions")["vhosts"]), site.kind
        imported = {"vhosts": [{"name": "switched", "tracing": True}]}
        assert site.api.status("POST", "definitions", imported) == 204
        assert site.api.get("vhosts/switched")["tracing"] is True, site.kind
        assert site.api.status("DELETE", "vhosts/switched") == 204
        both.append(answers)
    assert both[0] == both[1]


def test_ctl_switches_it_as_rabbitmqctl_does(sites):
    """Also on RabbitMQ; the virtual host's other metadata is unchanged."""
    for site in sites:
        assert site.api.status("PUT", "vhosts/ctl", {"description": "d", "tags": "a,b"}) == 201
        assert site.ctl("trace_on", "-p", "ctl") == "tracing enabled in virtual host 'ctl'\n"
        assert site.ctl.rows("list_vhosts", "name", "tracing", "description") == [
            ["/", "false", "Default virtual host"], ["ctl", "true", "d"],
        ]  # fmt: skip
        assert site.api.get("vhosts/ctl")["tags"] == ["a", "b"]
        assert site.ctl("trace_off", "-p", "ctl") == "tracing disabled in virtual host 'ctl'\n"
        assert site.ctl("trace_on") == "tracing enabled in virtual host '/'\n"
        assert site.ctl.rows("list_vhosts", "name", "tracing") == [["/", "true"], ["ctl", "false"]]
        assert site.ctl("trace_off") == "tracing disabled in virtual host '/'\n"
        assert site.ctl.fails("trace_on", "-p", "nope") == "no vhost 'nope'"
        assert site.api.ask("GET", "vhosts/nope")[0] == 404, "it is not made"
        assert site.api.status("DELETE", "vhosts/ctl") == 204


@pytest.mark.parametrize("how", ["http", "definitions"])
def test_a_restart_switches_it_off(tmp_path, how):
    """As in RabbitMQ, however it was enabled."""
    server = Leveret(tmp_path)
    api = Management(server, server.http)
    if how == "http":
        assert api.status("PUT", DEFAULT, {"tracing": True}) == 204
    else:
        assert api.status("POST", "definitions", {"vhosts": [{"name": "/", "tracing": True}]}) == 204
    assert api.get(DEFAULT)["tracing"] is True
    server.stop()
    server = Leveret(tmp_path)
    assert Management(server, server.http).get(DEFAULT)["tracing"] is False
    server.stop()


def test_a_new_virtual_host_of_the_name_is_not_traced(sites):
    """In RabbitMQ it would still be traced."""
    site = sites[0]
    assert site.api.status("PUT", "vhosts/again", {"tracing": True}) == 201
    assert site.api.status("DELETE", "vhosts/again") == 204
    assert site.api.status("PUT", "vhosts/again", {}) == 201
    assert site.api.get("vhosts/again")["tracing"] is False
    assert site.api.status("DELETE", "vhosts/again") == 204


def test_in_front_of_an_upstream_there_is_nothing_to_trace(tmp_path, sites):
    server = Leveret(tmp_path, "--upstream", f"amqp://127.0.0.1:{sites[1].server.port}")
    ctl = Ctl(server.http)
    assert ctl.fails("trace_on").startswith("this is a pool, which has no vhosts of its own: ask the upstream")
    assert Management(server, server.http).status("PUT", DEFAULT, {"tracing": True}) == 404
    assert sites[1].api.get(DEFAULT)["tracing"] is False
    server.stop()


def test_names_that_leave_no_room_in_the_routing_key_are_cut(sites):
    """RabbitMQ closes the publisher's connection instead."""
    site, name = sites[0], "n" * 255
    with site.channel() as channel, site.tapped() as traced:
        channel.exchange_declare(name, "fanout", auto_delete=True)
        channel.queue_declare(name, exclusive=True)
        channel.queue_bind(name, name)
        publish(channel, name, "k")
        got(channel, name, auto_ack=True)
        all_traced = traced(2, channel)
    assert [each[0] for each in all_traced] == [f"publish.{name}"[:255], f"deliver.{name}"[:255]]
    assert all_traced[0][3].headers["exchange_name"] == name and all_traced[0][3].headers["routed_queues"] == [name]


def test_every_message_under_load_is_traced_once(sites):
    """With several publishers and consumers at once: each publish and each delivery is reported once, although the
    firehose's queue receives all of them."""
    site, count, publishers = sites[0], 5_000, 3
    with contextlib.ExitStack() as stack:
        traced = stack.enter_context(site.tapped())
        connections = [stack.enter_context(site.connect()) for _ in range(publishers)]
        consumer = stack.enter_context(site.connect()).channel()
        consumer.queue_declare("a", exclusive=False, auto_delete=True)
        consumer.basic_consume("a", lambda *_: None, auto_ack=True)
        channels = [connection.channel() for connection in connections]
        for number in range(count):
            for at, channel in enumerate(channels):
                channel.basic_publish("", "a", f"{at} {number}".encode())
        for connection in connections:
            connection.process_data_events(0)
        traced_by_key = {"publish.": [], "deliver.a": []}
        deadline, is_over = time.monotonic() + PATIENCE, False
        while not is_over:
            assert time.monotonic() < deadline, {key: len(bodies) for key, bodies in traced_by_key.items()}
            consumer.connection.process_data_events(0.05)
            # Once everything has been reported, nothing else comes from these channels.
            is_over = len(traced_by_key["deliver.a"]) >= count * publishers
            for each in traced(0, *([consumer, *channels] if is_over else [])):
                traced_by_key[each[0]].append(each[4])
    expected = sorted(f"{at} {number}".encode() for at in range(publishers) for number in range(count))
    assert {key: sorted(bodies) == expected for key, bodies in traced_by_key.items()} == {"publish.": True, "deliver.a": True}
    for at in range(publishers):
        of_one = [body for body in traced_by_key["deliver.a"] if body.startswith(f"{at} ".encode())]
        assert of_one == [f"{at} {number}".encode() for number in range(count)], "in order"


def test_subscribers_of_every_protocol_get_every_message_of_a_traced_load(sites):
    """The firehose's queue receives them as well, in any order."""
    site, count = sites[0], 4_000
    bodies = [str(number).encode() for number in range(count)]
    with site.channel() as channel:
        channel.queue_declare("hears", durable=True)
        channel.queue_bind("hears", TRACE, "deliver.#")
        plainly, exactly = MqttClient(site.mqtt, "plainly"), MqttClient(site.mqtt, "exactly")
        assert (plainly.subscribe("load", 0), exactly.subscribe("load", 1)) == ([0], [1])
        stomps = StompClient(site.stomp)
        stomps.do("subscribe", "/topic/load", "1")
        site.switch(True)
        publisher = channel.connection.channel()
        for body in bodies:
            publisher.basic_publish("amq.topic", "load", body)
        for client in (plainly, exactly):
            assert [client.messages.get(timeout=PATIENCE).payload for _ in bodies] == bodies
            client.client.disconnect()
        assert [stomps.message().body.encode() for _ in bodies] == bodies
        stomps.connection.disconnect()
        wait_until(lambda: length(channel, "hears") >= 3 * count)
        site.switch(False)
        assert length(channel, "hears") == 3 * count
        channel.queue_delete("hears")


def test_a_firehose_that_nobody_reads_goes_to_disk(tmp_path):
    """The firehose pages out and slows its publishers down rather than fill the memory."""
    count, size, watermark = 10_000, 8_000, 4 << 20
    server = Leveret(tmp_path, "--memory-paging-watermark", str(watermark))
    api = Management(server, server.http)
    assert api.status("PUT", DEFAULT, {"tracing": True}) == 204
    with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
        channel = connection.channel()
        channel.queue_declare("hears", durable=True)
        channel.queue_bind("hears", TRACE, "#")
        channel.queue_declare("q", exclusive=True)
        received, most = [], 0
        channel.basic_consume("q", lambda _c, _m, _p, body: received.append(len(body)), auto_ack=True)
        for number in range(count):
            channel.basic_publish("", "q", b"x" * size)
            if number % 500 == 0:
                connection.process_data_events(0)
                most = max(most, metric(server, "leveret_broker_resident_bytes"))
        # A delivery may be reported before the client has read it.
        wait_until(lambda: connection.process_data_events(0.1) or len(received) == count)
        wait_until(lambda: length(channel, "hears") == 2 * count)
        # The maximum backlog of paging, and messages in flight.
        assert most < watermark + (48 << 20), most
        assert metric(server, "leveret_broker_paged_bytes") > count * size
    server.stop()
