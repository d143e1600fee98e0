"""Searches for rare faults for a given time: with new seeds, it runs fuzzers, random programs, generated requests, power failures and
spools under kill -9; without seeds, hostile clients and a cluster that loses its nodes. Each part gets a share of the time. A report says what ran and which command repeats a failure; Ctrl-C ends it early.

    make soak [MINUTES=60] [PARTS=crash,cluster] [SOAK_SEED=7]
"""

import argparse
import itertools
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator

from harness.leveret import ROOT
from harness.patience import TEST_SECONDS
from harness.releases import RELEASES

DIRECTORY = ROOT / "target" / "soak"
# Each batch takes less than a minute on two cores; hostile clients and the cluster take minutes.
CRASH_SEEDS = 2000
SPOOL_SEEDS = 50
SPOOL_KILLS = 2
PROGRAMS, TIMED_PROGRAMS = 300, 60
HOSTILE_CLIENTS = 3000
EXAMPLES = 15
FUZZ_SECONDS = 20
# A batch that takes longer hangs.
BATCH_SECONDS = 2 * TEST_SECONDS
# Seconds for an interrupted batch to stop its servers.
END_SECONDS = 60


@dataclass
class Batch:
    """A program with its seed. `again` is the command that repeats it from the root of the repository."""

    argv: list
    again: str
    seeds: str = "none"
    environment: dict = field(default_factory=dict)
    directory: Path = ROOT


@dataclass
class Part:
    name: str
    # Builds that run first and do not count against the part's time.
    builds: list
    batches: Callable[[int], Iterator[Batch]]
    # Returns why the part cannot run here.
    missing: Callable[[], str | None] = lambda: None


@dataclass
class Outcome:
    """The outcome of a part."""

    part: Part
    seconds: float = 0.0
    passed: int = 0
    cut_off: int = 0
    seeds: list = field(default_factory=list)
    failures: list = field(default_factory=list)
    left_out: str | None = None


STORE = ["--package", "store", "--test", "store_crash", "--test", "journal_crash"]
PAGES = ["--package", "store", "--lib"]
SPOOL = ["--package", "server", "--lib"]


def crash(seed):
    for batches in zip(simulated(STORE, [], seed, CRASH_SEEDS), simulated(PAGES, ["pages::tests::crash"], seed, CRASH_SEEDS)):
        yield from batches


def spool(seed):
    """On simulated disks, and with real kills, as in `make spool`."""
    argv = [sys.executable, "-m", "pytest", "-x", "-rP", "blackbox/spool_kills.py"]
    kills = itertools.count(seed, SPOOL_KILLS)
    for batch, first in zip(simulated(SPOOL, ["spool::tests::crashes"], seed, SPOOL_SEEDS), kills):
        yield batch
        environment = {"LEVERET_SPOOL_ROUNDS": str(SPOOL_KILLS), "LEVERET_SPOOL_SEED": str(first)}
        again = f"make spool KILLS={SPOOL_KILLS} SEED={first}"
        yield Batch(argv, again, f"{first} to {first + SPOOL_KILLS - 1}", environment, ROOT / "tests")


def simulated(tests, filters, seed, seeds):
    """A test that simulates power failures, kills and failing disks for each seed."""
    argv = ["cargo", "test", "--release", *tests, "--locked", "--quiet", "--", "--nocapture", *filters]
    for first in itertools.count(seed, seeds):
        settings = {"LEVERET_CRASH_FIRST": str(first), "LEVERET_CRASH_SEEDS": str(seeds)}
        yield Batch(argv, shell(argv, settings), f"{first} to {first + seeds - 1}", settings)


def differential(seed):
    for number in itertools.count(seed):
        for release in RELEASES:
            counts = ["--programs", PROGRAMS, "--timed", TIMED_PROGRAMS, "--seed", number, "--failures", 1]
            again = f"make differential RELEASES={release} PROGRAMS={PROGRAMS} TIMED={TIMED_PROGRAMS} SEED={number}"
            yield Batch([sys.executable, "tests/differential/run.py", "--release", release, *counts], again, str(number))


