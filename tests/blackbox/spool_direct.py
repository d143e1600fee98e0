"""Messages that no spool rule matches, or that cannot be spooled, go to the broker as before, on the same channels."""

import signal

import pika
import pytest
from harness.ctl import Ctl
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.own_rabbitmq import broker
from harness.patience import PATIENCE
from harness.spool import spooling, waiting
from harness.wire import CONNECTION_CLOSE, CONNECTION_CLOSE_OK, Wire, publish_frames

# Fixtures of these tests.
__all__ = ["broker"]

QUEUE = "direct"
RULE = '{vhost = "^/$", user = "^guest$", exchange = "^(amq.direct|)$"}'


@pytest.fixture
def server(tmp_path, broker):
    with spooling(tmp_path, f"amqp://127.0.0.1:{broker.port}", "--spool-message-max", "1000", rule=RULE) as server:
        yield server
        server.stop()


@pytest.fixture
def connection(server):
    with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
        yield connection


@pytest.fixture
def channel(connection):
    channel = connection.channel()
    channel.queue_delete(QUEUE)
    channel.queue_declare(QUEUE)
    channel.queue_bind(QUEUE, "amq.fanout")
    channel.queue_bind(QUEUE, "amq.direct", "key")
    return channel


def drained(channel, count):
    found = []

    def are_there():
        method, properties, body = channel.basic_get(QUEUE, auto_ack=True)
        if method is not None:
            found.append((body, "x-leveret-spool-id" in (properties.headers or {})))
        return len(found) >= count

    wait_until(are_there)
    return sorted(found)


def test_confirms_of_both_ways_share_one_sequence(channel):
    """pika raises on a confirm with an unexpected number, and waits for each."""
    channel.confirm_delivery()
    for number in range(20):
        exchange = ["amq.direct", "amq.fanout"][number % 2]
        channel.basic_publish(exchange, "key", f"{number:02}".encode())
    assert drained(channel, 20) == [(f"{number:02}".encode(), number % 2 == 0) for number in range(20)]


def test_confirms_come_while_many_publishes_of_both_ways_are_open(connection, channel):
    open_numbers, number = set(), 0

    def answered(frame):
        method = frame.method
        assert isinstance(method, pika.spec.Basic.Ack), method
        settled = {each for each in open_numbers if each <= method.delivery_tag} if method.multiple else {method.delivery_tag}
        assert settled and settled <= open_numbers, (method, open_numbers)
        open_numbers.difference_update(settled)

    channel._impl.confirm_delivery(ack_nack_callback=answered, callback=lambda _: None)
    for number in range(1, 2001):
        open_numbers.add(number)
        exchange = "amq.fanout" if number % 3 else "amq.direct"
        channel._impl.basic_publish(exchange, "key", str(number).encode())
    connection.process_data_events(0)
    wait_until(lambda: connection.process_data_events(0.05) or not open_numbers)


def test_mandatory_large_and_transactional_messages_are_not_spooled(connection, server, channel):
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("amq.direct", "no such key", b"returned", mandatory=True)
    channel.basic_publish("amq.direct", "key", b"mandatory", mandatory=True)
    channel.basic_publish("amq.direct", "key", b"L" * 1001)
    # Several frames, so its size is not known from the first ones.
    channel.basic_publish("amq.direct", "key", b"M" * 500_000)
    other = connection.channel()
    other.tx_select()
    other.basic_publish("amq.direct", "key", b"transactional")
    other.tx_rollback()
    other.basic_publish("amq.direct", "key", b"tx")
    other.tx_commit()
    found = [(b"L" * 1001, False), (b"M" * 500_000, False), (b"mandatory", False), (b"tx", False)]
    assert drained(channel, 4) == found
    assert metric(server, "leveret_spool_forwarded_messages_total") == 0


def test_an_immediate_message_ends_its_connection_as_at_the_broker_and_nothing_before_it_is_lost(connection, server, channel):
    """Published among others: those before it are spooled, and no other client is affected."""
    with pika.BlockingConnection(pika.URLParameters(server.uri)) as another:
        spared = another.channel()
        spared.confirm_delivery()
        spared.basic_publish("amq.fanout", "key", b"direct")
        publisher = connection.channel()
        publisher.basic_publish("amq.direct", "key", b"before")
        publish_immediate(publisher)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            connection.process_data_events(PATIENCE)
        assert (closed.value.reply_code, closed.value.reply_text) == (540, "NOT_IMPLEMENTED - immediate=true")
        spared.basic_publish("amq.direct", "key", b"behind")
        spared.basic_publish("amq.fanout", "key", b"direct, too")
        assert drained(spared, 4) == [(b"before", True), (b"behind", True), (b"direct", False), (b"direct, too", False)]


