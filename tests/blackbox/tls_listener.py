"""AMQP over TLS: certificates by SNI, logins with client certificates, and a reload that affects no connection."""

import contextlib
import json
import signal
import socket
import ssl
import threading

import pika
import pika.exceptions
import pytest
from cryptography.x509.oid import NameOID

from harness.certificates import TestCa
from harness.instances import leveret
from harness.leveret import run
from harness.patience import PATIENCE
from harness.wire import CONNECTION_START, PROTOCOL_HEADER, Wire


@pytest.fixture
def ca(tmp_path):
    return TestCa(tmp_path / "certificates")


def over_tls(directory, pairs, *flags, **options):
    """A server with a TLS listener."""
    files = [flag for certificate, key in pairs for flag in ("--tls-cert", certificate, "--tls-key", key)]
    return leveret(directory / "server", "--amqps", "127.0.0.1:0", *files, *flags, **options)


def port_of(server):
    return int(server.child.wait_line(r"^amqps +listening on amqps://[^\s/]+:(\d+)").group(1))


def context_for(ca, pair=None):
    context = ssl.create_default_context(cafile=ca.file)
    if pair:
        context.load_cert_chain(*pair)
    return context


def parameters(server, context, credentials=None, name="localhost"):
    return pika.ConnectionParameters(
        host="127.0.0.1",
        port=port_of(server),
        ssl_options=pika.SSLOptions(context, name),
        credentials=credentials or pika.PlainCredentials("guest", "guest"),
    )


@contextlib.contextmanager
def connected(*arguments, **options):
    connection = pika.BlockingConnection(parameters(*arguments, **options))
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()


class OverTls(Wire):
    """A `Wire` over TLS."""

    def __init__(self, secured):
        self.socket, self.pending = secured, b""


def shown(server, context, name):
    """The certificate for a server name (SNI)."""
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=PATIENCE) as plain:
        with context.wrap_socket(plain, server_hostname=name) as secured:
            return secured.getpeercert(binary_form=True)


def der(pair):
    return ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())


def round_trip(connection, body=b"hare"):
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.confirm_delivery()
    channel.basic_publish("", queue, body)
    assert channel.basic_get(queue, auto_ack=True)[2] == body


def test_messages_of_every_size_pass_over_tls(tmp_path, ca):
    with over_tls(tmp_path, [ca.issue("server")]) as server:
        with connected(server, context_for(ca)) as connection:
            for size in (0, 1, 16_384, 1_000_000):
                round_trip(connection, b"x" * size)
        # The listener without TLS is unaffected.
        Wire(server.port).handshake()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda v: v.name)
def test_both_versions_of_tls_are_spoken(tmp_path, ca, version):
    context = context_for(ca)
    context.minimum_version = context.maximum_version = version
    with over_tls(tmp_path, [ca.issue("server")]) as server, connected(server, context) as connection:
        round_trip(connection)


def test_a_client_is_shown_the_certificate_for_the_name_it_asks_for(tmp_path, ca):
    first, second = ca.issue("first"), ca.issue("second", ["*.wild.example"])
    context = context_for(ca)
    context.check_hostname = False
    with over_tls(tmp_path, [first, second]) as server:
        assert shown(server, context, "localhost") == der(first)
        assert shown(server, context, "a.wild.example") == der(second)
        assert shown(server, context, "unknown.example") == der(first)
        assert shown(server, context, None) == der(first)


def test_a_client_that_does_not_trust_the_ca_is_logged_as_such(tmp_path, ca):
    with over_tls(tmp_path, [ca.issue("server")]) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            shown(server, context_for(TestCa(tmp_path / "other", "other")), "localhost")
        server.child.wait_line("TLS: refused by the other side: it does not trust the CA of our certificate")


def test_plain_bytes_at_the_tls_port_and_tls_at_the_plain_port_end_cleanly(tmp_path, ca):
    with over_tls(tmp_path, [ca.issue("server")]) as server:
        plain = Wire(port_of(server))
        plain.send(PROTOCOL_HEADER)
        plain.expect_end()
        server.child.wait_line("TLS: the client does not speak TLS")
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as wrong:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                context_for(ca).wrap_socket(wrong, server_hostname="localhost")
        server.check()


