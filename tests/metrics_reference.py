"""Writes docs/metrics.md (make metrics-reference): every metric of a broker and of a pool, with the type, labels and help that
they have at /metrics and /metrics/per-object. tests/blackbox/metrics_reference.py compares the two."""

import contextlib
import tempfile
import urllib.request
from pathlib import Path

from harness.amqp import connect
from harness.certificates import TestCa
from harness.exposition import Scrape
from harness.instances import leveret
from harness.leveret import ROOT
from harness.metrics import metric, wait_until
from harness.mqtt_client import MqttClient
from harness.patience import PATIENCE
from harness.spool import spooling

DOCUMENT = ROOT / "docs" / "metrics.md"
HEAD = """# Metrics

<!-- Written by `make metrics-reference` from what a broker and a pool show; a test compares them. -->

All metrics at `/metrics`, with the labels that their samples have. Those that only `/metrics/per-object` has, for each
object or connection, are marked *per object*. `/metrics/detailed` has metrics of both kinds for the families that are
requested, under names that begin with `rabbitmq_detailed_`. [Monitoring](monitoring.md#metrics) says who may read which.

The end of a name is its unit: `_bytes`, `_seconds`, or else a number of the objects in the name. Those that end in
`_total` are counters: they only rise, and begin at 0 when the process starts. A histogram `NAME` has the series
`NAME_bucket` (label `le`), `NAME_sum` and `NAME_count`.
"""
SECTIONS = [
    ("rabbitmq_", "Under RabbitMQ's names", "They mean what they mean in RabbitMQ, where both have them."),
    ("leveret_broker_", "The embedded broker", "They concern the broker as a whole."),
    ("leveret_store_", "The disk", "They concern the data directory of a broker or of a spool."),
    ("leveret_upstream_", "Upstream connections", "A pool has them."),
    ("leveret_multiplexed_", "Multiplexed subscriptions", "A pool in front of an upstream has them for MQTT and STOMP clients."),
    ("leveret_spool_", "The spool", "A pool with a spool has them."),
    ("leveret_", "Others", "They concern the process, its clients and its limits."),
]


def reference(directory):
    """The document's text, from servers that keep their data in `directory`."""
    families = {}
    with contextlib.ExitStack() as servers:
        with contextlib.ExitStack() as clients:
            broker, pool = started(servers, clients, directory)
            for kind, server in (("broker", broker), ("pool", pool)):
                for path in ("/metrics", "/metrics/per-object"):
                    collect(families, kind, path, read(server.http + path))
        for server in (pool, broker):
            server.stop()
    return HEAD + "".join(section(*each, families) for each in SECTIONS)


def started(servers, clients, directory):
    """A broker and a pool in front of it, with a client, a queue, a certificate and a spooled message, so that each family
    has a sample."""
    ca = TestCa(directory)
    cert, key = ca.issue("server")
    tls = ("--amqps", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key))
    mqtt = ("--mqtt", "127.0.0.1:0")
    broker = servers.enter_context(leveret(directory / "broker", "--compatibility", "4", *tls, *mqtt))
    pool = servers.enter_context(spooling(directory / "pool", f"amqp://{broker.address}", *tls, *mqtt, rule='{exchange = "^spooled$"}'))
    for server in (broker, pool):
        connection = clients.enter_context(connect(server))
        channel = connection.channel()
        channel.queue_declare("metrics")
        channel.confirm_delivery()
        channel.basic_publish("", "metrics", b"x")
        port = int(server.child.wait_line(r"^mqtt +listening on mqtt://127\.0\.0\.1:(\d+)").group(1))
        client = clients.enter_context(MqttClient(port, "metrics"))
        client.subscribe("metrics", 0)
    channel.exchange_declare("spooled", "fanout")
    channel.basic_publish("spooled", "", b"x")
    wait_until(lambda: metric(pool, "leveret_spool_forwarded_messages_total") == 1)
    return broker, pool


def read(url):
    # A broker requires a login for per-object metrics, a pool does not.
    request = urllib.request.Request(url, headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return answer.read().decode()


def collect(families, kind, path, text):
    help_of = dict(line.removeprefix("# HELP ").split(" ", 1) for line in text.splitlines() if line.startswith("# HELP "))
    scraped = Scrape(text)
    for name, samples in scraped.families.items():
        labels = {label for given, _ in samples for label in given} - {"le"}
        known = families.setdefault(name, {"type": scraped.types[name], "help": help_of[name], "labels": {}, "kinds": set()})
        known["labels"].setdefault(path, set()).update(labels)
        known["kinds"].add(kind)


def section(prefix, title, sentence, families):
    before = [other for other, *_ in SECTIONS[: [each[0] for each in SECTIONS].index(prefix)]]
    rows = "".join(
        row(name, known) for name, known in sorted(families.items()) if name.startswith(prefix) and not name.startswith(tuple(before))
    )
    return f"\n## {title}\n\n{sentence}\n\n| name | type | labels | of | meaning |\n|---|---|---|---|---|\n{rows}"


def row(name, known):
    together, apart = (known["labels"].get(path, None) for path in ("/metrics", "/metrics/per-object"))
    quoted = lambda labels: ", ".join(f"`{label}`" for label in sorted(labels))
    if together is None:
        labels = f"{quoted(apart)} (*per object*)"
    else:
        further = quoted(apart - together)
        labels = "; ".join(filter(None, [quoted(together), f"*per object* {further}" if further else ""]))
    kinds = "both" if len(known["kinds"]) == 2 else next(iter(known["kinds"]))
    return f"| `{name}` | {known['type']} | {labels} | {kinds} | {known['help'].replace('|', chr(92) + '|')} |\n"


def main():
    with tempfile.TemporaryDirectory() as directory:
        DOCUMENT.write_text(reference(Path(directory)))


if __name__ == "__main__":
    main()
