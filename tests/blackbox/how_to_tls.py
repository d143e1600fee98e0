"""docs/how-to/tls.md: clients, the command line and a pool trust a CA made with openssl, and a renewal interrupts no client."""

import signal
import ssl
import sys

import pika
import pytest

from harness.amqp import connect
from harness.how_to import HowTo
from harness.metrics import wait_until
from harness.ports import free_ports
from harness.reader import Reader
from harness.stand_in import StandIn


def test_the_steps_of_the_page(tmp_path):
    page = HowTo("tls")
    [amqps, https] = free_ports(2)
    on_https = {"localhost:15671": f"localhost:{https}"}
    with Reader(tmp_path) as reader:
        reader.run(page.block("sh"))
        issue = page.block("sh")
        reader.run(issue)
        ports = {"0.0.0.0:5671": f"127.0.0.1:{amqps}", "0.0.0.0:15671": f"127.0.0.1:{https}"}
        reader.write("leveret.toml", page.file("leveret.toml", ports))
        server = reader.serve(page.block("sh").strip() + " --amqp 127.0.0.1:0 --http 127.0.0.1:0")
        server.child.wait_line("^https +listening on")

        reader.write("client.py", page.file("client.py", {"5671": amqps}))
        assert reader.run(f"{sys.executable} client.py") == "True\n"
        with pytest.raises(ssl.SSLCertVerificationError):
            # Only the page's CA issued the server's certificate.
            strange = pika.SSLOptions(ssl.create_default_context(), "localhost")
            pika.BlockingConnection(pika.ConnectionParameters("localhost", amqps, ssl_options=strange))
        output = reader.run(page.block("sh", on_https), LEVERET_CTL_PASSWORD="guest")
        assert "guest" in output and "administrator" in output and output.endswith("ok\n"), output

        line = page.block("sh", {"localhost:5671": f"localhost:{amqps}"}).strip()
        pool = reader.serve(f"{line} --amqp 127.0.0.1:0 --http 127.0.0.1:0")
        with connect(pool) as connection:
            channel = connection.channel()
            channel.queue_declare("q", exclusive=True)
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"over TLS")
            assert channel.basic_get("q", auto_ack=True)[2] == b"over TLS"

            # An open connection outlives the renewal.
            before = certificate(amqps)
            reader.run(issue)
            renewed = page.block("sh", on_https)
            with StandIn(reader, "systemctl", lambda *words: reload(server, words)):
                assert '"ok"' in reader.run(renewed)
                wait_until(lambda: certificate(amqps) != before)
                channel.basic_publish("", "q", b"still there")
                # The check reports the certificate in effect.
                reader.run(issue.replace("-days 365", "-days 10"))
                wait_until(lambda: '"failed"' in reader.run(renewed))
        assert reader.run(f"{sys.executable} client.py") == "True\n"
        by_another_name = "--upstream-server-name mq.example.com"
        assert by_another_name in page.path.read_text()
        address = f"amqps://127.0.0.1:{amqps} --upstream-ca ca.pem {by_another_name}"
        with connect(reader.serve(f"leveret serve --upstream {address} --amqp 127.0.0.1:0 --http 127.0.0.1:0")):
            pass
        page.finish()


def reload(server, words):
    assert words == ("reload", "leveret")
    server.child.send(signal.SIGHUP)


def certificate(port):
    return ssl.get_server_certificate(("127.0.0.1", port))
