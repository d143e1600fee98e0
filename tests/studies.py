"""Every study of `leveret bench` in one report: RabbitMQ, Leveret's broker, and Leveret's pool in front of that RabbitMQ.

    make studies                                # well over an hour; the machine should have nothing else to do
    make studies ARGS="--quick --into DIR"   # a few minutes, to see that it works

Writes report.html, results.json and results.csv; only the page is kept in docs/benchmarks/studies.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.leveret import ROOT, Leveret, binary
from harness.rabbitmq import RabbitMq, free_ports


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
        rabbitmq = RabbitMq(folder / "rabbitmq", *settings, plugins="rabbitmq_web_mqtt")
        sockets = Leveret(folder / "sockets", "--ws", "127.0.0.1:0", "--max-connections", "unlimited", "--log", "warn")
        try:
            command = [str(binary()), "bench", "all", "--system", f"rabbitmq={rabbitmq.uri},pid={rabbitmq.pid}"]
            command += ["--with", "broker,pool", "--output", str(folder / "report")]
            # Web-MQTT comes first: what the other studies leave in RabbitMQ's memory must not be counted for it.
            command += ["--websocket", f"web_mqtt=mqtt+ws://127.0.0.1:{port}/ws,pid={rabbitmq.pid}"]
            command += ["--websocket", f"leveret=amqp+ws://127.0.0.1:{sockets.ws_port}/ws/amqp,pid={sockets.pid}"]
            command += ["--quick"] if options.quick else []
            command += ["--only", options.only] if options.only else []
            done = subprocess.run(command)
        finally:
            sockets.stop()
            rabbitmq.stop()
        if done.returncode == 0:
            options.into.mkdir(parents=True, exist_ok=True)
            (options.into / "report.html").write_text((folder / "report" / "report.html").read_text())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
