"""Confirmed messages are not parked when credentials expire, or while the upstream's auth service is down."""

import contextlib
import http.server
import time

import pika
from harness import tokens
from harness.ctl import Ctl
from harness.http_service import serving
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.spool import count, spooling, waits_for

QUEUE = "credentials"


def client_of(server, password):
    host = pika.ConnectionParameters("127.0.0.1", server.port, "/", pika.PlainCredentials("edge", password))
    return contextlib.closing(pika.BlockingConnection(host))


def publish(client, *bodies, exchange="amq.direct"):
    channel = client.channel()
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish(exchange, QUEUE, body)
    channel.close()


@contextlib.contextmanager
def queue_of(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as direct:
        channel = direct.channel()
        channel.queue_declare(QUEUE)
        channel.queue_bind(QUEUE, "amq.direct")
        yield channel


def test_a_token_that_a_client_has_renewed_in_time_parks_nothing(tmp_path):
    # Longer than it takes to use the first token and to renew it.
    key, seconds = tokens.Key(), 15
    with tokens.key_service(key) as service, contextlib.ExitStack() as stack:
        flags = [*tokens.flags(service.url), "--compatibility", "3.10"]
        broker = stack.enter_context(leveret(tmp_path / "broker", *flags))
        server = stack.enter_context(spooling(tmp_path / "pool", f"amqp://127.0.0.1:{broker.port}"))
        direct = stack.enter_context(queue_of(broker))
        first = key.sign(tokens.claims(*tokens.ALL, user="edge", seconds=seconds))
        expired = time.time() + seconds + 1
        client = stack.enter_context(client_of(server, first))
        publish(client, "before")
        wait_until(lambda: count(direct, QUEUE) == 1)
        client.update_secret(key.sign(tokens.claims(*tokens.ALL, user="edge")), "expires")
        # The expiry is the subject of the test.
        client.sleep(expired - time.time())
        publish(client, "after", "another")
        wait_until(lambda: count(direct, QUEUE) + metric(server, "leveret_spool_parked_messages") == 3)
        assert metric(server, "leveret_spool_parked_messages") == 0


class Decisions:
    """An auth service that may be down."""

    def __init__(self):
        self.is_away = False
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = b"" if service.is_away else b"allow"
                self.send_response(503 if service.is_away else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def test_an_authentication_service_that_is_away_parks_nothing(tmp_path):
    decisions = Decisions()
    with serving(decisions.server), contextlib.ExitStack() as stack:
        flags = ["--auth-backends", "internal", "--auth-backends", "http", "--compatibility", "3.10"]
        for kind in ("user", "vhost", "resource", "topic"):
            flags += [f"--auth-http-{kind}-path", f"{decisions.url}/{kind}"]
        broker = stack.enter_context(leveret(tmp_path / "broker", *flags))
        server = stack.enter_context(spooling(tmp_path / "pool", f"amqp://127.0.0.1:{broker.port}"))
        direct = stack.enter_context(queue_of(broker))
        client = stack.enter_context(client_of(server, "edge"))
        publish(client, "before")
        wait_until(lambda: count(direct, QUEUE) == 1)
        decisions.is_away = True
        publish(client, "meanwhile", "another", exchange="amq.fanout")
        publish(client, "meanwhile", "another")
        parked = "leveret_spool_parked_messages"
        wait_until(lambda: metric(server, parked) > 0 or "returned an error" in (waits_for(server) or ""))
        decisions.is_away = False
        wait_until(lambda: metric(server, parked) > 0 or count(direct, QUEUE) >= 3)
        assert metric(server, parked) == 0


def test_operators_see_that_messages_wait_for_a_full_queue(tmp_path):
    with leveret(tmp_path / "broker") as broker, contextlib.ExitStack() as stack:
        server = stack.enter_context(spooling(tmp_path / "pool", f"amqp://127.0.0.1:{broker.port}"))
        direct = stack.enter_context(queue_of(broker))
        direct.queue_declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        direct.basic_publish("", "full", "first")
        with pika.BlockingConnection(pika.URLParameters(server.uri)) as client:
            client.channel().basic_publish("", "full", "second")
        # Before, it may wait for its connection to the broker.
        wait_until(lambda: waits_for(server) == "1 messages wait for their destination (nacked or refused)")
        assert "1 messages wait" in Ctl(server.http)("spool", "list")
