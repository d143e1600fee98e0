"""A disk that is really full: nothing is confirmed that is not on it, consumers go on, and it all goes on once there is room."""

import os
import signal
import subprocess
import threading
import time
import urllib.request

import pika
import pytest

from harness.instances import leveret
from harness.metrics import metric, wait_until

PERSISTENT = pika.BasicProperties(delivery_mode=2)
MEBIBYTE = 1 << 20
# Two segments of the journal, and as much again that something else takes.
DISK_MEBIBYTES = 280
SEGMENT = 64 * MEBIBYTE
TAKEN = 20
PATIENCE = 60


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, and small."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEBIBYTES}m", "leveret-test", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"not allowed to mount: {done.stderr.strip()}")
    yield folder
    # The server has been killed: nobody is in there.
    subprocess.run(["umount", str(folder)], check=True)


def start(tmp_path, disk):
    run = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
    return leveret(run, "--data-dir", str(disk / "data"), "--disk-free-limit", "0")


def connect(server):
    return pika.BlockingConnection(pika.URLParameters(server.uri))


def kill(server):
    os.kill(server.pid, signal.SIGKILL)
    server.child.wait()


class Publisher(threading.Thread):
    """Publishes one numbered message after the other, each after the confirm of the one before."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.uri, self.confirmed = server.uri, 0

    def run(self):
        try:
            channel = pika.BlockingConnection(pika.URLParameters(self.uri)).channel()
            channel.confirm_delivery()
            while True:
                channel.basic_publish("", "q", body_of(self.confirmed), PERSISTENT)
                self.confirmed += 1
        except (pika.exceptions.AMQPError, OSError):
            pass


def body_of(number):
    return (b"%d:" % number).ljust(MEBIBYTE, b"x")


def number_of(body):
    number = int(body.split(b":", 1)[0])
    assert body == body_of(number)
    return number


def take(server, count=None):
    """Numbers of the first messages, of all without a count; they are acknowledged."""
    numbers = []
    connection = connect(server)
    channel = connection.channel()
    while count is None or len(numbers) < count:
        method, _, body = channel.basic_get("q")
        if method is None:
            break
        numbers.append(number_of(body))
        channel.basic_ack(method.delivery_tag)
    connection.close()
    return numbers


def fill(file):
    """Takes all the room there is."""
    with file.open("wb", buffering=0) as filler:
        step = MEBIBYTE
        while step >= 4096:
            try:
                filler.write(b"x" * step)
            except OSError:
                step //= 2


def readiness(server):
    with urllib.request.urlopen(server.http + "/readyz", timeout=PATIENCE) as answer:
        return answer.read().decode()


def test_a_full_disk_confirms_nothing_stops_no_consumer_and_loses_nothing(tmp_path, disk):
    journal = disk / "data" / "journal"
    with start(tmp_path, disk) as server:
        channel = connect(server).channel()
        channel.queue_declare("q", durable=True)
        channel.queue_declare("other", durable=True)
        channel.basic_publish("", "other", b"first", PERSISTENT)
        # The segment that is written to now, and one put aside.
        wait_until(lambda: len([file for file in journal.glob("*.segment") if file.stat().st_size >= SEGMENT]) == 2)
        fill(disk / "filler")
        assert metric(server, 'leveret_store_failing{cause="full"}') == 0
        assert readiness(server) == "ready\n"
        before = time.time()
        publisher = Publisher(server)
        publisher.start()
        wait_until(lambda: metric(server, 'leveret_store_failing{cause="full"}') == 1)
        assert metric(server, 'leveret_store_failing{cause="error"}') == 0
        assert before - 1 <= metric(server, "leveret_store_failing_since_seconds") <= time.time()
        assert readiness(server).startswith("ready, but nothing durable can be written")
        confirmed = publisher.confirmed
        failures = metric(server, "leveret_store_failures_total")
        assert take(server, TAKEN) == list(range(TAKEN))
        wait_until(lambda: metric(server, "leveret_store_failures_total") > failures + 2)
        # The queue has one more than was confirmed: it waits for its place on the disk.
        assert publisher.confirmed == confirmed
        (disk / "filler").unlink()
        wait_until(lambda: publisher.confirmed > confirmed + 3)
        assert metric(server, 'leveret_store_failing{cause="full"}') == 0
        assert metric(server, "leveret_store_failing_since_seconds") == 0
        assert readiness(server) == "ready\n"
        kill(server)
    publisher.join(PATIENCE)
    with start(tmp_path, disk) as server:
        numbers = take(server)
        assert numbers == list(range(TAKEN, TAKEN + len(numbers))), "each once, in order, and none that was taken"
        assert publisher.confirmed <= TAKEN + len(numbers) <= publisher.confirmed + 1
        kill(server)
