"""The start and `leveret ctl store check` report a missing segment by name; `leveret ctl store repair` drops the messages in
it, and no others."""

import re

import pika
import pytest

from harness.amqp import connect
from harness.instances import leveret
from harness.leveret import run
from harness.metrics import metric, wait_until

PERSISTENT = pika.BasicProperties(delivery_mode=2)
# 64 MiB each; beyond this the oldest is retired, and its messages move to segments of their queue.
JOURNAL_SEGMENTS = 4
BODY, MESSAGES = 1024 * 1024, 340
PLACES = {"first": 0, "middle": 1, "last": -1}


def body_of(number):
    return (b"<%d>" % number).ljust(BODY, b"%d" % (number % 10))


def number_of(body):
    number = int(body[1 : body.index(b">")])
    assert body == body_of(number)
    return number


def segments_of(data):
    """The paths of the queue's segments, and of the journal's segments with records (without spare ones)."""
    count = int(re.search(r"^journal: .* (\d+) segments$", check(data)[1], re.MULTILINE)[1])
    journal = sorted(data.glob("journal/*.segment"))[:count]
    return {"journal": journal, "queue": sorted(data.glob("queues/*/*.segment"))}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The data directory of a broker that was stopped: nothing is on its way from the journal to the queue's segments, so that none
    of them could be done without."""
    directory = tmp_path_factory.mktemp("missing")
    data = directory / "data"
    with leveret(directory, "--data-dir", str(data)) as server:
        with connect(server) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            for number in range(MESSAGES):
                channel.basic_publish("", "q", body_of(number), PERSISTENT)
        wait_until(lambda: metric(server, "leveret_store_journal_segments") <= JOURNAL_SEGMENTS)
        assert len(list(data.glob("queues/*/*.segment"))) > 3
        server.stop()
    return data


def check(data):
    return run("ctl", "store", "check", "--data-dir", data)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["journal", "queue"])
def test_a_segment_that_is_gone_is_missed_by_name(tmp_path, data, kind, place):
    path = segments_of(data)[kind][PLACES[place]]
    name = str(path.relative_to(data))
    aside = path.rename(tmp_path / "aside")
    try:
        code, output, _ = check(data)
        assert code == 1
        assert name in output and "is missing" in output, output
        code, _, error = run("serve", "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", data)
        assert code == 1
        assert name in error, error
    finally:
        aside.rename(path)
    assert check(data)[0] == 0


def test_a_repair_drops_only_the_messages_of_the_missing_segments(tmp_path, data):
    missing = [paths[PLACES["middle"]] for paths in segments_of(data).values()]
    lost = {number for path in missing for number in numbers_in(path)}
    assert lost
    for path in missing:
        path.unlink()
    code, output, error = run("ctl", "store", "repair", "--data-dir", data)
    assert code == 0, error
    assert all(str(path.relative_to(data)) in output for path in missing), output
    assert check(data)[0] == 0
    with leveret(tmp_path, "--data-dir", str(data)) as server, connect(server) as connection:
        channel = connection.channel()
        found = []
        while (got := channel.basic_get("q", auto_ack=True))[0] is not None:
            found.append(number_of(got[2]))
    # Some of the messages may also be in the journal.
    assert set(found) >= set(range(MESSAGES)) - lost
    assert found == sorted(set(found))


def numbers_in(path):
    return {int(number) for number in re.findall(rb"<(\d+)>", path.read_bytes())}
