"""The capacity figures of docs/benchmarks.md: very many WebSocket connections, each with a subscription of its own, a
message now and then, and heartbeats, on Leveret's broker, through a relay of ours, on Web-MQTT and Web-STOMP of RabbitMQ 3.10
and 4, and on Leveret in front of them, one after the other; idle MQTT and idle STOMP clients on all of these in one run; retained
messages of 100,000 topics; and a million MQTT subscriptions.

    make capacity                 # everything, about three quarters of an hour
    make capacity ARGS="--quick"  # to see that it works

The tables of docs/benchmarks.md go to standard output, what `leveret bench` prints to standard error.
"""

import argparse
import functools
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from harness.benchmark import UNKNOWN, Peak, Servers, bench, compared, median, per_second, system, table
from harness.leveret import ROOT
from harness.retained_load import all_of_them, first_client, memory, queues, retain

# Open files of a process besides its clients' sockets.
SPARE = 256
# The numbers of connections in others' published figures.
LEVELS = [5_000, 15_000, 20_000]
# The number of connections here, of devices that have subscribed and are idle.
DEVICES = 18_000
# Subscribers of one message, and unacknowledged messages from one client to another.
SUBSCRIBERS, UNCONFIRMED = 10_000, 1_000
# The number of topics that the clients share, unless each has its own.
TOPICS = "1000"
# Clients that only send heartbeats.
IDLE = ("--interval", "36000", "--heartbeat", "60")
# All clients come from this machine.
UNLIMITED = ("--max-connections", "unlimited")
ANY = "127.0.0.1:0"
# The AMQP equivalent of MQTT messages at QoS 1: persistent, and routed by a topic exchange.
AS_MQTT = ("--exchange", "qos1", "--exchange-type", "topic", "--persistent")


class Carried(NamedTuple):
    """A protocol over WebSocket: the scheme of its URLs, RabbitMQ's name for it, and whether the pool terminates its
    sessions."""

    scheme: str
    title: str
    ends_at_pool: bool


# By RabbitMQ's plugin, which is also the name of Leveret's setting.
CARRIED = {"web_mqtt": Carried("mqtt", "Web-MQTT", ends_at_pool=True), "web_stomp": Carried("stomp", "Web-STOMP", ends_at_pool=True)}
HEADER = ["system", "connections", "opened in", "memory each", "memory", "CPU"]
LATENCY = "latency p50 / p99"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="few connections for a short time")
    arguments.add_argument("--hold", default="60", help="seconds at each level")
    arguments.add_argument("--levels", default=LEVELS, type=levels, help="numbers of connections, by commas")
    arguments.add_argument("--devices", type=int, default=DEVICES, help="connections of the studies mqtt and stomp")
    arguments.add_argument("--only", choices=[name for name, _ in STUDIES], action="append", help="these studies alone")
    options = arguments.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as directory:
        for name, study in STUDIES:
            if not options.only or name in options.only:
                print(f"\n## {name}\n", flush=True)
                study(Path(directory, name), options, most - SPARE)
    return 0


def levels(text):
    return [int(level) for level in text.split(",")]


def broker(directory, options, most):
    with Servers(directory) as servers:
        leveret = servers.leveret("leveret", *UNLIMITED, "--ws", ANY)
        system = f"leveret=amqp+ws://127.0.0.1:{leveret.ws_port}/ws/amqp,pid={leveret.pid}"
        measure({"leveret": "Leveret, AMQP"}, [system], growing(options, most))


def mqtt(directory, options, most):
    idle(directory, options, most, "web_mqtt")


def stomp(directory, options, most):
    idle(directory, options, most, "web_stomp")


def idle(directory, options, most, plugin):
    """Idle clients with one subscription each, on Leveret, on RabbitMQ's plugin, and on Leveret in front of RabbitMQ, in one
    run; first with a topic for each client, then with a few topics for all."""
    for number, topics in enumerate(([], ["--topics", TOPICS])):
        print("Each client has a topic of its own." if not topics else f"{TOPICS} topics for all.", end="\n\n")
        idle_with(directory / str(number), options, most, plugin, topics)


def idle_with(directory, options, most, plugin, topics):
    with Servers(directory) as servers:
        leveret = servers.leveret("leveret", *UNLIMITED, flag(plugin), ANY)
        titles = {"leveret": f"Leveret, `{plugin}`"}
        systems = [f"leveret={system_argument(plugin, web_port(leveret, plugin), leveret)}"]
        behind = []
        for name in compared():
            for start in kinds(plugin):
                title, argument, rabbitmq = start(servers, name, plugin)
                system_name = f"{start.__name__}-{name}"
                titles[system_name] = title
                systems.append(f"{system_name}={argument}")
                if start is in_front:
                    peaks = Peak(rabbitmq), Peak(servers.started[f"in-front-of-{name}"])
                    behind.append((servers.title(name), peaks))
        length = ["--connections", str(min(options.devices, most)), "--hold", options.hold]
        measure(titles, systems, [*length, *IDLE, *topics], with_latency=False)
        for title, peaks in behind:
            sizes = [f"{bytes / 2**20:,.0f} MiB" for peak in peaks for bytes in (peak.before, peak.most)]
            words = f"{title} behind Leveret took {{}} without clients and {{}} at most, Leveret {{}} and {{}}."
            print(words.format(*sizes) + "\n", flush=True)


