"""The API, the dashboard, health and metrics over TLS: for programs, for `leveret ctl`, and in Chromium."""

import contextlib
import http.client
import json
import re
import signal
import socket
import ssl
from base64 import b64encode

import pytest

from harness.browser import browser
from harness.certificates import TestCa
from harness.ctl import Ctl
from harness.dashboard import WATCH, Visit
from harness.instances import leveret
from harness.leveret import run
from harness.metrics import wait_until
from harness.patience import PATIENCE

AUTHORIZATION = {"Authorization": "Basic " + b64encode(b"guest:guest").decode()}
# More than the listener's connection limit.
STRANGERS = 300


@pytest.fixture
def ca(tmp_path):
    return TestCa(tmp_path / "certificates")


@contextlib.contextmanager
def over_tls(directory, pairs, *flags):
    """A server whose `tls_port` is its HTTPS port, and `https` its URL."""
    files = [flag for certificate, key in pairs for flag in ("--tls-cert", certificate, "--tls-key", key)]
    with leveret(directory / "server", "--https", "127.0.0.1:0", *files, *flags) as server:
        server.tls_port = int(server.child.wait_line(r"^https +listening on https://127\.0\.0\.1:(\d+)$").group(1))
        server.https = f"https://localhost:{server.tls_port}"
        yield server


def believing(ca, pair=None):
    context = ssl.create_default_context(cafile=ca.file)
    if pair:
        context.load_cert_chain(*pair)
    return context


def ask(server, context, path, method="GET", **headers):
    """Status, headers and body of an answer over TLS."""
    connection = http.client.HTTPSConnection("localhost", server.tls_port, timeout=PATIENCE, context=context)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def shown(server, context, name):
    """The certificate for a server name (SNI)."""
    with socket.create_connection(("127.0.0.1", server.tls_port), timeout=PATIENCE) as plain:
        with context.wrap_socket(plain, server_hostname=name) as secured:
            return secured.getpeercert(binary_form=True)


def der(pair):
    return ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())


def test_everything_of_the_plain_listener_is_there_over_tls_too(tmp_path, ca):
    with over_tls(tmp_path, [ca.issue("server")]) as server:
        context = believing(ca)
        for path in ("/healthz", "/readyz", "/metrics", "/", "/messages"):
            assert ask(server, context, path)[0] == 200, path
        status, headers, _ = ask(server, context, "/api/overview")
        assert (status, headers["www-authenticate"]) == (401, 'Basic realm="Leveret Management"')
        status, headers, body = ask(server, context, "/api/overview", **AUTHORIZATION)
        assert (status, headers["x-frame-options"], headers["cache-control"]) == (200, "DENY", "no-store")
        assert (headers["set-cookie"], headers["strict-transport-security"]) == (None, None)
        overview = json.loads(body)
        listeners = {(each["protocol"], each["port"]) for each in overview["listeners"]}
        assert ("https", server.tls_port) in listeners and "http" in {protocol for protocol, _ in listeners}
        assert str(server.tls_port) in {each["port"] for each in overview["contexts"]}
        status, _, _ = ask(server, context, "/api/health/checks/protocol-listener/https", **AUTHORIZATION)
        assert status == 200
        server.stop()


def test_hsts_is_sent_only_over_tls(tmp_path, ca):
    with over_tls(tmp_path, [ca.issue("server")], "--https-strict", "8760h") as server:
        for path, expected in [("/", 200), ("/api/overview", 401), ("/nothing", 404)]:
            status, headers, _ = ask(server, believing(ca), path)
            assert (status, headers["strict-transport-security"]) == (expected, "max-age=31536000")
        plain = http.client.HTTPConnection(*server.http.removeprefix("http://").split(":"), timeout=PATIENCE)
        plain.request("GET", "/")
        # Without TLS, an attacker could inject the header (RFC 6797, section 7.2).
        assert plain.getresponse().headers["strict-transport-security"] is None
        plain.close()
        server.stop()


def test_a_page_that_came_without_tls_changes_nothing_over_tls(tmp_path, ca):
    with over_tls(tmp_path, [ca.issue("server")]) as server:
        path = "/api/vhosts/v"
        for scheme, expected in [("http", 403), ("https", 201)]:
            origin = f"{scheme}://localhost:{server.tls_port}"
            status, *_ = ask(server, believing(ca), path, "PUT", Origin=origin, **AUTHORIZATION)
            assert status == expected
        server.stop()


def test_a_name_is_answered_by_its_certificate_and_sighup_reads_them_again(tmp_path, ca):
    first, second = ca.issue("first"), ca.issue("second", ["*.wild.example"])
    with over_tls(tmp_path, [first, second]) as server:
        context = believing(ca)
        assert shown(server, context, "localhost") == der(first)
        assert shown(server, context, "a.wild.example") == der(second)
        stays = http.client.HTTPSConnection("localhost", server.tls_port, timeout=PATIENCE, context=context)
        stays.request("GET", "/healthz")
        stays.getresponse().read()
        same = stays.sock
        ca.issue("first")
        server.child.send(signal.SIGHUP)
        wait_until(lambda: shown(server, context, "localhost") == der(first))
        stays.request("GET", "/healthz")
        assert stays.getresponse().read() == b"ok\n" and stays.sock is same
        stays.close()
        server.stop()


