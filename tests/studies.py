"""Every study of `leveret bench` in one report: RabbitMQ 3.10 and 4, Leveret's broker, and Leveret's pool in front of the newer
RabbitMQ; for a connection for each message, a pool in front of each, and one with a spool.

    make studies                             # some 20 minutes; the machine should have nothing else to do
    make studies ARGS="--quick --into DIR"   # a few minutes, to see that it works

Writes report.html and results.csv into docs/benchmarks/studies, and prints the table of docs/benchmarks.md that is made of them.
SETTINGS below has the options of each study that differ from its defaults; the page shows them too.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.benchmark import UNKNOWN, Servers, compared, milliseconds, system, table
from harness.leveret import ROOT, binary
from harness.ports import free_ports

# By default the studies take more than two hours on a dedicated machine. These options measure every point of the published
# studies, but fewer times or for a shorter time.
SETTINGS = {
    "publish": "--rounds 2 --time 0.25 --near pool,spool",
    "proxy": "--rounds 2 --time 0.5",
    "strategies": "--rounds 2",
    "stream": "--rounds 3 --time 2",
    "routing": "--limit-seconds 0.15 --queues 10 --bindings 7",
    "churn": "--rounds 2 --time 0.4",
}
# Seconds at each number of WebSocket connections, and the open files of a process besides their sockets.
HOLD = 10
SPARE = 256
LEVELS = [5_000, 15_000]
# Larger files do not belong in a repository.
MAX_BYTES = 500_000
# The round trips and systems in docs/benchmarks.md's table of one connection per message; the systems by the study's names.
ROUND_TRIPS = [0, 1, 10, 50, 100]
SYSTEMS = {"direct": "directly to {}", "leveret": "through the pool, {} behind it", "spool": "spooled, {} behind it"}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="small numbers, to see that it works")
    arguments.add_argument("--only", default="", metavar="STUDY,...", help="these studies alone")
    arguments.add_argument("--into", type=Path, default=ROOT / "docs" / "benchmarks" / "studies")
    options = arguments.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as directory, Servers(directory) as servers:
        # The newest release comes first: the others are compared with it, and it has the pool in front.
        releases = list(reversed(compared()))
        report = servers.directory / "report"
        command = [str(binary()), "bench", "all", "--with", "broker,pool", "--output", str(report)]
        for name in releases:
            command += ["--system", system(name, servers.rabbitmq(name))]
        command += ["--broker", ",".join(releases)]
        if not options.only or "websockets" in options.only.split(","):
            command += websockets(servers, releases)
        done = subprocess.run(command + lengths(options, most - SPARE), stdout=sys.stderr)
        # Keep the measurements even if a study has failed; the exit code reports the failure.
        if (report / "report.html").exists():
            print_far_away(servers, releases, json.loads((report / "results.json").read_text()))
            keep(report, options.into)
    return done.returncode


def websockets(servers, releases):
    """Separate servers, because memory that other studies leave in a broker must not be attributed to connections."""
    flags = ["--ws", "127.0.0.1:0", "--max-connections", "unlimited"]
    leveret = servers.leveret("sockets", *flags)
    words = ["--websocket", f"leveret=amqp+ws://127.0.0.1:{leveret.ws_port}/ws/amqp,pid={leveret.pid}"]
    for name in releases:
        port, web_mqtt = servers.web_plugin(name, "web_mqtt")
        words += ["--websocket", f"{name}=mqtt+ws://127.0.0.1:{port}/ws,pid={web_mqtt.pid}"]
    return words


def lengths(options, most):
    """The flags that decide how long the study takes."""
    only = options.only.split(",") if options.only else []
    if options.quick:
        flags = ["--quick"]
    else:
        levels = ",".join(str(level) for level in sorted({min(level, most) for level in LEVELS}))
        settings = {**SETTINGS, "websockets": f"--connections {levels} --hold {HOLD}"}
        given = {study: flags for study, flags in settings.items() if not only or study in only}
        flags = [part for study, options in given.items() for part in ("--set", f"{study}: {options}")]
    return flags + (["--only", ",".join(only)] if only else [])


def print_far_away(servers, releases, results):
    """The table of one connection per message, for those round trips that were measured."""
    found = [study for study in results["studies"] if study.get("study") == "proxy"]
    if not found:
        return
    cells = {(cell["scenario"], cell["at"], cell["system"]): cell["figures"] for cell in found[0]["cells"]}
    trips = [trip for trip in ROUND_TRIPS if ("confirm", trip, "direct") in cells]

    def show(scenario, trip, name, metric):
        figures = {figure["metric"]: figure["median"] for figure in cells[scenario, trip, name]}
        return milliseconds(figures[metric]) if metric in figures else UNKNOWN

    rows = []
    # Only the systems of the first release have a name without suffix.
    names = {release: "" if release == releases[0] else f"-{release}" for release in releases}
    for title, scenario, metric in [
        ("{}", "no confirm", "p50"),
        ("{}, with a confirm", "confirm", "p50"),
        ("CPU of RabbitMQ for a message, {}", "no confirm", "broker_cpu_per_message"),
    ]:
        for release in reversed(releases):
            for kind, words in SYSTEMS.items():
                system = title.format(words.format(servers.title(release)))
                rows.append([system, *(show(scenario, trip, kind + names[release], metric) for trip in trips)])
    print(table(["connect, open, publish, close: median time", *(f"{trip} ms" for trip in trips)], rows))


def keep(report, into):
    into.mkdir(parents=True, exist_ok=True)
    for name in ("report.html", "results.csv"):
        data = (report / name).read_bytes()
        too_large = len(data) > MAX_BYTES
        print(f"{into / name}: {len(data):,} bytes{', too large to be kept' if too_large else ''}", file=sys.stderr)
        # The page is always kept.
        if name == "report.html" or not too_large:
            (into / name).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
