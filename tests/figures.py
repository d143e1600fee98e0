"""The figures of docs/benchmarks.md: starts RabbitMQ 3.10 and 4, Leveret's broker and Leveret in front of each RabbitMQ, each on
ports and in directories of its own, and lets `leveret bench` compare them, round by round, in one run.

    make figures                          # everything, about 15 minutes
    make figures ARGS="--quick"           # to see that it works
    make figures ARGS="--only durable"    # rows with this in their title, which begins with the section's title
    make figures ARGS="--pinned"          # each server on one core, the generator on the others: shows which of them is the bottleneck
    make figures ARGS="--beside /tmp/old" # against an older build alone: no rate and no CPU time may be worse than by 3%

The tables of the page go to standard output, what `leveret bench` prints to standard error. Directories are temporary: TMPDIR names
another disk. The exit code is 1 when something that is asked for is not reached.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.benchmark import (
    UNKNOWN,
    Servers,
    bench,
    compared,
    median,
    microseconds,
    milliseconds,
    per_second,
    ratio,
    ratio_titles,
    system,
    table,
)
from harness.child import Child
from harness.leveret import binary

# By section: the flags of `leveret bench stream` for each row.
THROUGHPUT = "throughput"
WORKLOADS = {
    "16 bytes, 1:1, automatic acks": ["--size", "16", "--auto-ack"],
    "1 KiB, 1:1, automatic acks": ["--size", "1024", "--auto-ack"],
    "16 bytes, 100 confirms in flight, manual acks, prefetch 100": ["--size", "16", "--confirms", "100", "--prefetch", "100"],
    "16 bytes, 10 producers, 10 consumers, 10 queues, automatic acks": [
        *["--size", "16", "--auto-ack", "--producers", "10", "--consumers", "10", "--queues", "10"],
    ],
}
PROXY = "through the proxy"
PROXIED = {title: WORKLOADS[title] for title in ("16 bytes, 1:1, automatic acks", "1 KiB, 1:1, automatic acks")}
NEARLY_DIRECT = 0.85
DURABLE = "durable"
PERSISTENT = ["--size", "1024", "--persistent"]
MANY = "10 producers with 1,000 confirms in flight, 10 consumers that ack, one queue: end to end"
ONE = "one producer that waits for each confirm"
DURABLES = {
    MANY: [*PERSISTENT, "--producers", "10", "--consumers", "10", "--confirms", "1000"],
    # For comparison, a loop of write and fdatasync in this directory.
    ONE: [*PERSISTENT, "--consumers", "0", "--confirms", "1", "--disk", "{directory}"],
}
# Compared with RabbitMQ 3.10.
EXPECTED = {MANY: "ratio(leveret/rabbitmq)>=10", ONE: "ratio(leveret/disk)>=0.8"}
# The minimum rate of a changed build, and the inverse of its maximum CPU time per message, relative to the build without the
# change.
NOT_SLOWER = 0.97
NOT_DEARER = 1.03
# Bytes written to the disk per byte of a message, by how messages are published and consumed.
WRITTEN = "durable: bytes written to the disk for each byte of a persistent 1 KiB message"
FATES = {
    "acked soon, 50,000/s": ["--producers", "10", "--consumers", "10", "--confirms", "1000", "--rate", "5000"],
    "nobody consumes, 10 producers with 1,000 confirms": ["--producers", "10", "--consumers", "0", "--confirms", "1000"],
}
# The proxy has a core of its own; the sink that takes everything, RabbitMQ and the generator share the others.
ONE_CORE = "on one core"
TO_SINK = "messages of 16 bytes through the pool to a sink"
CONNECTIONS = "connections opened, logged in and closed"
WORKERS = [16, 64]
# CPU time of the proxy alone, by its upstream.
COSTS = "what a message costs"
FLAGS = ["--consumers 0", "--auto-ack", "--prefetch 200", "--consumers 0 --confirms 1000"]


def main():
    options = arguments()
    generator = apart() if options.pinned else ()
    with tempfile.TemporaryDirectory() as directory, Servers(directory) as servers:
        if options.beside:
            return 0 if beside(servers, options, generator) else 1
        figures = Figures(servers, options, generator)
        sections = [figures.throughput, figures.proxy, figures.durable]
        # The other sections pin servers themselves, or do not measure anything that the generator could limit.
        sections += [] if options.pinned else [figures.written, figures.one_core, figures.costs]
        for section in sections:
            section()
    return 0 if figures.met else 1


def arguments():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="two rounds of a second each")
    arguments.add_argument("--rounds", default="5")
    arguments.add_argument("--time", default="4", help="seconds a round")
    arguments.add_argument("--beside", type=Path, metavar="BIN", help="compare with this older build only")
    apart = "servers on one core, and the generator on the others"
    arguments.add_argument("--pinned", action="store_true", help=apart)
    arguments.add_argument("--only", default="", metavar="TEXT", help="rows with this in their section's title or their own")
    return arguments.parse_args()


class Figures:
    """The sections of the page. `met` is whether all expectations were met so far. `generator` are the generator's cores, if
    it has its own."""

    def __init__(self, servers, options, generator=()):
        self.servers, self.options, self.generator = servers, options, generator
        self.releases = compared()
        self.met = True

    def throughput(self):
        self.brokers(THROUGHPUT, "workload, median end-to-end rate", WORKLOADS)

    def durable(self):
        reports = self.brokers(DURABLE, "workload", DURABLES)
        if MANY in reports:
            self.kept_up(reports[MANY])
        if ONE in reports:
            ours, disk = (median(reports[ONE], name, "rate") for name in ("leveret", "disk"))
            print(
                f"The plain loop: {per_second(disk)}, {microseconds(1 / disk)} µs each; Leveret has {ratio(ours, disk)} of it.\n",
                flush=True,
            )

    def kept_up(self, report):
        """Whether consumers keep up with publishers when both run at full speed."""
        rows = []
        for name in self.names():
            published, consumed = (median(report, name, metric) for metric in ("publish", "rate"))
            share = f"{100 * consumed / published:.0f} %" if published and consumed else UNKNOWN
            latencies = [milliseconds(median(report, name, metric)) for metric in ("p50", "p99")]
            rows.append([self.servers.title(name), per_second(published), per_second(consumed), share, *latencies])
        header = ["the first of these, by system", "published", "consumed", "share", "p50 end to end", "p99 end to end"]
        print(table(header, rows) + "\n", flush=True)

    def brokers(self, section, corner, workloads):
        """Leveret's broker beside each RabbitMQ: prints the table, and returns the reports by workload."""
        rows, reports = [], {}
        for title, flags in self.wanted(section, workloads):
            systems = [system(name, self.broker(name)) for name in self.names()]
            # The expectations are for servers that may use all cores.
            expected = None if self.generator else EXPECTED.get(title)
            # Drop expectations about releases that are left out.
            if expected and "/rabbitmq)" in expected and "rabbitmq" not in self.releases:
                expected = None
            reports[title] = self.stream(f"{section}: {title}", systems, flags, expected)
            rows.append(self.row(title, reports[title], "rate", per_second))
            if title == ONE:
                in_microseconds = lambda seconds: f"{microseconds(seconds)} µs"
                row = self.row("the same, median time of one confirm", reports[title], "confirm.p50", in_microseconds)
                # The rate's ratio is in the row above; the CPU time has the same ratio.
                rows.append(row[: len(self.names()) + 1] + [""] * (len(self.releases) + 1))
        if rows:
            titles = [self.servers.title(name) for name in self.names()]
            ratios = ratio_titles(titles[1:])
            print(table([corner, *titles, *ratios, "CPU per message"], rows) + "\n", flush=True)
        return reports

    def row(self, title, report, metric, show):
        ours, *theirs = values = [median(report, name, metric) for name in self.names()]
        cpu = " / ".join(microseconds(median(report, name, "cpu_per_message")) for name in self.names())
        return [title, *map(show, values), *(ratio(ours, each) for each in theirs), f"{cpu} µs"]

    def proxy(self):
        """Each RabbitMQ directly and through Leveret, all in turn."""
        rows = []
        for title, flags in self.wanted(PROXY, PROXIED):
            systems, expected = [], []
            for name in self.releases:
                server, pool = self.broker(name), self.pool(name)
                systems += [system(f"direct-{name}", server), system(f"proxy-{name}", pool, server)]
                if not self.generator:
                    expected.append(f"ratio(proxy-{name}/direct-{name})>={NEARLY_DIRECT}")
            report = self.stream(f"{PROXY}: {title}", systems, flags, *expected)
            for name in self.releases:
                pair = (f"direct-{name}", f"proxy-{name}")
                direct, proxy = (median(report, each, "rate") for each in pair)
                cpu = " / ".join(microseconds(median(report, each, "cpu_per_message")) for each in pair)
                cells = [per_second(direct), per_second(proxy), ratio(proxy, direct), f"{cpu} µs"]
                rows.append([title, self.servers.title(name), *cells])
        if rows:
            header = ["through the proxy, median end-to-end rate", "behind it", "RabbitMQ alone", "through Leveret", "ratio"]
            print(table([*header, "CPU per message"], rows) + "\n", flush=True)

    def written(self):
        if self.options.only not in WRITTEN:
            return
        heading(WRITTEN)
        measure = lambda name, flags: written(self.servers.directory, system(name, self.broker(name)), flags, self.options)
        rows = [[title, *(f"{measure(name, flags):.2f}" for name in self.names())] for title, flags in FATES.items()]
        titles = [self.servers.title(name) for name in self.names()]
        print(table(["workload", *titles], rows) + "\n", flush=True)

    def one_core(self):
        rows = []
        first, *others = sorted(os.sched_getaffinity(0))
        if not others:
            print(f"{ONE_CORE}: left out: there is one core only", file=sys.stderr)
            return
        for title, _ in self.wanted(ONE_CORE, {CONNECTIONS: None, TO_SINK: None}):
            heading(f"{ONE_CORE}: {title}")
            rows += self.connections(first, others) if title == CONNECTIONS else self.to_sink(first, others)
        if rows:
            header = ["on one core", "behind it", "", "CPU of the pool for each"]
            print(table(header, rows) + "\n", flush=True)

    def connections(self, first, others):
        """Each RabbitMQ behind its own pool; an unused pool takes no CPU time."""
        pools = {}
        for name in self.releases:
            confine(self.broker(name).pid, others)
            pools[name] = self.servers.pool(f"confined-{name}", self.broker(name), "--worker-threads", "1")
            confine(pools[name].pid, [first])
        words = ["--kind", "connection", "--workers", ",".join(map(str, WORKERS)), "--expect", "rate>20k", *self.length()]
        systems = [system(name, pool) for name, pool in pools.items()]
        met, report = bench("churn", systems, *words, wrapper=on_cores(others))
        self.met &= met
        for name in self.releases:
            confine(self.broker(name).pid, [first, *others])
        found = {(cell["at"], cell["system"]): {each["metric"]: each["median"] for each in cell["figures"]} for cell in report["cells"]}
        return [
            [
                f"{CONNECTIONS}, every answer awaited, {workers} at a time",
                self.servers.title(name),
                per_second(found[workers, name]["rate"]),
                f"{microseconds(found[workers, name]['cpu_per_message'])} µs",
            ]
            for workers in WORKERS
            for name in self.releases
        ]

    def to_sink(self, first, others):
        sink = Child([*on_cores(others), binary(), "bench", "sink"], self.servers.directory / "sink.log")
        try:
            port = int(sink.wait_line(r"^sink  listening on amqp://127\.0\.0\.1:(\d+)$").group(1))
            proxy = self.servers.pool("confined", port, "--worker-threads", "1")
            confine(proxy.pid, [first])
            words = ["--size", "16", "--consumers", "0", "--expect", "publish>2M", *self.length()]
            met, report = bench("stream", [system("proxy", proxy)], *words, wrapper=on_cores(others))
        finally:
            sink.kill()
        self.met &= met
        cpu = microseconds(median(report, "proxy", "cpu_per_message"))
        return [[TO_SINK, "a sink", per_second(median(report, "proxy", "publish")), f"{cpu} µs"]]

    def costs(self):
        """Each broker behind its own proxy; only the proxy's CPU time counts."""
        rows = []
        for title, flags in self.wanted(COSTS, {flags: ["--size", "16", *flags.split()] for flags in FLAGS}):
            systems = [system(name, self.pool(name)) for name in self.names()]
            report = self.stream(f"{COSTS}: {title}", systems, flags)
            costs = [microseconds(median(report, name, "cpu_per_message")) for name in self.names()]
            rows.append([f"`{title}`", *(f"{cost} µs" for cost in costs)])
        if rows:
            behind = ["behind it Leveret's broker", *(f"behind it {self.servers.title(name)}" for name in self.releases)]
            print(table(["flags", *behind], rows) + "\n", flush=True)

    def stream(self, title, systems, flags, *expected):
        heading(title)
        flags = [flag.format(directory=self.servers.directory) for flag in flags]
        flags += [word for condition in expected if condition for word in ("--expect", condition)]
        wrapper = on_cores(self.generator) if self.generator else ()
        met, report = bench("stream", systems, *flags, *self.length(), wrapper=wrapper)
        self.met &= met
        return report

    def names(self):
        return ["leveret", *self.releases]

    def broker(self, name):
        return self.servers.leveret(name) if name == "leveret" else self.servers.rabbitmq(name)

    def pool(self, name):
        return self.servers.pool(f"pool-{name}", self.broker(name))

    def wanted(self, section, rows):
        return [(title, flags) for title, flags in rows.items() if self.options.only in f"{section}: {title}"]

    def length(self):
        return length(self.options)


