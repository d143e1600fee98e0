"""A disk that takes nothing any more, and one that cannot sync: nothing is confirmed that is not on it, publishers are told,
consumers go on, nothing is lost, and it all goes on once the disk does. (A disk that is small, or that others fill, is the
matter of durable_low_disk_space.py.)"""

import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest

from harness.amqp import connect
from harness.disks import MEBIBYTE, FailingDisk, NoNamespaces, SmallDisk
from harness.instances import leveret
from harness.management import Management
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE

PERSISTENT = pika.BasicProperties(delivery_mode=2)
# Two segments of the journal, and as much again for other files.
DISK_MEBIBYTES = 280
SEGMENT = 64 * MEBIBYTE
TAKEN = 20
FREE_LIMIT = 40 * MEBIBYTE


def no_room_for_writes(directory):
    return FailingDisk.without_room(directory / "failing")


def no_sync(directory):
    return FailingDisk.that_cannot_sync(directory / "failing")


# Each with the cause that is reported.
DISKS = [(no_room_for_writes, "full"), (no_sync, "error")]


@pytest.fixture
def disk(request, tmp_path):
    disk = request.param(tmp_path)
    yield disk
    # The server was killed, so the disk is not in use.
    disk.remove()


@pytest.fixture
def small_disk(tmp_path):
    try:
        disk = SmallDisk(tmp_path / "small", DISK_MEBIBYTES)
    except NoNamespaces as error:
        pytest.skip(f"blackbox/alarms.py has the limit without a disk that fills up: {error}")
    yield disk
    disk.remove()


def start(tmp_path, disk, free_limit=0):
    run = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
    flags = ["--data-dir", str(disk.directory / "data"), "--disk-free-limit", str(free_limit)]
    return leveret(run, *flags, env=disk.environment)


