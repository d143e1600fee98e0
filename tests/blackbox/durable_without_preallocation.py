"""A file system that cannot preallocate (ext3, NFS before 4.2, some FUSE file systems) stores messages like any other, but
without a reserve for a full disk; the log says so."""

import pika

from harness.amqp import connect
from harness.disks import MEBIBYTE, disk_without_preallocation
from harness.instances import leveret
from harness.metrics import metric

PERSISTENT = pika.BasicProperties(delivery_mode=2)
# More than two segments of the journal.
COUNT = 140


def start(tmp_path, name):
    return leveret(tmp_path / name, "--data-dir", str(tmp_path / "data"), env=disk_without_preallocation())


def body_of(number):
    return (b"%d:" % number).ljust(MEBIBYTE, b"x")


def test_messages_are_confirmed_and_survive_a_kill_without_preallocation(tmp_path):
    with start(tmp_path, "first") as server:
        connection = connect(server)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number in range(COUNT):
            channel.basic_publish("", "q", body_of(number), PERSISTENT)
        assert metric(server, "leveret_store_failures_total") == 0
        assert metric(server, 'leveret_alarm{kind="disk"}') == 0
        server.child.wait_line("WARN.*the file system cannot reserve space")
        assert not list((tmp_path / "data" / "journal").glob("reserve-*"))
        server.kill()
    with start(tmp_path, "second") as server:
        channel = connect(server).channel()
        for number in range(COUNT):
            method, _, body = channel.basic_get("q", auto_ack=True)
            assert method is not None and body == body_of(number), number
        assert channel.basic_get("q")[0] is None
        server.kill()
