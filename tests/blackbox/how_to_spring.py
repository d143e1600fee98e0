"""docs/how-to/spring.md: an application of Spring AMQP has its confirms, and its listener goes on after a restart."""

from harness.amqp import connect
from harness.drivers import CACHE
from harness.how_to import HowTo
from harness.ports import free_ports
from harness.reader import Reader, shop


# Fixtures of these tests.
__all__ = ["shop"]


def test_spring_publishes_and_listens(tmp_path, shop):
    page = HowTo("spring")
    [port] = free_ports(1)
    line = page.block("sh", shop.changes | {"127.0.0.1:5673": f"127.0.0.1:{port}"})
    with Reader(tmp_path, BROKER_PASSWORD="shop") as reader:
        server = reader.serve(line, **shop.variables)
        # As Maven would leave it.
        (tmp_path / "lib").symlink_to(CACHE / "spring" / "dependency")
        reader.write("application.properties", page.file("application.properties", {":5673": f":{port}"}))
        reader.write("Orders.java", page.file("Orders.java"))
        compiled, started = page.block("sh").splitlines()
        page.finish()
        reader.run(compiled)
        application = reader.start(started)
        application.wait_line("^confirmed true$")
        application.wait_line("^received order 1$")
        server.kill()
        server = reader.serve(line, **shop.variables)
        with connect(shop.at(server)) as connection:
            # After the listener: a publish that comes before it waits in the queue.
            connection.channel().basic_publish("", "orders", "order 2")
        application.wait_line("^received order 2$")
        application.stop()
        server.stop()
