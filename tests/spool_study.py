"""A publisher beside a spool, at growing distances from the broker: Leveret's pool with a spool, the pool without, and the broker itself.

    make spool-study                                   # some six minutes; the machine should have nothing else to do
    make spool-study ARGS="--broker-directory /dev/shm --in-transit 16777216"      # the spool has the disk to itself
    make spool-study ARGS="--quick --into DIR"         # to see that it works

Measured by `leveret bench publish` with RabbitMQ as the upstream, and with Leveret's broker, which keeps up with a spool's forwarding.
The pages with tables and plots go to docs/benchmarks/spool, the table of docs/benchmarks.md to standard output. The exit code is 1 if an
expectation is not met.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.benchmark import UNKNOWN, Servers, compared, per_second, system, table
from harness.leveret import ROOT, binary

LATENCIES = [0, 1, 10, 50, 100]
SYNC, ASYNC, EACH = "sync confirm", "async confirm", "connection each, confirm"
STYLES = {SYNC: "sync-confirm", ASYNC: "async-confirm", EACH: "connection-confirm"}
# The study's names of the systems.
SYSTEMS = {"direct": "directly", "near-pool": "through the pool", "spool": "spooled"}
# Minimum messages per second at every latency. With RabbitMQ as the upstream, its own rate is the limit.
ASKED = [f"{SYNC}: spool.rate>=3500", f"{EACH}: spool.rate>=350", "spool.lost==0"]
ASKED_BEFORE_LEVERET = [f"{ASYNC}: spool.rate>=100k", f"{ASYNC}: spool.forward>=100k"]


def main():
    options = arguments()
    met, rows = True, []
    with tempfile.TemporaryDirectory(dir=options.broker_directory) as directory, Servers(directory) as servers:
        # The newest RabbitMQ.
        for name in [*compared()[-1:], "leveret"]:
            if name == "leveret":
                broker = servers.leveret(name, "--data-dir", str(servers.directory / "broker"))
            else:
                broker = servers.rabbitmq(name)
            report = servers.directory / f"{name}-report"
            met &= study(name, broker, report, options)
            rows += rows_of(servers.title(name), json.loads((report / "results.json").read_text()))
            keep(report, options.into / name)
    print(table(["persistent 1 KiB messages", "behind it", "way", *(f"{latency} ms" for latency in LATENCIES)], rows))
    return 0 if met else 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a round of half a second each")
    parser.add_argument("--rounds", default="2")
    parser.add_argument("--time", default="1", help="seconds a round")
    parser.add_argument("--in-transit", help="bytes in transit each way over the link")
    parser.add_argument("--broker-directory", type=Path, help="directory for the brokers' data; by default it is on the spool's disk")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "benchmarks" / "spool")
    return parser.parse_args()


def study(name, broker, report, options):
    """Measures with this broker as the upstream; returns whether the expectations were met."""
    words = ["--system", system("direct", broker), "--near", "pool,spool", "--persistent", "--size", "1024", "--publishers", "1"]
    words += ["--latency", ",".join(map(str, LATENCIES))]
    words += ["--in-transit", options.in_transit] if options.in_transit else []
    words += [word for style in STYLES.values() for word in ("--style", style)]
    words += ["--quick"] if options.quick else ["--rounds", options.rounds, "--time", options.time]
    asked = ASKED + (ASKED_BEFORE_LEVERET if name == "leveret" else [])
    words += [word for condition in asked for word in ("--expect", condition)]
    words += ["--output", str(report)]
    done = subprocess.run([binary(), "bench", "publish", *words], stdout=sys.stderr)
    if not (report / "results.json").exists():
        raise subprocess.CalledProcessError(done.returncode, "bench publish")
    return done.returncode == 0


def rows_of(title, results):
    [found] = results["studies"] if "studies" in results else [results]
    cells = {(c["scenario"], c["axis"], c["at"], c["system"]): c["figures"] for c in found["cells"]}

    def show(scenario, at, name, metric):
        figures = {f["metric"]: f["median"] for f in cells[scenario, "round_trip", at, name]}
        return per_second(figures[metric]) if metric in figures else UNKNOWN

    rows = []
    for scenario in STYLES:
        for name, way in SYSTEMS.items():
            rows.append([scenario, title, way, *(show(scenario, at, name, "rate") for at in LATENCIES)])
        if scenario == ASYNC:
            forwarded = (show(scenario, at, "spool", "forward") for at in LATENCIES)
            rows.append([scenario, title, "forwarded by the spool meanwhile", *forwarded])
    return rows


def keep(report, into):
    into.mkdir(parents=True, exist_ok=True)
    (into / "report.html").write_bytes((report / "report.html").read_bytes())


if __name__ == "__main__":
    sys.exit(main())
