"""docs/how-to/move-to-a-cluster.md: a broker moves to a RabbitMQ by the page's commands, and is a pool by its settings after that."""

import tomllib

import pika
import pytest
from harness.how_to import HowTo
from harness.migration import bodies, fill, migration_fixtures, numbers, take_all
from harness.reader import Reader
from harness.stand_in import StandIn

cluster, movable = migration_fixtures()


@pytest.fixture
def page():
    return HowTo("move-to-a-cluster")


def test_a_broker_moves_and_stays_a_pool(tmp_path, movable, cluster, page):
    fill(movable, "orders", numbers(20))
    url = f"http://127.0.0.1:{movable.http_port}"
    places = {"amqp://rabbit-1:5672": f"amqp://127.0.0.1:{cluster.port}", "http://rabbit-1:15672": cluster.http}
    with Reader(tmp_path / "reader", LEVERET_CTL_OTHER_PASSWORD="word", LEVERET_CTL_URL=url) as reader:
        with StandIn(reader, "rabbitmqctl", cluster.control):
            reader.run(page.block("sh"))
        assert "would make queue '/' 'orders'" in reader.run(page.block("sh", places))
        assert "this server is a pool" in reader.run(page.block("sh", places))
    assert bodies(take_all(movable, "orders")) == numbers(20)
    settings = tomllib.loads(page.block("toml", {"amqp://rabbit-1:5672": places["amqp://rabbit-1:5672"]}))
    page.finish()
    assert settings["upstream"] == [places["amqp://rabbit-1:5672"]] and set(settings) == {"upstream", "amqp", "http"}
    movable.end_successor()
    movable.flags = ("--upstream", settings["upstream"][0])
    movable.restart()
    movable.server.child.wait_line("upstream is set: the record that this broker has moved has no effect")
    with pika.BlockingConnection(pika.URLParameters(movable.uri)) as client:
        assert client.channel().queue_declare("orders", passive=True).method.message_count == 0
    # And back.
    movable.flags = ("--upstream", "off")
    movable.restart()
    movable.server.child.wait_line("upstream is off: this is the broker again")
    movable.server.child.wait_line("mode: broker")
