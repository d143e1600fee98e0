"""Clients log in with a token instead of a password, have the permissions of its scopes, and lose them when it expires."""

import contextlib
import signal
import ssl
import time

import pika
import pika.exceptions
import pytest
from pika.spec import Connection

from harness.certificates import TestCa as Certificates
from harness.instances import leveret
from harness.management import Management
from harness.metrics import wait_until
from harness.mqtt_client import V5, V311, MqttClient
from harness.patience import PATIENCE
from harness.stomp_client import StompWire
from harness.tokens import ALL, Key, claims, flags, key_service, key_set

ANY = "127.0.0.1:0"
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
# The lifetime in seconds of a token that expires during a test: longer than it takes to use it once.
SHORT = 15


@pytest.fixture(scope="module")
def keys():
    return {algorithm: Key(algorithm, f"key-of-{algorithm}") for algorithm in ALGORITHMS}


@pytest.fixture(scope="module")
def key(keys):
    return keys["ES256"]


@pytest.fixture(scope="module")
def server(tmp_path_factory, keys):
    directory = tmp_path_factory.mktemp("server")
    file = directory / "keys.json"
    file.write_text(key_set(*keys.values()))
    aliases = ("--oauth2-scope-aliases", "role-of-all=rabbitmq.configure:*/* rabbitmq.write:*/* rabbitmq.read:*/*")
    more = ("--oauth2-additional-scopes", "realm_access.roles", *aliases)
    with leveret(directory, "--mqtt", ANY, "--stomp", ANY, *flags(file), *more) as server:
        yield server
        server.stop()


def connect(server, token, user="ignored", vhost="/"):
    login = pika.PlainCredentials(user, token)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port, vhost, login))


def refused(server, token, why):
    before = len(server.child.lines)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(server, token)
    server.child.wait_line(f"login refused.*{why}", behind=before)
    assert token not in server.child.output(), "no token is logged"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_each_algorithm_lets_its_user_in(server, keys, algorithm):
    with connect(server, keys[algorithm].sign(claims(*ALL))) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_publish("", queue, b"hello", pika.BasicProperties(user_id="alice"))
        assert channel.basic_get(queue, auto_ack=True)[2] == b"hello"


def test_passwords_work_beside_tokens(server):
    connect(server, "guest", "guest").close()


def test_wrong_tokens_are_refused_and_only_the_operator_learns_why(server, key):
    refused(server, key.sign(claims(*ALL, aud=["other"])), "not for this resource server")
    refused(server, key.sign(claims(*ALL, seconds=-1)), "has expired")
    refused(server, key.sign(claims(*ALL, nbf=int(time.time()) + 3600)), "not valid yet")
    refused(server, key.sign(claims(*ALL), alg="none"), "token algorithm not allowed")
    refused(server, key.sign(claims(*ALL), alg="HS256"), "no key for the token's kid")
    refused(server, Key("ES256", key.name).sign(claims(*ALL)), "invalid signature")
    head, _, signature = key.sign(claims("read:*/q")).split(".")
    stolen = key.sign(claims(*ALL)).split(".")[1]
    refused(server, f"{head}.{stolen}.{signature}", "invalid signature")


def test_permissions_follow_from_the_token_scopes(server, key):
    scopes = ("configure:*/mine-*", "write:%2F/amq.default", "write:*/amq.topic/news.*", "read:*/mine-*")
    with connect(server, key.sign(claims(*scopes))) as connection:

        def try_to(action):
            channel = connection.channel()
            channel.confirm_delivery()
            try:
                action(channel)
            except pika.exceptions.ChannelClosedByBroker as closed:
                return closed.reply_code
            channel.close()
            return None

        assert try_to(lambda channel: channel.queue_declare("mine-q", exclusive=True)) is None
        assert try_to(lambda channel: channel.queue_declare("other")) == 403
        assert try_to(lambda channel: channel.basic_publish("", "mine-q", b"")) is None
        assert try_to(lambda channel: channel.basic_publish("amq.topic", "news.today", b"")) is None
        assert try_to(lambda channel: channel.basic_publish("amq.topic", "other", b"")) == 403
        assert try_to(lambda channel: channel.basic_publish("amq.direct", "k", b"")) == 403
        assert try_to(lambda channel: channel.basic_get("mine-q")) is None
        assert try_to(lambda channel: channel.basic_get("other")) == 403


def test_a_virtual_host_without_a_scope_stays_closed(server, key):
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        connect(server, key.sign(claims("read:other/*")))


def test_roles_count_by_their_aliases(server, key):
    with connect(server, key.sign(claims(realm_access={"roles": ["role-of-all"]}))) as connection:
        connection.channel().queue_declare("", exclusive=True)


