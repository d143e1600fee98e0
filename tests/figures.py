"""The figures of docs/benchmarks.md: starts RabbitMQ, Leveret's broker and Leveret in front of that RabbitMQ, each on
ports and in folders of its own, and lets `leveret bench` compare them, round by round, in one run.

    make figures                 # everything, about ten minutes
    make figures ARGS="--quick"  # to see that it works
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.leveret import Leveret, binary
from harness.rabbitmq import RabbitMq

# Name, what is compared, and how `leveret bench stream` is called.
BROKERS = ["leveret", "rabbitmq"]
PROXY = ["direct", "proxy"]
STUDIES = {
    "16 bytes, 1:1, automatic acks": (BROKERS, ["--size", "16", "--auto-ack"]),
    "1 KiB, 1:1, automatic acks": (BROKERS, ["--size", "1024", "--auto-ack"]),
    "16 bytes, 100 confirms in flight, manual acks, prefetch 100": (
        BROKERS,
        ["--size", "16", "--confirms", "100", "--prefetch", "100"],
    ),
    "16 bytes, 10 producers, 10 consumers, 10 queues, automatic acks": (
        BROKERS,
        ["--size", "16", "--auto-ack", "--producers", "10", "--consumers", "10", "--queues", "10"],
    ),
    "through the proxy: 16 bytes, 1:1, automatic acks": (PROXY, ["--size", "16", "--auto-ack"]),
    "through the proxy: 1 KiB, 1:1, automatic acks": (PROXY, ["--size", "1024", "--auto-ack"]),
}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="two rounds of a second each")
    arguments.add_argument("--rounds", default="5")
    arguments.add_argument("--time", default="4", help="seconds a round")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rabbitmq = RabbitMq(Path(folder, "rabbitmq"))
        leveret = Leveret(Path(folder, "leveret"), "--log", "warn")
        proxy = Leveret(Path(folder, "proxy"), "--log", "warn", "--upstream", f"amqp://127.0.0.1:{rabbitmq.port}")
        try:
            systems = {
                "leveret": f"leveret={leveret.uri},pid={leveret.pid}",
                "rabbitmq": f"rabbitmq={rabbitmq.uri},pid={rabbitmq.pid}",
                "direct": f"direct={rabbitmq.uri},pid={rabbitmq.pid}",
                "proxy": f"proxy={proxy.uri},pid={proxy.pid},pid={rabbitmq.pid}",
            }
            for title, (names, flags) in STUDIES.items():
                length = ["--quick"] if options.quick else ["--rounds", options.rounds, "--time", options.time]
                chosen = [part for name in names for part in ("--system", systems[name])]
                print(f"\n## {title}\n", flush=True)
                subprocess.run([str(binary()), "bench", "stream", *chosen, *flags, *length], check=True)
        finally:
            proxy.stop()
            leveret.stop()
            rabbitmq.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
