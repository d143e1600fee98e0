"""docs/how-to/node.md: a publisher has its confirm, a refused message is an error, and a consumer goes on after a restart."""

import pytest

from harness.ctl import Ctl
from harness.drivers import TESTS
from harness.how_to import HowTo
from harness.ports import free_ports
from harness.reader import FIRST_USER, FULL, Reader, shop


@pytest.fixture
def reader(tmp_path):
    with Reader(tmp_path, BROKER_PASSWORD="shop") as reader:
        # As `npm install amqplib` would leave it.
        (tmp_path / "node_modules").symlink_to(TESTS / "amqplib" / "node_modules")
        yield reader


# Fixtures of these tests.
__all__ = ["shop"]


def test_node_publishes_and_consumes(reader, shop):
    page = HowTo("node")
    [port] = free_ports(1)
    start = lambda: reader.serve(line, **shop.variables)
    line = page.block("sh", shop.changes | {"127.0.0.1:5673": f"127.0.0.1:{port}"})
    server = start()
    reader.write("url.js", page.file("url.js", {":5673": f":{port}"}))
    published = page.file("publish.js")
    reader.write("publish.js", published)
    reader.write("consume.js", page.file("consume.js"))
    publish, consume = page.block("sh").splitlines()
    assert reader.run(publish) == "confirmed\n"
    consumer = reader.start(consume)
    consumer.wait_line("^received order 1$")
    server.kill()
    server = start()
    reader.write("publish.js", published.replace("order 1", "order 2"))
    reader.run(publish)
    consumer.wait_line("^received order 2$")
    page.finish()
    consumer.stop()
    server.stop()


def test_a_refused_message_is_an_error(reader):
    page = HowTo("node")
    server = reader.serve("leveret serve --amqp 127.0.0.1:0", **FIRST_USER)
    Ctl(server.http, "shop", "shop")("set_policy", "full", "^orders$", FULL)
    reader.write("url.js", page.file("url.js", {":5673": f":{server.port}"}))
    reader.write("publish.js", page.file("publish.js"))
    assert reader.run("node publish.js", code=1) == ""
    server.stop()
