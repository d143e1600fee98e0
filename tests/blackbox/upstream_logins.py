"""Logins at a real upstream: with client certificates on both sides (EXTERNAL), and passwords that change."""

import json
import ssl

import pika
import pika.exceptions
import pytest
from cryptography.x509.oid import NameOID

from harness.certificates import TestCa
from harness.instances import leveret
from harness.metrics import wait_until
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq

# The format of RabbitMQ's plugin, and of Leveret.
IDENTITY = "CN=worker,O=Hares"
EVERYTHING = [".*", ".*", ".*"]


class CertificateUpstream:
    """A RabbitMQ with logins by certificate, and the CA that issued the certificates."""

    def __init__(self, directory):
        self.ca = TestCa(directory / "certificates")
        self.server = self.ca.issue("server")
        subject = [(NameOID.ORGANIZATION_NAME, "Hares"), (NameOID.COMMON_NAME, "worker")]
        self.worker = self.ca.issue("worker", subject=subject)
        [self.tls_port] = free_ports(1)
        self.rabbit = RabbitMq(
            directory / "rabbit",
            f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}",
            f"ssl_options.cacertfile = {self.ca.file}",
            f"ssl_options.certfile = {self.server.certificate}",
            f"ssl_options.keyfile = {self.server.key}",
            "ssl_options.verify = verify_peer",
            "auth_mechanisms.1 = PLAIN",
            "auth_mechanisms.2 = EXTERNAL",
            plugins="rabbitmq_auth_mechanism_ssl",
        )
        for user, password in [(IDENTITY, "its password"), ("changing", "old")]:
            self.rabbit.control("add_user", user, password)
            self.rabbit.control("set_permissions", user, *EVERYTHING)

    @property
    def url(self):
        return f"amqp://127.0.0.1:{self.rabbit.port}"


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    upstream = CertificateUpstream(tmp_path_factory.mktemp("upstream"))
    yield upstream
    upstream.rabbit.stop()


def external(upstream, port, pair=None):
    context = pika.SSLOptions(context_for(upstream.ca, pair or upstream.worker), "localhost")
    credentials = pika.credentials.ExternalCredentials()
    return pika.ConnectionParameters("127.0.0.1", port, ssl_options=context, credentials=credentials)


def context_for(ca, pair):
    context = ssl.create_default_context(cafile=ca.file)
    context.load_cert_chain(*pair)
    return context


def is_worker(parameters):
    """RabbitMQ accepts a user id only from that user."""
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.fanout", "", b"mine", pika.BasicProperties(user_id=IDENTITY))
    return True


def test_a_certificate_is_the_same_user_at_rabbitmq_and_through_the_pool(tmp_path, upstream):
    assert is_worker(external(upstream, upstream.tls_port))
    file = tmp_path / "external.toml"
    file.write_text(f'[{json.dumps(IDENTITY)}]\nuser = "{IDENTITY}"\npassword = "its password"\n')
    certificate, key = upstream.server
    listener = ["--amqps", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key]
    verify = ["--tls-client-ca", upstream.ca.file, "--tls-verify-client", "required"]
    flags = ["--upstream", upstream.url, *listener, *verify, "--upstream-external", file, "--log", "trace"]
    with leveret(tmp_path, *flags) as server:
        port = int(server.child.wait_line(r"^amqps +listening on amqps://[^\s/]+:(\d+)").group(1))
        assert is_worker(external(upstream, port))
        with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="no upstream user is configured for the certificate of 'CN=stranger'"):
            is_worker(external(upstream, port, upstream.ca.issue("stranger")))
        server.stop()
        assert "its password" not in server.child.output()


def lets_in(server, password):
    uri = server.uri.replace("guest:guest", f"changing:{password}")
    try:
        pika.BlockingConnection(pika.URLParameters(uri)).close()
        return True
    except pika.exceptions.ProbableAuthenticationError:
        return False


def test_p1_an_old_password_works_no_longer_than_auth_ttl(tmp_path, upstream):
    with leveret(tmp_path, "--upstream", upstream.url, "--auth-ttl", "1s") as server:
        assert lets_in(server, "old")
        upstream.rabbit.control("change_password", "changing", "new")
        # The new password works at once, whatever happened to the old one meanwhile.
        assert lets_in(server, "new")
        wait_until(lambda: not lets_in(server, "old"))
        assert lets_in(server, "new")
        server.stop()