def update_secret(connection, token):
    """Renews the token; returns once the server has answered."""
    answers = []
    inner = connection._impl
    inner.callbacks.add(0, Connection.UpdateSecretOk, answers.append)
    inner._send_method(0, Connection.UpdateSecret(token.encode(), "expires"))
    deadline = time.monotonic() + PATIENCE
    while not answers:
        assert time.monotonic() < deadline
        connection.process_data_events(time_limit=0.1)


def until_refused(publish):
    """Publishes now and then until a publish is refused; returns the refusal."""
    refusals = []

    def is_refused():
        try:
            publish()
        except pika.exceptions.ChannelClosedByBroker as closed:
            refusals.append(closed)
        return refusals

    wait_until(is_refused)
    return refusals[0]


def test_operations_are_refused_once_the_token_has_expired_and_deliveries_go_on(server, key):
    with connect(server, key.sign(claims(*ALL, seconds=SHORT))) as connection:
        consuming, publishing = connection.channel(), connection.channel()
        queue = consuming.queue_declare("", exclusive=True).method.queue
        received = []
        consuming.basic_consume(queue, lambda *delivery: received.append(delivery[3]), auto_ack=True)
        publishing.confirm_delivery()
        closed = until_refused(lambda: publishing.basic_publish("", queue, b"before"))
        assert closed.reply_code == 403
        assert "access to exchange 'amq.default' in vhost '/' refused for user 'alice'" in closed.reply_text
        assert "Provided JWT token has expired" in closed.reply_text
        with connect(server, "guest", "guest") as other:
            channel = other.channel()
            channel.exchange_declare("late", "fanout")
            received.clear()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker):
                connection.channel().queue_bind(queue, "late")
            channel.basic_publish("", queue, b"after")
            deadline = time.monotonic() + PATIENCE
            while b"after" not in received:
                assert time.monotonic() < deadline
                connection.process_data_events(time_limit=0.1)
            channel.exchange_delete("late")


def test_a_renewed_token_goes_on(server, key):
    with connect(server, key.sign(claims(*ALL, seconds=SHORT))) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        end = time.time() + SHORT + 1
        update_secret(connection, key.sign(claims(*ALL)))
        while time.time() < end:
            channel.basic_get(queue)
            connection.process_data_events(time_limit=0.1)
        channel.basic_publish("", queue, b"later")
        assert channel.basic_get(queue, auto_ack=True)[2] == b"later"