def relay(directory, options, most):
    """A relay and the broker behind it in two processes: two sockets for each client."""
    with Servers(directory) as servers:
        behind = servers.leveret("broker", *UNLIMITED)
        front = servers.leveret("relay", *UNLIMITED, "--relay", f"127.0.0.1:0=tcp://127.0.0.1:{behind.port}")
        port = front.child.wait_line(r"^relay +listening on ws://127\.0\.0\.1:(\d+)").group(1)
        system = f"relay=amqp+ws://127.0.0.1:{port}/,pid={front.pid}"
        measure({"relay": "Leveret, relay alone"}, [system], growing(options, most // 2))


def rabbitmq(directory, options, most):
    """Each plugin in a freshly started RabbitMQ; and Leveret in front of one without the plugin, counting both processes."""
    for name in compared():
        for plugin in CARRIED:
            for start in kinds(plugin):
                with Servers(directory) as servers:
                    title, argument, _ = start(servers, name, plugin)
                    measure({plugin: title}, [f"{plugin}={argument}"], growing(options, most))


def kinds(plugin):
    """The ways in which a protocol's clients reach RabbitMQ. Each starts its servers and returns the row's title, the
    bench's `--system` argument, and RabbitMQ."""
    return [native, in_front] if CARRIED[plugin].ends_at_pool else [native]


def native(servers, name, plugin):
    port, peer = servers.web_plugin(name, plugin)
    return f"{servers.title(name)}, {CARRIED[plugin].title}", system_argument(plugin, port, peer), peer


def in_front(servers, name, plugin):
    behind = servers.rabbitmq(f"behind-{name}", release=name)
    front = servers.pool(f"in-front-of-{name}", behind, *UNLIMITED, flag(plugin), ANY)
    title = f"Leveret in front of {servers.title(name)}, `{plugin}`"
    return title, system_argument(plugin, web_port(front, plugin), front, behind), behind


def flag(plugin):
    return f"--{plugin.replace('_', '-')}"


def web_port(leveret, plugin):
    return leveret.child.wait_line(rf"^{plugin.replace('_', '-')} +listening on ws://127\.0\.0\.1:(\d+)").group(1)


def system_argument(plugin, port, *processes):
    """The `--system` argument of the bench, with the processes that do the work."""
    return f"{CARRIED[plugin].scheme}+ws://127.0.0.1:{port}/ws" + "".join(f",pid={each.pid}" for each in processes)


def tls(_directory, _options, _most):
    """The cost of an idle connection over wss, as its test prints it."""
    test("blackbox/websocket_tls.py", "-k", "idle")


def abandoned(_directory, options, most):
    """Runs the test with as many connections as possible."""
    count = 1000 if options.quick else min(20_000, most)
    test("blackbox/websocket_abandoned.py", LEVERET_ABANDONED=str(count))


def in_memory(_directory, options, _most):
    """More sessions than a process may have sockets, over in-memory streams: AMQP on the embedded broker, and MQTT in front
    of it."""
    measurement(options, "capacity_tests", LEVERET_SESSIONS=2_000 if options.quick else 200_000)


def subscriptions(_directory, options, _most):
    """A million MQTT subscriptions in one process: memory, and the cost of a message that matches one of them."""
    measurement(options, "million", LEVERET_SUBSCRIPTIONS=20_000 if options.quick else 1_000_000)


def measurement(options, name, **environment):
    profile = [] if options.quick else ["--release"]
    command = ["cargo", "test", *profile, "--locked", "--quiet", "--package", "server", "--lib", "--"]
    environment = {key: str(value) for key, value in environment.items()}
    subprocess.run([*command, "--ignored", "--nocapture", name], check=True, cwd=ROOT, env={**os.environ, **environment})


def test(file, *arguments, **environment):
    command = [sys.executable, "-m", "pytest", "-q", "-s", file, *arguments]
    subprocess.run(command, check=True, cwd=ROOT / "tests", env={**os.environ, **environment})


def mqtt_rates(_directory, options, most):
    """One message to very many subscribers, and QoS 1 messages from one client to another, on the MQTT port. Compares the
    latter with AMQP through the same pool and as many unconfirmed messages: once with MQTT's message properties, once at
    its fastest."""
    subscribers, rounds, seconds = (200, 3, 1) if options.quick else (min(SUBSCRIBERS, most), 20, 10)
    rows = []
    for start in (own, *(functools.partial(behind, name) for name in compared())):
        with tempfile.TemporaryDirectory() as directory, Servers(directory) as servers:
            title, server, stream = start(servers)
            port = int(server.child.wait_line(r"^mqtt +listening on mqtt://127\.0\.0\.1:(\d+)").group(1))
            times = sorted(load("fan-out", port, subscribers, rounds))
            (messages,) = load("qos1", port, seconds, UNCONFIRMED)
            # Like the MQTT clients, it confirms each message by itself.
            length = ["--confirms", UNCONFIRMED, "--time", seconds]
            reports = [bench("stream", [stream], *length, *kind)[1] for kind in (AS_MQTT, [])]
            amqp = [per_second(median(report, stream.split("=")[0], "rate")) for report in reports]
            last = f"{digits(times[len(times) // 2])} / {digits(times[-1])} ms"
            rows.append([title, last, per_second(messages), *amqp])
    last = f"the last of {subscribers:,} subscribers, median / worst"
    heads = ["system", last, "MQTT, QoS 1", "AMQP, persistent, by topic", "AMQP, transient, to a queue"]
    print(table(heads, rows) + "\n", flush=True)


def load(kind, port, *numbers):
    """Results of MQTT clients written in Rust, like those of the bench: a Python client uses more of the two cores than the
    server."""
    command = ["cargo", "run", "--release", "--locked", "--quiet", "--package", "mqtt", "--example", "load", "--"]
    command += [kind, f"127.0.0.1:{port}", *map(str, numbers)]
    found = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE)
    return [float(figure) for figure in found.stdout.split()]


def own(servers):
    server = servers.leveret("leveret", *UNLIMITED, "--mqtt", ANY)
    return "Leveret", server, system("leveret", server)


def behind(name, servers):
    rabbitmq = servers.rabbitmq(name)
    server = servers.pool(f"in-front-of-{name}", rabbitmq, *UNLIMITED, "--mqtt", ANY)
    return f"Leveret in front of {servers.title(name)}", server, system("pool", server, rabbitmq)


def retained(_directory, options, _most):
    """Retained messages of very many topics in front of each release, where they are one stream; and for comparison the cost
    of a queue for each topic."""
    topics, alternative = (2_000, 200) if options.quick else (100_000, 5_000)
    rows = []
    for name in compared():
        with tempfile.TemporaryDirectory() as directory, Servers(directory) as servers:
            rabbitmq = servers.rabbitmq(name)
            fronts = [servers.pool(f"front{number}", rabbitmq, "--mqtt", ANY) for number in range(2)]
            ports = [int(front.child.wait_line(r"^mqtt +listening on mqtt://127\.0\.0\.1:(\d+)").group(1)) for front in fronts]
            before = [memory(server) for server in (rabbitmq, fronts[0])]
            seconds = [retain(ports[0], topics), first_client(ports[1], topics), all_of_them(ports[0], topics)]
            after = [memory(server) for server in (rabbitmq, fronts[0])]
            queues(rabbitmq, alternative)
            each = (memory(rabbitmq) - after[0]) / alternative
            grown = [" → ".join(f"{bytes / 2**20:,.0f}" for bytes in pair) + " MiB" for pair in zip(before, after, strict=True)]
            times = [f"{digits(each)} s" for each in seconds]
            alternatives = f"{digits(each / 1024)} KiB, {each * topics / 2**30:.1f} GiB"
            rows.append([servers.title(name), *times, *grown, alternatives])
    heads = ["in front of", f"{topics:,} topics retained in", "the first client of another Leveret waits", "`#`, all of them in",
             "RabbitMQ's memory", "Leveret's memory", f"a queue for each topic: RabbitMQ's memory each, of {topics:,}"]
    print(table(heads, rows) + "\n", flush=True)


STUDIES = [
    ("broker", broker),
    ("mqtt", mqtt),
    ("stomp", stomp),
    ("mqtt-rates", mqtt_rates),
    ("retained", retained),
    ("relay", relay),
    ("rabbitmq", rabbitmq),
    ("tls", tls),
    ("abandoned", abandoned),
    ("in-memory", in_memory),
    ("subscriptions", subscriptions),
]


def growing(options, most):
    if options.quick:
        return ["--quick"]
    numbers = sorted({min(level, most) for level in options.levels})
    return ["--connections", ",".join(map(str, numbers)), "--hold", options.hold]


def measure(titles, systems, arguments, with_latency=True):
    """Prints the page's table, with these titles for the systems."""
    met, report = bench("websockets", systems, *arguments)
    if not met:
        sys.exit("leveret bench failed, as it says above")
    rows = []
    for found in report["systems"]:
        for number, level in enumerate(found["levels"]):
            cells = [titles[found["name"]] if number == 0 else "", f"{level['connections']:,}"]
            cells.append(f"{'+' if number else ''}{digits(level['opening_seconds'])} s")
            cells.append(f"{digits(level['bytes_per_connection'] / 1024)} KiB")
            cells += [f"{level['rss_bytes'] / 2**20:,.0f} MiB", f"{level['cpu_cores']:.3f} cores"]
            if with_latency:
                times = [digits((level["latency"] or {}).get(point), 1e3) for point in ("p50", "p99")]
                cells.append(f"{' / '.join(times)} ms")
            rows.append(cells)
    print(table(HEADER + [LATENCY] * with_latency, rows) + "\n", flush=True)


def digits(value, factor=1):
    if value is None:
        return UNKNOWN
    value *= factor
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 10 else f"{value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
