"""MQTT over TLS and secure WebSocket, behind a load balancer, with topic permissions, and relayed to a RabbitMQ."""

import json
import socket
import ssl

import pytest

from harness.certificates import TestCa
from harness.instances import leveret
from harness.lending import borrow
from harness.leveret import run
from harness.mqtt_broker import ANY, SERVED, listening, shared
from harness.mqtt_client import V5, V311, MqttClient
from harness.mqtt_wire import CONNACK, MqttWire
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq
from harness.targets import POOL

# "test12", salted and hashed as in RabbitMQ's documentation.
TEST12 = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
AFAR = "192.0.2.1"

CLIENT_ID = "an AMQP login does not tell the client identifier"
# In front of an upstream (docs/compatibility.md).
EXCEPTIONS = {
    "a_load_balancer_tells": "the upstream, which knows who may come from where, sees this server's address",
    "speak_of_user_client_and_virtual_host[proxy-sensors/ann/c1/x]": CLIENT_ID,
    "speak_of_user_client_and_virtual_host[proxy4-sensors/ann/c1/x]": CLIENT_ID,
    "sensors/ann/{client_id}/x": CLIENT_ID,
    "an_mqtt_5_client_gets_not_authorized_for_denied_topics": CLIENT_ID,
    "a_will_is_the_clients_too": CLIENT_ID,
}


def port(server, name="mqtt", scheme="mqtt"):
    return listening(server, name, scheme)


