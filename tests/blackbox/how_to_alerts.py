"""docs/how-to/alerts.md and packaging/prometheus: Prometheus can load each alert, a broker or a pool has its metrics and
labels, and the page lists all alerts."""

import re

import pika
import pytest
import yaml

from harness.amqp import connect
from harness.certificates import TestCa
from harness.exposition import scrape
from harness.how_to import HowTo
from harness.instances import leveret
from harness.leveret import ROOT
from harness.metrics import wait_until
from harness.ports import free_ports
from harness.promql import Expression
from harness.reader import Reader
from harness.spool import spooling

DIRECTORY = ROOT / "packaging" / "prometheus"
FILES = sorted(DIRECTORY.glob("*.yml"))
# Prometheus' own metric: whether a target could be scraped; and the labels that it adds to each series.
OWN_METRIC = "up"
OWN_LABELS = {"instance", "job"}
SEVERITIES = {"critical", "warning"}
DURATION = re.compile(r"\d+[smh]")
SHOWN = re.compile(r"{{\s*(.*?)\s*}}")


def rules_of(file):
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


RULES = [pytest.param(rule, id=rule["alert"]) for file in FILES for rule in rules_of(file)]


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """The samples of a broker with TLS, and of a spooling pool in front of it, by metric name."""
    directory = tmp_path_factory.mktemp("metrics")
    certificate, key = TestCa(directory / "certificates").issue("server")
    tls = ["--amqps", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key]
    with leveret(directory / "broker", *tls) as broker, spooling(directory, f"amqp://{broker.address}") as pool:
        with connect(pool) as connection:
            # The spool's series are by user and virtual host, and begin with the first message.
            channel = connection.channel()
            channel.queue_declare("q")
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"spooled")
            of_broker, of_pool = (scrape(server.http + "/metrics").families for server in (broker, pool))
        assert set(of_broker) - set(of_pool) and set(of_pool) - set(of_broker)
        yield {name: of_broker.get(name, []) + of_pool.get(name, []) for name in {*of_broker, *of_pool}}
        pool.stop()
        broker.stop()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_is_one_of_rules(file):
    content = yaml.safe_load(file.read_text())
    assert set(content) == {"groups"}
    names = [group["name"] for group in content["groups"]]
    assert len(set(names)) == len(names) and all(set(group) == {"name", "rules"} for group in content["groups"])
    alerts = [rule["alert"] for rule in rules_of(file)]
    assert alerts and len(set(alerts)) == len(alerts)


@pytest.mark.parametrize("rule", RULES)
def test_an_alert_has_a_severity_a_summary_and_a_description(rule):
    assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert re.fullmatch(r"Leveret[A-Z]\w+", rule["alert"])
    assert rule["labels"]["severity"] in SEVERITIES and set(rule["labels"]) == {"severity"}
    assert set(rule["annotations"]) == {"summary", "description"}
    assert "for" not in rule or DURATION.fullmatch(rule["for"])


@pytest.mark.parametrize("rule", RULES)
def test_an_alert_reads_metrics_and_labels_that_exist(families, rule):
    expression = Expression(rule["expr"])
    assert expression.selectors
    labels = None
    for selector in expression.selectors:
        if selector.name == OWN_METRIC:
            assert set(selector.matchers) <= OWN_LABELS
            of_this = set(OWN_LABELS)
        else:
            samples = [given for given, _ in families.get(selector.name, []) if selector.matchers.items() <= given.items()]
            assert samples, f"no server has {selector.name} with {selector.matchers}"
            of_this = OWN_LABELS.union(*samples)
        labels = of_this if labels is None else labels & of_this
    if expression.grouping is not None:
        assert set(expression.grouping) <= labels
        labels = set(expression.grouping)
    for shown in SHOWN.findall("".join(rule["annotations"].values())):
        assert shown == "$value" or shown.removeprefix("$labels.") in labels, shown


