"""SIGHUP reloads the upstream passwords of clients with certificates; connected clients stay."""

import signal
import ssl

import pika
import pytest

from harness.certificates import TestCa
from harness.instances import leveret


def test_a_certificate_that_has_come_to_be_known_is_a_login_from_then_on(tmp_path, targets):
    ca = TestCa(tmp_path / "certificates")
    certificate, key = ca.issue("server")
    worker = ca.issue("worker")
    file = tmp_path / "identities.toml"
    file.write_text(entry("somebody"))
    flags = ["--upstream", f"amqp://127.0.0.1:{targets.upstream.port}", "--upstream-external", file]
    flags += ["--amqps", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key]
    flags += ["--tls-client-ca", ca.file, "--tls-verify-client", "optional"]
    with leveret(tmp_path / "server", *flags) as server:
        parameters = external(server, ca, worker)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika.BlockingConnection(parameters)
        reload(server, file, entry("somebody") + entry("CN=worker"))
        connection = pika.BlockingConnection(parameters)
        # An unusable file changes nothing.
        reload(server, file, "nonsense", "SIGHUP: files not reloaded.*upstream_external: ")
        pika.BlockingConnection(parameters).close()
        reload(server, file, entry("somebody"))
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika.BlockingConnection(parameters)
        connection.channel().close()
        connection.close()
        server.stop()


def entry(identity):
    return f'["{identity}"]\nuser = "guest"\npassword = "guest"\n'


def reload(server, file, text, last="TLS certificate loaded"):
    """Reloads; returns once the last step has been logged."""
    file.write_text(text)
    # The startup logs this line, too, possibly late.
    server.child.wait_line("TLS certificate loaded")
    before = len(server.child.lines)
    server.child.send(signal.SIGHUP)
    server.child.wait_line(last, behind=before)


def external(server, ca, pair):
    port = server.child.wait_line(r"^amqps +listening on amqps://[^\s/]+:(\d+)").group(1)
    context = ssl.create_default_context(cafile=ca.file)
    context.load_cert_chain(*pair)
    return pika.ConnectionParameters(
        host="127.0.0.1",
        port=int(port),
        ssl_options=pika.SSLOptions(context, "localhost"),
        credentials=pika.credentials.ExternalCredentials(),
    )
