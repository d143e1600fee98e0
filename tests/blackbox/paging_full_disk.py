"""Paging on a full disk: messages of long queues stay in memory, none is lost or duplicated, consumers continue, and paging
resumes once there is space."""

import pika
import pytest

from harness.amqp import connect
from harness.disks import FailingDisk
from harness.instances import leveret
from harness.metrics import metric, wait_until

MANY = 1000
BODY = 1500


def body_of(number):
    return (b"%d:" % number).ljust(BODY, b"x")


@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "persistent"])
def test_messages_that_cannot_be_paged_out_stay_in_memory_and_come_in_order(tmp_path, mode):
    disk = FailingDisk.without_room(tmp_path / "disk")
    flags = ["--data-dir", str(disk.directory / "data"), "--disk-free-limit", "0", "--memory-paging-watermark", "100KiB"]
    with leveret(tmp_path / "server", *flags, env=disk.environment) as server, connect(server) as connection:
        channel = connection.channel()
        # Not in the journal: durable_full_disk.py tests a full disk there.
        channel.queue_declare("q")
        published, taken = 0, 0

        def publish(count):
            nonlocal published
            for number in range(published, published + count):
                channel.basic_publish("", "q", body_of(number), pika.BasicProperties(delivery_mode=mode))
            published += count
            assert channel.queue_declare("q", passive=True).method.message_count == published - taken

        def take(count):
            nonlocal taken
            for number in range(taken, taken + count):
                method, _, body = channel.basic_get("q", auto_ack=True)
                assert method is not None and body == body_of(number), number
            taken += count

        publish(MANY)
        wait_until(lambda: metric(server, "leveret_broker_paged_messages") > MANY // 2)
        disk.fail()
        publish(MANY)
        # Any write that had begun earlier comes before this.
        server.child.wait_line("messages cannot be written; will retry")
        paged = metric(server, "leveret_broker_paged_messages")
        publish(MANY)
        assert metric(server, "leveret_broker_paged_messages") <= paged
        assert metric(server, "leveret_broker_resident_bytes") > MANY * BODY
        take(2 * MANY + MANY // 2)
        disk.mend()
        publish(MANY)
        wait_until(lambda: metric(server, "leveret_broker_paged_messages") > MANY // 2)
        take(MANY + MANY // 2)
        assert channel.basic_get("q", auto_ack=True)[0] is None
