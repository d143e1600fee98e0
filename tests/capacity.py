"""The capacity figures of docs/benchmarks.md: very many WebSocket connections, each with a subscription of its own, a
message now and then, and heartbeats, on Leveret's broker, through a relay of ours, and on RabbitMQ's Web-MQTT and
Web-STOMP, one after the other; idle MQTT clients on Leveret and on RabbitMQ in one run; and a million MQTT subscriptions.

    make capacity                 # everything, about half an hour
    make capacity ARGS="--quick"  # to see that it works
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from harness.leveret import ROOT, Leveret, binary
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq

# What a process has open besides its clients' sockets.
SPARE = 256
# Others' published figures are at these numbers.
LEVELS = [5_000, 15_000, 20_000]
# And here, of devices that have subscribed and wait.
DEVICES = 18_000
# They say no more than that they are there.
IDLE = ("--interval", "36000", "--heartbeat", "60")
# Everybody comes from the same machine.
UNLIMITED = ("--max-connections", "unlimited", "--log", "warn")
PLUGINS = "rabbitmq_web_mqtt,rabbitmq_web_stomp"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="few connections for a short time")
    arguments.add_argument("--hold", default="60", help="seconds at each level")
    arguments.add_argument("--devices", type=int, default=DEVICES, help="connections of the study mqtt")
    arguments.add_argument("--only", choices=[name for name, _ in STUDIES], action="append", help="these studies alone")
    options = arguments.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        for name, study in STUDIES:
            if not options.only or name in options.only:
                print(f"\n## {name}\n", flush=True)
                study(Path(folder, name), options, most - SPARE)
    return 0


def broker(folder, options, most):
    with server(folder, "--ws", "127.0.0.1:0") as leveret:
        bench(options, most, f"leveret=amqp+ws://127.0.0.1:{leveret.ws_port}/ws/amqp,pid={leveret.pid}")


def mqtt(folder, options, most):
    """Idle MQTT clients, each with a subscription, on Leveret and on RabbitMQ's Web-MQTT, in one run of the bench."""
    (port,) = free_ports(1)
    settings = [f"web_mqtt.tcp.port = {port}", "web_mqtt.tcp.ip = 127.0.0.1", *OTHER_PORTS["web_mqtt"]]
    peer = RabbitMq(folder / "rabbitmq", *settings, plugins="rabbitmq_web_mqtt")
    try:
        with server(folder / "leveret", "--web-mqtt", "127.0.0.1:0") as leveret:
            own = leveret.child.wait_line(r"^web-mqtt +listening on ws://127\.0\.0\.1:(\d+)").group(1)
            systems = [f"leveret=mqtt+ws://127.0.0.1:{own}/ws,pid={leveret.pid}"]
            systems += [f"rabbitmq=mqtt+ws://127.0.0.1:{port}/ws,pid={peer.pid}"]
            run_bench(systems, ["--connections", str(min(options.devices, most)), "--hold", options.hold, *IDLE])
    finally:
        peer.server.kill()
        peer.stop()


def relay(folder, options, most):
    """The relay in a process of its own, in front of a broker in another: two sockets a pair."""
    with server(folder / "broker") as behind, relaying(folder / "relay", behind.port) as (front, port):
        bench(options, most // 2, f"relay=amqp+ws://127.0.0.1:{port}/,pid={front.pid}")


def rabbitmq(folder, options, most):
    """Each plug-in in a RabbitMQ that has just started."""
    for scheme, plugin in [("mqtt", "web_mqtt"), ("stomp", "web_stomp")]:
        (port,) = free_ports(1)
        settings = [f"{plugin}.tcp.port = {port}", f"{plugin}.tcp.ip = 127.0.0.1", *OTHER_PORTS[plugin]]
        peer = RabbitMq(folder / plugin, *settings, plugins=f"rabbitmq_{plugin}")
        try:
            bench(options, most, f"{plugin}={scheme}+ws://127.0.0.1:{port}/ws,pid={peer.pid}")
        finally:
            # It would take its time to say goodbye to very many clients that have gone.
            peer.server.kill()
            peer.stop()


# Neither is measured over TCP.
OTHER_PORTS = {"web_mqtt": ["mqtt.listeners.tcp = none"], "web_stomp": ["stomp.listeners.tcp = none"]}


def tls(_folder, _options, _most):
    """What an idle connection over wss costs, as a test prints it."""
    test("blackbox/websocket_tls.py", "-k", "idle")


def abandoned(_folder, options, most):
    """The test, with as many connections as there can be."""
    count = 1000 if options.quick else min(20_000, most)
    test("blackbox/websocket_abandoned.py", LEVERET_ABANDONED=str(count))


def in_memory(_folder, options, _most):
    """More sessions than a process may have sockets, over streams that are memory."""
    measurement(options, "very_many", LEVERET_SESSIONS=2_000 if options.quick else 200_000)


def subscriptions(_folder, options, _most):
    """A million MQTT subscriptions in one process: memory, and what a message costs that has to find one of them."""
    measurement(options, "million", LEVERET_SUBSCRIPTIONS=20_000 if options.quick else 1_000_000)


def measurement(options, name, **environment):
    profile = [] if options.quick else ["--release"]
    command = ["cargo", "test", *profile, "--locked", "--quiet", "--package", "server", "--lib", "--"]
    environment = {key: str(value) for key, value in environment.items()}
    subprocess.run([*command, "--ignored", "--nocapture", name], check=True, cwd=ROOT, env={**os.environ, **environment})


def test(file, *arguments, **environment):
    command = [sys.executable, "-m", "pytest", "-q", "-s", file, *arguments]
    subprocess.run(command, check=True, cwd=ROOT / "tests", env={**os.environ, **environment})


STUDIES = [
    ("broker", broker),
    ("mqtt", mqtt),
    ("relay", relay),
    ("rabbitmq", rabbitmq),
    ("tls", tls),
    ("abandoned", abandoned),
    ("in-memory", in_memory),
    ("subscriptions", subscriptions),
]


@contextmanager
def server(folder, *flags):
    leveret = Leveret(folder, *UNLIMITED, *flags)
    try:
        yield leveret
    finally:
        leveret.stop()


@contextmanager
def relaying(folder, port):
    with server(folder, "--relay", f"127.0.0.1:0=tcp://127.0.0.1:{port}") as front:
        yield front, int(front.child.wait_line(r"^relay +listening on ws://127\.0\.0\.1:(\d+)").group(1))


def bench(options, most, system):
    levels = sorted({min(level, most) for level in LEVELS})
    length = ["--quick"] if options.quick else ["--connections", ",".join(map(str, levels)), "--hold", options.hold]
    run_bench([system], length)


def run_bench(systems, arguments):
    systems = [word for system in systems for word in ("--system", system)]
    subprocess.run([str(binary()), "bench", "websockets", *systems, *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
