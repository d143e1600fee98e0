"""docs/benchmarks/routing: starts RabbitMQ 3.10 and 4 and Leveret's broker, runs the routing study on them, and writes the page
with its tables, plots and data: whether the costs of queues and bindings depend on their own size alone (B2).

    make routing-study           # some 15 minutes; the machine should have nothing else to do
    make routing-study ARGS="--quick --into /tmp/study"
    make routing-study ARGS="--limit 0.6"  # fewer queues beside RabbitMQ: some ten minutes
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from harness.benchmark import Servers, compared, system
from harness.leveret import ROOT, Leveret, binary

KINDS = ["direct", "topic", "headers", "fanout"]
FIGURES = ["create", "publish", "delete"]
ALONE = "--pipelined --base 4 --queues 7 --bindings 10 --combined 10 --messages 1000 --copies 200000 --limit-seconds 60"
BESIDE = "--pipelined --queues 11 --bindings 8 --combined 11 --limit-seconds {limit}"
LIMIT = "1.2"
# Repeated, because the result is the maximum of very many waits.
REPEATS = 3

PAGE = """# Routing at scale

This study measures the cost of creating queues with bindings, of routing a message to all of them, and of deleting them again, when there
are few and when there are a million. `make routing-study` writes this page; `leveret bench routing --help` says what each
option means. The data files beside the plots have a block for each level, as gnuplot reads them.

**The machine**: {machine}, shared by the systems and the load generator. Load average before the first study: {load}.
Figures are to be compared with each other, within one table, and not with those of other machines. Leveret {revision}, {rabbitmq} from Debian, messages of 16 bytes,
transient queues, everything pipelined over one connection.

## Leveret alone, up to a million bindings

    leveret bench routing {alone_flags} --system leveret=amqp://127.0.0.1,pid=PID --output leveret

Bytes per binding are what resident memory grew by during the level; they say nothing where memory of earlier levels was
used again. "Memory of a million bindings" below is measured on a broker of its own for each exchange type.

{alone}

### Against the aims

Figures of the table above, thus of the most queues of each level; the least and the most.

{aims}

{alone_plots}

## Side by side with RabbitMQ

    leveret bench routing {beside_flags} --system leveret=amqp://127.0.0.1,pid=PID \\
        {beside_systems} --output comparison

The systems took turns level by level. A level of a system ends early where its next point would have taken more than
{limit} s, so the rows of the systems of a level are not always for the same number of queues.

{beside}

{beside_plots}

## One queue with many bindings, and many exclusive queues

    leveret bench routing --study deletion --study exclusive --system leveret=amqp://127.0.0.1,pid=PID

The queue is deleted while another connection publishes to the same exchange, one message at a time with confirms. The
aims are no confirm above 50 ms, and 100,000 exclusive queues gone within 2 s. {repeats} runs, one after the other:

{bulk}

The same with RabbitMQ, with `--bulk 3000 --exchange direct --exchange topic` because of the time it takes there:

{bulk_beside}

## Memory of a million bindings

One queue with 1,048,576 bindings on a broker that has just started: what its resident memory grew by, per binding.

{memory}

