"""Certificates that expire soon are reported by the health check (as in RabbitMQ), by a metric, and in the log."""

import signal

import pytest

from harness.certificates import TestCa
from harness.exposition import scrape
from harness.management import Management, leveret
from harness.metrics import wait_until
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq

CHECK = "health/checks/certificate-expiration"
DAY = 24 * 60 * 60
QUESTIONS = ["9/days", "11/days", "1/weeks", "2/WEEKS", "1/months", "11/years", "1/hours", "x/days", "-1/days"]


@pytest.fixture
def ca(tmp_path):
    return TestCa(tmp_path / "certificates")


def tls(*pairs):
    return [flag for certificate, key in pairs for flag in ("--tls-cert", certificate, "--tls-key", key)]


def expiring(management, within, unit):
    """The listeners whose certificates expire within that time, with their files."""
    status, _, body = management.ask("GET", f"{CHECK}/{within}/{unit}")
    if status == 200:
        assert body == {"status": "ok"}
        return []
    assert (status, body["status"], body["reason"]) == (503, "failed", "Certificates expiring")
    return sorted((each["protocol"], each["certfile"].rpartition("/")[2]) for each in body["expired"])


def test_expiring_certificates_are_reported_with_their_listeners(tmp_path, ca):
    soon, late = ca.issue("soon", days=10), ca.issue("late", ["late.example"], days=400)
    flags = ["--amqps", "127.0.0.1:0", "--https", "127.0.0.1:0", *tls(soon, late)]
    with leveret(tmp_path / "server", *flags) as ours:
        assert expiring(ours, 9, "days") == expiring(ours, 1, "weeks") == []
        both = [("amqp/ssl", "soon.pem"), ("https", "soon.pem")]
        assert expiring(ours, 11, "days") == expiring(ours, 2, "weeks") == expiring(ours, 1, "months") == both
        assert len(expiring(ours, 2, "years")) == 4


def test_a_relays_listener_and_the_ca_of_clients_count(tmp_path, ca):
    relay = '{listen = "127.0.0.1:0", tls = "on", upstream = "tcp://127.0.0.1:1"}'
    verify = ["--tls-verify-client", "optional", "--tls-client-ca", ca.file]
    with leveret(tmp_path / "server", "--relay", relay, *verify, *tls(ca.issue("server", days=4000))) as ours:
        # The CA certificate itself expires in ten years.
        assert expiring(ours, 9, "years") == []
        status, _, body = ours.ask("GET", f"{CHECK}/3651/days")
        [expired] = body["expired"]
        assert (status, expired["protocol"], expired["certfile_expires_on"]) == (503, "https/relay", [])
        assert expired["cacertfile"] == str(ca.file) and len(expired["cacertfile_expires_on"]) == 1


def test_a_ca_that_expires_soon_is_logged(tmp_path, ca):
    clients = TestCa(tmp_path / "clients", "clients", days=20)
    verify = ["--tls-verify-client", "optional", "--tls-client-ca", clients.file]
    pair = ca.issue("server", days=90)
    with leveret(tmp_path / "server", "--amqps", "127.0.0.1:0", *verify, *tls(pair)) as ours:
        ours.server.child.wait_line(r"WARN.*CA certificate for clients expires within 30 days.*clients\.pem")
        assert expiring(ours, 19, "days") == [] and expiring(ours, 21, "days") == [("amqp/ssl", "server.pem")]


def test_without_tls_nothing_expires_and_a_wrong_question_is_refused(tmp_path):
    with leveret(tmp_path) as ours:
        assert expiring(ours, 1000, "years") == []
        for wrong in ("1/hours", "soon/days"):
            assert ours.status("GET", f"{CHECK}/{wrong}") == 400
        assert ours.status("GET", f"{CHECK}/1/days", user=None) == 401


def test_a_pool_checks_its_certificates_as_well(tmp_path, ca):
    flags = ["--upstream", "amqp://127.0.0.1:1", "--amqps", "127.0.0.1:0", *tls(ca.issue("server"))]
    with leveret(tmp_path / "server", *flags) as ours:
        assert ours.status("GET", f"{CHECK}/1/months", user=None) == 503


def test_a_reload_is_seen_by_the_check_the_metric_and_in_the_log(tmp_path, ca):
    pair = ca.issue("server", days=29)
    with leveret(tmp_path / "server", "--amqps", "127.0.0.1:0", *tls(pair)) as ours:
        ours.server.child.wait_line(r"WARN.*TLS certificate loaded, but it or its chain expires within 30 days")
        assert expiring(ours, 30, "days") == [("amqp/ssl", "server.pem")]
        before = expires(ours, pair)
        ca.issue("server", days=31)
        ours.server.child.send(signal.SIGHUP)
        wait_until(lambda: expiring(ours, 30, "days") == [])
        # The new one ends two days later, but for the moments between the two.
        assert 2 * DAY <= expires(ours, pair) - before < 2 * DAY + 3600
        ours.server.child.wait_line(r"INFO.*TLS certificate loaded.*server\.pem")


def expires(management, pair):
    """The certificate's expiry in the metric, whose labels name listener and file."""
    port = management.server.child.wait_line(r"^amqps +listening on amqps://127\.0\.0\.1:(\d+)").group(1)
    [(labels, value)] = scrape(management.url + "/metrics").families["leveret_certificate_expires_seconds"]
    assert labels == {"protocol": "amqp/ssl", "host": "127.0.0.1", "port": port, "certificate": str(pair.certificate)}
    return value


def test_the_answers_are_rabbitmqs(tmp_path, ca):
    pair = ca.issue("server", days=10)
    [port, tls_port] = free_ports(2)
    settings = [
        *(f"management.tcp.port = {port}", "management.tcp.ip = 127.0.0.1"),
        *(f"listeners.ssl.1 = 127.0.0.1:{tls_port}", f"ssl_options.cacertfile = {ca.file}"),
        *(f"ssl_options.certfile = {pair.certificate}", f"ssl_options.keyfile = {pair.key}"),
    ]
    verify = ["--tls-verify-client", "optional", "--tls-client-ca", ca.file]
    rabbitmq = RabbitMq(tmp_path / "rabbitmq", *settings, plugins="rabbitmq_management")
    try:
        theirs = Management(rabbitmq, f"http://127.0.0.1:{port}")
        with leveret(tmp_path / "server", "--amqps", "127.0.0.1:0", *verify, *tls(pair)) as ours:
            for question in QUESTIONS:
                answers = [answer(management, question) for management in (ours, theirs)]
                assert answers[0] == answers[1], question
    finally:
        rabbitmq.stop()


def answer(management, question):
    """The answer, without what differs between servers."""
    status, _, body = management.ask("GET", f"{CHECK}/{question}")
    for expired in body.get("expired", []):
        for key in ("node", "port"):
            assert expired.pop(key)
    return status, body
