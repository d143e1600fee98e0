"""How long threads wait for each lock and hold it, with 64 connections on 16 queues and on one queue. Needs an instrumented build.

    make lock-profile                              # some two minutes, once it is built
    make lock-profile ARGS="--seconds 10"

The tables of docs/scaling.md go to standard output. 32 connections publish and 32 consume, as fast as they go. Times are in nanoseconds
for each message that was consumed; the last table tells whose CPU time a message takes.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from harness.benchmark import bench, system, table
from harness.exposition import scrape
from harness.leveret import Leveret

WORKLOADS = {
    "transient, 16 bytes, automatic acks": ["--size", "16", "--auto-ack"],
    "transient, 16 bytes, 100 confirms in flight, acks, prefetch 100": ["--size", "16", "--confirms", "100", "--prefetch", "100"],
    "durable, 1 KiB, 100 confirms in flight, acks, prefetch 100": [
        *["--size", "1024", "--persistent", "--confirms", "100", "--prefetch", "100"],
    ],
}
QUEUES = (16, 1)
CONNECTIONS = ["--producers", "32", "--consumers", "32"]
FIGURES = ("acquisitions", "contended", "waited_nanoseconds", "held_nanoseconds")
# Locks held for fewer nanoseconds per message are left out of the table.
NEGLIGIBLE = 1
# Thread names, and their names in the table.
THREADS = {"leveret": "sessions", "journal": "the journal's thread"}
OTHERS = "other threads"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5, help="how long each workload is measured")
    options = parser.parse_args()
    times = []
    for title, flags in WORKLOADS.items():
        runs = [run(flags, queues, options.seconds) for queues in QUEUES]
        print(f"{title}:\n\n{locks(runs)}\n", flush=True)
        times += [[title, str(queues), *cells(each)] for queues, each in zip(QUEUES, runs, strict=True)]
    names = [*THREADS.values(), OTHERS]
    print(table(["workload", "queues", "consumed", *(f"CPU of {name}, a message" for name in names)], times))
    busy = os.getloadavg()[0]
    print(f"load average at the end: {busy:.1f} on {os.cpu_count()} cores", file=sys.stderr)


class Run:
    """For each lock by name, its times per message, and the CPU time of each thread per message, in nanoseconds."""

    def __init__(self, messages, seconds, before, after, cpu):
        self.rate = messages / seconds
        self.locks = {
            name: [(now - then) / messages for now, then in zip(figures, before.get(name, NONE), strict=True)] for name, figures in after.items()
        }
        self.cpu = {name: nanoseconds / messages for name, nanoseconds in cpu.items()}


NONE = (0,) * len(FIGURES)


def run(flags, queues, seconds):
    with tempfile.TemporaryDirectory() as directory:
        server = Leveret(Path(directory), "--log", "warn")
        try:
            before, cpu_before = measured(server), cpu_of(server.pid)
            words = [*CONNECTIONS, "--queues", str(queues), *flags, "--rounds", "1", "--time", str(seconds), "--warmup", "0"]
            _, report = bench("stream", [system("leveret", server)], *words)
            after, cpu_after = measured(server), cpu_of(server.pid)
        finally:
            server.stop()
    [[found]] = [each["rounds"] for each in report["systems"]]
    cpu = {name: cpu_after[name] - cpu_before.get(name, 0) for name in cpu_after}
    return Run(after.messages - before.messages, found["seconds"], before.locks, after.locks, cpu)


class Measured:
    def __init__(self, text):
        self.messages = text.value("leveret_broker_messages_delivered_total")
        self.locks = {}
        for at, figure in enumerate(FIGURES):
            for labels, value in text.families[f"leveret_lock_{figure}_total"]:
                self.locks.setdefault((labels["rank"], labels["contents"]), [0] * len(FIGURES))[at] = value


def measured(server):
    return Measured(scrape(server.http + "/metrics"))


def cpu_of(pid):
    """CPU time in nanoseconds by thread name (proc(5), /proc/PID/schedstat)."""
    taken = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = THREADS.get((task / "comm").read_text().strip(), OTHERS)
        taken[name] = taken.get(name, 0) + int((task / "schedstat").read_text().split()[0])
    return taken


def locks(runs):
    names = {name for run in runs for name, figures in run.locks.items() if figures[2] + figures[3] >= NEGLIGIBLE}
    rows = []
    for name in sorted(names, key=lambda name: -max(run.locks.get(name, NONE)[2] for run in runs)):
        cells = []
        for run in runs:
            taken, contended, waited, held = run.locks.get(name, NONE)
            share = 100 * contended / taken if taken else 0
            cells += [f"{taken:.2f}", f"{share:.2f} %", f"{waited:.1f}", f"{held:.0f}"]
        rows.append([f"`{short(name)}`", *cells])
    columns = ["taken", "had to wait", "waited, ns", "held, ns"]
    return table(["lock", *(f"{column}, {plural(queues)}" for queues in QUEUES for column in columns)], rows)


def plural(queues):
    return "1 queue" if queues == 1 else f"{queues} queues"


def short(name):
    """The rank; if several locks share it, the type of the protected value."""
    rank, contents = name
    return rank if rank not in ("Leaf", "TopologyOrQueue") else f"{rank}: {contents.split('<')[0].rpartition('::')[2]}"


def cells(run):
    return [f"{run.rate:,.0f}/s", *(f"{run.cpu.get(name, 0) / 1000:.2f} µs" for name in [*THREADS.values(), OTHERS])]


if __name__ == "__main__":
    sys.exit(main())
