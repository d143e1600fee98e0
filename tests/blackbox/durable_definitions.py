"""What is declared durable is on disk when its ok is sent, and comes back after kill -9 (B3)."""

import stat

import pika
import pytest

from harness.amqp import connect
from harness.instances import leveret
from harness.leveret import run
from harness.metrics import metric
from harness.wire import QUEUE_DECLARE_OK, Wire, queue_declare, short_string

PASSIVE, DURABLE = 1, 2


def routes_to(channel, exchange, key, queue, headers=None):
    """Whether a message is routed to the queue; removes it again."""
    properties = pika.BasicProperties(headers=headers)
    channel.basic_publish(exchange, key, b"probe", properties)
    method, _, _ = channel.basic_get(queue, auto_ack=True)
    return method is not None


def exists(server, declare):
    connection = connect(server)
    try:
        declare(connection.channel())
        return True
    except pika.exceptions.ChannelClosedByBroker as closed:
        assert closed.reply_code == 404, closed
        return False
    finally:
        connection.close()


def has_queue(server, name):
    return exists(server, lambda channel: channel.queue_declare(name, passive=True))


def has_exchange(server, name):
    return exists(server, lambda channel: channel.exchange_declare(name, passive=True))


@pytest.fixture
def state(tmp_path):
    """Starts servers one after the other on the same data directory."""

    def start(*flags):
        return leveret(tmp_path / f"run{len(list(tmp_path.glob('run*')))}", "--data-dir", str(tmp_path / "data"), *flags)

    return start


def test_durable_definitions_survive_kill_9(state):
    with state() as server:
        channel = connect(server).channel()
        channel.exchange_declare("direct", "direct", durable=True)
        channel.exchange_declare("topic", "topic", durable=True, arguments={"alternate-exchange": "spare"})
        channel.exchange_declare("spare", "fanout", durable=True, internal=True)
        channel.exchange_declare("headers", "headers", durable=True)
        for queue in ("one", "two", "rest"):
            channel.queue_declare(queue, durable=True, arguments={"x-max-length": 3})
        channel.queue_bind("one", "direct", "k")
        channel.queue_bind("two", "amq.topic", "a.#")
        channel.queue_bind("one", "headers", "", {"x-match": "all", "colour": "red", "size": 3})
        channel.exchange_bind("direct", "topic", "k")
        channel.queue_bind("rest", "spare")
        server.kill()
    with state() as server:
        channel = connect(server).channel()
        assert routes_to(channel, "direct", "k", "one")
        assert routes_to(channel, "amq.topic", "a.b.c", "two")
        assert routes_to(channel, "headers", "", "one", {"colour": "red", "size": 3})
        assert not routes_to(channel, "headers", "", "one", {"colour": "red", "size": 4})
        assert routes_to(channel, "topic", "k", "one")
        assert routes_to(channel, "topic", "nobody", "rest")
        # An inequivalent declaration would be refused.
        channel.queue_declare("one", durable=True, arguments={"x-max-length": 3})
        channel.exchange_declare("spare", "fanout", durable=True, internal=True)
        server.stop()


def test_deleted_definitions_stay_deleted_after_kill_9(state):
    with state() as server:
        channel = connect(server).channel()
        for name in ("kept", "gone"):
            channel.exchange_declare(name, "direct", durable=True)
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "kept", name)
        channel.queue_bind("kept", "gone", "k")
        channel.queue_unbind("kept", "kept", "kept")
        channel.queue_delete("gone")
        channel.exchange_delete("gone")
        # A recreated queue inherits nothing.
        channel.queue_delete("kept")
        channel.queue_declare("kept", durable=True)
        channel.queue_bind("kept", "kept", "new")
        server.kill()
    with state() as server:
        assert has_queue(server, "kept") and not has_queue(server, "gone")
        assert has_exchange(server, "kept") and not has_exchange(server, "gone")
        channel = connect(server).channel()
        assert routes_to(channel, "kept", "new", "kept")
        assert not routes_to(channel, "kept", "kept", "kept")
        assert not routes_to(channel, "kept", "gone", "kept")
        server.stop()


