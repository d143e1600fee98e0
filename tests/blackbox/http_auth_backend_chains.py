"""Which auth backends are asked, in which order, and how often: chains, split backends, and cached answers."""

import time

import pika
import pika.exceptions
import pytest

from harness.ctl import Ctl
from harness.http_auth_backend import http_auth_backend
from harness.instances import leveret
from harness.management import Management
from harness.mqtt_client import MqttClient
from harness.patience import PATIENCE

LONG = "1h"


@pytest.fixture
def service():
    with http_auth_backend() as service:
        yield service


def connect(server, user="alice", password="secret"):
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port, "/", pika.PlainCredentials(user, password)))


def is_let_in(server, *login):
    try:
        connect(server, *login).close()
    except pika.exceptions.ProbableAuthenticationError:
        return False
    return True


def may(server, action, *login):
    """Whether a user may perform an operation on a channel."""
    with connect(server, *login) as connection:
        try:
            action(connection.channel())
        except pika.exceptions.ChannelClosedByBroker as closed:
            assert closed.reply_code == 403
            return False
        return True


def declare(name):
    return lambda channel: channel.queue_declare(name, exclusive=True)


def kinds(service):
    return [kind for kind, _ in service.take()]


def test_the_first_backend_to_accept_a_login_also_checks_permissions(tmp_path, service):
    with leveret(tmp_path, *service.flags("internal", "http")) as server:
        service.users["guest"] = ("other", "")
        assert may(server, declare("q"), "guest", "guest")
        assert kinds(service) == [], "the broker's own user, with the broker's own permissions"
        assert may(server, declare("q"))
        assert kinds(service) == ["user", "vhost", "resource"]
        assert may(server, declare("q"), "guest", "other"), "the next one is asked if one refuses"
        assert kinds(service) == ["user", "vhost", "resource"]
        assert not is_let_in(server, "alice", "wrong")
        server.child.wait_line("internal: no such user; http: denied")
        service.faults = {"user": 500}
        assert may(server, declare("q"), "guest", "guest")
        assert not is_let_in(server)
        server.child.wait_line("internal: no such user; http unavailable: status 500")
        server.stop()


def test_the_service_may_be_asked_first(tmp_path, service):
    with leveret(tmp_path, *service.flags("http", "internal")) as server:
        assert may(server, declare("q"), "guest", "guest")
        assert kinds(service) == ["user"]
        service.users["guest"] = ("guest", "")
        service.refuses = lambda kind, fields: kind == "resource"
        assert not may(server, declare("q"), "guest", "guest")
        assert kinds(service) == ["user", "vhost", "resource"]
        server.stop()


def test_internal_passwords_authenticate_and_the_service_authorizes(tmp_path, service):
    (tmp_path / "password").write_text("listed")
    first_user = ("--default-user", "alice", "--default-password-file", str(tmp_path / "password"))
    with leveret(tmp_path / "server", *service.flags("internal+http"), *first_user) as server:
        service.users["alice"] = ("listed", "management")
        service.refuses = lambda kind, fields: fields.get("name") == "other"
        assert may(server, declare("q"), "alice", "listed")
        asked = service.take()
        assert [kind for kind, _ in asked] == ["user", "vhost", "resource"]
        assert {fields["tags"] for kind, fields in asked if kind != "user"} == {"administrator"}, "those of the list"
        assert not may(server, declare("other"), "alice", "listed")
        service.take()
        assert not is_let_in(server, "alice", "secret")
        assert kinds(service) == [], "the password is wrong already"
        service.users["alice"] = ("another", "")
        assert not is_let_in(server, "alice", "listed"), "both have to let it in"
        assert Management(server, server.http).status("GET", "whoami", user="alice:listed") == 401
        service.users["alice"] = ("listed", "")
        assert Management(server, server.http).get("whoami", user="alice:listed")["tags"] == ["administrator"]
        server.stop()


def test_the_service_authenticates_and_internal_permissions_authorize(tmp_path, service):
    with leveret(tmp_path, *service.flags("http+internal", "internal")) as server:
        api = Management(server, server.http)
        assert api.status("PUT", "users/alice", {"password": "listed", "tags": ""}) == 201
        assert api.status("PUT", "permissions/%2F/alice", {"configure": "^mine", "write": "", "read": ""}) == 201
        service.users["alice"] = ("secret", "management")
        assert may(server, declare("mine"))
        assert not may(server, declare("other"))
        assert set(kinds(service)) == {"user"}
        assert api.get("whoami", user="alice:secret")["tags"] == ["management"], "with the tags of the service"
        service.users["stranger"] = ("secret", "administrator")
        assert not is_let_in(server, "stranger"), "the list does not know it"
        server.stop()