def scenarios(target, file, settings):
    """Repeats the same test, whose timing differs each time."""
    argv = [sys.executable, "-m", "pytest", "-x", "-rP", file]
    while True:
        again = " ".join(["make", target, *(f"{key}={value}" for key, value in settings.items())])
        environment = {{"ROUNDS": "LEVERET_CLUSTER_ROUNDS", "HOSTILE": "LEVERET_HOSTILE"}[key]: str(value) for key, value in settings.items()}
        yield Batch(argv, again, environment=environment, directory=ROOT / "tests")


def openapi(seed):
    argv = [sys.executable, "-m", "pytest", "-x", "blackbox/http_openapi.py", "-k", "as_described"]
    for number in itertools.count(seed):
        environment = {"LEVERET_OPENAPI_EXAMPLES": str(EXAMPLES), "LEVERET_OPENAPI_SEED": str(number)}
        again = f"make openapi EXAMPLES={EXAMPLES} SEED={number}"
        yield Batch(argv, again, str(number), environment, ROOT / "tests")


def fuzz(seed):
    """Runs each target of each crate in turn on the corpus of earlier rounds; the seed selects the first one, because a
    short run does not reach all."""
    targets = fuzz_targets()
    start = seed % len(targets)
    for number in itertools.count(seed % 2**31 + 1):
        for crate, target in targets[start:] + targets[:start]:
            found, broken = (DIRECTORY / "fuzz" / kind / crate / target for kind in ("corpus", "broken"))
            for directory in (found, broken):
                directory.mkdir(parents=True, exist_ok=True)
            run = [*FUZZ, "run", "--fuzz-dir", f"crates/{crate}/fuzz", target]
            limits = [f"-seed={number}", f"-max_total_time={FUZZ_SECONDS}", f"-artifact_prefix={broken}/"]
            # A failing input is a file in that directory.
            yield Batch([*run, found, "--", *limits], f"{shell(run)} {broken.relative_to(ROOT)}/*", f"{crate}/{target} {number}")


FUZZ = ["cargo", "+nightly", "fuzz"]


def fuzz_targets():
    return [(file.parents[2].name, file.stem) for file in sorted(ROOT.glob("crates/*/fuzz/fuzz_targets/*.rs"))]


def without_fuzzer():
    done = subprocess.run([*FUZZ, "--version"], cwd=ROOT, capture_output=True, text=True)
    return f"{shell(FUZZ)}: {(done.stderr.strip().splitlines() or ['it fails'])[-1]}" if done.returncode else None


def parts():
    fuzzers = [[*FUZZ, "build", "--fuzz-dir", f"crates/{crate}/fuzz"] for crate in sorted({crate for crate, _ in fuzz_targets()})]
    built = lambda tests: ["cargo", "test", "--release", *tests, "--no-run", "--locked", "--quiet"]
    return [
        Part("fuzz", fuzzers, fuzz, without_fuzzer),
        Part("crash", [built(STORE), built(PAGES)], crash),
        Part("spool", [built(SPOOL)], spool),
        Part("differential", [["make", "--directory", str(ROOT), "differential-program"]], differential),
        Part("openapi", [], openapi),
        Part("hostile", [], lambda _: scenarios("hostile", "blackbox/hostile_clients.py", {"HOSTILE": HOSTILE_CLIENTS})),
        Part("cluster", [], lambda _: scenarios("cluster", "blackbox/cluster.py", {"ROUNDS": 1})),
    ]


def shell(argv, environment=None):
    words = [f"{key}={value}" for key, value in (environment or {}).items()]
    return " ".join([*words, *(shlex.quote(str(word)) for word in argv)])


