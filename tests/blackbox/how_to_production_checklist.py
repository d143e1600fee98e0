"""docs/how-to/production-checklist.md: its settings are valid and take effect, and a broker with them accepts the page's
users."""

import configparser
import ssl

import pika
import pytest

from harness.certificates import TestCa
from harness.ctl import Ctl
from harness.exposition import scrape
from harness.how_to import HowTo
from harness.leveret import ROOT
from harness.ports import free_ports
from harness.reader import Reader
from harness.stand_in import Service, StandIn

SECRET = "a password of the operator's"


@pytest.fixture
def reader(tmp_path):
    with Reader(tmp_path) as reader:
        yield reader


def test_the_settings_are_in_effect(reader):
    page = HowTo("production-checklist")
    ca = TestCa(reader.directory / "tls")
    certificate, key = ca.issue("server")
    reader.write("password", SECRET + "\n")
    [amqps, https, prometheus, http] = free_ports(4)
    here = {"/etc/leveret": reader.directory, "/var/lib/leveret": reader.directory / "data", "/var/log/leveret": reader.directory}
    ports = {f"0.0.0.0:{usual}": f"127.0.0.1:{port}" for usual, port in ((5671, amqps), (15671, https), (15692, prometheus))}
    settings = page.file("/etc/leveret/leveret.toml", here | ports)
    config = reader.write("leveret.toml", settings)
    reader.variables = {"LEVERET_CTL_URL": f"http://127.0.0.1:{http}"}
    # The package starts the broker before its operator has written settings.
    with Service(reader.directory, "--data-dir", reader.directory / "data") as service:
        service.flags = ("--config", config, "--http", f"127.0.0.1:{http}")
        with StandIn(reader, "systemctl", service):
            reader.run(page.block("sh", {"/etc/leveret": reader.directory}))
        page.finish()
        server = service.server
        admin = Ctl(server.http, "admin", SECRET)
        assert admin.rows("list_users", "name") == [["admin"]]
        assert may_log_in(amqps, ca, "admin", SECRET) and not may_log_in(amqps, ca, "guest", "guest")
        metrics = scrape(f"http://127.0.0.1:{prometheus}/metrics")
        assert metrics.value("rabbitmq_disk_space_available_limit_bytes") == 2 << 30
        assert metrics.value("leveret_certificate_expires_seconds", certificate=certificate) > 0
        assert "admin" in (reader.directory / "access.log").read_text()
        # The running server reports each of the page's settings, with the file as its origin.
        origins = {each["key"]: each["origin"] for each in admin.json("environment")}
        written = [line.split(" = ")[0] for line in settings.splitlines() if " = " in line]
        assert len(written) > 12 and {key for key in written if not origins[key].startswith(str(config))} == set(), origins
        service("stop", "leveret")


def may_log_in(port, ca, user, password):
    tls = pika.SSLOptions(ssl.create_default_context(cafile=ca.file), "localhost")
    credentials = pika.PlainCredentials(user, password)
    try:
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, "/", credentials, ssl_options=tls)).close()
    except pika.exceptions.AMQPConnectionError:
        return False
    return True


def test_the_package_allows_the_drain_timeout_and_connections_of_the_page():
    """The drain timeout, and a descriptor for each connection."""
    page = HowTo("production-checklist")
    settings = dict(line.split(" = ", 1) for line in page.file("/etc/leveret/leveret.toml").splitlines() if " = " in line)
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(ROOT / "packaging" / "leveret.service")
    assert unit["Service"]["TimeoutStopSec"] == "1min" and int(settings["drain_timeout"].split("s")[0].strip('"')) < 60
    assert int(unit["Service"]["LimitNOFILE"]) > int(settings["max_connections"])
    kubernetes = (ROOT / "packaging" / "kubernetes" / "broker.yaml").read_text()
    assert "terminationGracePeriodSeconds: 60" in kubernetes
