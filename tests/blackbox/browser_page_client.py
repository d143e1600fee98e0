"""The page's AMQP client does what its documentation says, in Chromium."""

import pytest

from harness.browser import BrowserError, browser
from harness.instances import leveret

OPEN = """
    const { Connection } = await import("/page/amqp/connection.js");
    const connection = await Connection.open(args[0], args[1] ?? {});
    const channel = await connection.openChannel();
    const { queue } = await channel.declareQueue("", { exclusive: true });
"""


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as window:
        yield window


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("server"), "--ws", "127.0.0.1:0") as server:
        yield server
        server.stop()


def run(window, server, body, **options):
    """Runs a script with a connection, a channel, and an exclusive queue; closes the connection afterwards."""
    window.open(server.http + "/messages")
    script = f"{OPEN} const outcome = await (async () => {{ {body} }})(); await connection.close(); return outcome;"
    return window.run(script, f"ws://127.0.0.1:{server.ws_port}/", options)


def test_properties_and_bodies_arrive_as_they_were_sent(window, server):
    sent_and_received = """
        await channel.confirmSelect();
        const when = new Date(1_700_000_000_000);
        const headers = {
            text: "héllo 🐇", yes: true, no: false, small: -7, large: 2 ** 40, exact: 2n ** 60n, broken: 1.5, nothing: null,
            list: [1, "two", [3], { four: 4 }], table: { deep: { deeper: "x".repeat(300) } }, when,
            bytes: Uint8Array.of(0, 255), ["__proto__"]: "a field",
        };
        const properties = {
            contentType: "text/plain", contentEncoding: "x", headers, deliveryMode: 2, priority: 9, correlationId: "c",
            replyTo: "r", expiration: "60000", messageId: "m", timestamp: when, type: "t", userId: "guest", appId: "a",
        };
        const messages = [];
        const arrived = new Promise((resolve) => {
            channel.consume(queue, (message) => messages.push(message) === 4 && resolve(), { noAck: true });
        });
        const sent = [];
        // Empty, small, as large as a frame holds to the byte, and of several frames.
        for (const size of [0, 5, 131064, 400_000]) {
            sent.push(channel.publish("", queue, new Uint8Array(size).map((_, at) => at % 251), { properties }));
        }
        await Promise.all(sent);
        await arrived;
        const plain = (key, value) => typeof value === "bigint" ? `${value}n` : value;
        return {
            bodies: messages.map(({ body }) => [body.length, body.every((byte, at) => byte === at % 251)]),
            same: messages.map((message) => {
                const [got, sent] = [message.properties, properties].map((all) =>
                    JSON.stringify(Object.entries(all).sort(), (key, value) => plain(key, value)));
                return got === sent || got;
            }),
        };
    """
    assert run(window, server, sent_and_received) == {
        "bodies": [[0, True], [5, True], [131064, True], [400_000, True]],
        "same": [True] * 4,
    }


def test_a_publish_settles_with_its_own_outcome(window, server):
    outcomes = """
        await channel.confirmSelect();
        const full = await channel.declareQueue("", {
            exclusive: true, arguments: { "x-max-length": 1, "x-overflow": "reject-publish" },
        });
        const settled = await Promise.allSettled([
            channel.publish("", queue, "taken", { mandatory: true }),
            channel.publish("", "nowhere", "returned", { mandatory: true }),
            channel.publish("", "nowhere", "dropped"),
            channel.publish("", full.queue, "the first"),
            channel.publish("", full.queue, "refused"),
            channel.publish("", queue, "mistaken", { properties: { colour: "red" } }),
        ]);
        return settled.map(({ value, reason }) => value ?? reason.message);
    """
    assert run(window, server, outcomes) == [
        {"tag": 1, "returned": None},
        {"tag": 2, "returned": {"code": 312, "text": "NO_ROUTE"}},
        {"tag": 3, "returned": None},
        {"tag": 4, "returned": None},
        "The server rejected the message (basic.nack).",
        "no such property: colour",
    ]


def test_no_more_than_the_prefetch_is_under_way(window, server):
    deliveries = """
        await channel.prefetch(3);
        for (let n = 0; n < 10; n++) channel.publish("", queue, String(n));
        const held = [];
        const seen = [];
        let most = 0;
        await new Promise((resolve) => channel.consume(queue, (message) => {
            held.push(message);
            seen.push(message.text());
            most = Math.max(most, held.length);
            if (seen.length === 10) return resolve();
            // The three are all there before the first is let go; one goes back first, to come again.
            if (seen.length === 3) channel.nack(held.shift());
            else if (seen.length > 3) channel.ack(held.shift());
        }));
        return { seen: seen.length, most, again: seen.filter((text) => text === "0").length };
    """
    assert run(window, server, deliveries) == {"seen": 10, "most": 3, "again": 2}


