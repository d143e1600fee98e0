"""An HTTP auth service decides about logins and operations; without its answer everything is refused."""

import contextlib
import signal
import ssl
import threading
import time

import pika
import pika.exceptions
import pytest
from pika.spec import Connection

from harness.certificates import TestCa as Certificates
from harness.ctl import Ctl
from harness.http_auth_backend import http_auth_backend
from harness.instances import leveret
from harness.management import Management
from harness.mqtt_client import REFUSED, V5, V311, MqttClient
from harness.patience import PATIENCE
from harness.ports import free_ports

ANY = "127.0.0.1:0"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    flags = ("--mqtt", ANY, "--compatibility", "4")
    with http_auth_backend() as service, leveret(tmp_path_factory.mktemp("server"), *flags, *service.flags(auth_http_request_timeout="60s")) as server:
        yield service, server
        server.stop()


@pytest.fixture
def service(world):
    service, _ = world
    yield service
    service.refuses, service.faults = lambda kind, fields: False, {}
    service.take()


@pytest.fixture
def server(world, service):
    return world[1]


def connect(server, user="alice", password="secret", vhost="/"):
    login = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port, vhost, login))


def refused(server, why, user="alice", password="secret"):
    before = len(server.child.lines)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(server, user, password)
    server.child.wait_line(f"login refused.*{why}", behind=before)


def port(server, protocol):
    return int(server.child.wait_line(rf"^{protocol} +listening on {protocol}://127\.0\.0\.1:(\d+)").group(1))


def refusal(connection, action):
    """The error that closes the channel; `None` if the operation succeeds."""
    channel = connection.channel()
    channel.confirm_delivery()
    try:
        action(channel)
    except pika.exceptions.ChannelClosedByBroker as closed:
        assert closed.reply_code == 403, closed
        return closed.reply_text
    channel.close()
    return None


def test_only_users_allowed_by_the_service_can_log_in(service, server):
    with connect(server) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_publish("", queue, b"hello", pika.BasicProperties(user_id="alice"))
        assert channel.basic_get(queue, auto_ack=True)[2] == b"hello"
    login, vhost = ("user", {"username": "alice", "password": "secret"}), {"username": "alice", "vhost": "/", "ip": "127.0.0.1", "tags": ""}
    resource = {"username": "alice", "vhost": "/", "resource": "queue", "name": queue, "permission": "configure", "tags": ""}
    exchange = resource | {"resource": "exchange", "name": "amq.default", "permission": "write"}
    read = resource | {"permission": "read"}
    assert service.take() == [login, ("vhost", vhost), ("resource", resource), ("resource", exchange), ("resource", read)]
    refused(server, "http: denied", password="wrong")
    refused(server, "http: denied", user="nobody")
    refused(server, "http: denied", user="guest", password="guest")
    assert "secret" not in server.child.output(), "no password is logged"


def test_names_and_passwords_arrive_as_they_are(service, server):
    odd = "a b+c&d=e%f/ü?#"
    service.users = service.users | {odd: (odd, "")}
    with connect(server, odd, odd) as connection:
        assert refusal(connection, lambda channel: channel.queue_declare(odd, exclusive=True)) is None
    asked = dict((kind, fields) for kind, fields in service.take())
    assert (asked["user"]["username"], asked["user"]["password"], asked["resource"]["name"]) == (odd, odd, odd)


def test_a_virtual_host_is_asked_about_if_it_exists(service, server):
    Management(server, server.http).status("PUT", "vhosts/other", {}, user="admin:secret")
    service.refuses = lambda kind, fields: kind == "vhost" and fields["vhost"] == "other"
    service.take()
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        connect(server, vhost="other")
    assert [fields["vhost"] for _, fields in service.take("vhost")] == ["other"]
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        connect(server, vhost="missing")
    assert service.take("vhost") == []


def test_each_operation_is_asked_about_once_and_refusals_every_time(service, server):
    service.refuses = lambda kind, fields: fields.get("name") in ("other", "amq.direct") or fields.get("routing_key") == "secret.key"
    with connect(server) as connection:
        service.take()
        for times in range(2):
            assert refusal(connection, lambda channel: channel.queue_declare("mine", auto_delete=True)) is None
            assert service.operations() == ["configure queue mine"][times:]
        for _ in range(2):
            text = refusal(connection, lambda channel: channel.queue_declare("other"))
            assert "configure access to queue 'other' in vhost '/' refused for user 'alice'" in text
            assert service.operations() == ["configure queue other"]
        assert "write access to exchange 'amq.direct'" in refusal(connection, lambda channel: channel.basic_publish("amq.direct", "k", b""))
        assert refusal(connection, lambda channel: channel.basic_publish("amq.topic", "news", b"")) is None
        text = refusal(connection, lambda channel: channel.basic_publish("amq.topic", "secret.key", b""))
        assert "write access to topic 'secret.key' in exchange 'amq.topic'" in text
        asked = ["write exchange amq.direct", "write exchange amq.topic", "write topic amq.topic news", "write topic amq.topic secret.key"]
        assert service.operations() == asked
        assert refusal(connection, lambda channel: channel.queue_bind("mine", "amq.topic", "news")) is None
        assert "read access to topic" in refusal(connection, lambda channel: channel.queue_bind("mine", "amq.topic", "secret.key"))
        asked = ["write queue mine", "read exchange amq.topic", "read topic amq.topic news", "read topic amq.topic secret.key"]
        assert service.operations() == asked


