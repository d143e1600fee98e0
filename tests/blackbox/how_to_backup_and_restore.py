"""docs/how-to/backup-and-restore.md: a copy of a stopped broker, a snapshot of a running one, and exported definitions
restore what the page promises."""

import shutil
import signal
import threading
from pathlib import Path

import pika
import pytest

from harness.amqp import connect
from harness.ctl import Ctl
from harness.how_to import HowTo
from harness.metrics import wait_until
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.reader import Reader
from harness.stand_in import Service, StandIn

PERSISTENT = pika.BasicProperties(delivery_mode=2)
USUAL = "/var/lib/leveret"
# Messages confirmed before the snapshot is taken, while more are in flight.
ENOUGH = 200


@pytest.fixture
def page():
    return HowTo("backup-and-restore")


@pytest.fixture
def reader(tmp_path):
    with Reader(tmp_path) as reader:
        (tmp_path / "backup").mkdir()
        yield reader


@pytest.fixture
def service(reader):
    """A broker on a fixed port, so that `leveret health` finds it after each start."""
    [port] = free_ports(1)
    data = reader.directory / "data"
    reader.variables = {"LEVERET_HTTP": f"127.0.0.1:{port}", "LEVERET_CTL_PASSWORD": "guest"}
    with Service(reader.directory, "--data-dir", str(data), "--http", f"127.0.0.1:{port}") as service:
        with StandIn(reader, "systemctl", service):
            yield service


def here(reader):
    """Replaces the page's directories by the test's."""
    return {USUAL: reader.directory / "data", "/backup/": f"{reader.directory}/backup/"}


def publish(server, *bodies):
    with connect(server) as connection:
        channel = connection.channel()
        channel.queue_declare("jobs", durable=True)
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", "jobs", body, PERSISTENT)


def take(server, most=None):
    with connect(server) as connection:
        channel = connection.channel()
        bodies = []
        while len(bodies) != most and (body := channel.basic_get("jobs", auto_ack=True)[2]) is not None:
            bodies.append(body)
        return bodies


def test_a_copy_of_a_stopped_broker_takes_the_place_of_its_directory(reader, service, page):
    publish(service.server, b"1", b"2")
    backup = page.block("sh", here(reader))
    reader.run(backup)
    publish(service.server, b"3")
    # The second run must not end within the timestamp of the first.
    output = reader.run(backup)
    assert "DAMAGED" not in output, output
    # Later changes are not in the copy.
    assert take(service.server, most=1) == [b"1"]
    publish(service.server, b"4")
    page.block("sh")
    reader.run(page.block("sh", here(reader)))
    assert take(service.server) == [b"1", b"2", b"3"]
    assert service.starts == 4


def test_the_check_that_the_page_relies_on_finds_a_damaged_copy(reader, service, page):
    publish(service.server, *(b"<message %d>" % number * 50 for number in range(20)))
    service("stop", "leveret")
    damaged = reader.directory / "backup" / "leveret"
    shutil.copytree(reader.directory / "data", damaged)
    [segment] = [each for each in (damaged / "journal").glob("*.segment") if b"<message 7>" in each.read_bytes()]
    segment.write_bytes(segment.read_bytes().replace(b"<message 7>", b"<message ?>", 1))
    check = page.block("sh").splitlines()[-1].replace("/backup", str(damaged.parent))
    assert check.startswith("leveret ctl store check")
    assert "DAMAGED" in reader.run(check, code=1)


def test_a_snapshot_of_a_running_broker_has_all_confirmed_messages(reader, service, page):
    page.block("sh")
    commands = page.block("sh", here(reader))
    publisher = Publisher(service.server)
    publisher.start()
    assert publisher.enough.wait(PATIENCE)

    def snapshot(*words):
        """An atomic snapshot: the process is frozen while its files are copied."""
        if words[:2] == ("subvolume", "delete"):
            return shutil.rmtree(words[2])
        verb, (source, target) = words[:3], map(Path, words[3:])
        assert verb == ("subvolume", "snapshot", "-r")
        publisher.before = len(publisher.confirmed)
        pid = service.server.pid
        service.server.child.send(signal.SIGSTOP)
        try:
            wait_until(lambda: all(state(task) == "T" for task in Path(f"/proc/{pid}/task").iterdir()))
            shutil.copytree(source, target)
        finally:
            service.server.child.send(signal.SIGCONT)

    with StandIn(reader, "btrfs", snapshot):
        output = reader.run(commands)
    assert "DAMAGED" not in output, output
    # The broker was not affected.
    later = len(publisher.confirmed)
    wait_until(lambda: len(publisher.confirmed) > later)
    service("stop", "leveret")
    publisher.join(PATIENCE)
    shutil.rmtree(reader.directory / "data")
    (reader.directory / "backup" / "leveret-live").rename(reader.directory / "data")
    service("start", "leveret")
    restored = [int(body) for body in take(service.server)]
    assert restored == list(range(len(restored)))
    assert publisher.before <= len(restored) <= len(publisher.confirmed) + 1


class Publisher(threading.Thread):
    """Publishes numbers, each after the confirm of the previous one, until the connection is lost."""

    def __init__(self, server):
        super().__init__()
        self.server, self.confirmed, self.before = server, [], 0
        self.enough = threading.Event()
        publish(server)

    def run(self):
        try:
            channel = connect(self.server).channel()
            channel.confirm_delivery()
            while True:
                channel.basic_publish("", "jobs", b"%d" % len(self.confirmed), PERSISTENT)
                self.confirmed.append(len(self.confirmed))
                if len(self.confirmed) == ENOUGH:
                    self.enough.set()
        except (pika.exceptions.AMQPError, OSError):
            pass


def state(task):
    """The state of a thread (proc(5)); one that has just exited counts as stopped."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "T"


def test_definitions_are_exported_and_imported(reader, service, page):
    for _ in range(3):
        page.block("sh")
    publish(service.server, b"1")
    Ctl(service.server.http)("add_user", "ann", LEVERET_CTL_NEW_PASSWORD="secret")
    export, load = page.block("sh").splitlines()
    page.finish()
    reader.run(export)
    service("stop", "leveret")
    shutil.rmtree(reader.directory / "data")
    service("start", "leveret")
    reader.run(load)
    ctl = Ctl(service.server.http)
    assert ctl.rows("list_queues", "name", "messages") == [["jobs", "0"]]
    assert "ann" in [name for name, *_ in ctl.rows("list_users")]
