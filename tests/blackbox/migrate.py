"""A broker moves to a RabbitMQ with everything in it while clients continue, and ends as a pool in front of it."""

import socket
import stat
import threading

import pika
import pytest

from harness.amqp import connect
from harness.leveret import run
from harness.management import Management, path
from harness.metrics import wait_until
from harness.migration import bodies, fill, migration_fixtures, numbers, take_all, to, with_unix_socket
from harness.patience import PATIENCE, TEST_SECONDS

pytestmark = pytest.mark.timeout(2 * TEST_SECONDS)


cluster, movable = migration_fixtures()


def test_everything_moves_and_the_broker_is_a_pool(movable, cluster):
    with connect(movable) as client:
        channel = client.channel()
        channel.exchange_declare("events", "topic", durable=True)
        channel.queue_declare("moved", durable=True)
        channel.queue_bind("moved", "events", "a.#")
        channel.confirm_delivery()
        for number in range(300):
            headers = {"n": number, "CC": ["a.copy"]}
            properties = pika.BasicProperties(delivery_mode=2, headers=headers, priority=number % 10, message_id=str(number))
            channel.basic_publish("events", f"a.{number}", str(number).encode(), properties)
    movable.ctl("add_user", "ann", LEVERET_CTL_NEW_PASSWORD="secret")
    movable.ctl("set_permissions", "ann", ".*", ".*", ".*")
    movable.ctl("set_policy", "long", "^moved$", '{"max-length": 100000}')
    printed = movable.ctl(*to(cluster))
    assert "this server is a pool" in printed, printed
    # Repeating the command reports the same.
    assert "everything has moved already" in movable.ctl(*to(cluster))
    for server in (movable, cluster):
        with connect(server) as client:
            assert client.channel().queue_declare("moved", passive=True).method.message_count == 300
    with pika.BlockingConnection(pika.URLParameters(f"amqp://ann:secret@127.0.0.1:{movable.amqp}")) as client:
        channel = client.channel()
        channel.basic_publish("events", "a.later", b"later")
    found = take_all(movable, "moved")
    assert bodies(found) == [*numbers(300), b"later"]
    for number, (method, properties, _) in enumerate(found[:300]):
        headers = dict(properties.headers)
        assert (headers.pop("x-leveret-exchange"), method.routing_key) == ("events", f"a.{number}")
        assert headers.pop("x-leveret-move-id").endswith(f"-{number}")
        assert headers == {"n": number, "CC": ["a.copy"]}
        assert (properties.priority, properties.message_id, properties.delivery_mode) == (number % 10, str(number), 2)
    api = Management(cluster, cluster.http)
    assert api.get(path("policies", "/", "long"))["definition"] == {"max-length": 100000}
    assert not [exchange for exchange in api.get("exchanges") if exchange["name"].startswith("leveret.")]
    record = movable.directory / "data" / "migration.json"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    # A restart is a pool again.
    movable.end_successor()
    movable.restart()
    movable.server.child.wait_line("this broker has moved, and is a pool in front of amqp://127.0.0.1")
    fill(movable, "moved", [b"after"])
    assert bodies(take_all(cluster, "moved")) == [b"after"]


