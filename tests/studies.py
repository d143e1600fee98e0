"""Every study of `leveret bench` in one report: RabbitMQ, Leveret's broker, and Leveret's pool in front of that RabbitMQ.

    make studies                             # some 15 minutes; the machine should have nothing else to do
    make studies ARGS="--quick --into DIR"   # a few minutes, to see that it works

Writes report.html and results.csv into docs/benchmarks/studies. What each study is told besides its defaults is in
SETTINGS below, and on the page.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.leveret import ROOT, Leveret, binary
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq

# By default each study takes the time that its figures need on a machine of one's own: more than two hours in all. These
# numbers leave every place of the published studies in, and measure it less often or for a shorter time.
SETTINGS = {
    "publish": "--rounds 2 --time 0.3",
    "proxy": "--rounds 2 --time 0.6",
    "strategies": "--rounds 2",
    "stream": "--rounds 3 --time 3",
    "routing": "--limit-seconds 0.2 --queues 11 --bindings 8",
    "churn": "--rounds 2 --time 0.5",
}
# Seconds at each number of WebSocket connections, and what a process has open besides their sockets.
HOLD = 10
SPARE = 256
LEVELS = [5_000, 15_000]
# What is larger does not belong into a repository.
MOST_BYTES = 500_000


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="small numbers, to see that it works")
    arguments.add_argument("--only", default="", metavar="STUDY,...", help="these studies alone")
    arguments.add_argument("--into", type=Path, default=ROOT / "docs" / "benchmarks" / "studies")
    options = arguments.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (port,) = free_ports(1)
        settings = [f"web_mqtt.tcp.port = {port}", "web_mqtt.tcp.ip = 127.0.0.1", "mqtt.listeners.tcp = none"]
        rabbitmq = RabbitMq(folder / "rabbitmq")
        # What the other studies leave in a broker's memory must not be counted for connections.
        web_mqtt = RabbitMq(folder / "web_mqtt", *settings, plugins="rabbitmq_web_mqtt")
        sockets = Leveret(folder / "sockets", "--ws", "127.0.0.1:0", "--max-connections", "unlimited", "--log", "warn")
        try:
            command = [str(binary()), "bench", "all", "--system", f"rabbitmq={rabbitmq.uri},pid={rabbitmq.pid}"]
            command += ["--with", "broker,pool", "--output", str(folder / "report")]
            command += ["--websocket", f"leveret=amqp+ws://127.0.0.1:{sockets.ws_port}/ws/amqp,pid={sockets.pid}"]
            command += ["--websocket", f"web_mqtt=mqtt+ws://127.0.0.1:{port}/ws,pid={web_mqtt.pid}"]
            command += lengths(options, most - SPARE)
            done = subprocess.run(command)
        finally:
            sockets.stop()
            # It would take its time to say goodbye to very many clients that have gone.
            web_mqtt.server.kill()
            web_mqtt.stop()
            rabbitmq.stop()
        # What was measured is kept when a study has failed, and the exit code tells.
        if (folder / "report" / "report.html").exists():
            keep(folder / "report", options.into)
    return done.returncode


def lengths(options, most):
    """The flags that decide how long it takes."""
    only = options.only.split(",") if options.only else []
    if options.quick:
        flags = ["--quick"]
    else:
        levels = ",".join(str(level) for level in sorted({min(level, most) for level in LEVELS}))
        settings = {**SETTINGS, "websockets": f"--connections {levels} --hold {HOLD}"}
        given = {study: flags for study, flags in settings.items() if not only or study in only}
        flags = [part for study, options in given.items() for part in ("--set", f"{study}: {options}")]
    return flags + (["--only", ",".join(only)] if only else [])


def keep(report, into):
    into.mkdir(parents=True, exist_ok=True)
    for name in ("report.html", "results.csv"):
        data = (report / name).read_bytes()
        too_large = len(data) > MOST_BYTES
        print(f"{into / name}: {len(data):,} bytes{', too large to be kept' if too_large else ''}", file=sys.stderr)
        # The page is what it is all for.
        if name == "report.html" or not too_large:
            (into / name).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