def test_unfinished_handshakes_do_not_keep_other_clients_out(tmp_path, ca):
    with over_tls(tmp_path, [ca.issue("server")]) as server, contextlib.ExitStack() as stack:
        for number in range(STRANGERS):
            stranger = socket.create_connection(("127.0.0.1", server.tls_port), timeout=PATIENCE)
            stack.enter_context(stranger)
            if number % 2:
                stranger.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert ask(server, believing(ca), "/healthz")[0] == 200
        # A client without TLS gets no answer either.
        with socket.create_connection(("127.0.0.1", server.tls_port), timeout=PATIENCE) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert b"HTTP" not in b"".join(iter(lambda: plain.recv(4096), b""))
        server.stop()


def test_ctl_speaks_to_it_and_trusts_only_the_ca_it_is_given(tmp_path, ca):
    with over_tls(tmp_path, [ca.issue("server")]) as server:
        ctl = Ctl(server.https)
        assert "guest" in ctl("--ca", ca.file, "list_users")
        other = TestCa(tmp_path / "other", "other")
        told = ctl.fails("--ca", other.file, "list_users")
        assert told.endswith("TLS: the server's certificate was not issued by a trusted CA")
        by_address = Ctl(f"https://127.0.0.1:{server.tls_port}")
        assert "guest" in by_address("list_users", LEVERET_CTL_CA=str(ca.file))
        server.stop()


def test_ctl_shows_a_certificate_where_one_is_required(tmp_path, ca):
    flags = ["--tls-client-ca", ca.file, "--tls-verify-client", "required"]
    with over_tls(tmp_path, [ca.issue("server")], *flags) as server:
        ctl = Ctl(server.https)
        certificate, key = ca.issue("operator")
        assert "guest" in ctl("--ca", ca.file, "--cert", certificate, "--key", key, "list_users")
        told = ctl.fails("--ca", ca.file, "list_users")
        # If the connection closes before the alert arrives, only the close is reported.
        assert re.search("it requires a certificate of ours|reset|pipe|closed", told)
        told = ctl.fails("--ca", ca.file, "--cert", certificate, "list_users", code=2)
        assert told == "--cert and --key are needed together"
        server.stop()


def test_health_asks_it_where_there_is_no_other_listener(tmp_path, ca):
    certificate, key = ca.issue("server", ["broker.example"])
    with over_tls(tmp_path, [(certificate, key)]) as server:
        address = f"127.0.0.1:{server.tls_port}"
        flags = ["--http", "off", "--https", address, "--tls-cert", certificate, "--tls-key", key]
        assert run("health", "--ready", *flags) == (0, "", "")
        server.stop()
    code, _, error = run("health", *flags)
    assert code == 1 and f"https://{address}/healthz: " in error


MISTAKES = {
    "no certificate": (["--https", "127.0.0.1:0"], "--https: needs tls_cert and tls_key"),
    "an address twice": (["--https", "127.0.0.1:15672"], "--https: the same address as http"),
    "strictness about nothing": (["--https-strict", "1h"], "--https-strict: has no effect without https"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_https_settings_are_reported_by_config_check(mistake):
    flags, line = MISTAKES[mistake]
    code, _, error = run("config", "check", *flags)
    assert code == 2 and line in error


def test_the_settings_are_printed(tmp_path):
    code, out, _ = run("config", "print")
    assert code == 0
    assert 'https = "off"' in out and 'https_strict = "0s"' in out


class OverTls:
    """An HTTPS server in the dashboard's tests."""

    def __init__(self, server):
        self.http = f"https://127.0.0.1:{server.tls_port}"


def test_the_dashboard_works_over_tls_and_so_does_the_page_for_messages(tmp_path, ca):
    pair = ca.issue("server")
    trusting = f"--ignore-certificate-errors-spki-list={pair.fingerprint}"
    wss = ["--wss", "127.0.0.1:0"]
    with over_tls(tmp_path, [pair], *wss) as server, browser(tmp_path / "browser", trusting) as window:
        window.run_first(WATCH)
        visit = Visit(window, OverTls(server)).enter()
        assert visit.text("#view h1") == "Overview"
        visit.go("queues")
        assert visit.violations() == [] and visit.foreign_requests() == []
        assert window.complaints() == []
        window.open(OverTls(server).http + "/messages")
        port = server.child.wait_line(r"^wss +listening on wss://127\.0\.0\.1:(\d+)").group(1)
        script = "while (!document.querySelector('[name=url]').value) await new Promise(requestAnimationFrame);"
        window.run(script)
        assert window.value("[name=url]") == f"wss://127.0.0.1:{port}/"
        server.stop()
