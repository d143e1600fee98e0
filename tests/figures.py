"""The figures of docs/benchmarks.md: starts RabbitMQ, Leveret's broker and Leveret in front of that RabbitMQ, each on
ports and in folders of its own, and lets `leveret bench` compare them, round by round, in one run.

    make figures                          # everything, about twenty minutes
    make figures ARGS="--quick"           # to see that it works
    make figures ARGS="--only durable"    # what has this in its title
    make figures ARGS="--beside /tmp/old" # against an older build in place of RabbitMQ: nothing may be slower than by 3%

Folders are temporary: TMPDIR names another disk. The exit code is 1 when something that is asked for is not reached.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.child import Child
from harness.leveret import Leveret, binary
from harness.rabbitmq import RabbitMq

BROKERS = ["leveret", "rabbitmq"]
PROXY = ["direct", "proxy"]
NEARLY_DIRECT = "ratio(proxy/direct)>=0.85"
DURABLE = ["--size", "1024", "--persistent"]
# Name, what is compared, how `leveret bench stream` is called, and what is asked for.
STUDIES = {
    "16 bytes, 1:1, automatic acks": (BROKERS, ["--size", "16", "--auto-ack"], None),
    "1 KiB, 1:1, automatic acks": (BROKERS, ["--size", "1024", "--auto-ack"], None),
    "16 bytes, 100 confirms in flight, manual acks, prefetch 100": (
        BROKERS,
        ["--size", "16", "--confirms", "100", "--prefetch", "100"],
        None,
    ),
    "16 bytes, 10 producers, 10 consumers, 10 queues, automatic acks": (
        BROKERS,
        ["--size", "16", "--auto-ack", "--producers", "10", "--consumers", "10", "--queues", "10"],
        None,
    ),
    "through the proxy: 16 bytes, 1:1, automatic acks": (PROXY, ["--size", "16", "--auto-ack"], NEARLY_DIRECT),
    "through the proxy: 1 KiB, 1:1, automatic acks": (PROXY, ["--size", "1024", "--auto-ack"], NEARLY_DIRECT),
    "durable: 1 KiB, persistent, 10 producers with 1,000 confirms in flight, 10 consumers that ack, one queue": (
        BROKERS,
        [*DURABLE, "--producers", "10", "--consumers", "10", "--confirms", "1000"],
        "ratio(leveret/rabbitmq)>=10",
    ),
    "durable: 1 KiB, persistent, one producer that waits for each confirm, beside write and fdatasync": (
        BROKERS,
        [*DURABLE, "--consumers", "0", "--confirms", "1", "--disk", "{folder}"],
        "ratio(leveret/disk)>=0.8",
    ),
}
# What a change may cost, as a share of the rate of the build without it.
NOT_SLOWER = 0.97
# What is written to the disk for each byte of a message: how messages are published, and what becomes of them.
WRITTEN = {
    "acked soon, 50,000/s": ["--producers", "10", "--consumers", "10", "--confirms", "1000", "--rate", "5000"],
    "nobody consumes, 10 producers with 1,000 confirms": ["--producers", "10", "--consumers", "0", "--confirms", "1000"],
}
WRITTEN_TITLE = "durable: bytes written to the disk for each byte of a persistent 1 KiB message"
# The proxy on a core of its own; the sink that takes everything, RabbitMQ and the generator have the others.
ONE_CORE = {
    "on one core: 16 bytes through the proxy to a sink": (
        "sink",
        ["stream", "--size", "16", "--consumers", "0", "--expect", "proxy.publish>2M"],
    ),
    "on one core: connections opened, logged in and closed": (
        "rabbitmq",
        ["churn", "--kind", "connection", "--workers", "16,64", "--expect", "proxy.rate>20k"],
    ),
}


def main():
    options = arguments()
    met = True
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
            if options.beside:
                return 0 if beside(folder, rabbitmq, systems, options) else 1
            for title, (names, flags, expected) in STUDIES.items():
                if options.only in title:
                    met &= compare(title, [systems[name] for name in names], flags, expected, folder, options)
            for title, (upstream, words) in ONE_CORE.items():
                if options.only in title:
                    print(f"\n## {title}\n", flush=True)
                    met &= on_one_core(folder, rabbitmq, upstream, words, options)
            if options.only in WRITTEN_TITLE:
                print(f"\n## {WRITTEN_TITLE}\n", flush=True)
                for title, flags in WRITTEN.items():
                    ratios = {name: written(folder, systems[name], flags, options) for name in BROKERS}
                    print(f"{title}: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()), flush=True)
        finally:
            proxy.stop()
            leveret.stop()
            rabbitmq.stop()
    return 0 if met else 1


def compare(title, systems, flags, expected, folder, options):
    """Has `leveret bench stream` compare the systems; whether what was expected was reached."""
    print(f"\n## {title}\n", flush=True)
    flags = [flag.format(folder=folder) for flag in flags] + (["--expect", expected] if expected else [])
    length = ["--quick"] if options.quick else ["--rounds", options.rounds, "--time", options.time]
    chosen = [part for system in systems for part in ("--system", system)]
    return subprocess.run([str(binary()), "bench", "stream", *chosen, *flags, *length]).returncode == 0


def beside(folder, rabbitmq, systems, options):
    """Compares this build's broker and proxy with those of an older build."""
    upstream, program = f"amqp://127.0.0.1:{rabbitmq.port}", options.beside.resolve()
    broker = Leveret(Path(folder, "broker-before"), "--log", "warn", program=program)
    proxy = Leveret(Path(folder, "proxy-before"), "--log", "warn", "--upstream", upstream, program=program)
    older = {
        "leveret": f"before={broker.uri},pid={broker.pid}",
        "proxy": f"before={proxy.uri},pid={proxy.pid},pid={rabbitmq.pid}",
    }
    met = True
    try:
        for title, (names, flags, _) in STUDIES.items():
            if options.only in title:
                [ours] = [name for name in names if name in older]
                expected = f"ratio({ours}/before)>={NOT_SLOWER}"
                met &= compare(title, [systems[ours], older[ours]], flags, expected, folder, options)
    finally:
        proxy.stop()
        broker.stop()
    return met


