"""A RabbitMQ moves into a Leveret with everything in it, while RabbitMQ's clients continue."""

import pika
import pytest
from harness.amqp import connect
from harness.link import Link
from harness.management import Management, path
from harness.metrics import wait_until
from harness.migration import Running, bodies, fill, migration_fixtures, numbers, take_all
from harness.patience import TEST_SECONDS

pytestmark = pytest.mark.timeout(2 * TEST_SECONDS)
cluster, movable = migration_fixtures("function")


def from_(cluster, *more, port=None):
    port = port or cluster.port
    return ("migrate", "--from", f"amqp://127.0.0.1:{port}", "--from-management", cluster.http, *more)


def test_everything_comes_with_all_that_it_is(movable, cluster):
    api = Management(cluster, cluster.http)
    movable.ctl("add_vhost", "only-here")
    assert api.status("PUT", path("users", "ann"), {"password": "secret", "tags": ""}) in (201, 204)
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api.status("PUT", path("permissions", "/", "ann"), everything) in (201, 204)
    with connect(cluster) as client:
        channel = client.channel()
        channel.confirm_delivery()
        channel.exchange_declare("events", "topic", durable=True)
        channel.queue_declare("moved", durable=True)
        channel.queue_bind("moved", "events", "a.#")
        for number in range(300):
            properties = pika.BasicProperties(
                delivery_mode=2, headers={"n": number, "CC": ["a.copy"]}, priority=number % 10, user_id="guest", expiration="600000"
            )
            channel.basic_publish("events", f"a.{number}", str(number).encode(), properties)
    fill(cluster, "quorum", numbers(50), arguments={"x-queue-type": "quorum"})
    fill(cluster, "light", numbers(20), properties=pika.BasicProperties())
    dry = movable.ctl(*from_(cluster, "--dry-run"))
    assert "would make queue '/' 'moved'" in dry and Management(cluster, movable.ctl.url).get("queues") == []
    movable.ctl(*from_(cluster))
    # All messages are on disk.
    movable.restart()
    found = take_all(movable, "moved")
    assert bodies(found) == numbers(300)
    for number, (method, properties, _) in enumerate(found):
        assert (method.exchange, method.routing_key) == ("events", f"a.{number}")
        assert properties.headers == {"n": number, "CC": ["a.copy"]}
        assert (properties.priority, properties.user_id, properties.expiration) == (number % 10, "guest", "600000")
    assert bodies(take_all(movable, "quorum")) == numbers(50)
    with pika.BlockingConnection(pika.URLParameters(f"amqp://ann:secret@127.0.0.1:{movable.amqp}")) as client:
        client.channel().basic_publish("events", "a.b", b"routed")
    wait_until(lambda: bodies(take_all(movable, "moved")) == [b"routed"])
    # Nothing is left there.
    assert take_all(cluster, "moved") == take_all(cluster, "light") == []


def test_nothing_is_lost_by_a_kill_on_the_way_in(tmp_path, movable, cluster):
    fill(cluster, "slow", numbers(4000), pika.BasicProperties(delivery_mode=2, content_type="x" * 200))
    # Slow enough that the migration is not complete at a kill, even if reading its progress takes seconds.
    link = Link(tmp_path / "link.log", cluster.port, "--bandwidth", "100000")
    words = from_(cluster, port=int(link.address.rpartition(":")[2]))
    try:
        for _ in range(2):
            running = Running(movable, words)
            wait_until(lambda: movable.moved() > 300)
            movable.restart()
            assert running.end()[0] == 1
        code, out, error = Running(movable, words).end()
        assert code == 0, out + error
    finally:
        link.stop()
    found = bodies(take_all(movable, "slow"))
    assert list(dict.fromkeys(found)) == numbers(4000)


def test_messages_held_by_a_consumer_at_the_source_are_not_moved(movable, cluster):
    fill(cluster, "shared", numbers(500))
    with connect(cluster) as client:
        channel = client.channel()
        channel.basic_qos(prefetch_count=5)
        held = []
        channel.basic_consume("shared", lambda _, method, __, body: held.append((method.delivery_tag, body)))
        wait_until(lambda: client.process_data_events(0.1) or len(held) == 5)
        movable.ctl(*from_(cluster))
        for tag, _ in held:
            channel.basic_ack(tag)
    found = bodies(take_all(movable, "shared"))
    assert sorted(found + [body for _, body in held], key=int) == numbers(500)


def test_a_stream_is_reported_and_not_moved(movable, cluster):
    with connect(cluster) as client:
        client.channel().queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    fill(cluster, "beside", numbers(5))
    assert "a stream: does not move" in movable.ctl(*from_(cluster, "--dry-run"))
    code, out, error = movable.ctl.raw(*from_(cluster))
    assert code == 1 and "refused: queue '/' 'log'" in out, out + error
    movable.ctl(*from_(cluster, "--skip-refused"))
    assert bodies(take_all(movable, "beside")) == numbers(5)


def test_messages_that_moved_out_come_back_as_they_were(tmp_path, movable, cluster):
    with connect(movable) as client:
        channel = client.channel()
        channel.exchange_declare("events", "fanout", durable=True)
        channel.queue_declare("there-and-back", durable=True)
        channel.queue_bind("there-and-back", "events")
        channel.basic_publish("events", "key", b"traveller", pika.BasicProperties(delivery_mode=2))
    movable.ctl("migrate", "--to", f"amqp://127.0.0.1:{cluster.port}", "--to-management", cluster.http, "--stay")
    wait_until(lambda: movable.moved() == 1)
    movable.ctl("migrate", "--stop")
    movable.ctl(*from_(cluster))
    [(method, _, body)] = take_all(movable, "there-and-back")
    assert (method.exchange, method.routing_key, body) == ("events", "key", b"traveller")
