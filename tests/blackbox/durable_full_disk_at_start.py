"""A broker that starts on a full disk: a new one exits with an error and leaves no files that would block a later start; one
with messages starts, so that consumers can free space."""

import pika
import pytest

from harness.amqp import connect
from harness.disks import MEBIBYTE, NoNamespaces, SmallDisk
from harness.instances import leveret
from harness.leveret import run

PERSISTENT = pika.BasicProperties(delivery_mode=2)
# The bytes that the first start can write: none; a part of the first file; that file, but nothing after it.
LEFT = [0, 8 << 10, 1 * MEBIBYTE]
MESSAGES = 60


@pytest.fixture
def disk(tmp_path):
    try:
        disk = SmallDisk(tmp_path / "small", 300)
    except NoNamespaces as error:
        pytest.skip(str(error))
    yield disk
    disk.remove()


def start(tmp_path, disk):
    directory = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
    return leveret(directory, "--data-dir", str(disk.directory / "data"), "--disk-free-limit", "0")


def publish(server, numbers):
    with connect(server) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for number in numbers:
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)


def take(server, count):
    with connect(server) as connection:
        channel = connection.channel()
        bodies = []
        for _ in range(count):
            method, _, body = channel.basic_get("q")
            bodies.append(body)
            channel.basic_ack(method.delivery_tag)
        return [int(body) for body in bodies]


@pytest.mark.parametrize("left", LEFT)
def test_a_new_broker_ends_with_the_cause_and_starts_once_there_is_room(tmp_path, disk, left):
    disk.fail(leave=left)
    code, _, errors = run("serve", "--amqp", "127.0.0.1:0", "--http", "off", "--data-dir", disk.directory / "data")
    assert code == 1
    [line] = errors.splitlines()
    assert line.startswith("leveret: data_dir: ") and line.endswith("No space left on device (os error 28)"), line
    disk.mend()
    with start(tmp_path, disk) as server:
        publish(server, range(MESSAGES))
        server.kill()
    with start(tmp_path, disk) as server:
        assert take(server, MESSAGES) == list(range(MESSAGES))


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("left", LEFT)
def test_a_broker_with_messages_starts_and_is_consumed(tmp_path, disk, left, end):
    with start(tmp_path, disk) as server:
        publish(server, range(MESSAGES))
        getattr(server, end)()
    disk.fail(leave=left)
    with start(tmp_path, disk) as server:
        assert take(server, MESSAGES // 2) == list(range(MESSAGES // 2))
        disk.mend()
        publish(server, range(MESSAGES, MESSAGES + 10))
        server.kill()
    with start(tmp_path, disk) as server:
        assert take(server, MESSAGES // 2 + 10) == list(range(MESSAGES // 2, MESSAGES + 10))