class Soak:
    def __init__(self, chosen, seed, directory=DIRECTORY):
        self.seed = seed
        self.directory = directory
        self.outcomes = [Outcome(part) for part in chosen]
        self.logs = itertools.count(1)

    def run(self, seconds):
        """Runs each part for its share; later parts get what earlier ones leave over."""
        self.directory.mkdir(parents=True, exist_ok=True)
        ready = [outcome for outcome in self.outcomes if self.prepare(outcome)]
        left = seconds
        for position, outcome in enumerate(ready):
            self.soak(outcome, left / (len(ready) - position))
            left -= outcome.seconds

    def prepare(self, outcome):
        outcome.left_out = outcome.part.missing()
        for argv in outcome.part.builds if outcome.left_out is None else []:
            log = self.log(outcome)
            if self.end_of(Batch(argv, shell(argv), "build"), log, float("inf")) != 0:
                self.failed(outcome, shell(argv), log, "it is not built")
                return False
        return outcome.left_out is None

    def soak(self, outcome, share):
        began = time.monotonic()
        for batch in outcome.part.batches(self.seed):
            limit = share - (time.monotonic() - began)
            if limit <= 0:
                break
            outcome.seeds.append(batch.seeds)
            log = self.log(outcome)
            before = time.monotonic()
            try:
                code = self.end_of(batch, log, min(limit, BATCH_SECONDS))
            except KeyboardInterrupt:
                outcome.cut_off += 1
                raise
            finally:
                outcome.seconds = time.monotonic() - began
            if code == 0:
                outcome.passed += 1
                log.unlink()
            elif code is not None:
                self.failed(outcome, batch.again, log, f"exit code {code}")
            elif limit > BATCH_SECONDS:
                self.failed(outcome, batch.again, log, f"it had not ended after {time.monotonic() - before:.0f} s")
            else:
                outcome.cut_off += 1

    def log(self, outcome):
        return self.directory / f"{outcome.part.name}-{next(self.logs)}.log"

    def failed(self, outcome, again, log, how):
        outcome.failures.append((again, log, how))
        print(f"{outcome.part.name} failed: {how}; again: {again}", flush=True)

    def end_of(self, batch, log, seconds):
        """The exit code of a batch; `None` if it was interrupted."""
        print(f"{time.strftime('%H:%M:%S')} {log.stem}: {batch.seeds}", flush=True)
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(word) for word in batch.argv],
                cwd=batch.directory,
                env=os.environ | batch.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C goes to this process, which then ends the batch.
                start_new_session=True,
                # A background process inherits SIGINT as ignored, and so would the batch.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            try:
                return process.wait(None if seconds == float("inf") else seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                end(process)

    def report(self):
        lines = [f"# Soak, {time.strftime('%Y-%m-%d %H:%M:%S')}, seed {self.seed}", ""]
        lines += ["| part | s | batches passed | failed | cut off | seeds |", "|---|--:|--:|--:|--:|---|"]
        for outcome in self.outcomes:
            counts = f"{outcome.seconds:.0f} | {outcome.passed} | {len(outcome.failures)} | {outcome.cut_off}"
            lines.append(f"| {outcome.part.name} | {counts} | {ends(outcome.seeds)} |")
        lines += [f"\n{outcome.part.name} is left out: {outcome.left_out}" for outcome in self.outcomes if outcome.left_out]
        for outcome in self.outcomes:
            for again, log, how in outcome.failures:
                last = "\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-30:])
                lines.append(f"\n## {outcome.part.name} failed: {how}\n\nAgain: `{again}`\n\nThe end of {log}:\n\n{last}")
        text = "\n".join(lines) + "\n"
        (self.directory / "report.md").write_text(text)
        return text


def ends(seeds):
    return " … ".join(dict.fromkeys([*seeds[:1], *seeds[-1:]]))


def end(process):
    """Graceful first, so that the batch can stop its servers."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def soak(chosen, seconds, seed, directory=DIRECTORY):
    """Returns the exit code: 1 if anything failed, else 130 if it was interrupted, else 0."""
    run = Soak(chosen, seed, directory)
    interrupted = False
    try:
        run.run(seconds)
    except KeyboardInterrupt:
        interrupted = True
    print(run.report(), end="", flush=True)
    return 1 if any(outcome.failures for outcome in run.outcomes) else 130 if interrupted else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {part.name: part for part in parts()}
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--parts", default=",".join(known), help="by commas")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="where the parts begin; a new one by default")
    options = parser.parse_args()
    names = options.parts.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    sys.exit(soak([known[name] for name in names], options.minutes * 60, options.seed))


if __name__ == "__main__":
    main()