def test_a_channel_error_ends_that_channel_alone(window, server):
    error = """
        const other = await connection.openChannel();
        const failed = await other.bindQueue(queue, "nowhere", "").catch(({ code, message }) => ({ code, message }));
        const later = await other.prefetch(1).catch(({ message }) => message);
        const { code } = await other.closed;
        const { messageCount } = await channel.declareQueue(queue, { passive: true });
        return { failed, later, code, messageCount };
    """
    text = "NOT_FOUND - no exchange 'nowhere' in vhost '/'"
    failed = {"code": 404, "message": text}
    assert run(window, server, error) == {"failed": failed, "later": text, "code": 404, "messageCount": 0}


def test_deleting_a_queue_calls_oncancel_of_its_consumer(window, server):
    cancelled = """
        const end = new Promise((resolve) => channel.consume(queue, () => {}, { oncancel: () => resolve("told") }));
        await channel.deleteQueue(queue);
        return await end;
    """
    assert run(window, server, cancelled) == "told"


def test_a_mistake_in_a_handler_is_the_pages_and_ends_nothing(window, server):
    mistake = """
        const reported = new Promise((resolve) => addEventListener("error", () => resolve("reported")));
        await channel.consume(queue, () => { throw new Error("oops"); }, { noAck: true });
        await channel.publish("", queue, "bait");
        return [await reported, (await channel.declareQueue(queue, { passive: true })).consumerCount];
    """
    assert run(window, server, mistake) == ["reported", 1]
    window.complaints()


def test_heartbeats_keep_a_silent_connection(window, server):
    """At a heartbeat of two seconds, six heartbeats from either side take longer than a silent connection lives."""
    beats = """
        const socket = WebSocket.prototype;
        const is_beat = (bytes) => new Uint8Array(bytes.buffer ?? bytes)[0] === 8;
        const counts = { sent: 0, received: 0 };
        const { Connection } = await import("/page/amqp/connection.js");
        const send = socket.send;
        let enough;
        const heard = new Promise((resolve) => { enough = () => Math.min(counts.sent, counts.received) >= 6 && resolve(); });
        socket.send = function (bytes) {
            if (is_beat(bytes)) counts.sent += 1;
            enough();
            return send.call(this, bytes);
        };
        const original = Object.getOwnPropertyDescriptor(socket, "onmessage");
        Object.defineProperty(socket, "onmessage", {
            set(handler) {
                original.set.call(this, (event) => {
                    if (is_beat(event.data)) counts.received += 1;
                    enough();
                    handler(event);
                });
            },
        });
        const connection = await Connection.open(args[0], { heartbeat: 2 });
        await Promise.race([heard, connection.closed]);
        const channel = await connection.openChannel();
        await channel.close();
        await connection.close();
        return Math.min(counts.sent, counts.received) >= 6;
    """
    window.open(server.http + "/messages")
    assert window.run(beats, f"ws://127.0.0.1:{server.ws_port}/") is True


def test_frames_may_be_cut_anywhere(window, server):
    """Like a gateway that forwards a TCP stream: each byte from the server arrives in its own message."""
    byte_by_byte = """
        const { FrameParser, frame } = await import("/page/amqp/frames.js");
        const parser = new FrameParser();
        const sent = [frame(1, 7, Uint8Array.of(1, 2, 3)), frame(8, 0, new Uint8Array(0)), frame(3, 9, Uint8Array.of(4))];
        const got = [];
        for (const byte of sent.flatMap((bytes) => [...bytes])) {
            for (const { type, channel, payload } of parser.push(Uint8Array.of(byte))) got.push([type, channel, [...payload]]);
        }
        const refused = (bytes) => {
            try {
                [...new FrameParser().push(Uint8Array.from(bytes))];
            } catch (error) {
                return error.message;
            }
        };
        return [
            got,
            refused([0x41, 0x4d, 0x51, 0x50, 0, 0, 9, 1]),
            refused([1, 0, 0, 0, 2, 0, 0]),
            refused([8, 0, 0, 0, 0, 0, 0, 0]),
        ];
    """
    window.open(server.http + "/messages")
    assert window.run(byte_by_byte) == [
        [[1, 7, [1, 2, 3]], [8, 0, []], [3, 9, [4]]],
        "the server does not speak AMQP 0-9-1",
        "the server sent a frame of 131080 bytes",
        "the server sent a frame without an end",
    ]


def test_a_refused_login_fails_with_its_reason(window, server):
    with pytest.raises(BrowserError, match="ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN"):
        run(window, server, "", user="nobody")
