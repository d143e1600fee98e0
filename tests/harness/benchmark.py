"""Shared by the commands of docs/benchmarks.md: starts Leveret beside each RabbitMQ release, calls `leveret bench`, and
prints tables in the format of that page."""

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

# RabbitMQ releases by their system names in a run.
RELEASES = {"rabbitmq": "3.10", "rabbitmq4": "4"}
# Settings that close the other port of each WebSocket plugin.
OTHER_PORTS = {"web_mqtt": "mqtt.listeners.tcp = none", "web_stomp": "stomp.listeners.tcp = none"}
# The process name of Erlang's virtual machine, which does all of RabbitMQ's work.
ERLANG = "beam.smp"
# The table cell of a system that was not measured.
UNKNOWN = "—"


def compared():
    """The RabbitMQ releases to compare: all that are installed, or the one that LEVERET_RABBITMQ names. Reports the skipped
    ones on standard error."""
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
    """Starts each server of a run on first use, and stops them in reverse order when the block ends."""

    def __init__(self, directory):
        super().__init__()
        self.directory = Path(directory)
        self.started = {}

    def rabbitmq(self, name, *settings, release=None, plugins=PLUGINS):
        """A RabbitMQ under this name; `release` names the release if several servers run the same one."""
        if name not in self.started:
            version = RELEASES[release or name]
            server = RabbitMq(self.directory / name, *settings, plugins=plugins, version=version, busy_wait=True)
            self.callback(server.stop)
            check_process(server)
            self.started[name] = server
        return self.started[name]

    def web_plugin(self, name, plugin):
        """Starts a RabbitMQ that speaks MQTT or STOMP over WebSocket only; returns the port and the server."""
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
        """A pool in front of a server, or of a port on this machine."""
        port = upstream if isinstance(upstream, int) else upstream.port
        return self.leveret(name, "--upstream", f"amqp://127.0.0.1:{port}", *flags, program=program)

    def title(self, name):
        """The system's name in tables; for RabbitMQ it includes the version."""
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
    """Resident memory of a process in bytes: `before` when this object was made, `most` the peak since then."""

    def __init__(self, process):
        self.directory = Path(f"/proc/{process.pid}")
        # 5 resets the peak to the current size (proc_pid_clear_refs(5)).
        (self.directory / "clear_refs").write_text("5")
        self.before = self.read("VmRSS")

    @property
    def most(self):
        return self.read("VmHWM")

    def read(self, name):
        [line] = [line for line in (self.directory / "status").read_text().splitlines() if line.startswith(f"{name}:")]
        return int(line.split()[1]) * 1024


def check_process(rabbitmq):
    """CPU time and memory are read from this process, so it must be the server, not the script that started it."""
    name = Path(f"/proc/{rabbitmq.pid}/comm").read_text().strip()
    assert name == ERLANG, f"process {rabbitmq.pid} is {name}, not {ERLANG}"


def system(name, server, *behind):
    """The `--system` argument of `leveret bench`, with the processes that do the work."""
    return f"{name}={server.uri}" + "".join(f",pid={each.pid}" for each in (server, *behind))


def bench(study, systems, *words, wrapper=()):
    """Runs a comparison with `leveret bench`; returns whether all expectations were met, and the report. The bench's output
    goes to standard error, because standard output is for the tables."""
    system_flags = [part for each in systems for part in ("--system", each)]
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        command = [*wrapper, binary(), "bench", study, *system_flags, *words, "--json", report]
        done = subprocess.run(list(map(str, command)), stdout=sys.stderr)
        if not report.exists():
            raise subprocess.CalledProcessError(done.returncode, command)
        return done.returncode == 0, json.loads(report.read_text())


def median(report, name, metric):
    """One system's figure in a `leveret bench stream` report; `None` if it was not measured."""
    [found] = [each for each in report["systems"] if each["name"] == name]
    return {each["metric"]: each["median"] for each in found["summary"]}.get(metric)


def table(header, rows):
    """A Markdown table; more rows may follow below it."""
    return "\n".join([row(header), "|" + "---|" * len(header), *map(row, rows)])


def row(cells):
    return f"| {' | '.join(cells)} |"


def ratio_titles(titles):
    return [f"ratio to {title.removeprefix('RabbitMQ ')}" for title in titles]


def per_second(value):
    """Rounds to four significant digits."""
    if value is None:
        return UNKNOWN
    return f"{float(f'{value:.4g}'):,.0f}/s" if value >= 100 else f"{value:.3g}/s"


def ratio(ours, theirs):
    if not ours or not theirs:
        return UNKNOWN
    value = ours / theirs
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def microseconds(seconds):
    """Microseconds, without the unit."""
    if seconds is None:
        return UNKNOWN
    value = seconds * 1e6
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def milliseconds(seconds):
    if seconds is None:
        return UNKNOWN
    value = seconds * 1e3
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"