def test_an_expired_token_can_still_be_renewed(server, key):
    with connect(server, key.sign(claims(*ALL, seconds=SHORT))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        until_refused(lambda: channel.basic_publish("amq.fanout", "", b""))
        update_secret(connection, key.sign(claims(*ALL)))
        connection.channel().basic_publish("amq.fanout", "", b"")


@pytest.mark.parametrize("secret", ["expired", "of another user", "no token"])
def test_a_new_secret_that_is_refused_ends_the_connection(server, key, secret):
    tokens = {
        "expired": key.sign(claims(*ALL, seconds=-1)),
        "of another user": key.sign(claims(*ALL, user="eve")),
        "no token": "guest",
    }
    connection = connect(server, key.sign(claims(*ALL)))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        update_secret(connection, tokens[secret])
    assert closed.value.reply_code == 530
    assert "New secret was refused by one of the backends" in closed.value.reply_text


def port(server, protocol):
    return int(server.child.wait_line(rf"^{protocol} +listening on {protocol}://127\.0\.0\.1:(\d+)").group(1))


@pytest.mark.parametrize("version", [V311, V5])
def test_an_mqtt_client_comes_in_with_a_token_and_leaves_when_it_ends(server, key, version):
    client = MqttClient(port(server, "mqtt"), f"mqtt-{version}", version, user="x", password=key.sign(claims(*ALL, seconds=SHORT)))
    assert client.subscribe("news/#") == [0]
    client.client.publish("news/today", b"hello")
    assert client.messages.get(timeout=PATIENCE).payload == b"hello"
    assert client.gone.wait(PATIENCE), "MQTT cannot renew a token"
    server.child.wait_line("the token has expired")


def test_the_will_of_a_user_with_a_token_is_published(server, key):
    watcher = MqttClient(port(server, "mqtt"), "watcher")
    watcher.subscribe("gone")
    token = key.sign(claims(*ALL))
    client = MqttClient(port(server, "mqtt"), "with-will", user="x", password=token, will=("gone", b"alice"))
    client.client.socket().shutdown(2)
    assert watcher.messages.get(timeout=PATIENCE).payload == b"alice"


def test_a_stomp_client_comes_in_with_a_token(server, key):
    command = StompWire(port(server, "stomp")).connect(login="x", passcode=key.sign(claims(*ALL)))[0]
    assert command == "CONNECTED"
    assert StompWire(port(server, "stomp")).connect(login="x", passcode=key.sign(claims(*ALL, seconds=-1)))[0] == "ERROR"


def test_the_http_api_takes_tokens_and_their_tags(server, key):
    api = Management(server, server.http)

    def who(token):
        return api.ask("GET", "whoami", user=None, headers={"authorization": f"Bearer {token}"})

    administrator = key.sign(claims("tag:administrator", *ALL))
    status, _, body = who(administrator)
    assert (status, body["name"], body["tags"]) == (200, "alice", ["administrator"])
    assert api.get("whoami", user=f"x:{administrator}")["name"] == "alice", "as a password"
    assert who(key.sign(claims(*ALL)))[0] == 401, "no tag of the management API"
    assert who(key.sign(claims("tag:management", seconds=-1)))[0] == 401
    monitoring = {"authorization": "Bearer " + key.sign(claims("tag:monitoring", *ALL))}
    assert api.status("GET", "nodes", user=None, headers=monitoring) == 200
    assert api.status("PUT", "users/x", {"password": "x", "tags": ""}, user=None, headers=monitoring) == 401


def test_an_administrator_with_a_token_adds_a_virtual_host_and_changes_nobodys_permissions(server, key):
    api = Management(server, server.http)
    for name, namesake in (("of-a-stranger", "alice"), ("of-a-namesake", "guest")):
        administrator = key.sign(claims("tag:administrator", *ALL, user=namesake))
        headers = {"authorization": f"Bearer {administrator}"}
        assert api.status("PUT", f"vhosts/{name}", {}, user=None, headers=headers) == 201
        assert api.get(f"vhosts/{name}/permissions") == []
        connect(server, administrator, vhost=name).close()


@pytest.mark.parametrize("version", [V311, V5])
def test_an_mqtt_session_of_a_user_with_a_token_is_nobody_elses(server, key, version):
    def come(password, user="x", keep=True):
        expiry = 3600 if version == V5 and keep else None
        return MqttClient(port(server, "mqtt"), f"thing-{version}", version, keep=keep, expiry=expiry, user=user, password=password)

    alice = key.sign(claims(*ALL))
    with come(alice) as client:
        client.subscribe("t", 1)
    for password, user in ((key.sign(claims(*ALL, user="bob")), "x"), ("guest", "guest")):
        for keep in (True, False):
            with come(password, user, keep) as other:
                assert other.reason.value == {V311: 0x88, V5: 0x87}[version]
    with come(alice) as client:
        assert client.session_present
    come(alice, keep=False).close()


def test_keys_of_a_service_are_cached_and_a_new_one_is_found(tmp_path):
    old = Key("ES256", "old")
    with key_service(old) as service, leveret(tmp_path, *flags(service.url)) as server:
        server.child.wait_line("oauth2_jwks is not https")
        for _ in range(3):
            connect(server, old.sign(claims(*ALL))).close()
        assert service.asked == 1
        new = Key("ES256", "new")
        service.keys = (new,)

        def lets_in():
            with contextlib.suppress(pika.exceptions.ProbableAuthenticationError):
                connect(server, new.sign(claims(*ALL))).close()
                return True

        # Keys are fetched at most every 10 seconds.
        wait_until(lets_in)
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(server, old.sign(claims(*ALL)))
        # Once more if more than ten seconds have passed.
        assert service.asked in (2, 3)
        server.stop()


def test_sighup_reads_the_ca_certificates_of_the_service_again(tmp_path):
    old, new = Certificates(tmp_path / "old"), Certificates(tmp_path / "new")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*new.issue("server"))
    key = Key("ES256")
    with key_service(key, tls=context) as service:
        with leveret(tmp_path / "server", *flags(service.url), "--oauth2-jwks-ca", str(old.file)) as server:
            old.file.write_bytes(new.file.read_bytes())
            server.child.send(signal.SIGHUP)
            server.child.wait_line("auth service's TLS files reloaded")
            # The first login that needs keys.
            connect(server, key.sign(claims(*ALL))).close()
            server.stop()


def test_without_its_service_users_with_passwords_come_in_and_tokens_are_refused(tmp_path):
    with leveret(tmp_path, *flags("http://127.0.0.1:9/keys")) as server:
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(server, Key("ES256").sign(claims(*ALL)))
        server.child.wait_line("cannot load token verification keys")
        connect(server, "guest", "guest").close()
        server.stop()


def test_only_tokens_come_in_if_nobody_else_is_asked(tmp_path, key):
    (tmp_path / "keys.json").write_text(key_set(key))
    without_internal = flags(tmp_path / "keys.json")[2:]
    with leveret(tmp_path / "server", *without_internal) as server:
        connect(server, key.sign(claims(*ALL))).close()
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(server, "guest", "guest")
        server.stop()
