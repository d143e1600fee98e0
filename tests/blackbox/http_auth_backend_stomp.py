"""STOMP clients with an HTTP auth service: what it is asked, and what remains after a refusal."""

import pytest

from harness.ctl import Ctl
from harness.http_auth_backend import http_auth_backend
from harness.instances import leveret
from harness.management import Management
from harness.stomp_client import Client, StompWire


@pytest.fixture
def service():
    with http_auth_backend() as service:
        yield service


@pytest.fixture
def server(tmp_path, service):
    with leveret(tmp_path, "--stomp", "127.0.0.1:0", "--compatibility", "4", *service.flags()) as server:
        yield server
        server.stop()


def port(server):
    return int(server.child.wait_line(r"^stomp +listening on stomp://127\.0\.0\.1:(\d+)").group(1))


def test_a_stomp_client_is_asked_about(service, server):
    client = Client(port(server), user="alice", password="secret")
    client.subscribe("/queue/stomp")
    client.send("/queue/stomp", "hello")
    assert client.message().body == "hello"
    client.subscribe("/topic/news", id="2")
    client.send("/topic/news", "today")
    assert client.message().body == "today"
    operations = service.operations()
    [queue] = {operation.split()[2] for operation in operations if operation.startswith("configure queue stomp-subscription-")}
    assert operations == [
        "configure queue stomp", "read queue stomp", "write exchange amq.default",
        f"configure queue {queue}", f"write queue {queue}", "read exchange amq.topic", "read topic amq.topic news", f"read queue {queue}",
        "write exchange amq.topic", "write topic amq.topic news",
    ]  # fmt: skip
    service.refuses = lambda kind, fields: fields.get("name") == "other"
    wire = StompWire(port(server))
    assert wire.connect(login="alice", passcode="secret")[0] == "CONNECTED"
    wire.send("SEND\ndestination:/queue/other\nreceipt:r\n\nx")
    command, headers, body = wire.frame()
    assert (command, headers["message"], headers["receipt-id"]) == ("ERROR", "access_refused", "r")
    assert StompWire(port(server)).connect(login="alice", passcode="wrong")[0] == "ERROR"
    client.close()


def test_a_stomp_subscription_that_may_not_be_read_leaves_no_queue(service, server):
    service.refuses = lambda kind, fields: (fields.get("resource"), fields.get("permission")) == ("queue", "read")
    wire = StompWire(port(server))
    assert wire.connect(login="alice", passcode="secret")[0] == "CONNECTED"
    wire.send("SUBSCRIBE\nid:1\ndestination:/topic/news\ndurable:true\nauto-delete:false\nx-queue-name:persistent\n\n")
    command, headers, body = wire.frame()
    assert (command, headers["message"]) == ("ERROR", "access_refused")
    assert "persistent" not in [queue["name"] for queue in Management(server, server.http).get("queues?columns=name", user="admin:secret")]


def test_a_stomp_client_gets_replies_in_one_queue(service, server):
    client = Client(port(server), user="alice", password="secret")
    client.subscribe("/queue/requests")
    client.send("/queue/requests", "question", reply_to="/temp-queue/answers")
    request = client.message()
    client.send(request.headers["reply-to"], "answer")
    assert client.message().body == "answer"
    queues = Management(server, server.http).get("queues?columns=name", user="admin:secret")
    assert len([queue for queue in queues if queue["name"].startswith("amq.gen-")]) == 1
    client.close()


def test_a_stomp_transaction_is_asked_about_before_it_is_committed(service, server):
    client = Client(port(server), user="alice", password="secret")
    client.subscribe("/topic/committed.*")
    transaction = client.connection.begin()
    for number in range(3):
        client.connection.send(f"/topic/committed.{number}", str(number), transaction=transaction)
    # Once this is answered, earlier frames have been read.
    client.send("/queue/before", "")
    Ctl(server.http, "admin", "secret")("clear_auth_backend_cache")
    service.take()
    client.do("commit", transaction)
    assert [client.message().body for _ in range(3)] == ["0", "1", "2"]
    # Several requests are concurrent.
    assert sorted(service.operations()) == ["write exchange amq.topic", *(f"write topic amq.topic committed.{number}" for number in range(3))]
    client.close()
