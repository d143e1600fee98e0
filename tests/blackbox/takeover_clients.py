"""A pool's clients continue in the process that takes over, on the same sockets, without noticing."""

import contextlib
import os
import socket
import struct
import threading
from pathlib import Path

import pika
import pytest
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.publishers import COMMANDS, ConfirmedPublisher
from harness.upgrading import knocking
from harness.wire import (
    BASIC_PUBLISH,
    BODY,
    CONNECTION_CLOSE,
    CONNECTION_OPEN,
    CONNECTION_OPEN_OK,
    CONNECTION_START,
    CONNECTION_TUNE,
    CONNECTION_TUNE_OK,
    HEADER,
    METHOD,
    PROTOCOL_HEADER,
    Wire,
    close_of,
    frame,
    short_string,
)


class Succession:
    """Processes in front of one broker, each of which takes over from the one before."""

    def __init__(self, tmp_path, upstream, stack, *more):
        amqp, http = free_ports(2)
        self.flags = ["--amqp", f"127.0.0.1:{amqp}", "--http", f"127.0.0.1:{http}", "--upstream", upstream, *more]
        self.directory, self.stack, self.count = tmp_path, stack, 0
        self.now = self._start()

    def _start(self, *more):
        self.count += 1
        return self.stack.enter_context(leveret(self.directory / str(self.count), *self.flags, *more))

    def start_successor(self):
        """Returns once it serves; the old process then hands its clients over."""
        # A new process can be found once its predecessor has released the takeover socket.
        address = f"@leveret-takeover/{os.geteuid()}/amqp/127.0.0.1:{self.now.port}"
        wait_until(lambda: address in Path("/proc/net/unix").read_text())
        self.now = self._start("--take-over")
        return self.now

    def upgrade(self):
        """Returns once the old process has exited."""
        before, after = self.now, self.start_successor()
        assert before.child.wait() == 0
        return after


@pytest.fixture
def succession(tmp_path, targets):
    with contextlib.ExitStack() as stack:
        yield Succession(tmp_path, f"amqp://127.0.0.1:{targets.upstream.port}", stack)


@pytest.fixture
def queue(targets):
    """A durable queue for the test."""
    name = "takeover-clients"
    with pika.BlockingConnection(pika.URLParameters(targets.upstream.uri)) as direct:
        channel = direct.channel()
        channel.queue_delete(name)
        channel.queue_declare(name, durable=True)
        yield name
        channel.queue_delete(name)


class Application:
    """A pika client that publishes to its own queue with confirms, and consumes with acknowledgements."""

    def __init__(self, uri, number):
        self.connection = pika.BlockingConnection(pika.URLParameters(uri))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.queue, self.published, self.seen, self.tags = f"takeover-{number}", 0, [], 0
        self.channel.queue_delete(self.queue)
        self.channel.queue_declare(self.queue, durable=True)
        self.channel.basic_qos(prefetch_count=5)
        self.channel.basic_consume(self.queue, self._take)

    def _take(self, channel, method, properties, body):
        self.tags += 1
        assert method.delivery_tag == self.tags
        # Unacknowledged deliveries are redelivered after a takeover, as after the loss of a connection.
        if int(body) in self.seen[-5:]:
            assert method.redelivered
        else:
            self.seen.append(int(body))
        channel.basic_ack(method.delivery_tag)

    def work(self):
        self.channel.basic_publish("", self.queue, str(self.published), pika.BasicProperties(delivery_mode=2))
        self.published += 1
        while len(self.seen) < self.published:
            self.connection.process_data_events(PATIENCE)

    def close(self):
        assert self.seen == list(range(self.published))
        self.channel.queue_delete(self.queue)
        self.connection.close()


def test_a_client_publishes_and_consumes_through_three_upgrades(succession):
    application = Application(succession.now.uri, "alone")
    for _ in range(4):
        for _ in range(10):
            application.work()
        succession.upgrade()
        wait_until(lambda: metric(succession.now, "leveret_connections_resumed_total") == 1)
    application.work()
    application.close()