def publish_immediate(channel):
    """pika's own method has no parameter for the flag."""
    method = pika.spec.Basic.Publish(exchange="amq.direct", routing_key="key", immediate=True)
    channel._impl._send_method(method, (pika.BasicProperties(), b"immediate"))


def test_requests_by_direct_reply_to_work_as_before(connection, channel):
    replies = []
    channel.basic_consume("amq.rabbitmq.reply-to", lambda _, __, ___, body: replies.append(body), auto_ack=True)
    request = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
    channel.basic_publish("", QUEUE, b"request", request)
    answering = connection.channel()
    _, properties, body = next(answering.consume(QUEUE, auto_ack=True, inactivity_timeout=PATIENCE))
    assert body == b"request" and properties.headers is None
    answering.basic_publish("", properties.reply_to, b"reply")
    wait_until(lambda: connection.process_data_events(0.05) or replies == [b"reply"])


def test_consumers_and_errors_are_those_of_the_broker(connection, channel):
    channel.confirm_delivery()
    channel.basic_publish("", QUEUE, b"spooled")
    _, _, body = next(channel.consume(QUEUE, auto_ack=True, inactivity_timeout=PATIENCE))
    assert body == b"spooled"
    channel.cancel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.queue_declare("no-such-queue", passive=True)
    assert closed.value.reply_code == 404
    again = connection.channel()
    again.confirm_delivery()
    again.basic_publish("", QUEUE, b"again")
    assert drained(again, 1) == [(b"again", True)]


def test_another_user_has_nothing_to_do_with_the_spool(broker, server):
    broker.control("add_user", "other", "secret")
    broker.control("set_permissions", "other", ".*", ".*", ".*")
    uri = server.uri.replace("guest:guest", "other:secret")
    with pika.BlockingConnection(pika.URLParameters(uri)) as client:
        channel = client.channel()
        channel.queue_declare("others", exclusive=True)
        channel.confirm_delivery()
        channel.basic_publish("", "others", b"direct")
        _, properties, body = channel.basic_get("others", auto_ack=True)
        assert (body, properties.headers) == (b"direct", None)