def test_a_will_of_a_user_of_the_list_is_published_though_a_service_checks_its_password(tmp_path, service):
    service.users["guest"] = ("secret", "")
    with leveret(tmp_path, "--mqtt", "127.0.0.1:0", *service.flags("http+internal")) as server:
        port = int(server.child.wait_line(r"^mqtt +listening on mqtt://127\.0\.0\.1:(\d+)").group(1))
        login = {"user": "guest", "password": "secret"}
        with MqttClient(port, "watcher", **login) as watcher:
            watcher.subscribe("gone")
            client = MqttClient(port, "with-will", will=("gone", b"guest"), **login)
            client.client.socket().shutdown(2)
            assert watcher.message().payload == b"guest"
            assert client.gone.wait(PATIENCE)
        server.stop()


def test_an_answer_is_used_again_until_it_is_old(tmp_path, service):
    with leveret(tmp_path, *service.flags("cache:http", auth_cache_ttl=LONG)) as server:
        for _ in range(5):
            assert may(server, declare("q"))
        assert kinds(service) == ["user", "vhost", "resource"]
        assert not is_let_in(server, "alice", "wrong") and not is_let_in(server, "alice", "wrong")
        assert kinds(service) == ["user", "user"], "another password is another question, and a refusal is not kept"
        service.faults = {"user": 500, "vhost": 500, "resource": 500}
        assert may(server, declare("q")), "which is of use when the service is down"
        assert not may(server, declare("new"))
        server.stop()


def test_an_old_answer_is_asked_for_again(tmp_path, service):
    with leveret(tmp_path, *service.flags("cache", auth_cache_ttl="500ms")) as server:
        assert is_let_in(server)
        service.users["alice"] = ("changed", "")
        deadline = time.monotonic() + PATIENCE
        while is_let_in(server):
            assert time.monotonic() < deadline
        server.stop()


def test_refusals_are_used_again_if_the_operator_says_so(tmp_path, service):
    with leveret(tmp_path, *service.flags("cache:http", auth_cache_ttl=LONG, auth_cache_refusals="on")) as server:
        service.refuses = lambda kind, fields: fields.get("name") == "other"
        for _ in range(3):
            assert not is_let_in(server, "alice", "wrong")
            assert not may(server, declare("other"))
        assert sorted(kinds(service)) == ["resource", "user", "user", "vhost"]
        service.faults = {"user": 500}
        assert not is_let_in(server, "new")
        service.faults, service.users["new"] = {}, ("secret", "")
        assert is_let_in(server, "new"), "a fault is no answer"
        server.stop()


def test_all_are_asked_about_again_when_the_operator_says_so(tmp_path, service):
    with leveret(tmp_path, *service.flags("cache:http", "internal", auth_cache_ttl=LONG)) as server:
        with connect(server) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("amq.fanout", "", b"")
            service.take()
            service.refuses = lambda kind, fields: fields.get("name") == "amq.fanout"
            channel.basic_publish("amq.fanout", "", b"")
            assert kinds(service) == []
            assert Ctl(server.http)("clear_auth_backend_cache") == "answers of auth_backends cleared\n"
            with pytest.raises(pika.exceptions.ChannelClosedByBroker):
                channel.basic_publish("amq.fanout", "", b"")
            assert kinds(service) == ["user", "resource"], "of the operator, and of the publish"
        assert is_let_in(server) and "user" in kinds(service)
        assert Management(server, server.http).status("DELETE", "leveret/auth-cache", user="manager:secret") == 401
        server.stop()


def test_guesses_are_limited_as_for_the_brokers_own_users(tmp_path, service):
    with leveret(tmp_path, *service.flags()) as server:
        for number in range(40):
            assert not is_let_in(server, "alice", f"guess-{number}")
        assert kinds(service) == ["user"] * 30
        assert not is_let_in(server)
        server.child.wait_line("login refused.*too many failed login attempts")
        server.stop()


def test_without_a_service_there_is_nothing_to_forget(tmp_path):
    with leveret(tmp_path) as server:
        assert "auth_backends does not include http" in Ctl(server.http).fails("clear_auth_backend_cache")
        server.stop()
