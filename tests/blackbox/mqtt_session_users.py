"""An MQTT session belongs to its user: no other user can end it, take it over or delete it by its client id."""

import pytest

from harness.ctl import Ctl
from harness.mqtt_broker import SERVED, KilledServer
from harness.mqtt_client import V5, V311, MqttClient
from harness.targets import POOL

REFUSED = {V311: 0x88, V5: 0x87}
USERS = ("alice", "bob")
# In front of an upstream (docs/compatibility.md).
EXCEPTIONS = {"test_": "once restarted a server does not know whose a session is, and as with RabbitMQ it is of all who may configure its queue"}


@pytest.fixture(params=SERVED)
def server(request, tmp_path, targets):
    server = KilledServer(tmp_path, kind=request.param, targets=targets)
    for user in USERS:
        if server.kind in POOL:
            targets[POOL[server.kind]].add_user(user, server.vhost)
        else:
            ctl = Ctl(server.server.http)
            ctl("add_user", user, LEVERET_CTL_NEW_PASSWORD=user)
            ctl("set_permissions", user, ".*", ".*", ".*")
    yield server
    server.stop()


def client(server, user, version, keep=True):
    expiry = 3600 if version == V5 and keep else None
    return MqttClient(server.port, "thing", version, keep=keep, expiry=expiry, user=user, password=user)


def others_are_refused(server):
    for version, reason in REFUSED.items():
        for keep in (True, False):
            with client(server, "bob", version, keep) as bob:
                assert bob.reason.value == reason


@pytest.mark.parametrize("version", [V311, V5])
def test_a_client_cannot_use_the_session_of_another_user(server, version):
    with client(server, "alice", version) as alice:
        alice.subscribe("t", 1)
        others_are_refused(server)
        assert not alice.gone.is_set()
        alice.publish("t", b"still here")
        assert alice.message().payload == b"still here"
    others_are_refused(server)
    server.kill()
    others_are_refused(server)
    with client(server, "alice", version) as alice:
        assert alice.session_present