def test_publishers_are_blocked_while_the_spool_is_full(tmp_path):
    with (
        leveret(tmp_path / "broker", "--data-dir", "off") as upstream,
        spooling(tmp_path, upstream.uri, "--spool-max-bytes", "1MiB") as server,
    ):
        parameters = pika.URLParameters(server.uri)
        heard = []
        with pika.BlockingConnection(parameters) as client:
            client.add_on_connection_blocked_callback(lambda _, frame: heard.append(frame.method.reason))
            client.add_on_connection_unblocked_callback(lambda *_: heard.append("unblocked"))
            channel = client.channel()
            channel.queue_declare("q", arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
            for number in range(150):
                channel.basic_publish("", "q", f"{number:03}".encode() + bytes(10_000))
            wait_until(lambda: client.process_data_events(0.05) or heard[-1:] == ["spool has reached a limit"])
            with pika.BlockingConnection(pika.URLParameters(upstream.uri)) as direct:
                consumer = direct.channel()
                found = []
                consumer.basic_consume("q", lambda _, __, ___, body: found.append(body[:3]), auto_ack=True)
                wait_until(lambda: direct.process_data_events(0.05) or len(set(found)) == 150)
            wait_until(lambda: client.process_data_events(0.05) or heard[-1] == "unblocked")
        wait_until(lambda: waiting(server) == 0)
        server.stop()


def test_a_client_that_closes_while_it_is_blocked_does_not_outlast_the_server(tmp_path):
    """Its close comes behind messages that the spool does not take. The drain is not held up until a time limit ends it."""
    patient = ("--drain-timeout", "1h", "--drain-idle-timeout", "1h")
    with (
        leveret(tmp_path / "broker", "--data-dir", "off") as upstream,
        spooling(tmp_path, upstream.uri, "--spool-max-bytes", "1MiB", *patient) as server,
        Wire(server.port) as client,
    ):
        Ctl(server.http)("spool", "pause")
        client.handshake()
        client.open_channel()
        client.send(b"".join(publish_frames("q", bytes(10_000)) for _ in range(150)))
        client.send_close()
        wait_until(lambda: metric(server, "leveret_spool_blocked_connections") == 1)
        messages = waiting(server)
        assert 0 < messages < 150
        server.child.send(signal.SIGTERM)
        client.expect(CONNECTION_CLOSE)
        client.send_method(0, CONNECTION_CLOSE_OK)
        client.expect_end()
        assert server.child.wait() == 0


def test_a_user_at_its_spool_limit_blocks_no_other_user(tmp_path):
    with (
        leveret(tmp_path / "broker", "--data-dir", "off") as upstream,
        spooling(tmp_path, upstream.uri, "--spool-max-bytes", "4MiB") as server,
    ):
        ctl = Ctl(upstream.http)
        ctl("add_user", "other", LEVERET_CTL_NEW_PASSWORD="other")
        ctl("set_permissions", "other", ".*", ".*", ".*")
        with (
            pika.BlockingConnection(pika.URLParameters(server.uri)) as client,
            pika.BlockingConnection(pika.URLParameters(server.uri.replace("guest:guest", "other:other"))) as other,
        ):
            heard = []
            client.add_on_connection_blocked_callback(lambda _, frame: heard.append(frame.method.reason))
            client.add_on_connection_unblocked_callback(lambda *_: heard.append("unblocked"))
            channel = client.channel()
            channel.queue_declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
            channel.queue_declare("free")
            # More than the user's share, which is exceeded by what the server reads at once: others have to have more than that.
            for _ in range(350):
                channel.basic_publish("", "full", bytes(10_000))
            wait_until(lambda: client.process_data_events(0.05) or heard == ["spool has reached a limit"])
            free = other.channel()
            free.confirm_delivery()
            for number in range(50):
                free.basic_publish("", "free", f"{number}".encode() + bytes(10_000))
            wait_until(lambda: free.queue_declare("free", passive=True).method.message_count == 50)
            rows = lambda: {row["user"]: row for row in Ctl(server.http).json("spool", "list", "user", "bytes", "max_bytes")}
            # The confirms may come later than the messages are in the queue.
            wait_until(lambda: rows()["other"]["bytes"] == 0)
            assert rows()["guest"]["bytes"] > rows()["guest"]["max_bytes"] >= (4 << 20) / 4 * 3
            assert rows()["other"]["max_bytes"] > 0
            assert heard == ["spool has reached a limit"]
            # Unroutable messages are confirmed, too.
            with pika.BlockingConnection(pika.URLParameters(upstream.uri)) as direct:
                direct.channel().queue_delete("full")
            wait_until(lambda: client.process_data_events(0.05) or heard[-1] == "unblocked")
        server.stop()


@pytest.fixture
def strict(tmp_path, broker):
    flags = ["--spool-message-max", "1000", "--spool-unsuitable", "refuse"]
    with spooling(tmp_path, f"amqp://127.0.0.1:{broker.port}", *flags, rule=RULE) as server:
        with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
            yield connection
        server.stop()


@pytest.mark.parametrize(
    "what",
    [
        "mandatory messages",
        "immediate messages",
        "messages of a transaction",
        "messages of this size",
        "messages of this size in frames",
    ],
)
def test_messages_unsuitable_for_the_spool_are_refused_if_configured(strict, what):
    channel = strict.channel()
    closed = []
    channel._impl.add_on_close_callback(lambda _, reason: closed.append(reason))
    if what == "messages of a transaction":
        channel.tx_select()
    body = "x" * {"messages of this size": 1001, "messages of this size in frames": 500_000}.get(what, 10)
    if what == "immediate messages":
        publish_immediate(channel)
    else:
        channel.basic_publish("amq.direct", "key", body, mandatory=what == "mandatory messages")
    wait_until(lambda: strict.process_data_events(0.05) or closed)
    text = f"PRECONDITION_FAILED - {what.removesuffix(' in frames')} to exchange 'amq.direct' in vhost '/' cannot be spooled"
    assert (closed[0].reply_code, closed[0].reply_text) == (406, text)
    # The channel number can be reused, and other exchanges are not affected.
    again = strict.channel(channel.channel_number)
    again.confirm_delivery()
    again.basic_publish("amq.fanout", "key", "x" * 5000)
    again.basic_publish("amq.direct", "key", "spooled")
    again.close()