def test_a_handshake_that_is_never_finished_is_cut_off_and_holds_up_nobody(tmp_path, ca):
    # More than a busy machine needs for a login.
    with over_tls(tmp_path, [ca.issue("server")], "--handshake-timeout", "5s") as server:
        idle = [Wire(port_of(server)) for _ in range(50)]
        for wire in idle[::2]:
            wire.send(b"\x16\x03\x01\x02\x00\x01")
        with connected(server, context_for(ca)) as connection:
            round_trip(connection)
        for wire in idle:
            wire.expect_end()
        server.child.wait_line("handshake timed out")


def test_a_drain_does_not_wait_for_handshakes(tmp_path, ca):
    with over_tls(tmp_path, [ca.issue("server")], "--drain-timeout", "1h") as server:
        idle = Wire(port_of(server))
        with connected(server, context_for(ca)) as connection:
            round_trip(connection)
        server.stop()
        idle.expect_end()


def test_sighup_reads_certificates_again_and_sessions_live_on(tmp_path, ca):
    pair = ca.issue("server")
    with over_tls(tmp_path, [pair]) as server, connected(server, context_for(ca)) as connection:
        old = der(pair)
        ca.issue("server")
        pair.key.write_text("broken")
        server.child.send(signal.SIGHUP)
        server.child.wait_line(r"SIGHUP: files not reloaded.*tls_key: .*server\.key")
        assert shown(server, context_for(ca), "localhost") == old

        ca.issue("server")
        assert der(pair) != old
        count = len(server.child.lines)
        server.child.send(signal.SIGHUP)
        with server.child.changed:
            told = lambda: any("TLS certificate loaded" in line for line in server.child.lines[count:])
            assert server.child.changed.wait_for(told, PATIENCE)
        assert shown(server, context_for(ca), "localhost") == der(pair)
        round_trip(connection)


def test_a_file_that_cannot_be_used_keeps_the_old_contents_of_all_files_in_use(tmp_path, ca):
    pair = ca.issue("server")
    of_relay = TestCa(tmp_path / "of-relay").file
    configuration = tmp_path / "leveret.toml"
    configuration.write_text(f'[[relay]]\nlisten = "127.0.0.1:0"\nupstream = "tls://127.0.0.1:9"\nupstream_ca = "{of_relay}"\n')
    with over_tls(tmp_path, [pair], "--config", configuration) as server:
        old, trusted = der(pair), of_relay.read_text()
        ca.issue("server")
        of_relay.write_text("broken")
        server.child.send(signal.SIGHUP)
        server.child.wait_line(r"SIGHUP: files not reloaded.*relay: ")
        assert shown(server, context_for(ca), "localhost") == old

        of_relay.write_text(trusted)
        server.child.send(signal.SIGHUP)
        server.child.wait_line("relay's upstream TLS files reloaded")
        assert shown(server, context_for(ca), "localhost") == der(pair)
        server.stop()


def definitions(directory, *users):
    """A file with users without passwords, and all permissions."""
    everything = {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    path = directory / "definitions.json"
    path.write_text(
        json.dumps(
            {
                "vhosts": [{"name": "/"}],
                "users": [{"name": name, "password_hash": "", "tags": []} for name in users],
                "permissions": [{"user": name, **everything} for name in users],
            }
        )
    )
    return path


External = pika.credentials.ExternalCredentials


def test_a_client_certificate_is_a_login(tmp_path, ca):
    subject = [(NameOID.ORGANIZATION_NAME, "Hares"), (NameOID.COMMON_NAME, "worker")]
    known, unknown = ca.issue("worker", subject=subject), ca.issue("nobody")
    users = definitions(tmp_path, "CN=worker,O=Hares")
    flags = ["--definitions", users, "--tls-client-ca", ca.file, "--tls-verify-client", "optional"]
    with over_tls(tmp_path, [ca.issue("server")], *flags) as server:
        with connected(server, context_for(ca, known), External()) as connection:
            round_trip(connection)
        server.child.wait_line("connection opened.*CN=worker,O=Hares")
        with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="mechanism EXTERNAL"):
            pika.BlockingConnection(parameters(server, context_for(ca, unknown), External()))
        # Without a certificate, EXTERNAL is not offered.
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika.BlockingConnection(parameters(server, context_for(ca), External()))