def test_transient_and_exclusive_objects_are_gone_after_a_restart(state):
    with state() as server:
        channel = connect(server).channel()
        channel.queue_declare("transient")
        channel.queue_declare("exclusive", durable=True, exclusive=True)
        channel.exchange_declare("transient", "fanout")
        channel.queue_declare("durable", durable=True)
        channel.exchange_declare("durable", "fanout", durable=True)
        channel.queue_bind("durable", "transient")
        channel.queue_bind("transient", "durable")
        server.stop()
    with state() as server:
        assert has_queue(server, "durable") and has_exchange(server, "durable")
        assert not has_queue(server, "transient") and not has_queue(server, "exclusive")
        assert not has_exchange(server, "transient")
        server.stop()


def test_pipelined_declarations_share_few_commits_and_all_of_it_is_kept(state):
    count = 2000
    with state() as server:
        with Wire(server.port).handshake() as wire:
            wire.open_channel()
            before = metric(server, "leveret_store_definition_commits_total")
            wire.send(b"".join(queue_declare(f"q{number}", DURABLE) for number in range(count)))
            for number in range(count):
                assert wire.expect(QUEUE_DECLARE_OK).startswith(short_string(f"q{number}"))
            commits = metric(server, "leveret_store_definition_commits_total") - before
        assert 1 <= commits <= count / 20, "many to a commit"
        server.kill()
    with state() as server:
        with Wire(server.port).handshake() as wire:
            wire.open_channel()
            wire.send(b"".join(queue_declare(f"q{number}", PASSIVE) for number in range(count)))
            for _ in range(count):
                wire.expect(QUEUE_DECLARE_OK)
        server.stop()


def test_users_and_policies_of_a_definitions_file_are_kept(state, tmp_path):
    file = tmp_path / "definitions.json"
    file.write_text(
        """{"users": [{"name": "guest", "password": "other", "tags": "administrator"}], "vhosts": [{"name": "/"}],
        "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "policies": [{"vhost": "/", "name": "short", "pattern": "^short", "definition": {"max-length": 1}}]}"""
    )
    credentials = pika.PlainCredentials("guest", "other")
    with state("--definitions", str(file)) as server:
        connect(server, credentials=credentials).channel().queue_declare("short", durable=True)
        server.kill()
    assert b"other" not in (tmp_path / "data" / "definitions.redb").read_bytes()
    with state() as server:
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(server)
        channel = connect(server, credentials=credentials).channel()
        for _ in range(3):
            channel.basic_publish("", "short", b"")
        assert channel.queue_declare("short", passive=True).method.message_count == 1
        server.stop()


def test_the_data_directory_is_its_owners_alone_and_one_process_has_it(state, tmp_path):
    with state() as server:
        for path in (tmp_path / "data", tmp_path / "data" / "definitions.redb"):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        code, _, error = run("serve", "--data-dir", tmp_path / "data", "--amqp", "127.0.0.1:0", "--http", "off")
        assert code == 1
        assert f"data_dir: {tmp_path / 'data'}: in use by process {server.pid}" in error.splitlines()[-1]
        server.stop()


def test_an_unusable_data_directory_is_reported_by_its_key(tmp_path):
    (tmp_path / "file").write_text("")
    code, _, error = run("serve", "--data-dir", tmp_path / "file", "--amqp", "127.0.0.1:0", "--http", "off")
    assert code == 1
    assert f"data_dir: {tmp_path / 'file'}" in error.splitlines()[-1]


def test_nothing_is_kept_with_data_dir_off(tmp_path):
    with leveret(tmp_path / "run", "--data-dir", "off", env={"STATE_DIRECTORY": str(tmp_path / "state")}) as server:
        connect(server).channel().queue_declare("durable", durable=True)
        server.child.wait_line("data_dir is off")
        server.stop()
    assert not (tmp_path / "state").exists()
