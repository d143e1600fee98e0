"""What the commands of docs/benchmarks.md have in common: RabbitMQ of each release beside Leveret, calls of `leveret bench`, and
tables as the page has them."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.leveret import Leveret, binary
from harness.ports import free_ports
from harness.rabbitmq import PLUGINS, RabbitMq
from harness.releases import missing

# A release of RabbitMQ by the name that it has as a system of a run.
RELEASES = {"rabbitmq": "3.10", "rabbitmq4": "4"}
# What a plugin for WebSocket would open besides.
OTHER_PORTS = {"web_mqtt": "mqtt.listeners.tcp = none", "web_stomp": "stomp.listeners.tcp = none"}
# Erlang's virtual machine, in which RabbitMQ does all its work.
ERLANG = "beam.smp"
# What stands in a table for a system that was not measured.
UNKNOWN = "—"


def compared():
    """The releases of RabbitMQ that take part: all that can be run here, or the one that LEVERET_RABBITMQ names. The others are
    named on standard error."""
    wanted = os.environ.get("LEVERET_RABBITMQ")
    names = []
    for name, version in RELEASES.items():
        reason = missing(version) if wanted in (None, version) else f"LEVERET_RABBITMQ is {wanted}"
        if reason:
            print(f"RabbitMQ {version} is left out: {reason}", file=sys.stderr)
        else:
            names.append(name)
    return names


class Servers(contextlib.ExitStack):
    """The servers of a run, each started when it is asked for first, and all stopped with the block, the last started first."""

    def __init__(self, directory):
        super().__init__()
        self.directory = Path(directory)
        self.started = {}

    def rabbitmq(self, name, *settings, release=None, plugins=PLUGINS):
        """RabbitMQ of the release with this name; `release` is the name of the release where several have the same."""
        if name not in self.started:
            version = RELEASES[release or name]
            server = RabbitMq(self.directory / name, *settings, plugins=plugins, version=version, busy_wait=True)
            self.callback(server.stop)
            check_process(server)
            self.started[name] = server
        return self.started[name]

    def web_plugin(self, name, plugin):
        """A port where a RabbitMQ of its own speaks MQTT or STOMP over WebSocket, and nothing else of that; and the server."""
        (port,) = free_ports(1)
        settings = [f"{plugin}.tcp.port = {port}", f"{plugin}.tcp.ip = 127.0.0.1", OTHER_PORTS[plugin]]
        return port, self.rabbitmq(f"{plugin}-{name}", *settings, release=name, plugins=f"rabbitmq_{plugin}")

    def leveret(self, name, *flags, program=None):
        if name not in self.started:
            server = Leveret(self.directory / name, "--log", "warn", *flags, program=program)
            self.callback(server.stop)
            self.started[name] = server
        return self.started[name]

    def pool(self, name, upstream, *flags, program=None):
        """A pool in front of a server, or of a port of this machine."""
        port = upstream if isinstance(upstream, int) else upstream.port
        return self.leveret(name, "--upstream", f"amqp://127.0.0.1:{port}", *flags, program=program)

    def title(self, name):
        """The system's name in tables: RabbitMQ's with its version."""
        if name not in RELEASES:
            return "Leveret"
        if name not in versions:
            running = [server for server in self.started.values() if is_of(server, name)]
            server = running[0] if running else self.rabbitmq(name)
            versions[name] = server.control("version").split()[-1]
        return f"RabbitMQ {versions[name]}"


versions = {}
"""By name, since asking takes a second."""


def is_of(server, name):
    return isinstance(server, RabbitMq) and server.release.name == RELEASES[name]


class Peak:
    """The resident memory of a process from now on, in bytes: now, and at most."""

    def __init__(self, process):
        self.directory = Path(f"/proc/{process.pid}")
        # 5 sets the peak to what it takes now (proc_pid_clear_refs(5)).
        (self.directory / "clear_refs").write_text("5")
        self.before = self.read("VmRSS")

    @property
    def most(self):
        return self.read("VmHWM")

    def read(self, name):
        [line] = [line for line in (self.directory / "status").read_text().splitlines() if line.startswith(f"{name}:")]
        return int(line.split()[1]) * 1024


def check_process(rabbitmq):
    """CPU time and memory are read from this process: it must be the server itself, and not a script that has started it."""
    name = Path(f"/proc/{rabbitmq.pid}/comm").read_text().strip()
    assert name == ERLANG, f"process {rabbitmq.pid} is {name}, not {ERLANG}"


def system(name, server, *behind):
    """A system as `leveret bench` is told of it, with the processes that do its work."""
    return f"{name}={server.uri}" + "".join(f",pid={each.pid}" for each in (server, *behind))


def bench(study, systems, *words, wrapper=()):
    """Has `leveret bench` compare systems; whether what was expected was reached, and the report. What it prints goes to standard
    error: standard output is for the tables of the page."""
    chosen = [part for each in systems for part in ("--system", each)]
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        command = [*wrapper, binary(), "bench", study, *chosen, *words, "--json", report]
        done = subprocess.run(list(map(str, command)), stdout=sys.stderr)
        if not report.exists():
            raise subprocess.CalledProcessError(done.returncode, command)
        return done.returncode == 0, json.loads(report.read_text())


def median(report, name, metric):
    """A figure of one system in a report of `leveret bench stream`; `None` if it was not measured."""
    [found] = [each for each in report["systems"] if each["name"] == name]
    return {each["metric"]: each["median"] for each in found["summary"]}.get(metric)


def table(header, rows):
    """As Markdown; more rows may be printed below it."""
    return "\n".join([row(header), "|" + "---|" * len(header), *map(row, rows)])


def row(cells):
    return f"| {' | '.join(cells)} |"


def ratio_titles(titles):
    return [f"ratio to {title.removeprefix('RabbitMQ ')}" for title in titles]


def per_second(value):
    """With four digits that count."""
    if value is None:
        return UNKNOWN
    return f"{float(f'{value:.4g}'):,.0f}/s" if value >= 100 else f"{value:.3g}/s"


def ratio(ours, theirs):
    if not ours or not theirs:
        return UNKNOWN
    value = ours / theirs
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def microseconds(seconds):
    """Without the unit."""
    if seconds is None:
        return UNKNOWN
    value = seconds * 1e6
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def milliseconds(seconds):
    if seconds is None:
        return UNKNOWN
    value = seconds * 1e3
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"