def holds(rule, server):
    """Whether an alert that compares one series with a number fires."""
    [(name, matchers, operator, number)] = re.findall(r"^(\w+)(?:{(.*)})? (==|>) (\d+)$", rule["expr"])
    wanted = dict(re.findall(r'(\w+)="(.*?)"', matchers))
    values = [value for given, value in scrape(server.http + "/metrics").families[name] if wanted.items() <= given.items()]
    return any(value == int(number) if operator == "==" else value > int(number) for value in values)


def test_alarms_and_upstreams_that_are_down_are_seen(tmp_path):
    rules = {rule["alert"]: rule for rule in rules_of(DIRECTORY / "leveret.rules.yml")}
    alarms = [rules[f"Leveret{name}"] for name in ("MemoryAlarm", "DiskAlarm")]
    with leveret(tmp_path / "fine") as fine:
        assert not any(holds(rule, fine) for rule in alarms)
        fine.stop()
    with leveret(tmp_path / "short", "--memory-high-watermark", "1MiB", "--disk-free-limit", "1024TiB") as short:
        wait_until(lambda: all(holds(rule, short) for rule in alarms))
        connection = connect(short)
        connection.channel().basic_publish("", "nowhere", b"x")
        wait_until(lambda: connection.process_data_events(0) or holds(rules["LeveretPublishersBlocked"], short))
    [port] = free_ports(1)
    with leveret(tmp_path / "pool", "--upstream", f"amqp://127.0.0.1:{port}") as pool:
        down = [rules[f"LeveretUpstream{name}"] for name in ("Down", "AddressDown")]
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect(pool)
        wait_until(lambda: all(holds(rule, pool) for rule in down))


def test_the_first_parked_message_of_a_user_is_seen(tmp_path):
    rules = {rule["alert"]: rule for rule in rules_of(DIRECTORY / "spool.rules.yml")}
    parked = rules["LeveretSpoolHasParkedMessages"]
    with leveret(tmp_path / "broker") as broker, spooling(tmp_path, f"amqp://{broker.address}") as pool:
        assert not holds(parked, pool)
        with connect(pool) as connection:
            connection.channel().basic_publish("no-such-exchange", "key", b"parked")
            wait_until(lambda: connection.process_data_events(0) or holds(parked, pool))
        pool.stop()
        broker.stop()


def test_the_steps_of_the_page(tmp_path):
    page = HowTo("alerts")
    [port] = free_ports(1)
    here = {"127.0.0.1:15692": f"127.0.0.1:{port}"}
    with Reader(tmp_path) as reader:
        config = reader.write("leveret.toml", page.file("leveret.toml", {"0.0.0.0:15692": f"127.0.0.1:{port}"}))
        reader.serve(f"leveret serve --config {config} --amqp 127.0.0.1:0 --http 127.0.0.1:0").child.wait_line("^prometheus")
        assert "leveret_build_info" in reader.run(page.block("sh", here))
    prometheus = yaml.safe_load(page.file("prometheus.yml"))
    page.finish()
    assert sorted(prometheus["rule_files"]) == [file.name for file in FILES]
    [job] = prometheus["scrape_configs"]
    [rule] = [rule for rule in rules_of(DIRECTORY / "leveret.rules.yml") if rule["alert"] == "LeveretDown"]
    assert rule["expr"] == f'up{{job="{job["job_name"]}"}} == 0'


def test_the_page_has_every_alert_with_its_severity():
    page = HowTo("alerts").path.read_text()
    rows = re.findall(r"^\| (`Leveret.*?) \| (.*?) \|", page, re.MULTILINE)
    told = {}
    for names, severities in rows:
        alerts, words = re.findall(r"`(\w+)`", names), severities.split(", ")
        told |= dict(zip(alerts, words if len(words) > 1 else words * len(alerts), strict=True))
    assert told == {rule["alert"]: rule["labels"]["severity"] for rule in rules_of(DIRECTORY / "leveret.rules.yml")}


@pytest.mark.parametrize("text", ["up{job=}", "rate(up)", "up[5m", "up >", "(up", "nothing(up)", "up by", "up == 0 )"])
def test_an_expression_that_prometheus_would_refuse_is_found(text):
    with pytest.raises(AssertionError):
        Expression(text)
