"""The virtual host of an MQTT client comes from its certificate, its port, its user name, or the default, in this order;
without a certificate the user name precedes the port. On the embedded broker and in front of RabbitMQ, whose own listener
maps ports in the same way."""

import json
import ssl

import pika
import pytest

from harness.certificates import TestCa
from harness.definitions import user
from harness.leveret import Leveret, run
from harness.mqtt_broker import MAKE_VHOSTS, listening
from harness.mqtt_client import V5, V311, MqttClient
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq
from harness.releases import RELEASES, missing

VHOSTS = ["named", "certified", "ported"]
LOCAL = "127.0.0.1"


class Served:
    """Leveret with and without TLS on mapped ports. `amqp` is the broker's URI, `native` a mapped port of RabbitMQ."""

    def __init__(self, kind, directory):
        self.rabbitmq, self.native = None, None
        mapped, self.unmapped = free_ports(2)
        self.mapped = mapped
        ca = TestCa(directory / "tls")
        certificate, key = ca.issue("server")
        self.worker = ssl.create_default_context(cafile=str(ca.file))
        self.worker.load_cert_chain(*ca.issue("worker"))
        self.stranger = ssl.create_default_context(cafile=str(ca.file))
        self.stranger.load_cert_chain(*ca.issue("stranger"))
        self.nobody = ssl.create_default_context(cafile=str(ca.file))
        flags = ["--mqtts", f"{LOCAL}:{mapped}", "--mqtt", f"{LOCAL}:{self.unmapped}", "--tls-cert", certificate]
        flags += ["--tls-key", key, "--tls-verify-client", "optional", "--tls-client-ca", str(ca.file)]
        flags += ["--mqtt-port-vhosts", f"{mapped}=ported", "--mqtt-certificate-vhosts", "CN=worker=certified"]
        if kind == "leveret":
            flags += ["--definitions", str(definitions(directory))]
        else:
            if reason := missing(kind):
                pytest.skip(reason)
            plain, self.native = free_ports(2)
            settings = [f"mqtt.listeners.tcp.{at} = {LOCAL}:{port}" for at, port in enumerate((plain, self.native), 1)]
            self.rabbitmq = RabbitMq(directory / "rabbitmq", *settings, plugins="rabbitmq_mqtt", version=kind)
            self.rabbitmq.control("eval", MAKE_VHOSTS % ",".join(f'<<"{name}">>' for name in VHOSTS))
            mapping = json.dumps({str(self.native): "ported"})
            self.rabbitmq.control("set_global_parameter", "mqtt_port_to_vhost_mapping", mapping)
            flags += ["--upstream", f"amqp://{LOCAL}:{self.rabbitmq.port}"]
        self.server = Leveret(directory / "leveret", *flags)
        listening(self.server, "mqtts", "mqtts")
        self.amqp = self.rabbitmq.uri if self.rabbitmq else self.server.uri

    def vhost_of(self, client):
        """A message is published in every virtual host; the one that the client receives identifies its own."""
        client.subscribe("where", 0)
        for name in ["%2F", *VHOSTS]:
            with pika.BlockingConnection(pika.URLParameters(f"{self.amqp}/{name}")) as connection:
                connection.channel().basic_publish("amq.topic", "where", name.encode())
        return client.message().payload.decode()

    def stop(self):
        self.server.stop()
        if self.rabbitmq:
            self.rabbitmq.stop()


def definitions(directory):
    names = ["/", *VHOSTS]
    allowed = {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
    written = {
        "users": [user("guest", "administrator")],
        "vhosts": [{"name": name} for name in names],
        "permissions": [{**allowed, "vhost": name} for name in names],
    }
    file = directory / "definitions.json"
    file.write_text(json.dumps(written))
    return file


@pytest.fixture(scope="module", params=["leveret", *RELEASES])
def served(request, tmp_path_factory):
    served = Served(request.param, tmp_path_factory.mktemp("vhosts"))
    yield served
    served.stop()


@pytest.mark.parametrize("version", [V311, V5])
def test_with_a_certificate_the_user_name_goes_behind_the_port_and_without_one_before_it(served, version):
    for name, tls, vhost in [
        ("named:guest", served.worker, "certified"),
        ("named:guest", served.stranger, "ported"),
        ("named:guest", served.nobody, "named"),
        ("guest", served.worker, "certified"),
        ("guest", served.stranger, "ported"),
        ("guest", served.nobody, "ported"),
    ]:
        with MqttClient(served.mapped, "client", version, tls=tls, user=name) as client:
            assert served.vhost_of(client) == vhost, (name, vhost)


def test_a_port_without_a_mapping_has_the_default(served):
    for name, vhost in [("guest", "%2F"), ("named:guest", "named")]:
        with MqttClient(served.unmapped, "client", user=name) as client:
            assert served.vhost_of(client) == vhost


@pytest.mark.parametrize("served", RELEASES, indirect=True)
def test_rabbitmq_maps_ports_in_the_same_way(served):
    for name, vhost in [("guest", "ported"), ("named:guest", "named")]:
        with MqttClient(served.native, "client", user=name) as client:
            assert served.vhost_of(client) == vhost


def test_a_mapping_by_certificates_needs_certificates(tmp_path):
    code, printed, error = run("serve", "--mqtt-certificate-vhosts", "CN=worker=certified", cwd=tmp_path)
    assert code != 0
    assert "needs tls_verify_client" in printed + error
