"""The servers of the benchmark commands: each RabbitMQ release, and the process whose CPU time and memory are measured."""

import json
import os
import subprocess
import sys

import pytest

from harness.benchmark import RELEASES, Servers, compared, system
from harness.leveret import ROOT, run
from harness.releases import missing


def test_a_release_that_does_not_take_part_is_named(monkeypatch, capsys):
    monkeypatch.setenv("LEVERET_RABBITMQ", "3.10")
    assert compared() == ["rabbitmq"]
    assert capsys.readouterr().err.startswith("RabbitMQ 4 is left out: ")
    monkeypatch.delenv("LEVERET_RABBITMQ")
    monkeypatch.setattr("harness.benchmark.missing", lambda version: "no mirror" if version == "4" else None)
    assert compared() == ["rabbitmq"]
    assert capsys.readouterr().err == "RabbitMQ 4 is left out: no mirror\n"


# As `make figures ARGS="--pinned"` starts a server, and the generator.
PINNED = """
import subprocess, sys
from figures import apart, on_cores
others = apart()
show = [sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))"]
for wrapper in ((), on_cores(others)):
    subprocess.run([*wrapper, *show], check=True)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_pinned_servers_have_one_core_and_the_generator_the_others():
    done = subprocess.run([sys.executable, "-c", PINNED], cwd=ROOT / "tests", stdout=subprocess.PIPE, text=True, check=True)
    server, generator = ([int(core) for core in line.split()] for line in done.stdout.splitlines())
    assert [server, generator] == [sorted(os.sched_getaffinity(0))[:1], sorted(os.sched_getaffinity(0))[1:]]


def test_cpu_time_and_memory_of_each_release_are_those_of_its_erlang_machine(tmp_path, monkeypatch):
    monkeypatch.delenv("LEVERET_RABBITMQ", raising=False)
    names = compared()
    assert names == [name for name, version in RELEASES.items() if not missing(version)]
    with Servers(tmp_path) as servers:
        systems = [word for name in names for word in ("--system", system(name, servers.rabbitmq(name)))]
        # The script that starts it would have a few MiB and no work.
        expected = ["--expect", "rss>60MiB", "--expect", "cpu>0", "--expect", "cpu_per_message>0"]
        code, out, error = run("bench", "stream", *systems, "--rounds", "1", "--time", "1", *expected, "--json", "-")
        titles = [servers.title(name) for name in names]
    assert code == 0, out + error
    for title, found in zip(titles, json.loads(out)["systems"], strict=True):
        assert found["server"].startswith(f"{title} ")