def test_a_large_message_waits_for_its_permission_and_is_confirmed_once(service, server):
    service.faults = {"resource": 0.3}
    with connect(server) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        queue = channel.queue_declare("", exclusive=True).method.queue
        body = bytes(1_000_000)
        for _ in range(2):
            channel.basic_publish("", queue, body)
            assert channel.basic_get(queue, auto_ack=True)[2] == body
        service.refuses = lambda kind, fields: fields.get("name") == "amq.direct"
        assert "amq.direct" in refusal(connection, lambda channel: channel.basic_publish("amq.direct", "k", body))


def test_publishes_in_one_read_keep_their_order_while_one_of_them_is_asked_about(service, server):
    service.faults = {"topic": 0.05}
    with connect(server) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.topic", "#")
        for number in range(60):
            channel.basic_publish("amq.topic", f"key.{number % 7}", str(number).encode())
        received = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(60)]
        assert received == [str(number).encode() for number in range(60)]


def test_a_transaction_is_asked_about_when_its_messages_are_published(service, server):
    with connect(server) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.topic", "#")
        channel.tx_select()
        for number in range(3):
            channel.basic_publish("amq.topic", str(number), b"")
        # The answer comes after all of them.
        channel.queue_declare(queue, passive=True)
        Ctl(server.http, "admin", "secret")("clear_auth_backend_cache")
        service.take()
        channel.tx_commit()
        assert service.operations() == []
        assert channel.queue_declare(queue, passive=True).method.message_count == 3


def test_a_client_waiting_for_the_service_does_not_block_other_clients(service, server):
    with connect(server) as slow, connect(server) as quick:
        channel = slow.channel()
        with service.holding("topic") as question:
            channel.basic_publish("amq.topic", "slow", b"")
            question.wait()
            for _ in range(20):
                quick.channel().close()
            assert not question.released.is_set()
        channel.queue_declare("", exclusive=True)


@pytest.mark.parametrize("fault, why", [
    (500, "status 500"), (401, "status 401"), ("maybe", "neither allow nor deny"), ("allow " + "x" * 10_000, "more than 4096 bytes"),
])  # fmt: skip
def test_an_answer_that_is_none_is_a_fault_of_the_service_and_lets_nobody_in(service, server, fault, why):
    service.faults = {"user": fault}
    refused(server, f"http unavailable: .*{why}")
    service.faults = {}
    with connect(server) as connection:
        service.faults = {"resource": fault}
        text = refusal(connection, lambda channel: channel.queue_declare("q"))
        assert text.endswith("refused for user 'alice', backend rabbit_auth_backend_http returned an error")
        service.faults = {}
        assert refusal(connection, lambda channel: channel.queue_declare("q", exclusive=True)) is None
    server.child.wait_line("http: auth backend not responding")
    assert "wrong password" not in server.child.output()


def test_a_reason_is_for_the_operator(service, server):
    service.faults = {"user": "deny the moon is full"}
    refused(server, "http: denied: the moon is full")


def test_a_slow_service_is_not_waited_for_longer_than_the_operator_says(tmp_path):
    with http_auth_backend() as service, leveret(tmp_path, *service.flags(auth_http_request_timeout="3s")) as server:
        with service.holding("user"):
            refused(server, "no answer within 3000 ms")
        with connect(server) as connection, service.holding("resource"):
            assert "returned an error" in refusal(connection, lambda channel: channel.queue_declare("q"))
        server.stop()


def test_a_service_that_is_down_lets_nobody_in_and_is_found_when_it_is_back(tmp_path):
    address = ("127.0.0.1", *free_ports(1))
    with http_auth_backend(address=address) as service:
        flags = service.flags()
    with leveret(tmp_path, *flags) as server:
        for _ in range(40):
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                connect(server)
        server.child.wait_line("http unavailable: .*refused")
        assert "too many failed login attempts" not in server.child.output(), "it is no fault of the user"
        with http_auth_backend(address=address) as service:
            connect(server).close()
        server.stop()


