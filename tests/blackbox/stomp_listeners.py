"""STOMP over TCP, TLS and WebSocket, with the listeners' options, and Leveret's own features."""

import json
import signal
import socket
import ssl
import subprocess

import pika
import pytest
import websocket

from harness.certificates import TestCa
from harness.instances import leveret
from harness.leveret import ROOT, run
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq
from harness.stomp_client import EVERYTHING, Client, StompWire

STOMPJS = ROOT / "tests" / "websocket" / "stomp_client.mjs"
ANY = "127.0.0.1:0"


def port(server, name="stomp", scheme="stomp"):
    return int(server.child.wait_line(rf"^{name} +listening on {scheme}://127\.0\.0\.1:(\d+)").group(1))


def stompjs(url, queue):
    done = subprocess.run(
        ["node", "--no-warnings", "--experimental-websocket", STOMPJS, url, queue],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("compression", ["off", "on"])
def test_stompjs_works_wherever_stomp_is_served(tmp_path, compression):
    with leveret(tmp_path, "--ws", ANY, "--web-stomp", ANY, "--ws-compression", compression) as server:
        web = port(server, "web-stomp", "ws")
        # On `ws`, the subprotocol decides if the path does not.
        for url in (f"ws://127.0.0.1:{web}/ws", f"ws://127.0.0.1:{server.ws_port}/ws/stomp", f"ws://127.0.0.1:{server.ws_port}/"):
            assert stompjs(url, "q") == EVERYTHING, url
        server.stop()


def test_stomp_is_spoken_over_tls_and_the_certificate_is_a_login(tmp_path):
    ca = TestCa(tmp_path / "tls")
    certificate, key = ca.issue("server")
    definitions = tmp_path / "definitions.json"
    user = {"name": "CN=worker", "password_hash": "", "tags": ""}
    definitions.write_text(
        json.dumps(
            {
                "users": [user],
                "vhosts": [{"name": "/"}],
                "permissions": [{"user": "CN=worker", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
            }
        )
    )
    worker = ca.issue("worker")
    flags = ["--stomps", ANY, "--tls-cert", certificate, "--tls-key", key, "--tls-verify-client", "optional"]
    flags += ["--tls-client-ca", str(ca.file), "--definitions", str(definitions)]
    with leveret(tmp_path, *flags) as server:
        context = ssl.create_default_context(cafile=str(ca.file))
        for own, expected in [(worker, "CONNECTED"), (None, "ERROR")]:
            if own:
                context.load_cert_chain(*own)
            else:
                context = ssl.create_default_context(cafile=str(ca.file))
            raw = socket.create_connection(("127.0.0.1", port(server, "stomps", "stomps")), timeout=PATIENCE)
            wire = StompWire(stream=context.wrap_socket(raw, server_hostname="localhost"))
            wire.send("CONNECT\naccept-version:1.2\nhost:/\n\n")
            assert wire.frame()[0] == expected
            wire.close()
        server.stop()


def test_guest_comes_from_this_machine_only_and_a_load_balancer_tells_where_from(tmp_path):
    flags = ["--stomp", ANY, "--proxy-protocol", "v1", "--trusted-proxies", "127.0.0.1"]
    with leveret(tmp_path, *flags) as server:
        for source, expected in [("127.0.0.1", "CONNECTED"), ("192.0.2.1", "ERROR")]:
            wire = StompWire(port(server))
            wire.socket.sendall(f"PROXY TCP4 {source} 127.0.0.1 1 2\r\n".encode())
            command, _, body = wire.connect()
            assert command == expected
            if expected == "ERROR":
                assert body == "non-loopback access denied"
            wire.close()
        server.stop()


def test_permissions_hold(tmp_path):
    definitions = tmp_path / "definitions.json"
    definitions.write_text(
        json.dumps(
            {
                # The password is "test12", salted and hashed as in RabbitMQ's documentation.
                "users": [
                    {
                        "name": "reader",
                        "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
                        "tags": "",
                    }
                ],
                "vhosts": [{"name": "/"}],
                "permissions": [{"user": "reader", "vhost": "/", "configure": "^mine-.*", "write": "^$|^mine-.*", "read": ".*"}],
            }
        )
    )
    with leveret(tmp_path, "--stomp", ANY, "--definitions", str(definitions)) as server:
        for frame, body in [
            ("SUBSCRIBE\nid:1\ndestination:/queue/yours\n\n", "access to queue 'yours'"),
            ("SEND\ndestination:/queue/yours\n\nx", "access to queue 'yours'"),
            ("SEND\ndestination:/topic/a\n\nx", "access to exchange 'amq.topic'"),
        ]:
            wire = StompWire(port(server))
            assert wire.connect(login="reader", passcode="test12")[0] == "CONNECTED"
            wire.send(frame)
            command, headers, error = wire.frame()
            assert (command, headers["message"]) == ("ERROR", "access_refused")
            assert error == f"ACCESS_REFUSED - {body} in vhost '/' refused for user 'reader'"
            assert wire.frame() is None
            wire.close()
        server.stop()


def test_a_receipt_is_a_promise_that_survives_kill_minus_nine(tmp_path):
    durable = {"durable": "true", "auto_delete": "false"}
    with leveret(tmp_path, "--stomp", ANY) as server:
        away = Client(port(server))
        away.subscribe("/topic/kept", id="1", **durable)
        away.do("disconnect")
        client = Client(port(server))
        for number in range(20):
            client.send("/topic/kept", str(number), persistent="true")
            client.send("/queue/kept", str(number), persistent="true")
        server.child.send(signal.SIGKILL)
        server.child.wait(PATIENCE)
    with leveret(tmp_path, "--stomp", ANY) as server:
        client = Client(port(server))
        for destination, id, headers in [("/queue/kept", "q", {}), ("/topic/kept", "1", durable)]:
            client.subscribe(destination, id=id, **headers)
            assert [int(client.message().body) for _ in range(20)] == list(range(20))
        client.close()
        server.stop()


def test_a_drain_tells_clients_and_the_process_ends_well(tmp_path):
    with leveret(tmp_path, "--stomp", ANY) as server:
        wire = StompWire(port(server))
        wire.connect()
        server.stop()
        command, headers, body = wire.frame()
        assert (command, headers["message"]) == ("ERROR", "connection_forced")
        assert body == "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
        assert wire.frame() is None
        wire.close()


def test_an_amqp_consumer_answers_a_request_of_a_stomp_client(tmp_path):
    with leveret(tmp_path, "--stomp", ANY) as server:
        page = Client(port(server))
        amqp = pika.BlockingConnection(pika.URLParameters(server.uri))
        channel = amqp.channel()
        channel.queue_declare("work", durable=True)
        page.connection.send("/queue/work", "question", headers={"reply-to": "/temp-queue/me", "correlation-id": "7"})
        method, properties, body = next(channel.consume("work", inactivity_timeout=PATIENCE))
        assert (body, properties.correlation_id) == (b"question", "7")
        channel.basic_ack(method.delivery_tag)
        channel.basic_publish("", properties.reply_to, b"answer", pika.BasicProperties(correlation_id="7"))
        answer = page.message()
        assert (answer.body, answer.headers["correlation-id"]) == ("answer", "7")
        page.close()
        amqp.close()
        server.stop()


def test_in_front_of_rabbitmq_stomp_is_relayed_where_its_port_is_given(tmp_path):
    code, _, error = run("serve", "--upstream-stomp", "tcp://127.0.0.1:1", "--stomp", ANY)
    assert code == 2 and "has no effect without an upstream" in error, error
    (stomp_port,) = free_ports(1)
    settings = [f"stomp.listeners.tcp.1 = 127.0.0.1:{stomp_port}"]
    rabbitmq = RabbitMq(tmp_path / "rabbitmq", *settings, plugins="rabbitmq_stomp")
    try:
        flags = ["--upstream", rabbitmq.uri.replace("guest:guest@", ""), "--upstream-stomp", f"tcp://127.0.0.1:{stomp_port}"]
        with leveret(tmp_path, *flags, "--stomp", ANY, "--ws", ANY, "--web-stomp", ANY) as server:
            wire = StompWire(port(server))
            command, headers, _ = wire.connect()
            assert (command, headers["server"].partition("/")[0]) == ("CONNECTED", "RabbitMQ")
            wire.close()
            converse(port(server))
            for url in (f"ws://127.0.0.1:{port(server, 'web-stomp', 'ws')}/ws", f"ws://127.0.0.1:{server.ws_port}/ws/stomp"):
                seen = stompjs(url, "web")
                # The upstream's bytes arrive as binary messages, whatever they are.
                assert {**seen, "text": EVERYTHING["text"]} == EVERYTHING
            server.stop()
    finally:
        rabbitmq.stop()


def converse(where, **options):
    client = Client(where, **options)
    client.subscribe("/queue/relayed", ack="client-individual")
    client.send("/queue/relayed", "x" * 300_000, persistent="true")
    frame = client.message()
    assert frame.body == "x" * 300_000
    client.acknowledge(frame)
    client.do("disconnect")


def test_stomp_is_spoken_over_wss(tmp_path):
    ca = TestCa(tmp_path / "tls")
    certificate, key = ca.issue("server")
    with leveret(tmp_path, "--web-stomps", ANY, "--wss", ANY, "--tls-cert", certificate, "--tls-key", key) as server:
        for name, path in [("web-stomps", "/ws"), ("wss", "/ws/stomp")]:
            url = f"wss://localhost:{port(server, name, 'wss')}{path}"
            options = {"sslopt": {"ca_certs": str(ca.file)}, "timeout": PATIENCE}
            socket = websocket.create_connection(url, subprotocols=["v11.stomp", "v12.stomp"], **options)
            assert socket.getsubprotocol() == "v12.stomp"
            socket.send("CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n\0")
            assert socket.recv().startswith("CONNECTED\n")
            socket.close()
        server.stop()


def test_a_relay_speaks_tls_to_the_upstream_and_lets_clients_go_while_that_is_down(tmp_path):
    ca = TestCa(tmp_path / "tls")
    certificate, key = ca.issue("rabbit")
    (tls_port,) = free_ports(1)
    settings = [f"stomp.listeners.ssl.1 = 127.0.0.1:{tls_port}", "stomp.listeners.tcp = none"]
    settings += [f"ssl_options.cacertfile = {ca.file}", f"ssl_options.certfile = {certificate}"]
    settings += [f"ssl_options.keyfile = {key}", "ssl_options.verify = verify_none"]
    rabbitmq = RabbitMq(tmp_path / "rabbitmq", *settings, plugins="rabbitmq_stomp")
    flags = ["--upstream", rabbitmq.uri.replace("guest:guest@", ""), "--upstream-stomp", f"tls://localhost:{tls_port}"]
    try:
        with leveret(tmp_path / "front", *flags, "--upstream-ca", str(ca.file), "--stomp", ANY) as server:
            converse(port(server))
            wire = StompWire(port(server))
            assert wire.connect()[0] == "CONNECTED"
            rabbitmq.end()
            assert wire.frame() is None, "the end of the upstream's connection is the end of the client's"
            wire = StompWire(port(server))
            assert wire.connect() is None
            rabbitmq.start()
            converse(port(server))
            server.stop()
        other = TestCa(tmp_path / "other")
        with leveret(tmp_path / "wary", *flags, "--upstream-ca", str(other.file), "--stomp", ANY) as server:
            wire = StompWire(port(server))
            assert wire.connect() is None, "nobody vouches for that certificate"
            server.stop()
    finally:
        rabbitmq.stop()


def test_a_client_that_says_nothing_is_the_default_user_if_there_is_one(tmp_path):
    for flags, answers in (((), ["ERROR"] * 3), (("--stomp-default-user", "guest"), ["CONNECTED", "ERROR", "ERROR"])):
        with leveret(tmp_path / str(len(flags)), "--stomp", ANY, *flags) as server:
            for login, expected in zip(("", "passcode:x\n", "login:guest\npasscode:x\n"), answers):
                wire = StompWire(port(server))
                wire.send(f"CONNECT\naccept-version:1.2\nhost:/\n{login}\n")
                assert wire.frame()[0] == expected, login
            server.stop()