def test_clients_go_on_and_none_is_refused(movable, cluster):
    """A confirming publisher and an acknowledging consumer, which reconnect, lose nothing; clients that connect to a Unix
    socket meanwhile are served."""
    path = with_unix_socket(movable)
    fill(movable, "busy", numbers(2000))
    over, sent, seen, troubles, refusals = threading.Event(), [], [], [], []

    def publish():
        number = 2000
        while not over.is_set():
            try:
                with connect(movable) as client:
                    channel = client.channel()
                    channel.confirm_delivery()
                    while not over.is_set():
                        channel.basic_publish("", "busy", str(number).encode(), pika.BasicProperties(delivery_mode=2))
                        sent.append(number)
                        number += 1
                        client.sleep(0.001)
            except (pika.exceptions.AMQPConnectionError, pika.exceptions.AMQPChannelError) as trouble:
                troubles.append(trouble)

    def consume():
        while not over.is_set():
            try:
                with connect(movable) as client:
                    channel = client.channel()
                    channel.basic_qos(prefetch_count=20)
                    for method, _, body in channel.consume("busy", inactivity_timeout=0.1):
                        if over.is_set():
                            break
                        if method:
                            seen.append(int(body))
                            channel.basic_ack(method.delivery_tag)
                            client.sleep(0.002)
            except (pika.exceptions.AMQPConnectionError, pika.exceptions.AMQPChannelError) as trouble:
                troubles.append(trouble)

    def knock():
        while not over.is_set():
            try:
                with socket.socket(socket.AF_UNIX) as client:
                    client.settimeout(PATIENCE)
                    client.connect(str(path))
            except OSError as refusal:
                refusals.append(refusal)
            over.wait(0.01)

    clients = [threading.Thread(target=act) for act in (publish, consume, knock)]
    for client in clients:
        client.start()
    try:
        wait_until(lambda: len(seen) > 50)
        # The first address is that of a stopped node.
        with socket.socket() as down:
            down.bind(("127.0.0.1", 0))
            nodes = f"amqp://127.0.0.1:{down.getsockname()[1]},amqp://127.0.0.1:{cluster.port}"
            movable.ctl("migrate", "--to", nodes, "--to-management", cluster.http)
        count = len(seen)
        wait_until(lambda: len(seen) > count + 50)
    finally:
        over.set()
        for client in clients:
            client.join()
    seen.extend(int(body) for body in bodies(take_all(movable, "busy")))
    assert {*range(2000), *sent} <= set(seen)
    # Each of the two is closed once.
    assert [getattr(trouble, "reply_code", None) for trouble in troubles] == [320, 320], troubles
    assert refusals == []


def test_a_dry_run_changes_nothing(movable, cluster):
    fill(movable, "still", numbers(3))
    before = Management(cluster, cluster.http).get("definitions")
    with connect(movable) as client:
        client.channel().queue_declare("mine", exclusive=True)
        printed = movable.ctl(*to(cluster, "--dry-run"))
    assert "would make queue '/' 'still'" in printed
    assert "exclusive: ends with its client" in printed and "nothing was changed" in printed
    assert "the AMQP login there is accepted" in printed
    assert Management(cluster, cluster.http).get("definitions") == before
    assert bodies(take_all(movable, "still")) == numbers(3)


def test_a_dry_run_reports_a_refused_amqp_login_as_a_migration_does(movable, cluster):
    api = Management(cluster, cluster.http)
    assert api.status("PUT", path("users", "early"), {"password": "word", "tags": "administrator"}) in (201, 204)
    fill(movable, "still", numbers(3))
    # The management API is that of the cluster, but the AMQP address is that of a server without the user.
    words = ("migrate", "--to", f"amqp://127.0.0.1:{movable.amqp}", "--to-management", cluster.http, "--other-user", "early", "--stay")
    code, out, error = movable.ctl.raw(*words, "--dry-run", LEVERET_CTL_OTHER_PASSWORD="word")
    assert code == 0 and "login was not tried: user 'early' has no permissions" in out, out + error
    permissions = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api.status("PUT", path("permissions", "/", "early"), permissions) in (201, 204)
    code, out, error = movable.ctl.raw(*words, "--dry-run", LEVERET_CTL_OTHER_PASSWORD="word")
    assert code == 1 and "would make queue '/' 'still'" in out and "nothing was changed" in out, out + error
    refusal = error.strip()
    assert refusal.startswith("leveret: other broker refused the login: ACCESS_REFUSED")
    assert movable.ctl.raw("migrate", "--status")[1].startswith("phase: none")
    code, _, error = movable.ctl.raw(*words, LEVERET_CTL_OTHER_PASSWORD="word")
    assert code == 1 and error.strip().startswith(refusal)
    assert bodies(take_all(movable, "still")) == numbers(3)


def test_a_wrong_password_is_reported_and_never_shown(movable, cluster):
    fill(movable, "kept", numbers(3))
    word = "hush-hush"
    told = movable.ctl.fails(*to(cluster), LEVERET_CTL_OTHER_PASSWORD=word)
    assert "refused" in told and word not in told
    assert word not in movable.server.child.output()
    url = f"amqp://guest:{word}@127.0.0.1:{cluster.port}"
    told = movable.ctl.fails("migrate", "--to", url, "--to-management", cluster.http, code=2)
    assert "--other-user" in told and word not in told
    assert bodies(take_all(movable, "kept")) == numbers(3)