def heading(title):
    print(f"\n## {title}\n", file=sys.stderr, flush=True)


def length(options):
    return ["--quick"] if options.quick else ["--rounds", options.rounds, "--time", options.time]


def beside(servers, options, generator):
    """Compares the broker and proxy of this build with those of an older build."""
    figures = Figures(servers, options, generator)
    for section, rows in {THROUGHPUT: WORKLOADS, PROXY: PROXIED, DURABLE: DURABLES}.items():
        if section == PROXY and not figures.releases:
            # There is no RabbitMQ to put the proxy in front of.
            continue
        for title, flags in figures.wanted(section, rows):
            program = {"program": options.beside.resolve()}
            if section == PROXY:
                upstream = figures.releases[-1]
                behind = [figures.broker(upstream)]
                ours, older = figures.pool(upstream), servers.pool("pool-before", *behind, **program)
            else:
                behind = []
                ours, older = figures.broker("leveret"), servers.leveret("before", **program)
            systems = [system("leveret", ours, *behind), system("before", older, *behind)]
            expected = [f"ratio(leveret/before)>={NOT_SLOWER}", f"ratio(leveret/before, cpu_per_message)<={NOT_DEARER}"]
            figures.stream(f"{section}: {title}", systems, flags, *expected)
    return figures.met


