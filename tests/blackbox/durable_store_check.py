"""A damaged data directory prevents the start, with the position of the damage; `leveret ctl store` reports the same while
the broker is stopped, and can repair it at the cost of the damaged data alone."""


import pika
import pytest

from harness.amqp import connect
from harness.instances import leveret
from harness.leveret import run

PERSISTENT = pika.BasicProperties(delivery_mode=2)
MESSAGES = 20
DAMAGED = 7


def body_of(number):
    return b"<message %d>" % number * 50


def flip(path, data):
    """Flips a bit in the middle of the first occurrence of `data`; returns its position."""
    content = bytearray(path.read_bytes())
    at = content.find(data)
    assert at >= 0
    content[at + len(data) // 2] ^= 1
    path.write_bytes(content)
    return at


def segment_with(directory, data):
    [path] = [path for path in (directory / "journal").glob("*.segment") if data in path.read_bytes()]
    return path


@pytest.fixture
def killed(tmp_path):
    """The data directory of a killed broker."""
    directory = tmp_path / "data"
    with leveret(tmp_path / "first", "--data-dir", str(directory)) as server:
        channel = connect(server).channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number in range(MESSAGES):
            channel.basic_publish("", "q", body_of(number), PERSISTENT)
        code, _, error = run("ctl", "store", "check", "--data-dir", directory)
        assert (code, f"in use by process {server.pid}" in error) == (1, True), error
        server.kill()
    return directory


def messages(tmp_path, directory):
    with leveret(tmp_path / "again", "--data-dir", str(directory)) as server:
        connection = connect(server)
        channel = connection.channel()
        found = []
        while (got := channel.basic_get("q", auto_ack=True))[0] is not None:
            found.append(got[2])
        connection.close()
        server.stop()
    return found


def refusal(tmp_path, directory):
    code, _, error = run("serve", "--data-dir", directory, "--amqp", "127.0.0.1:0", "--http", "off")
    assert code == 1
    return error.splitlines()[-1]


def check(directory):
    code, output, _ = run("ctl", "store", "check", "--data-dir", directory)
    return code, output


def test_a_directory_after_a_kill_is_sound(tmp_path, killed):
    code, output = check(killed)
    assert code == 0 and output.endswith("no damage found\n"), output
    assert ", 1 in queues\n" in output, output
    assert messages(tmp_path, killed) == [body_of(number) for number in range(MESSAGES)]


def test_a_torn_tail_is_reported_and_truncated(tmp_path, killed):
    last = body_of(MESSAGES - 1)
    path = segment_with(killed, last)
    flip(path, last)
    code, output = check(killed)
    assert code == 0 and f"journal/{path.name}: torn at byte" in output, output
    # This message was confirmed, and a disk that honours syncs would have it; it cannot be distinguished from a torn write.
    assert messages(tmp_path, killed) == [body_of(number) for number in range(MESSAGES - 1)]


def test_a_damaged_middle_is_refused_and_repaired_at_the_price_of_itself(tmp_path, killed):
    path = segment_with(killed, body_of(DAMAGED))
    at = flip(path, body_of(DAMAGED))
    code, output = check(killed)
    assert code == 1 and f"DAMAGED journal: journal/{path.name}: at byte" in output, output
    [told] = [line for line in output.splitlines() if line.startswith("DAMAGED")]
    offset = int(told.split("at byte ")[1].split(":")[0])
    assert at - 100 < offset < at
    refused = refusal(tmp_path, killed)
    assert f"journal/{path.name}: at byte {offset}" in refused and "ctl store repair" in refused
    code, output, _ = run("ctl", "store", "repair", "--data-dir", killed)
    assert code == 0 and f"discarded journal/{path.name}: at byte {offset}" in output, output
    assert check(killed)[0] == 0
    assert messages(tmp_path, killed) == [body_of(number) for number in range(MESSAGES) if number != DAMAGED]


def test_damaged_definitions_are_refused_and_the_file_is_kept(tmp_path, killed):
    path = killed / "definitions.redb"
    content = bytearray(path.read_bytes())
    content[:4096] = b"\7" * 4096
    path.write_bytes(content)
    code, output = check(killed)
    assert code == 1 and "DAMAGED definitions.redb" in output, output
    assert "definitions.redb" in refusal(tmp_path, killed)
    code, output, _ = run("ctl", "store", "repair", "--data-dir", killed)
    assert code == 0 and "rebuilt from the 0 that can be read" in output and "no user is left" in output, output
    assert (killed / "definitions.redb.damaged").read_bytes() == content
    is_as_new(tmp_path, killed)


def is_as_new(tmp_path, directory):
    """The messages of queues whose definitions are lost do not reappear."""
    for _ in range(2):
        with leveret(tmp_path / "new", "--data-dir", str(directory)) as server:
            declared = connect(server).channel().queue_declare("q", durable=True)
            assert declared.method.message_count == 0
            server.stop()


@pytest.mark.parametrize("left", [None, 0, 0.5])
def test_definitions_that_are_gone_or_cut_off_are_refused_and_repaired(tmp_path, killed, left):
    path = killed / "definitions.redb"
    if left is None:
        path.unlink()
    else:
        with path.open("r+b") as file:
            file.truncate(int(path.stat().st_size * left))
    assert "definitions.redb" in refusal(tmp_path, killed)
    assert check(killed)[0] == 1
    code, output, _ = run("ctl", "store", "repair", "--data-dir", killed)
    assert code == 0 and "rebuilt from" in output, output
    assert check(killed)[0] == 0
    with leveret(tmp_path / "again", "--data-dir", str(killed)) as server:
        server.stop()


def test_a_segment_that_is_gone_or_cut_off_after_a_clean_stop_is_refused_by_name(tmp_path, killed):
    with leveret(tmp_path / "clean", "--data-dir", str(killed)) as server:
        server.stop()
    path = max((killed / "journal").glob("*.segment"), key=lambda path: body_of(0) in path.read_bytes())
    content = path.read_bytes()
    used = len(content.rstrip(b"\0"))
    path.write_bytes(content[: used // 2])
    assert f"journal/{path.name}" in refusal(tmp_path, killed)
    path.unlink()
    assert f"journal/{path.name}" in refusal(tmp_path, killed)
    path.write_bytes(content)
    assert messages(tmp_path, killed) == [body_of(number) for number in range(MESSAGES)]


def test_to_delete_the_lock_does_not_let_a_second_broker_in(tmp_path, killed):
    with leveret(tmp_path / "first", "--data-dir", str(killed)) as server:
        (killed / "lock").unlink()
        assert "in use by another process" in refusal(tmp_path, killed)
        server.stop()