def test_questions_travel_in_a_form_and_over_few_connections(tmp_path):
    with http_auth_backend() as service, leveret(tmp_path, *service.flags(auth_http_method="post")) as server:
        for _ in range(5):
            connect(server).close()
        assert set(service.methods) == {"POST"} and len(service.asked) == 10
        assert len(service.peers) == 2, "one for each path"
        server.stop()


def test_an_https_service_needs_a_certificate_of_the_ca(tmp_path):
    certificates = Certificates(tmp_path / "certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.issue("server"))
    with http_auth_backend(tls=context) as service:
        trusting = service.flags(auth_http_ca=certificates.file)
        with leveret(tmp_path / "trusting", *trusting) as server:
            connect(server).close()
            assert "is not https" not in server.child.output()
            server.stop()
        with leveret(tmp_path / "strict", *service.flags()) as server:
            refused(server, "http unavailable: .*certificate")
            server.stop()


def test_sighup_reads_the_ca_certificates_of_the_service_again(tmp_path):
    old, new = Certificates(tmp_path / "old"), Certificates(tmp_path / "new")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*new.issue("server"))
    with http_auth_backend(tls=context) as service, leveret(tmp_path / "server", *service.flags(auth_http_ca=old.file)) as server:
        refused(server, "http unavailable: .*certificate")
        old.file.write_bytes(new.file.read_bytes())
        reload(server, "auth service's TLS files reloaded")
        connect(server).close()
        # An unusable file changes nothing.
        old.file.write_text("broken")
        reload(server, "SIGHUP: files not reloaded.*auth_http_ca: ")
        connect(server).close()
        server.stop()


def reload(server, last):
    """Reloads; returns once this line was logged."""
    before = len(server.child.lines)
    server.child.send(signal.SIGHUP)
    server.child.wait_line(last, behind=before)


@pytest.mark.parametrize("version", [V311, V5])
def test_an_mqtt_client_is_asked_about_with_its_identifier(service, server, version):
    name = f"mqtt-{version}"
    service.refuses = lambda kind, fields: fields.get("routing_key") == "forbidden"
    client = MqttClient(port(server, "mqtt"), name, version, user="alice", password="secret")
    assert client.subscribe([("news/#", 1), ("forbidden", 1)]) == [1, 0x80 if version == V311 else 0x87]
    client.publish("news/today", b"hello")
    assert client.message().payload == b"hello"
    asked = service.take()
    logins = [fields for kind, fields in asked if kind == "user"]
    assert logins == [{"username": "alice", "password": "secret", "vhost": "/", "client_id": name}]
    others = [fields for kind, fields in asked if kind in ("vhost", "resource")]
    assert {fields["client_id"] for fields in others} == {name}
    topics = [fields["variable_map.client_id"] for kind, fields in asked if kind == "topic"]
    assert topics == [name] * 3
    client.client.publish("forbidden", b"", 0)
    assert client.gone.wait(PATIENCE)
    assert MqttClient(port(server, "mqtt"), name, version, user="alice", password="wrong").reason.is_failure


@pytest.mark.parametrize("version", [V311, V5])
def test_an_mqtt_client_returns_to_its_session_if_its_user_still_may(service, server, version):
    persistent = {"keep": True, "expiry": 3600 if version == V5 else None, "user": "alice", "password": "secret"}
    name = f"returns-{version}"
    with MqttClient(port(server, "mqtt"), name, version, **persistent) as client:
        client.subscribe([("back/+", 1), ("quick/+", 0)])
    with MqttClient(port(server, "mqtt"), "publishes", version, user="alice", password="secret") as other:
        other.publish("back/1", b"kept")
    with MqttClient(port(server, "mqtt"), name, version, **persistent) as client:
        assert client.session_present and client.message().payload == b"kept"
    service.refuses = lambda kind, fields: fields.get("routing_key") == "back.*"
    client = MqttClient(port(server, "mqtt"), name, version, **persistent)
    assert client.gone.wait(PATIENCE)
    service.refuses = lambda kind, fields: False
    MqttClient(port(server, "mqtt"), name, version, user="alice", password="secret").close()


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_mqtt_message_that_waited_for_its_permission_arrives_once(service, server, version, qos):
    service.faults = {"topic": 0.2}
    topic = f"waits/{version}/{qos}"
    with MqttClient(port(server, "mqtt"), "watches", user="admin", password="secret") as watcher:
        watcher.subscribe(topic, 2)
        persistent = {"keep": True, "expiry": 3600 if version == V5 else None}
        with MqttClient(port(server, "mqtt"), f"waits-{version}-{qos}", version, user="alice", password="secret", **persistent) as client:
            client.publish(topic, b"retained", qos, retain=True)
            for number in range(3):
                client.publish(topic, str(number).encode(), qos)
        assert [message.payload for message in watcher.take(4)] == [b"retained", b"0", b"1", b"2"]
    assert retained(server, topic) == [b"retained"]
    service.refuses = lambda kind, fields: fields.get("routing_key") == "refused" and fields["permission"] == "write"
    with MqttClient(port(server, "mqtt"), "refused", version, user="alice", password="secret") as client:
        if version == V5 and qos > 0:
            assert client.reason_of("refused", b"x", qos, retain=True) == REFUSED[qos]
        else:
            # MQTT 3.1.1 has no other answer.
            client.client.publish("refused", b"x", qos, retain=True)
            assert client.gone.wait(PATIENCE)
    assert retained(server, "refused", topic) == [b"retained"], "a message that may not be published is not retained either"