def apart():
    """Pins this process to the first core, so that the servers it starts see only that core. Returns the other cores."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        sys.exit("--pinned needs two cores")
    os.sched_setaffinity(0, [first])
    return others


def on_cores(cores):
    return ["taskset", "--cpu-list", ",".join(map(str, cores))]


def confine(pid, cores):
    """Pins all threads of a process, and their future children, to these cores."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def written(directory, system, flags, options):
    """Bytes written to the disk during a round per byte of a message. Other processes' writes to that disk count too."""
    os.sync()
    before = device_bytes(directory)
    words = ["--rounds", "1", "--warmup", "0", "--time", "2" if options.quick else "10"]
    met, report = bench("stream", [system], *PERSISTENT, *flags, *words)
    if not met:
        raise subprocess.CalledProcessError(1, ["bench", "stream"])
    os.sync()
    [found] = report["systems"][0]["rounds"]
    return (device_bytes(directory) - before) / (found["counts"]["published"] * 1024)


def device_bytes(directory):
    """Bytes written to a directory's disk. /proc/PID/io would be wrong: it counts a whole folio of the page cache, up to 2
    MiB, for each write."""
    device = os.stat(directory).st_dev
    fields = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    return int(fields[6]) * 512


if __name__ == "__main__":
    sys.exit(main())
