"""With little disk space, the log never takes all of it, publishers are notified when they are blocked, and resume once
everything is consumed."""

import threading

import pika
import pytest

from harness.amqp import connect
from harness.disks import MEBIBYTE, NoNamespaces, SmallDisk
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE

PERSISTENT = pika.BasicProperties(delivery_mode=2)
LIMIT = 50 * MEBIBYTE
BODY = b"x" * (256 << 10)


@pytest.fixture
def small(tmp_path):
    """Creates small file systems."""
    disks = []

    def make(mebibytes):
        try:
            disks.append(SmallDisk(tmp_path / f"small{len(disks)}", mebibytes))
        except NoNamespaces as error:
            pytest.skip(str(error))
        return disks[-1]

    yield make
    for disk in disks:
        disk.remove()


def start(tmp_path, disk, limit=LIMIT):
    run = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
    return leveret(run, "--data-dir", str(disk.directory / "data"), "--disk-free-limit", str(limit))


class Publisher(threading.Thread):
    """Publishes with confirms until the server blocks it, and resumes afterwards."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.uri, self.confirmed, self.told = server.uri, 0, []
        self.may_stop = threading.Event()

    def run(self):
        connection = pika.BlockingConnection(pika.URLParameters(self.uri))
        connection.add_on_connection_blocked_callback(lambda _, blocked: self.told.append(blocked.method.reason))
        connection.add_on_connection_unblocked_callback(lambda *_: self.told.append("unblocked"))
        channel = connection.channel()
        channel.confirm_delivery()
        while not self.may_stop.is_set():
            channel.basic_publish("", "q", BODY, PERSISTENT)
            self.confirmed += 1
            connection.process_data_events(0)
        connection.close()


def take(server, most=1 << 30):
    """Consumes and acknowledges up to `most` messages, until the queue is empty; returns their number."""
    connection = connect(server)
    channel = connection.channel()
    count = 0
    while count < most:
        method, _, _ = channel.basic_get("q")
        if method is None:
            break
        channel.basic_ack(method.delivery_tag)
        count += 1
    connection.close()
    return count


def wait_until_blocked(server):
    wait_until(lambda: metric(server, "leveret_blocked_connections") == 1, PATIENCE)


def stop(server, publisher):
    """Consumes until the publisher is unblocked and has ended."""
    publisher.may_stop.set()

    def has_ended():
        take(server)
        return not publisher.is_alive()

    wait_until(has_ended)


# The current and a spare segment would fill the first disk, and all space above the limit on the second.
@pytest.mark.parametrize("mebibytes", [100, 130, 200])
def test_fill_it_consume_everything_and_it_works_again(tmp_path, small, mebibytes):
    disk = small(mebibytes)
    with start(tmp_path, disk) as server:
        connect(server).channel().queue_declare("q", durable=True)
        publisher = Publisher(server)
        publisher.start()
        taken = 0
        for times in (1, 2, 3):
            wait_until_blocked(server)
            confirmed = publisher.confirmed
            # The log grows by no more than what was in flight, which depends on how soon the server took a sample.
            assert disk.free_bytes() > LIMIT // 2
            connect(server).channel().queue_declare(f"while-blocked-{times}", durable=True)
            taken += take(server, confirmed - taken)
            assert taken == confirmed
            wait_until(lambda: publisher.confirmed > confirmed, PATIENCE)
        assert metric(server, "leveret_store_failures_total") == 0
        stop(server, publisher)
        assert publisher.told[:4] == ["low on disk", "unblocked"] * 2
        take(server)
        # Once this is confirmed, it and the acknowledgements before it are on disk.
        with connect(server) as connection:
            channel = connection.channel()
            channel.queue_declare("after", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "after", b"x", PERSISTENT)
        server.child.kill()
        server.child.wait()
    with start(tmp_path, disk) as server:
        assert take(server) == 0, "none that was acknowledged is back"


def test_an_idle_broker_takes_no_space_below_the_limit(tmp_path, small):
    disk = small(60)
    with start(tmp_path, disk, limit=30 * MEBIBYTE) as server:
        channel = connect(server).channel()
        for number in range(50):
            channel.queue_declare(f"queue-{number}", durable=True)
        assert disk.free_bytes() > 30 * MEBIBYTE
        assert metric(server, 'leveret_alarm{kind="disk"}') == 0


def test_consumers_end_a_full_disk_though_others_have_taken_the_rest(tmp_path, small):
    disk = small(280)
    with start(tmp_path, disk, limit=0) as server:
        connect(server).channel().queue_declare("q", durable=True)
        publisher = Publisher(server)
        publisher.start()
        wait_until(lambda: publisher.confirmed > 100, PATIENCE)
        disk.fail()
        wait_until_blocked(server)
        confirmed = publisher.confirmed
        assert take(server, confirmed) == confirmed
        wait_until(lambda: publisher.confirmed > confirmed, PATIENCE)
        stop(server, publisher)