def retained(server, *topics):
    """The bodies that a new subscriber to these topics receives."""
    with MqttClient(port(server, "mqtt"), "late", user="admin", password="secret") as late:
        wanted = [(topic, 1) for topic in (*topics, "end")]
        assert late.subscribe(wanted) == [1] * len(wanted)
        late.publish("end", b"end")
        bodies = []
        while (body := late.message().payload) != b"end":
            bodies.append(body)
        return bodies


def test_a_will_is_asked_about(service, server):
    watcher = MqttClient(port(server, "mqtt"), "watcher", user="admin", password="secret")
    watcher.subscribe("gone/#")
    for topic in ("gone/refused", "gone/allowed"):
        will = (topic, b"alice")
        service.refuses = lambda kind, fields: fields.get("routing_key") == "gone.refused"
        service.take()
        client = MqttClient(port(server, "mqtt"), "with-will", user="alice", password="secret", will=will)
        assert service.operations() == ["write exchange amq.topic", "write topic amq.topic " + topic.replace("/", ".")]
        client.client.socket().shutdown(2)
        assert client.gone.wait(PATIENCE)
        if topic == "gone/refused":
            # The service is asked again before it is given up.
            server.child.wait_line("will not published.*gone/refused")
    assert watcher.message().topic == "gone/allowed"
    watcher.close()


def test_the_http_api_takes_its_users_and_their_tags(service, server):
    api = Management(server, server.http)
    assert api.get("whoami", user="admin:secret")["tags"] == ["administrator"]
    assert api.status("GET", "whoami", user="alice:secret") == 401, "no tag of the management API"
    assert api.status("GET", "whoami", user="admin:wrong") == 401
    assert api.status("GET", "whoami") == 401, "guest is the broker's own"
    assert api.status("PUT", "vhosts/closed", {}, user="admin:secret") in (201, 204)
    service.refuses = lambda kind, fields: fields.get("vhost") == "closed" or fields.get("name") == "other"
    assert {vhost["name"] for vhost in api.get("vhosts", user="manager:secret")} >= {"/"}
    assert "closed" not in {vhost["name"] for vhost in api.get("vhosts", user="manager:secret")}
    service.take()
    assert api.status("PUT", "queues/%2F/of-the-api", {"auto_delete": True}, user="manager:secret") == 201
    assert service.operations() == ["configure queue of-the-api"]
    assert api.status("PUT", "queues/%2F/other", {}, user="manager:secret") == 401
    publish = {"routing_key": "of-the-api", "payload": "once", "payload_encoding": "string", "properties": {}}
    assert api.ask("POST", "exchanges/%2F/amq.default/publish", publish, user="manager:secret")[2] == {"routed": True}
    take = {"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"}
    messages = api.ask("POST", "queues/%2F/of-the-api/get", take, user="manager:secret")[2]
    assert [message["payload"] for message in messages] == ["once"]
    assert api.status("DELETE", "queues/%2F/of-the-api", user="manager:secret") == 204
    service.faults = {"vhost": 500}
    assert api.status("PUT", "queues/%2F/of-the-api", {}, user="manager:secret") in (401, 404)


def test_a_new_secret_is_taken_and_changes_nothing(service, server):
    with connect(server) as connection:
        answers = []
        inner = connection._impl
        inner.callbacks.add(0, Connection.UpdateSecretOk, answers.append)
        inner._send_method(0, Connection.UpdateSecret(b"other", "rotated"))
        deadline = time.monotonic() + PATIENCE
        while not answers:
            assert time.monotonic() < deadline
            connection.process_data_events(time_limit=0.1)
        connection.channel().queue_declare("", exclusive=True)


def test_a_flood_of_logins_does_not_delay_authenticated_clients(service, server):
    def knock():
        with contextlib.suppress(pika.exceptions.AMQPError):
            connect(server, "nobody").close()

    with connect(server) as connection:
        with service.holding("user") as logins:
            knocking = [threading.Thread(target=knock) for _ in range(50)]
            for thread in knocking:
                thread.start()
            # The maximum number of concurrent requests.
            logins.wait(32)
            assert refusal(connection, lambda channel: channel.queue_declare("", exclusive=True)) is None
        for thread in knocking:
            thread.join()