def definitions(directory, *users, vhost="/", topics=()):
    """A file with users who have all permissions in a virtual host, restricted by these topic permissions."""
    file = directory / "definitions.json"
    own = [{"name": name, "password_hash": password, "tags": ""} for name, password in users]
    all_of_it = {"vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}
    file.write_text(
        json.dumps(
            {
                "users": own,
                "vhosts": [{"name": vhost}],
                "permissions": [{"user": name, **all_of_it} for name, _ in users],
                "topic_permissions": [{"vhost": vhost, "exchange": "amq.topic", **topic} for topic in topics],
            }
        )
    )
    return str(file)


@pytest.fixture(params=SERVED)
def upstream_flags(request, targets):
    """None for the embedded broker."""
    return [] if request.param == "leveret" else shared(request.param, targets)[0]


@pytest.mark.parametrize("listener", ["mqtts", "web-mqtts"])
@pytest.mark.parametrize("version", [V311, V5])
def test_mqtt_is_spoken_over_tls(tmp_path, upstream_flags, listener, version):
    ca = TestCa(tmp_path / "tls")
    certificate, key = ca.issue("server")
    with leveret(tmp_path, *upstream_flags, f"--{listener}", ANY, "--tls-cert", certificate, "--tls-key", key) as server:
        web = listener == "web-mqtts"
        where = port(server, listener, "wss" if web else "mqtts")
        context = ssl.create_default_context(cafile=str(ca.file))
        with MqttClient(where, "secret", version, tls=context, transport="websockets" if web else "tcp") as client:
            client.subscribe("a/#", 2)
            client.publish("a/b", b"x" * 300_000, 2)
            message = client.message()
            assert (message.payload, message.qos) == (b"x" * 300_000, 2)
        # A client without TLS gets a TLS alert, and no MQTT answer.
        wire = MqttWire(where)
        wire.connect("plain")
        told = wire.packet()
        assert told is None or told[0] != CONNACK
        server.stop()


def test_a_certificate_is_a_login(tmp_path):
    ca = TestCa(tmp_path / "tls")
    certificate, key = ca.issue("server")
    worker = ca.issue("worker")
    flags = ["--mqtts", ANY, "--tls-cert", certificate, "--tls-key", key, "--tls-verify-client", "optional"]
    flags += ["--tls-client-ca", str(ca.file), "--definitions", definitions(tmp_path, ("CN=worker", ""))]
    with leveret(tmp_path, *flags) as server:
        known = ssl.create_default_context(cafile=str(ca.file))
        known.load_cert_chain(*worker)
        with MqttClient(port(server, "mqtts", "mqtts"), "w", V5, tls=known, user=None) as client:
            assert not client.reason.is_failure
        stranger = ssl.create_default_context(cafile=str(ca.file))
        with MqttClient(port(server, "mqtts", "mqtts"), "s", V5, tls=stranger, user=None) as client:
            assert client.reason.is_failure
        server.stop()


@pytest.mark.parametrize("header", ["v1", "v2"])
def test_a_load_balancer_tells_where_a_client_comes_from(tmp_path, upstream_flags, header):
    flags = ["--proxy-protocol", header, "--trusted-proxies", "127.0.0.1"]
    with leveret(tmp_path, *upstream_flags, "--mqtt", ANY, *flags) as server:
        for source, let_in in [("127.0.0.1", True), (AFAR, False)]:
            wire = MqttWire(port(server))
            # Guest may only connect from this machine.
            wire.send(proxy_header(header, source))
            wire.connect("behind")
            kind, body = wire.packet()
            assert (kind, body[1] == 0) == (CONNACK, let_in), (source, body)
            wire.close()
        # A client without a header is closed.
        wire = MqttWire(port(server))
        wire.connect("direct")
        assert wire.packet() is None
        server.stop()


def proxy_header(version, source):
    if version == "v1":
        return f"PROXY TCP4 {source} 127.0.0.1 50000 1883\r\n".encode()
    addresses = socket.inet_aton(source) + socket.inet_aton("127.0.0.1") + bytes([0xC3, 0x50, 0x07, 0x5B])
    return b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + addresses


TOPICS = "^sensors\\.{username}\\.{client_id}\\..*|^in\\.{vhost}\\."


# In the first virtual host.
RESTRICTED_USERS = """
    [begin
        ok = rabbit_auth_backend_internal:add_user(User, <<"test12">>, <<"tests">>),
        ok = rabbit_auth_backend_internal:set_permissions(User, <<"{0}">>, <<".*">>, <<".*">>, <<".*">>, <<"tests">>)
    end || User <- [<<"ann">>, <<"bob">>]],
    Topics = <<"{1}">>,
    ok = rabbit_auth_backend_internal:set_topic_permissions(<<"ann">>, <<"{0}">>, <<"amq.topic">>, Topics, Topics, <<"tests">>).
"""


class Restricted:
    """A server, Leveret or RabbitMQ, where `ann` may use only her own and her client's topics, and `bob` all."""

    def __init__(self, kind, directory, targets):
        self.kind, self.vhost = kind, "plant"
        if kind == "leveret":
            topic = {"user": "ann", "write": TOPICS, "read": TOPICS}
            file = definitions(directory, ("ann", TEST12), ("bob", TEST12), vhost="plant", topics=[topic])
            self.context = leveret(directory / "leveret", "--mqtt", ANY, "--definitions", file)
            self.server = self.context.__enter__()
            self.mqtt = port(self.server)
        elif kind in POOL:
            flags, self.vhost = shared(kind, targets)
            targets[POOL[kind]].control("eval", RESTRICTED_USERS.format(self.vhost, TOPICS.replace("\\", "\\\\")))
            self.context = leveret(directory / "leveret", "--mqtt", ANY, *flags)
            self.server = self.context.__enter__()
            self.mqtt = port(self.server)
        else:
            self.server = borrow()
            self.mqtt = self.server.mqtt
            self.server.control("add_vhost", "plant")
            for user in ("ann", "bob"):
                self.server.control("add_user", user, "test12")
                self.server.control("set_permissions", "-p", "plant", user, ".*", ".*", ".*")
            self.server.control("set_topic_permissions", "-p", "plant", "ann", "amq.topic", TOPICS, TOPICS)

    def client(self, name, version=V311, user="ann", **options):
        return MqttClient(self.mqtt, name, version, user=f"{self.vhost}:{user}", password="test12", **options)

    def refuses(self, name, topic):
        """Whether a subscription is refused; before MQTT 5.0 by SUBACK, with RabbitMQ by closing the connection."""
        with self.client(name) as client:
            client.client.subscribe(topic, 1)
            if self.kind == "rabbitmq":
                return client.gone.wait(PATIENCE)
            return [reason.value for reason in client.answers.get(timeout=PATIENCE)] == [0x80]


@pytest.fixture(scope="module", params=["rabbitmq", *SERVED])
def restricted(request, tmp_path_factory, targets):
    restricted = Restricted(request.param, tmp_path_factory.mktemp(request.param), targets)
    yield restricted
    restricted.server.stop()


@pytest.mark.parametrize("topic", ["sensors/ann/c1/x", "in/VHOST/x"])
def test_topic_permissions_speak_of_user_client_and_virtual_host(restricted, topic):
    topic = topic.replace("VHOST", restricted.vhost)
    with restricted.client("c1") as client:
        assert client.subscribe(topic, 1) == [1]
        client.publish(topic, b"own")
        assert client.message().payload == b"own"


@pytest.mark.parametrize("topic", ["sensors/ann/c2/x", "sensors/bob/c1/x", "sensors/ann/{client_id}/x", "other"])
def test_others_topics_are_refused(restricted, topic):
    # Before MQTT 5.0 the server can only close the connection.
    with restricted.client("c1") as client:
        client.client.publish(topic, b"not mine", 1)
        assert client.gone.wait(PATIENCE)
    assert restricted.refuses("c1", topic)
    # The permission depends on the client id.
    assert restricted.refuses("c3", "sensors/ann/c1/x")


def test_an_mqtt_5_client_gets_not_authorized_for_denied_topics(restricted):
    if restricted.kind == "rabbitmq":
        pytest.skip("this RabbitMQ speaks no MQTT 5")
    with restricted.client("c1", V5) as client:
        reasons = []
        client.client.on_publish = lambda _c, _u, _mid, reason, _p: reasons.append(reason.value)
        client.publish("sensors/ann/c2/x", b"not mine")
        client.publish("sensors/ann/c1/x", b"own")
        # 135: not authorized; 16: no subscribers.
        assert reasons == [135, 16]
        assert client.subscribe("sensors/ann/c2/x", 1) == [135]


def test_a_will_is_the_clients_too(restricted):
    """A will must not bypass the publish permissions."""
    heir = restricted.client("heir", user="bob")
    heir.subscribe("sensors/#", 1)
    for client in ("c2", "c1"):
        # The topic belongs to client c1.
        restricted.client(client, will=("sensors/ann/c1/will", client, 1)).vanish()
    assert heir.message().payload == b"c1"
    heir.close()


def test_the_upstreams_port_has_no_effect_without_an_upstream():
    code, _, told = run("serve", "--upstream-mqtt", "tcp://127.0.0.1:1", "--mqtt", ANY)
    assert code == 2 and "has no effect without an upstream" in told, told


class MqttUpstream:
    """A RabbitMQ with MQTT on three kinds of port."""

    def __init__(self, directory):
        self.ca = TestCa(directory / "tls")
        certificate, key = self.ca.issue("rabbit")
        self.plain, self.tls = free_ports(2)
        self.server = RabbitMq(
            directory / "rabbitmq",
            f"mqtt.listeners.tcp.1 = 127.0.0.1:{self.plain}",
            f"mqtt.listeners.ssl.1 = 127.0.0.1:{self.tls}",
            f"ssl_options.cacertfile = {self.ca.file}",
            f"ssl_options.certfile = {certificate}",
            f"ssl_options.keyfile = {key}",
            "ssl_options.verify = verify_none",
            plugins="rabbitmq_mqtt",
        )

    def flags(self, url):
        return ["--upstream", self.server.uri.replace("guest:guest@", ""), "--upstream-mqtt", url]


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    upstream = MqttUpstream(tmp_path_factory.mktemp("upstream"))
    yield upstream
    upstream.server.stop()


def converse(where, transport="tcp", **options):
    with MqttClient(where, "relayed", transport=transport, **options) as client:
        assert not client.reason.is_failure
        # RabbitMQ answers: Leveret itself would grant 2.
        assert client.subscribe("relayed/#", 2) == [1]
        client.publish("relayed/x", b"x" * 300_000)
        assert client.message().payload == b"x" * 300_000


def test_in_front_of_rabbitmq_mqtt_is_relayed(tmp_path, upstream):
    listeners = ["--mqtt", ANY, "--web-mqtt", ANY, "--ws", ANY]
    with leveret(tmp_path, *upstream.flags(f"tcp://127.0.0.1:{upstream.plain}"), *listeners) as server:
        converse(port(server))
        converse(port(server, "web-mqtt", "ws"), "websockets")
        converse(server.ws_port, "websockets", path="/ws/mqtt")
        with MqttClient(port(server), "stranger", password="wrong") as client:
            assert client.reason.is_failure
        server.stop()


def test_the_relay_speaks_tls_on_both_sides(tmp_path, upstream):
    certificate, key = upstream.ca.issue("front")
    flags = [*upstream.flags(f"tls://localhost:{upstream.tls}"), "--upstream-ca", str(upstream.ca.file)]
    listeners = ["--mqtt", ANY, "--mqtts", ANY, "--tls-cert", certificate, "--tls-key", key]
    with leveret(tmp_path, *flags, *listeners) as server:
        converse(port(server))
        context = ssl.create_default_context(cafile=str(upstream.ca.file))
        converse(port(server, "mqtts", "mqtts"), tls=context)
        server.stop()


def test_a_certificate_of_the_upstream_that_nobody_vouches_for_is_not_believed(tmp_path, upstream):
    other = TestCa(tmp_path / "other")
    flags = [*upstream.flags(f"tls://localhost:{upstream.tls}"), "--upstream-ca", str(other.file)]
    with leveret(tmp_path, *flags, "--mqtt", ANY) as server:
        wire = MqttWire(port(server))
        wire.connect("x")
        assert wire.packet() is None
        server.stop()


def test_the_upstream_learns_where_a_client_comes_from(tmp_path):
    """RabbitMQ names a connection by the address in the header."""
    (plain,) = free_ports(1)
    settings = [f"mqtt.listeners.tcp.1 = 127.0.0.1:{plain}", "mqtt.proxy_protocol = true", "proxy_protocol = true"]
    rabbitmq = RabbitMq(tmp_path / "rabbitmq", *settings, plugins="rabbitmq_mqtt")
    try:
        # Guest may only connect from RabbitMQ's machine.
        rabbitmq.control("add_user", "ann", "test12")
        rabbitmq.control("set_permissions", "ann", ".*", ".*", ".*")
        flags = ["--upstream", rabbitmq.uri.replace("guest:guest@", ""), "--upstream-mqtt", f"tcp://127.0.0.1:{plain}"]
        flags += ["--upstream-proxy-protocol", "v2", "--proxy-protocol", "v1", "--trusted-proxies", "127.0.0.1"]
        with leveret(tmp_path, *flags, "--mqtt", ANY) as server:
            wire = MqttWire(port(server))
            wire.send(proxy_header("v1", AFAR))
            wire.connect("behind", user="ann", password="test12")
            assert wire.packet() == (CONNACK, b"\0\0")
            assert f"{AFAR}:50000 -> " in rabbitmq.control("list_mqtt_connections", "conn_name")
            wire.close()
            server.stop()
    finally:
        rabbitmq.stop()


def test_while_the_upstream_is_down_clients_are_let_go_and_then_come_in_again(tmp_path):
    rabbitmq = borrow()
    upstream = f"tcp://127.0.0.1:{rabbitmq.mqtt}"
    flags = ["--upstream", rabbitmq.uri.replace("guest:guest@", ""), "--upstream-mqtt", upstream]
    try:
        with leveret(tmp_path, *flags, "--mqtt", ANY) as server:
            client = MqttClient(port(server), "before", V311)
            rabbitmq.end()
            assert client.gone.wait(PATIENCE), "the end of the upstream's connection is the end of the client's"
            client.client.loop_stop()
            wire = MqttWire(port(server))
            wire.connect("meanwhile")
            assert wire.packet() is None
            rabbitmq.start()
            converse(port(server))
            server.stop()
    finally:
        rabbitmq.stop()


def test_a_silent_connection_is_closed_after_the_handshake_timeout(tmp_path, upstream_flags):
    with leveret(tmp_path, *upstream_flags, "--mqtt", ANY, "--handshake-timeout", "1s") as server:
        assert MqttWire(port(server)).packet() is None
        server.stop()