def test_two_virtual_hosts_and_queues_of_all_kinds(movable, cluster):
    movable.ctl("add_vhost", "two")
    movable.ctl("set_permissions", "-p", "two", "guest", ".*", ".*", ".*")
    fill(movable, "quorum", numbers(50), arguments={"x-queue-type": "quorum"})
    fill(movable, "ranked", [], arguments={"x-max-priority": 5})
    with connect(movable) as client:
        channel = client.channel()
        for number in range(30):
            channel.basic_publish("", "ranked", str(number).encode(), pika.BasicProperties(priority=number % 3))
    # Transient messages.
    fill(movable, "light", numbers(20), properties=pika.BasicProperties())
    other = pika.BlockingConnection(pika.URLParameters(f"{movable.uri}/two"))
    other.channel().queue_declare("there", durable=True)
    other.channel().basic_publish("", "there", b"in two", pika.BasicProperties(delivery_mode=2))
    other.close()
    movable.ctl(*to(cluster))
    assert bodies(take_all(cluster, "quorum")) == numbers(50)
    assert bodies(take_all(cluster, "light")) == numbers(20)
    ranked = bodies(take_all(cluster, "ranked"))
    assert ranked == [str(number).encode() for rank in (2, 1, 0) for number in range(rank, 30, 3)]
    with pika.BlockingConnection(pika.URLParameters(f"{cluster.uri}/two")) as client:
        assert client.channel().basic_get("there", auto_ack=True)[2] == b"in two"


def test_refused_definitions_are_reported_before_any_message_moves(movable, cluster):
    fill(movable, "unmoved", numbers(5))
    with connect(cluster) as client:
        client.channel().queue_declare("unmoved", durable=True, arguments={"x-max-length": 7})
    code, out, error = movable.ctl.raw(*to(cluster))
    assert code == 1 and "definitions are refused" in error, out + error
    assert "refused: queue '/' 'unmoved': arguments differs there" in out
    with connect(cluster) as client:
        channel = client.channel()
        assert channel.queue_declare("unmoved", passive=True).method.message_count == 0
        channel.queue_delete("unmoved")
    assert bodies(take_all(movable, "unmoved")) == numbers(5)


def test_queues_that_end_by_themselves_are_there_at_the_end(movable, cluster):
    """An auto-delete queue without a consumer at the target, and a queue whose last consumer is cancelled."""
    fill(movable, "fleeting", numbers(10), arguments={"x-expires": 600_000})
    with connect(movable) as client:
        channel = client.channel()
        channel.queue_declare("ending", durable=True, auto_delete=True)
        channel.queue_declare("mine", exclusive=True)
        channel.basic_publish("", "ending", b"0", pika.BasicProperties(delivery_mode=2))
        movable.ctl(*to(cluster, "--stay"))
        with connect(cluster) as there:
            assert there.channel().queue_declare("fleeting", passive=True).method.message_count == 10
    movable.ctl(*to(cluster))
    assert bodies(take_all(movable, "fleeting")) == numbers(10)
    assert bodies(take_all(movable, "ending")) == [b"0"]


def test_a_broker_again_stays_one_and_can_move_again(movable, cluster):
    """Its queues are empty, and messages published afterwards are not orphaned by the record of the first move."""
    fill(movable, "again", numbers(5))
    movable.ctl(*to(cluster))
    movable.end_successor()
    movable.flags = ("--upstream", "off")
    movable.restart()
    movable.server.child.wait_line("upstream is off: this is the broker again")
    fill(movable, "again", numbers(5, first=5))
    movable.flags = ()
    movable.restart()
    movable.server.child.wait_line("mode: broker")
    assert "this server is a pool" in movable.ctl(*to(cluster))
    found = take_all(cluster, "again")
    assert bodies(found) == numbers(10)
    assert len({properties.headers["x-leveret-move-id"] for _, properties, _ in found}) == 10


def test_nothing_of_a_password_is_in_the_directory(movable, cluster):
    word = "hush-hush"
    api = Management(cluster, cluster.http)
    assert api.status("PUT", path("users", "quiet"), {"password": word, "tags": "administrator,impersonator"}) in (201, 204)
    fill(movable, "secretive", numbers(3))
    movable.ctl(*to(cluster, "--other-user", "quiet"), LEVERET_CTL_OTHER_PASSWORD=word)
    files = [file for file in (movable.directory / "data").rglob("*") if file.is_file()]
    assert files and not [file for file in files if word.encode() in file.read_bytes()]
    assert word not in movable.server.child.output()
    assert bodies(take_all(cluster, "secretive")) == numbers(3)


def test_help_names_the_password_s_variable():
    assert "LEVERET_CTL_OTHER_PASSWORD" in run("ctl", "migrate", "--help")[1]