class Publisher(threading.Thread):
    """Publishes numbered messages, each after the confirm of the previous one."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.uri, self.confirmed, self.told = server.uri, 0, []
        self.may_publish = threading.Event()
        self.may_publish.set()

    def run(self):
        try:
            connection = pika.BlockingConnection(pika.URLParameters(self.uri))
            connection.add_on_connection_blocked_callback(lambda _, blocked: self.told.append(blocked.method.reason))
            connection.add_on_connection_unblocked_callback(lambda *_: self.told.append("unblocked"))
            channel = connection.channel()
            channel.confirm_delivery()
            while True:
                self.may_publish.wait()
                channel.basic_publish("", "q", body_of(self.confirmed), PERSISTENT)
                self.confirmed += 1
                # pika runs its callbacks only when it is polled.
                connection.process_data_events(0)
        except (pika.exceptions.AMQPError, OSError):
            pass


def body_of(number):
    return (b"%d:" % number).ljust(MEBIBYTE, b"x")


def number_of(body):
    number = int(body.split(b":", 1)[0])
    assert body == body_of(number)
    return number


def take(server, count=None):
    """Consumes and acknowledges the first `count` messages, or all; returns their numbers."""
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


def readiness(server):
    with urllib.request.urlopen(server.http + "/readyz", timeout=PATIENCE) as answer:
        return answer.read().decode()


@pytest.mark.parametrize(("disk", "cause"), DISKS, indirect=["disk"])
def test_a_failing_disk_confirms_nothing_stops_no_consumer_and_loses_nothing(tmp_path, disk, cause):
    journal = disk.directory / "data" / "journal"
    [other_cause] = {"full", "error"} - {cause}
    with start(tmp_path, disk) as server:
        channel = connect(server).channel()
        channel.queue_declare("q", durable=True)
        channel.queue_declare("other", durable=True)
        channel.basic_publish("", "other", b"first", PERSISTENT)
        publisher = Publisher(server)
        publisher.start()
        wait_until(lambda: publisher.confirmed > TAKEN)
        # The current segment, and a spare one.
        wait_until(lambda: len([file for file in journal.glob("*.segment") if file.stat().st_size >= SEGMENT]) >= 2)
        assert metric(server, f'leveret_store_failing{{cause="{cause}"}}') == 0
        assert readiness(server) == "ready\n"
        before = time.time()
        disk.fail()
        wait_until(lambda: metric(server, f'leveret_store_failing{{cause="{cause}"}}') == 1)
        assert metric(server, f'leveret_store_failing{{cause="{other_cause}"}}') == 0
        assert before - 1 <= metric(server, "leveret_store_failing_since_seconds") <= time.time()
        assert readiness(server).startswith("ready, but disk writes failing")
        confirmed = publisher.confirmed
        failures = metric(server, "leveret_store_failures_total")
        assert take(server, TAKEN) == list(range(TAKEN))
        wait_until(lambda: metric(server, "leveret_store_failures_total") > failures + 2)
        # The queue has one more message than was confirmed, which is not on disk yet.
        assert publisher.confirmed == confirmed
        channels = Management(server, server.http).get("channels")
        assert [each["messages_unconfirmed"] for each in channels if each["confirm"]] == [1]
        disk.mend()
        wait_until(lambda: publisher.confirmed > confirmed + 3)
        assert metric(server, f'leveret_store_failing{{cause="{cause}"}}') == 0
        assert metric(server, "leveret_store_failing_since_seconds") == 0
        assert readiness(server) == "ready\n"
        server.kill()
    publisher.join(PATIENCE)
    holds_the_rest(tmp_path, disk, publisher)


@pytest.mark.parametrize(("disk", "cause"), DISKS, indirect=["disk"])
def test_confirmed_messages_survive_a_kill_while_the_disk_fails(tmp_path, disk, cause):
    with start(tmp_path, disk) as server:
        connect(server).channel().queue_declare("q", durable=True)
        publisher = Publisher(server)
        publisher.start()
        wait_until(lambda: publisher.confirmed > TAKEN)
        disk.fail()
        wait_until(lambda: metric(server, f'leveret_store_failing{{cause="{cause}"}}') == 1)
        server.kill()
    publisher.join(PATIENCE)
    disk.mend()
    holds_the_rest(tmp_path, disk, publisher, taken=0)


@pytest.mark.parametrize(("disk", "cause"), DISKS, indirect=["disk"])
def test_a_declaration_is_answered_only_when_the_disk_has_it(tmp_path, disk, cause):
    with start(tmp_path, disk) as server:
        channel = connect(server).channel()
        channel.queue_declare("before", durable=True)
        disk.fail()
        answered = threading.Event()
        declaring = threading.Thread(
            target=lambda: (channel.queue_declare("while", durable=True), answered.set()), daemon=True
        )
        declaring.start()
        wait_until(lambda: metric(server, f'leveret_store_failing{{cause="{cause}"}}') == 1)
        failures = metric(server, "leveret_store_failures_total")
        wait_until(lambda: metric(server, "leveret_store_failures_total") > failures + 2)
        assert not answered.is_set()
        disk.mend()
        assert answered.wait(PATIENCE)
        server.kill()
    with start(tmp_path, disk) as server:
        channel = connect(server).channel()
        for queue in ("before", "while"):
            channel.queue_declare(queue, passive=True)
        server.kill()


# The paths and bodies of requests that create definitions.
DEFINITIONS = {
    "users/new": {"password": "p", "tags": ""},
    "vhosts/new": {},
    "permissions/%2F/old": {"configure": "", "write": ".*", "read": ""},
    "policies/%2F/new": {"pattern": "x", "definition": {"max-length": 5}},
    "queues/%2F/new": {"durable": True},
    "exchanges/%2F/new": {"type": "topic", "durable": True},
}


@pytest.mark.parametrize(("disk", "cause"), DISKS, indirect=["disk"])
def test_definitions_over_http_are_answered_only_when_the_disk_has_them(tmp_path, disk, cause):
    with start(tmp_path, disk) as server:
        management = Management(server, server.http)
        assert management.status("PUT", "users/old", {"password": "p", "tags": ""}) == 201
        disk.fail()
        with ThreadPoolExecutor(len(DEFINITIONS)) as threads:
            answers = [threads.submit(management.status, "PUT", *each) for each in DEFINITIONS.items()]
            wait_until(lambda: metric(server, f'leveret_store_failing{{cause="{cause}"}}') == 1)
            failures = metric(server, "leveret_store_failures_total")
            wait_until(lambda: metric(server, "leveret_store_failures_total") > failures + 2)
            assert not any(answer.done() for answer in answers)
            disk.mend()
            assert [answer.result(PATIENCE) for answer in answers] == [201] * len(DEFINITIONS)
        server.kill()
    with start(tmp_path, disk) as server:
        for path in DEFINITIONS:
            assert Management(server, server.http).status("GET", path) == 200, path
        server.kill()


def test_a_file_of_definitions_that_cannot_grow_waits_for_room(tmp_path, small_disk):
    """Unlike the simulated disks, a full one still accepts a file that replaces another."""
    with start(tmp_path, small_disk) as server:
        declared = []
        is_mended = threading.Event()

        def declare():
            channel = connect(server).channel()
            while not is_mended.is_set():
                queue = f"{len(declared):06}".ljust(250, "x")
                channel.queue_declare(queue, durable=True)
                declared.append(queue)

        declaring = threading.Thread(target=declare, daemon=True)
        declaring.start()

        def fails_again_and_again():
            # The journal releases its spare segments a few times: fill that space, too.
            small_disk.fail()
            return metric(server, "leveret_store_failures_total") > 20

        wait_until(fails_again_and_again)
        small_disk.mend()
        is_mended.set()
        declaring.join(PATIENCE)
        assert not declaring.is_alive()
        server.kill()
    with start(tmp_path, small_disk) as server:
        found = Management(server, server.http).get("queues?columns=name")
        assert sorted(each["name"] for each in found) == declared
        server.kill()


def test_publishers_are_blocked_before_the_disk_is_full(tmp_path, small_disk):
    disk = small_disk
    with start(tmp_path, disk, FREE_LIMIT) as server:
        connect(server).channel().queue_declare("q", durable=True)
        publisher = Publisher(server)
        publisher.start()
        wait_until(lambda: publisher.confirmed > TAKEN)
        # Space for what is in flight. A fast publisher would fill it before the server's next sample.
        publisher.may_publish.clear()

        def is_low():
            # Again, because the server may release space that it had preallocated.
            disk.fail(leave=FREE_LIMIT // 2)
            return metric(server, 'leveret_alarm{kind="disk"}') == 1

        wait_until(is_low)
        publisher.may_publish.set()
        wait_until(lambda: metric(server, "leveret_blocked_connections") == 1)
        confirmed = publisher.confirmed
        # The released space may let the publisher continue before the disk is mended.
        assert take(server, TAKEN) == list(range(TAKEN))
        assert metric(server, "leveret_store_failures_total") == 0
        disk.mend()
        wait_until(lambda: publisher.told[:2] == ["low on disk", "unblocked"] and publisher.confirmed > confirmed)
        server.kill()
    publisher.join(PATIENCE)
    holds_the_rest(tmp_path, disk, publisher)


def holds_the_rest(tmp_path, disk, publisher, taken=TAKEN):
    with start(tmp_path, disk) as server:
        numbers = take(server)
        assert numbers == list(range(taken, taken + len(numbers))), "each once, in order, and none that was taken"
        assert publisher.confirmed <= taken + len(numbers) <= publisher.confirmed + 1
        server.kill()