def test_clients_of_two_upgrades_at_once_end_up_in_the_last_process(succession):
    """The second successor takes over from the first one while that is still receiving clients."""
    applications = [Application(succession.now.uri, f"twice-{number}") for number in range(20)]
    first, second = succession.now, succession.start_successor()
    third = succession.start_successor()
    assert first.child.wait() == 0 and second.child.wait() == 0
    for application in applications:
        application.work()
        application.close()
    assert metric(third, "leveret_connections_resumed_total") == len(applications)


def test_a_message_of_which_a_part_has_come_arrives_whole(succession, queue):
    body = bytes(range(256)) * 2000
    publish = struct.pack(">HHH", *BASIC_PUBLISH, 0) + short_string("") + short_string(queue) + b"\0"
    header = struct.pack(">HHQH", 60, 0, len(body), 0)
    pieces = [body[at : at + 100_000] for at in range(0, len(body), 100_000)]
    whole = frame(METHOD, 1, publish) + frame(HEADER, 1, header) + b"".join(frame(BODY, 1, piece) for piece in pieces)
    with Wire(succession.now.port) as client:
        client.handshake().open_channel()
        # Split in the middle of a frame each time.
        for part in (whole[:10], whole[10:150_000], whole[150_000:300_000]):
            client.send(part)
            succession.upgrade()
            wait_until(lambda: metric(succession.now, "leveret_connections_resumed_total") == 1)
        client.send(whole[300_000:])
        with pika.BlockingConnection(pika.URLParameters(succession.now.uri)) as other:
            channel, got = other.channel(), []
            wait_until(lambda: got.append(channel.basic_get(queue, auto_ack=True)[2]) or got[-1] is not None)
            assert got[-1] == body


def test_a_client_in_the_middle_of_its_login_comes_in(succession):
    with Wire(succession.now.port) as client:
        client.send(PROTOCOL_HEADER)
        client.expect(CONNECTION_START)
        # The old process stays for it.
        before = succession.now
        succession.start_successor()
        before.child.wait_line("successor takes over")
        client.send_login()
        client.expect(CONNECTION_TUNE)
        client.send_method(0, CONNECTION_TUNE_OK, struct.pack(">HIH", 2047, 131072, 0))
        client.send_method(0, CONNECTION_OPEN, short_string("/") + short_string("") + b"\x00")
        client.expect(CONNECTION_OPEN_OK)
        assert before.child.wait() == 0
        client.open_channel()


def test_buffered_messages_of_a_slow_client_are_delivered_after_an_upgrade(succession, queue):
    body, messages = b"x" * 100_000, 100
    with pika.BlockingConnection(pika.URLParameters(succession.now.uri)) as client:
        filler = client.channel()
        filler.confirm_delivery()
        for number in range(messages):
            filler.basic_publish("", queue, b"%d " % number + body)
        channel, seen = client.channel(), []
        channel.basic_consume(queue, lambda _, method, properties, body: seen.append(int(body.split()[0])), auto_ack=True)
        # More than the sockets buffer is pending in the old process.
        wait_until(lambda: metric(succession.now, "leveret_upstream_unread_bytes") > 0)
        succession.upgrade()
        while len(seen) < messages:
            client.process_data_events(PATIENCE)
        assert seen == list(range(messages))


@pytest.mark.parametrize("what", ["an exclusive queue", "a transaction", "an auto-delete queue"])
def test_a_client_tied_to_its_upstream_connection_is_closed_with_320(succession, what):
    client = pika.BlockingConnection(pika.URLParameters(succession.now.uri))
    channel = client.channel()
    if what == "a transaction":
        channel.tx_select()
    else:
        channel.queue_declare("", exclusive=what == "an exclusive queue", auto_delete=what == "an auto-delete queue")
    succession.upgrade()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as told:
        client.sleep(PATIENCE)
    assert told.value.reply_code == 320


def test_clients_stay_behind_when_the_successor_is_in_front_of_another_broker(succession, targets, tmp_path):
    other = f"amqp://127.0.0.1:{targets.upstream.port}"
    with pika.BlockingConnection(pika.URLParameters(succession.now.uri)) as client:
        succession.flags[-1] = other.replace("127.0.0.1", "localhost")
        before = succession.now
        succession.upgrade()
        before.child.wait_line("it is in front of another upstream")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as told:
            client.sleep(PATIENCE)
        assert told.value.reply_code == 320


