"""amqps:// to a RabbitMQ: verified, with clear errors if verification fails."""

import pika
import pika.exceptions
import pytest

from harness.certificates import TestCa
from harness.instances import leveret
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq


class TlsUpstream:
    """A RabbitMQ that requires client certificates, and the CA that both sides trust."""

    def __init__(self, directory):
        self.ca = TestCa(directory / "certificates")
        server = self.ca.issue("rabbit", names=["localhost", "rabbit.example"])
        [self.tls_port] = free_ports(1)
        self.rabbit = RabbitMq(
            directory / "rabbit",
            f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}",
            f"ssl_options.cacertfile = {self.ca.file}",
            f"ssl_options.certfile = {server.certificate}",
            f"ssl_options.keyfile = {server.key}",
            "ssl_options.verify = verify_peer",
            "ssl_options.fail_if_no_peer_cert = false",
        )

    def flags(self, host="localhost", ca=None):
        ca = ca or self.ca.file
        return ["--upstream", f"amqps://{host}:{self.tls_port}", "--upstream-ca", ca]


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    upstream = TlsUpstream(tmp_path_factory.mktemp("upstream"))
    yield upstream
    upstream.rabbit.stop()


def round_trip(server, size=100_000):
    with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"x" * size)
        assert len(channel.basic_get(queue, auto_ack=True)[2]) == size


def refused(server, reason):
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(server.uri))
    server.child.wait_line(reason)


def test_messages_pass_through_an_upstream_over_tls(tmp_path, upstream):
    with leveret(tmp_path, *upstream.flags()) as server:
        round_trip(server)
        round_trip(server, 3_000_000)


def test_a_client_certificate_is_shown_to_an_upstream_that_asks(tmp_path, upstream):
    certificate, key = upstream.ca.issue("leveret")
    files = ["--upstream-cert", certificate, "--upstream-key", key]
    with leveret(tmp_path / "good", *upstream.flags(), *files) as server:
        round_trip(server)
    certificate, key = TestCa(tmp_path / "other", "other").issue("leveret")
    files = ["--upstream-cert", certificate, "--upstream-key", key]
    with leveret(tmp_path / "bad", *upstream.flags(), *files) as server:
        refused(server, "TLS: refused by the other side: it does not (trust|accept)|it may not accept our certificate")


def test_an_unknown_ca_is_named(tmp_path, upstream):
    other = TestCa(tmp_path / "other", "other")
    with leveret(tmp_path, *upstream.flags(ca=other.file)) as server:
        refused(server, "TLS: the server's certificate was not issued by a trusted CA")


def test_a_certificate_for_another_host_is_named(tmp_path, upstream):
    with leveret(tmp_path / "wrong", *upstream.flags(host="127.0.0.1")) as server:
        refused(server, "TLS: the server's certificate is not for '127.0.0.1'")
    named = ["--upstream-server-name", "rabbit.example"]
    with leveret(tmp_path / "right", *upstream.flags(host="127.0.0.1"), *named) as server:
        round_trip(server)


def test_verification_is_only_switched_off_loudly(tmp_path, upstream):
    other = TestCa(tmp_path / "other", "other")
    flags = upstream.flags(host="127.0.0.1", ca=other.file)
    with leveret(tmp_path, *flags, "--upstream-verify", "off") as server:
        server.child.wait_line("WARN.*upstream_verify is off.*NOT VERIFIED")
        round_trip(server)


def test_an_upstream_that_does_not_speak_tls_is_named(tmp_path, upstream):
    flags = ["--upstream", f"amqps://localhost:{upstream.rabbit.port}", "--upstream-ca", upstream.ca.file]
    with leveret(tmp_path, *flags) as server:
        refused(server, "upstream connection failed.*TLS")


def test_an_expired_certificate_is_named(tmp_path):
    ca = TestCa(tmp_path / "certificates")
    pair = ca.issue("broker", expired=True)
    # Leveret's own listener acts as the broker: the pool warns, and serves.
    files = ["--amqps", "127.0.0.1:0", "--tls-cert", pair.certificate, "--tls-key", pair.key]
    with leveret(tmp_path / "broker", *files) as broker:
        broker.child.wait_line("WARN.*TLS certificate loaded, but")
        port = broker.child.wait_line(r"^amqps +listening on amqps://[^\s/]+:(\d+)").group(1)
        flags = ["--upstream", f"amqps://localhost:{port}", "--upstream-ca", ca.file]
        with leveret(tmp_path / "proxy", *flags) as server:
            refused(server, "TLS: the server's certificate has expired")