The aim is 200 bytes. A headers binding of this study brings about 40 bytes of arguments of its own.
"""


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="small numbers, to see that it works")
    arguments.add_argument("--into", type=Path, default=ROOT / "docs" / "benchmarks" / "routing")
    arguments.add_argument("--limit", default=LIMIT, metavar="SECONDS", help="the longest that a point beside RabbitMQ takes")
    options = arguments.parse_args()
    load = " ".join(f"{number:.1f}" for number in os.getloadavg()[:2])
    with tempfile.TemporaryDirectory() as directory, Servers(directory) as servers:
        study = Study(servers, options)
        parts = study.run()
        parts["memory"] = memory_table(servers.directory, options)
    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    page = PAGE.format(
        load=load,
        revision=f"as of revision {revision.strip()}",
        alone_flags=ALONE,
        beside_flags=BESIDE.format(limit=options.limit),
        limit=options.limit,
        repeats=REPEATS,
        **parts,
    )
    (options.into / "README.md").write_text(page)


class Study:
    def __init__(self, servers, options):
        self.directory, self.quick, self.into, self.limit = servers.directory, options.quick, options.into, options.limit
        self.leveret = ["--system", system("leveret", servers.leveret("leveret"))]
        self.releases = compared()
        self.rabbitmq = [word for name in self.releases for word in ("--system", system(name, servers.rabbitmq(name)))]
        self.titles = [servers.title(name) for name in self.releases]

    def run(self):
        flags = BESIDE.format(limit=self.limit).split()
        beside, document = self.bench([*flags, *self.leveret, *self.rabbitmq], "comparison")
        machine = document["machine"]
        alone, measured = self.bench([*ALONE.split(), *self.leveret], "leveret")
        studies = ["--study", "deletion", "--study", "exclusive"]
        bulk = [self.bench([*studies, *self.leveret])[0] for _ in range(REPEATS)]
        few = ["--bulk", "3000", "--exchange", "direct", "--exchange", "topic"]
        bulk_beside, _ = self.bench([*studies, *few, *self.leveret, *self.rabbitmq])
        gibibytes = machine["memory_bytes"] / 2**30
        return {
            "machine": f"{machine['cores']} cores of {machine['cpu']}, {gibibytes:.0f} GiB, {machine['system']}, "
            f"Linux {'.'.join(machine['kernel'].split('.')[:2])}",
            "rabbitmq": " and ".join(self.titles),
            "beside_systems": " ".join(f"--system {name}=amqp://127.0.0.1:{port},pid=PID" for port, name in enumerate(self.releases, 5673)),
            "alone": alone,
            "aims": aims_table(measured),
            "alone_plots": self.plots("leveret"),
            "beside": beside,
            "beside_plots": self.plots("comparison"),
            "bulk": "\n\n".join(bulk),
            "bulk_beside": bulk_beside,
        }

    def bench(self, flags, output=None):
        """The text of a study without its head, and its JSON."""
        written = self.directory / "study.json"
        if self.quick:
            size = ("--base", "--queues", "--bindings", "--combined", "--messages", "--copies", "--limit-seconds", "--bulk")
            flags = [flag for at, flag in enumerate(flags) if flag not in size and (at == 0 or flags[at - 1] not in size)]
            flags.append("--quick")
        flags = [*flags, "--json", str(written)]
        if output:
            shutil.rmtree(self.into / output, ignore_errors=True)
            flags += ["--output", str(self.into / output)]
        done = subprocess.run([str(binary()), "bench", "routing", *flags], check=True, stdout=subprocess.PIPE, text=True)
        tables = "\n".join(line for line in done.stdout.splitlines() if line.startswith(("|", "*", "Micro", "Growth")) or not line)
        return tables.strip(), json.loads(written.read_text())

    def plots(self, output):
        return "\n".join(f"![{kind} exchange, {figure}]({output}/{kind}-{figure}.svg)" for kind in KINDS for figure in FIGURES)


def memory_table(directory, options):
    """Resident memory per binding, with a new broker for each exchange type."""
    rows = ["| exchange | bytes per binding |", "|---|---|"]
    exponent = 10 if options.quick else 20
    for kind in KINDS:
        leveret = Leveret(directory / f"memory-{kind}", "--log", "warn")
        written = directory / "memory.json"
        # Few levels: memory that the next level reuses would be counted twice.
        flags = ["--queues", "0", "--bindings", "2", "--combined", "2", "--base", str(2 ** (exponent // 2)), "--messages", "1"]
        one = ["--exchange", kind, "--pipelined", "--limit-seconds", "3600", "--json", str(written)]
        system = ["--system", f"leveret={leveret.uri},pid={leveret.pid}"]
        try:
            command = [str(binary()), "bench", "routing", *flags, *one, *system]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        finally:
            leveret.stop()
        series = json.loads(written.read_text())["series"]
        grown = sum(max(0, point["rss_bytes"]) for level in series for point in level["points"])
        rows.append(f"| {kind} | {grown / 2**exponent:.0f} |")
    return "\n".join(rows)


def aims_table(document):
    """The minimum and maximum of each figure in microseconds, beside its target."""
    aims = [
        ("under 3 µs per binding made", 3, lambda level, point: point["create_seconds"] / point["created"] / level["bindings"]),
        ("under 3 µs per binding deleted", 3, lambda level, point: point["delete_seconds"] / point["created"] / level["bindings"]),
        (
            "under 12 µs per transient queue (with one binding)",
            12,
            lambda level, point: point["create_seconds"] / point["created"] if level["bindings"] == 1 else None,
        ),
        (
            "under 0.6 µs per message and matched queue above 100 queues",
            0.6,
            lambda level, point: point["publish_seconds"] / point["messages"] / point["queues"] if point["queues"] > 100 else None,
        ),
        (
            "under 3 µs for one match among a million bindings",
            3,
            lambda level, point: point["publish_seconds"] / point["messages"] if level["bindings"] >= 10**6 else None,
        ),
    ]
    rows = [f"| aim | {' | '.join(KINDS)} |", "|---" * (len(KINDS) + 1) + "|"]
    for name, most, cost in aims:
        cells = []
        for kind in KINDS:
            levels = [level for level in document["series"] if level["exchange"] == kind and level["points"]]
            costs = [cost(level, level["points"][-1]) for level in levels]
            costs = [value * 1e6 for value in costs if value is not None]
            cells.append(verdict(costs, most))
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def verdict(costs, most):
    if not costs:
        return "not measured"
    word = "met" if max(costs) < most else "missed"
    return f"{word}: {min(costs):.2g} to {max(costs):.2g}" if len(costs) > 1 else f"{word}: {costs[0]:.2g}"


if __name__ == "__main__":
    main()