def test_a_successor_that_knows_no_clients_gets_none(succession):
    """A successor of an earlier release, which only takes the listening sockets."""
    with socket.socket(socket.AF_UNIX) as successor, pika.BlockingConnection(pika.URLParameters(succession.now.uri)) as client:
        address = f"\0leveret-takeover/{os.geteuid()}/amqp/127.0.0.1:{succession.now.port}"
        successor.connect(address)
        successor.sendall(b'{"version":"0.0.1"}\n')
        while not successor.recv(4096).endswith(b"\n"):
            pass
        successor.sendall(b'{"at_once":false}\n')
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as told:
            client.sleep(PATIENCE)
        assert told.value.reply_code == 320
        assert succession.now.child.wait() == 0


def test_clients_are_closed_and_the_process_ends_if_the_successor_dies(succession, targets):
    upstreams = f'["127.0.0.1:{targets.upstream.port}"]'
    with socket.socket(socket.AF_UNIX) as successor, contextlib.ExitStack() as clients:
        told = [clients.enter_context(Wire(succession.now.port)) for _ in range(5)]
        for client in told:
            client.handshake().open_channel()
        successor.connect(f"\0leveret-takeover/{os.geteuid()}/amqp/127.0.0.1:{succession.now.port}")
        successor.sendall(b'{"version":"1"}\n')
        while not successor.recv(4096).endswith(b"\n"):
            pass
        successor.sendall(b'{"at_once":false,"clients":{"format":1,"upstreams":%s}}\n' % upstreams.encode())
        # A client's first bytes are answered, the later ones are not.
        seen = b""
        while b'"bytes"' not in seen:
            seen += successor.recv(4096)
        successor.shutdown(socket.SHUT_RDWR)
        successor.close()
        for client in told:
            code, text = close_of(client.expect(CONNECTION_CLOSE))
            assert code == 320, text
        assert succession.now.child.wait() == 0


def test_many_clients_go_through_many_upgrades(succession, queue):
    """`make upgrades` runs ten upgrades with 1,000 clients."""
    clients, upgrades = (int(os.environ.get(name, usual)) for name, usual in [("UPGRADED_CLIENTS", 30), ("UPGRADES", 3)])
    over, troubles = threading.Event(), []

    def work(numbers):
        try:
            applications = [Application(uri, number) for number in numbers]
            ready.wait()
            while not over.is_set():
                for application in applications:
                    application.work()
            for application in applications:
                application.close()
        except BaseException as trouble:
            troubles.append(trouble)
            ready.abort()
            raise

    uri = succession.now.uri
    numbers = [range(clients)[thread::THREADS] for thread in range(THREADS)]
    ready = threading.Barrier(THREADS + 1)
    workers = [threading.Thread(target=work, args=(those,)) for those in numbers]
    with contextlib.ExitStack() as others:
        publishers = [others.enter_context(ConfirmedPublisher(client, uri)) for client in COMMANDS]
        callers = others.enter_context(knocking(succession.now.port))
        for worker in workers:
            worker.start()
        ready.wait(PATIENCE)
        for upgrade in range(upgrades):
            for publisher in publishers:
                publisher.send(queue, range(upgrade * 100, upgrade * 100 + 100))
            succession.upgrade()
            # Clients in the middle of a login may be among them.
            wait_until(lambda: metric(succession.now, "leveret_connections_resumed_total") >= clients + len(publishers))
            callers.go_on()
            for publisher in publishers:
                publisher.confirmed()
        over.set()
        for publisher in publishers:
            publisher.close()
    for worker in workers:
        worker.join()
    assert (troubles, callers.troubles) == ([], [])
    with pika.BlockingConnection(pika.URLParameters(succession.now.uri)) as client:
        channel = client.channel()
        found = [int(channel.basic_get(queue, auto_ack=True)[2]) for _ in range(len(COMMANDS) * upgrades * 100)]
    assert sorted(found) == sorted(list(range(upgrades * 100)) * len(COMMANDS))


# Threads of the test process: more would only wait for each other.
THREADS = 5