def test_external_is_offered_to_clients_with_a_certificate_only(tmp_path, ca):
    flags = ["--tls-client-ca", ca.file, "--tls-verify-client", "optional"]
    with over_tls(tmp_path, [ca.issue("server")], *flags) as server:
        for pair, offered in [(ca.issue("client"), True), (None, False)]:
            with socket.create_connection(("127.0.0.1", port_of(server)), timeout=PATIENCE) as plain:
                wire = OverTls(context_for(ca, pair).wrap_socket(plain, server_hostname="localhost"))
                wire.send(PROTOCOL_HEADER)
                assert (b" EXTERNAL" in wire.expect(CONNECTION_START)) == offered


@pytest.mark.parametrize("part, user", [("common_name", "worker"), ("subject_alternative_name", "worker.example")])
def test_the_user_name_is_the_configured_part_of_the_certificate(tmp_path, ca, part, user):
    flags = ["--tls-client-ca", ca.file, "--tls-verify-client", "required", "--tls-login-from", part]
    client = ca.issue("worker", names=["worker.example"])
    with over_tls(tmp_path, [ca.issue("server")], "--definitions", definitions(tmp_path, user), *flags) as server:
        with connected(server, context_for(ca, client), External()) as connection:
            round_trip(connection)


def test_a_required_certificate_has_to_be_shown_and_good(tmp_path, ca):
    flags = ["--tls-client-ca", ca.file, "--tls-verify-client", "required"]
    with over_tls(tmp_path, [ca.issue("server")], *flags) as server:
        for pair, reason in [
            (None, "the client has no certificate"),
            (TestCa(tmp_path / "other", "other").issue("client"), "certificate was not issued by a trusted CA"),
            (ca.issue("late", expired=True), "certificate has expired"),
        ]:
            with pytest.raises((pika.exceptions.AMQPError, OSError)):
                pika.BlockingConnection(parameters(server, context_for(ca, pair)))
            server.child.wait_line(reason)
        with connected(server, context_for(ca, ca.issue("client"))) as connection:
            round_trip(connection)


MISTAKES = {
    "no certificate": (["--amqps", "127.0.0.1:0"], "amqps: needs tls_cert and tls_key"),
    "no key": (["--tls-cert", "{server}"], "tls_key: one tls_key is needed for each tls_cert"),
    "a missing file": (["--tls-cert", "missing.pem", "--tls-key", "{key}"], "tls_cert: missing.pem: cannot be read"),
    "another key": (["--tls-cert", "{server}", "--tls-key", "{other}"], "is not the key of the certificate"),
    "no CA": (["--tls-verify-client", "required"], "tls-verify-client: needs tls_client_ca"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_tls_settings_are_reported_by_config_check(tmp_path, ca, mistake):
    server, other = ca.issue("server"), ca.issue("other")
    flags, line = MISTAKES[mistake]
    files = {"server": server.certificate, "key": server.key, "other": other.key}
    code, _, error = run("config", "check", *(flag.format(**files) for flag in flags), cwd=tmp_path)
    assert code == 2
    assert line in error


def test_many_handshakes_at_once_all_succeed(tmp_path, ca):
    with over_tls(tmp_path, [ca.issue("server")]) as server:
        context, results = context_for(ca), []
        port_of(server)

        def client():
            with connected(server, context) as connection:
                round_trip(connection)
                results.append(True)

        threads = [threading.Thread(target=client) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(results) == 20
