"""`make soak` reports what ran, what failed and how to reproduce it, however it ends. Shown with stand-ins for its parts."""

import itertools
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import types

import pytest

from harness.leveret import ROOT
from harness.patience import PATIENCE

sys.path.insert(0, str(ROOT / "tests"))
import soak

# Longer than any of these tests, and short enough to be interrupted.
LONG, SHORT = 3600, 0.5
# A batch during which Ctrl-C is pressed.
INTERRUPTING = "kill -INT $PPID; exec setpriv --pdeathsig KILL sleep infinity"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A stopped clock: only a batch that never ends uses up a share."""
    monkeypatch.setattr(soak, "time", types.SimpleNamespace(monotonic=lambda: 0.0, strftime=time.strftime))


def part(name, *scripts, **options):
    def batches(seed):
        for number, script in enumerate(scripts, seed):
            yield soak.Batch(["sh", "-c", script], f"again {number}", str(number))

    return soak.Part(name, options.pop("builds", []), batches, **options)


def outcome(directory, parts, seconds=LONG):
    """The exit code and the report."""
    code = soak.soak(parts, seconds, 7, directory)
    return code, (directory / "report.md").read_text()


def test_passed_runs_are_counted_with_their_seeds(tmp_path, capsys):
    code, report = outcome(tmp_path, [part("one", "true", "true", "true"), part("two", "true")])
    assert code == 0
    assert "| one | 0 | 3 | 0 | 0 | 7 … 9 |" in report and "| two | 0 | 1 | 0 | 0 | 7 |" in report
    assert report in capsys.readouterr().out


def test_a_failure_is_reported_with_its_command_and_other_parts_continue(tmp_path):
    code, report = outcome(tmp_path, [part("one", "true", "echo broken here; exit 3", "true"), part("two", "true")])
    assert code == 1
    assert "| one | 0 | 2 | 1 | 0 | 7 … 9 |" in report and "| two | 0 | 1 | 0 | 0 | 7 |" in report
    assert "exit code 3" in report and "Again: `again 8`" in report and "broken here" in report


def test_a_part_over_its_time_share_is_cut_off_and_not_failed(tmp_path):
    code, report = outcome(tmp_path, [part("one", "exec sleep infinity"), part("two", "exec sleep infinity")], SHORT)
    assert code == 0
    assert report.count("| 0 | 0 | 0 | 1 | 7 |") == 2


def test_a_part_that_is_cut_off_gets_sigint_even_if_the_soak_ignores_it(tmp_path):
    ends = f"trap 'touch {tmp_path}/in-order; exit 1' INT; while :; do sleep 0.05; done"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        outcome(tmp_path, [part("one", ends)], SHORT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "in-order").exists()


def test_a_batch_that_hangs_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "BATCH_SECONDS", SHORT)
    code, report = outcome(tmp_path, [part("one", "exec sleep infinity", "true")])
    assert code == 1
    assert "had not ended" in report and "Again: `again 7`" in report


def test_a_part_that_cannot_run_is_reported_as_left_out(tmp_path):
    code, report = outcome(tmp_path, [part("one", "true", missing=lambda: "no fuzzer"), part("two", "true")])
    assert code == 0
    assert "one is left out: no fuzzer" in report and "| one | 0 | 0 | 0 | 0 |  |" in report


def test_a_part_that_cannot_be_built_has_failed(tmp_path):
    code, report = outcome(tmp_path, [part("one", "true", builds=[["sh", "-c", "echo no compiler; exit 1"]])])
    assert code == 1
    assert "it is not built" in report and "no compiler" in report


@pytest.mark.parametrize("first, code", [("true", 130), ("false", 1)])
def test_it_reports_when_it_is_interrupted(tmp_path, first, code):
    script = f"""
import signal
import sys
sys.path[:0] = [{str(ROOT / "tests")!r}]
import soak
batches = [soak.Batch(["sh", "-c", word], "again " + word) for word in ({first!r}, {INTERRUPTING!r})]
# As in a terminal, whatever started the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(soak.soak([soak.Part("one", [], lambda _: iter(batches))], {LONG}, 7, soak.Path({str(tmp_path)!r})))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("| 1 | 0 | 1 |" if first == "true" else "| 0 | 1 | 1 |") in done.stdout
    assert (tmp_path / "report.md").read_text() in done.stdout


def test_every_part_begins_where_its_seed_says_and_goes_on():
    for part in soak.parts():
        first, again, later = (
            [(batch.again, batch.seeds, batch.environment) for batch in itertools.islice(part.batches(seed), 4)]
            for seed in (5, 5, 50_000)
        )
        assert first == again
        if part.name in ("hostile", "cluster"):
            assert first == later and all(seeds == "none" for _, seeds, _ in first)
            continue
        # No two batches have the same seed, within a run or across runs, and the reproducing command names the seed.
        assert all(first.count(batch) == 1 and batch not in later for batch in first), part.name
        assert all(seeds.split()[0] in command for command, seeds, _ in first), part.name


def test_the_command_to_repeat_spool_kills_has_their_seed():
    _, kills = itertools.islice(next(part for part in soak.parts() if part.name == "spool").batches(5), 2)
    make = subprocess.run([*shlex.split(kills.again), "--dry-run"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert all(f"{name}={value} " in make.stdout for name, value in kills.environment.items()), make.stdout + make.stderr
    assert kills.environment["LEVERET_SPOOL_SEED"] == "5"


def test_every_parser_is_fuzzed():
    named = [
        (manifest.parents[1].name, target["name"])
        for manifest in sorted(ROOT.glob("crates/*/fuzz/Cargo.toml"))
        for target in tomllib.loads(manifest.read_text())["bin"]
    ]
    assert sorted(soak.fuzz_targets()) == sorted(named) and named
