"""The tutorials' commands work as written, in a shell."""

import os
import re
import shlex
import sys

import pytest

from harness.how_to import TUTORIALS, HowTo
from harness.metrics import wait_until
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.reader import Reader

MESSAGES_EACH = 10
"""How often each.py connects."""


@pytest.fixture
def reader(tmp_path):
    with Reader(tmp_path) as reader:
        reader.command("python3", f'exec {shlex.quote(sys.executable)} "$@"')
        yield reader


def moved(text, changes):
    """The text with a test's ports and directories."""
    for usual, own in changes.items():
        text = re.sub(rf"\b{usual}\b", str(own), text)
    return text


def test_a_first_broker_keeps_its_messages_when_it_is_killed(reader):
    page = HowTo("broker", TUTORIALS)
    [amqp] = free_ports(1)
    # A name that no other process's command line contains.
    own = {"5672": amqp, "data-dir data": f"data-dir data-{os.getpid()}-of-tests"}
    made, serve = page.block("sh").splitlines()
    reader.run(made)
    # Later commands run in the reader's current directory.
    in_directory = "cd first-broker && "
    here = f"bash -c {shlex.quote(f'{in_directory} exec {moved(serve, own)}')}"
    variables = {"LEVERET_AMQP": f"127.0.0.1:{amqp}", "LEVERET_HTTP": "127.0.0.1:0"}
    server = reader.serve(here, **variables)
    for name in ["publish.py", "consume.py"]:
        reader.write(f"first-broker/{name}", moved(page.file(name), own))
    assert reader.run(in_directory + page.block("sh")) == "3 orders are on disk\n"
    listed = reader.run(page.block("sh"), LEVERET_CTL_URL=server.http)
    assert re.search(r"^orders +3 +0$", listed, re.MULTILINE), listed
    kill, again = page.block("sh").splitlines()
    assert again == serve
    reader.run(moved(kill, own))
    server.child.wait(PATIENCE)
    reader.serve(here, **variables)
    assert reader.run(in_directory + page.block("sh")) == "order 0\norder 1\norder 2\n"
    page.finish()


def test_a_pool_makes_up_for_distance_and_connections(reader):
    page = HowTo("pool", TUTORIALS)
    own = dict(zip(["5680", "15680", "5690", "5673"], free_ports(4), strict=True))
    here = lambda language: moved(page.block(language), own)
    reader.serve(here("sh"))
    reader.start(here("sh")).wait_line(r"\d+")
    reader.write("each.py", page.block("python"))
    directly = milliseconds(reader.run(here("sh")))
    reader.serve(here("sh"), LEVERET_AMQP=f"127.0.0.1:{own['5673']}", LEVERET_HTTP="127.0.0.1:0")
    pooled = milliseconds(reader.run(here("sh")))
    # Seven round trips of 50 ms, however fast the machine is; through the pool none, however slow it is.
    assert directly >= 350
    assert pooled < directly
    # Without confirms, the last messages may still be in flight.
    listed = here("sh")
    wait_until(lambda: re.search(rf"^each +{2 * MESSAGES_EACH}$", reader.run(listed), re.MULTILINE))
    page.finish()


def milliseconds(printed):
    return int(re.fullmatch(r"(\d+) ms for each message\n", printed)[1])
