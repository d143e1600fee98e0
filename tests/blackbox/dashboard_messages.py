"""Getting messages in the dashboard: payloads and headers of every kind, none of which becomes a part of the page."""

import datetime
import decimal

import pika
import pytest

from harness.dashboard import ask, server, visit, window

MARKUP = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>'
QUEUE = "looked-into"


@pytest.fixture
def queue(server):
    with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE)
        channel.queue_purge(QUEUE)
        channel.confirm_delivery()
        yield channel


def publish(channel, body, **properties):
    channel.basic_publish("", QUEUE, body, pika.BasicProperties(**properties))


def get(visit, count=1):
    """Gets messages on the queue's page; returns each with its badges, payload, properties and headers."""
    visit.enter("queues", "/", QUEUE)
    visit.fill("Messages", str(count))
    visit.press("Get")
    visit.wait("document.querySelectorAll('#view .messages li').length === args[0]", count)
    script = """
        const list = (each, title) => {
            const found = [...each.querySelectorAll("dl")].find((list) =>
                document.getElementById(list.getAttribute("aria-labelledby"))?.textContent === title);
            const pairs = [...(found?.children ?? [])].map((pair) => [...pair.children].map(({ textContent }) => textContent));
            return pairs;
        };
        return [...document.querySelectorAll("#view .messages li")].map((each) => ({
            badges: [...each.querySelectorAll(".badge")].map(({ textContent }) => textContent),
            payload: each.querySelector("pre").textContent,
            properties: list(each, "Properties"),
            headers: list(each, "Headers"),
        }));
    """
    shown = visit.window.evaluate(script)
    return [{**each, **{title: dict(each[title]) for title in ("properties", "headers")}} for each in shown]


def test_headers_of_every_type_are_shown(visit, queue):
    headers = {
        "text": "héllo",
        "whole": 42,
        "large": 2**63 - 1,
        "negative": -(2**53) - 1,
        "price": decimal.Decimal("12.34"),
        "truth": True,
        "nothing": None,
        "time": datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone.utc),
        "bytes": b"\xff\x00",
        "list": [1, [2**60 + 1, "two"], {"three": 3}],
        "table": {"a": {"b": [True]}},
        "empty": {},
        # Apart from the property of this name.
        "content_type": "a header",
    }
    publish(queue, b"", content_type="a property", headers=headers)
    [shown] = get(visit)
    assert shown["properties"] == {"content_type": "a property"}
    assert shown["headers"] == {
        "text": "héllo",
        "whole": "42",
        "large": "9223372036854775807",
        "negative": "-9007199254740993",
        "price": "12.34",
        "truth": "true",
        "nothing": "undefined",
        "time": "1769860800",
        "bytes": "ÿ\x00",
        "list": '[1,[1152921504606846977,"two"],{"three":3}]',
        "table": '{"a":{"b":[true]}}',
        "empty": "{}",
        "content_type": "a header",
    }


def test_headers_with_fractions_are_shown(visit, server, queue):
    # Which pika cannot encode.
    headers = {"half": 0.5, "large": 1e300, "whole": 3.0}
    message = {"routing_key": QUEUE, "payload": "", "payload_encoding": "string", "properties": {"headers": headers}}
    ask(server, "POST", "exchanges/%2F/amq.default/publish", message)
    [shown] = get(visit)
    assert shown["headers"] == {"half": "0.5", "large": "1e+300", "whole": "3"}


def test_payloads_are_shown_as_text_or_in_base64_and_long_ones_in_part(visit, queue):
    publish(queue, b"\x00\xff\xfe")
    publish(queue, "nul \0, tab \t and \u202e".encode())
    # The 50,000th byte is within a character.
    publish(queue, b"x" + 30_000 * "é".encode())
    publish(queue, 60_000 * b"\xff")
    binary, text, long_text, long_binary = get(visit, 4)
    assert (binary["payload"], binary["badges"]) == ("AP/+", ["base64"])
    assert (text["payload"], text["badges"]) == ("nul \0, tab \t and \u202e", [])
    assert (long_text["payload"], long_text["badges"]) == ("x" + 24_999 * "é", ["first 50,000 bytes"])
    assert long_binary["badges"] == ["base64", "first 50,000 bytes"]


def test_no_part_of_a_message_becomes_a_part_of_the_page(visit, queue):
    texts = ["content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "app_id"]
    headers = {MARKUP: MARKUP, "__proto__": MARKUP, "deep": {MARKUP: [MARKUP]}, "x" * 255: "y" * 5_000}
    publish(queue, MARKUP.encode(), headers=headers, **dict.fromkeys(texts, MARKUP))
    visit.window.become_phone()
    try:
        [shown] = get(visit)
        assert visit.overflow() == 0
    finally:
        visit.window.become_desktop()
    assert shown["payload"] == MARKUP
    assert shown["properties"] == dict.fromkeys(texts, MARKUP)
    assert shown["headers"].keys() == headers.keys()
    assert visit.window.evaluate("return document.querySelectorAll('#view img, #view script').length") == 0
    assert visit.window.evaluate("return window.hacked ?? null") is None
    assert visit.violations() == []