def on_one_core(folder, rabbitmq, upstream, words, options):
    """Confines a proxy to the first core, and everybody else to the others."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        print("left out: there is one core only")
        return True
    elsewhere = ["taskset", "--cpu-list", ",".join(map(str, others))]
    sink = Child([*elsewhere, binary(), "bench", "sink"], Path(folder, "sink.log"))
    try:
        sink_port = sink.wait_line(r"^sink  listening on amqp://127\.0\.0\.1:(\d+)$").group(1)
        confine(rabbitmq.pid, others)
        address = f"amqp://127.0.0.1:{sink_port if upstream == 'sink' else rabbitmq.port}"
        flags = ["--log", "warn", "--worker-threads", "1", "--upstream", address]
        proxy = Leveret(Path(folder, "confined"), *flags)
        try:
            confine(proxy.pid, [first])
            system = ["--system", f"proxy={proxy.uri},pid={proxy.pid}"]
            length = ["--quick"] if options.quick else ["--rounds", options.rounds, "--time", options.time]
            return subprocess.run([*elsewhere, str(binary()), "bench", *words, *system, *length]).returncode == 0
        finally:
            proxy.stop()
    finally:
        sink.kill()
        confine(rabbitmq.pid, [first, *others])


def confine(pid, cores):
    """Has all threads of a process run on these cores only, and those that they start."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        # One may end meanwhile.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def arguments():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="two rounds of a second each")
    arguments.add_argument("--rounds", default="5")
    arguments.add_argument("--time", default="4", help="seconds a round")
    arguments.add_argument("--beside", type=Path, metavar="BIN", help="compare with this older build only")
    arguments.add_argument("--only", default="", metavar="TEXT", help="studies with this in their title")
    return arguments.parse_args()


def written(folder, system, flags, options):
    """Bytes that a round has the disk write, for each byte of a message. Whoever else writes to that disk counts too."""
    os.sync()
    before = device_bytes(folder)
    report = Path(folder, "report.json")
    length = ["--rounds", "1", "--warmup", "0", "--time", "2" if options.quick else "10"]
    argv = [str(binary()), "bench", "stream", "--system", system, *DURABLE, *flags, *length, "--json", str(report)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.sync()
    [round] = json.loads(report.read_text())["systems"][0]["rounds"]
    return (device_bytes(folder) - before) / (round["counts"]["published"] * 1024)


def device_bytes(folder):
    """What was written to the disk that a folder is on. /proc/PID/io would not do: for each write it counts all of a folio of
    the kernel's cache, which is up to 2 MiB."""
    device = os.stat(folder).st_dev
    fields = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    return int(fields[6]) * 512


if __name__ == "__main__":
    sys.exit(main())
