"""Applications that use Spring AMQP, Celery, Bunny, php-amqplib or aio-pika survive restarts, kills and alarms of their
servers: no process needs a restart, and all confirmed messages arrive.

Each server (RabbitMQ itself, as a control; the pool in front of it; the embedded broker) is started once and goes through
its events in turn, while all frameworks publish and consume. After each event each framework has its outcome. A client that
has failed is replaced, so that the outcome of the next event does not depend on it.
"""

import concurrent.futures
import contextlib
import signal
import time

import pytest

from harness.frameworks import COMMANDS, Client
from harness.leveret import Leveret
from harness.metrics import metric, wait_until
from harness.patience import PATIENCE, TEST_SECONDS
from harness.ports import free_ports
from harness.rabbitmq import RabbitMq

# Messages: confirmed to each client after an event, and unacknowledged in each queue before an alarm.
ENOUGH = 50
POLL_SECONDS = 0.05


class Rabbit:
    """RabbitMQ itself."""

    def __init__(self, directory):
        self.rabbitmq = RabbitMq(directory / "rabbitmq")
        self.uri = self.rabbitmq.uri

    def stopped(self):
        self.restart(signal.SIGTERM)

    def killed(self):
        self.restart(signal.SIGKILL)

    def normal(self):
        """Nothing happens."""

    def restart(self, how):
        self.rabbitmq.end(how)
        self.rabbitmq.start()

    @contextlib.contextmanager
    def alarm(self, _publishers):
        self.rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1MB")
        try:
            wait_until(lambda: "blocked" in self.rabbitmq.control("list_connections", "state").split())
            yield
        finally:
            self.rabbitmq.control("set_vm_memory_high_watermark", "0.4")

    def stop(self):
        self.rabbitmq.stop()


class Pool(Rabbit):
    """Leveret in front of RabbitMQ, which is restarted and has its alarm as above."""

    flags = ()

    def __init__(self, directory):
        super().__init__(directory)
        self.directory = directory / "pool"
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        try:
            self.start_pool()
        except BaseException:
            super().stop()
            raise
        self.uri = self.pool.uri

    def start_pool(self):
        upstream = self.rabbitmq.uri.replace("guest:guest@", "")
        self.pool = Leveret(self.directory, "--upstream", upstream, *self.flags, amqp=self.address)

    def pool_stopped(self):
        self.pool.stop()
        self.start_pool()

    def pool_killed(self):
        self.pool.child.kill()
        self.start_pool()

    def all_killed(self):
        """The pool is back long before RabbitMQ, so clients connect while it has no upstream."""
        self.rabbitmq.end()
        self.pool_killed()
        self.rabbitmq.start()

    def stop(self):
        self.pool.child.kill()
        super().stop()


class ShortPool(Pool):
    """A pool that closes its clients' connections long before RabbitMQ is back."""

    flags = ("--upstream-outage-max", "1s")


class Broker:
    """The embedded broker, with its data directory."""

    def __init__(self, directory):
        self.directory = directory / "broker"
        self.directory.mkdir(parents=True)
        self.file = self.directory / "leveret.toml"
        self.file.write_text("")
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.start()
        self.uri = self.server.uri

    def normal(self):
        """Nothing happens."""

    def start(self):
        self.server = Leveret(self.directory, "--config", self.file, amqp=self.address)

    def stopped(self):
        self.server.stop()
        self.start()

    def killed(self):
        self.server.child.kill()
        self.start()

    @contextlib.contextmanager
    def alarm(self, publishers):
        self.reload('memory_high_watermark = "1MiB"\n')
        try:
            wait_until(lambda: metric(self.server, "leveret_blocked_connections") >= publishers)
            yield
        finally:
            self.reload("")

    def reload(self, text):
        self.file.write_text(text)
        self.server.child.send(signal.SIGHUP)

    def stop(self):
        self.server.child.kill()


# Each server with its events, in the order in which they happen.
ALARM = "alarm"
RESTARTS = ("stopped", "killed")
TRIALS = {
    "rabbitmq": (Rabbit, ["normal", ALARM, *RESTARTS]),
    "pool": (Pool, ["normal", ALARM, *RESTARTS, "pool_stopped", "pool_killed", "all_killed"]),
    "pool_outage_max": (ShortPool, ["normal", *RESTARTS]),
    "broker": (Broker, ["normal", ALARM, *RESTARTS]),
}
# The first test waits for all of its trial: a start, and its events.
pytestmark = pytest.mark.timeout(max(1 + len(events) for _, events in TRIALS.values()) * TEST_SECONDS)
# By trial and event: the frameworks whose outcome is not asked for yet, and why. They are replaced after the event.
LEFT_OUT = {}


def pytest_generate_tests(metafunc):
    wanted = metafunc.config.getoption("--trials")
    trials = list(TRIALS) if wanted == "all" else wanted.split(",")
    cells = [
        (trial, event, name)
        for trial in trials
        for event in TRIALS[trial][1]
        for name in COMMANDS
        if name not in LEFT_OUT.get((trial, event), ())
    ]
    metafunc.parametrize(("trial", "event", "framework"), cells)


class Trial:
    """One server and the selected frameworks. `outcomes` is by event and framework: `None`, or what failed."""

    def __init__(self, name, frameworks, directory):
        start, events = TRIALS[name]
        self.name, self.directory = name, directory
        self.outcomes = {}
        self.clients = {}
        self.started = 0
        self.server = start(directory)
        try:
            for framework in frameworks:
                self.replace(framework)
            self.each({}, self.advanced())
            for event in events:
                self.go_through(event)
        finally:
            for client in self.clients.values():
                client.kill()
            self.server.stop()

    def replace(self, framework):
        if framework in self.clients:
            self.clients[framework].kill()
        self.started += 1
        self.clients[framework] = Client(framework, self.server.uri, self.directory / f"{framework}-{self.started}")

    def go_through(self, event):
        failed = {name: why for name, why in LEFT_OUT.get((self.name, event), {}).items() if name in self.clients}
        began = time.monotonic()
        if event == ALARM:
            self.alarm(failed)
        else:
            getattr(self.server, event)()
        happened = time.monotonic() - began
        self.each(failed, self.advanced())
        self.each(failed, self.arrived())
        for framework, client in self.clients.items():
            if client.ended():
                failed.setdefault(framework, client.state())
            self.outcomes[event, framework] = failed.get(framework)
        for framework in failed:
            self.replace(framework)
        # The next event finds all of them at work.
        self.each({}, self.advanced())
        after = time.monotonic() - began - happened
        with (self.directory / "events.log").open("a") as log:
            print(f"{event}: {happened:.1f} s, recovered after {after:.1f} s, failed: {sorted(failed)}", file=log)

    def alarm(self, failed):
        """The messages that were confirmed before an alarm are consumed during it."""
        for client in self.clients.values():
            client.pause.touch()
        self.each(failed, lambda client: len(client.confirmed - client.received) >= ENOUGH)
        with self.server.alarm(len(self.clients)):
            for client in self.clients.values():
                client.pause.unlink()
            self.each(failed, self.arrived())

    def advanced(self):
        """A condition: ENOUGH more messages are confirmed to the client."""
        self.update()
        goals = {name: len(client.confirmed) + ENOUGH for name, client in self.clients.items()}
        return lambda client: len(client.confirmed) >= goals[client.name]

    def arrived(self):
        """A condition: all messages that are confirmed to the client by now have arrived."""
        self.update()
        due = {name: set(client.confirmed) for name, client in self.clients.items()}
        return lambda client: due[client.name] <= client.received

    def update(self):
        for client in self.clients.values():
            client.update()

    def each(self, failed, condition):
        """Waits until the condition holds for each client; the others are added to `failed`, with the end of their logs."""
        deadline = time.monotonic() + PATIENCE
        waiting = [client for name, client in self.clients.items() if name not in failed]
        while waiting:
            self.update()
            waiting = [client for client in waiting if not condition(client)]
            for client in waiting:
                if client.ended() or time.monotonic() > deadline:
                    failed[client.name] = client.state()
            waiting = [client for client in waiting if client.name not in failed]
            time.sleep(POLL_SECONDS)


@pytest.fixture(scope="module")
def trials(request, tmp_path_factory):
    """The trials with the frameworks that are selected, all beside each other: they mostly wait."""
    selected = {}
    for item in request.session.items:
        if request.node.path == item.path:
            selected.setdefault(item.callspec.params["trial"], {})[item.callspec.params["framework"]] = None
    with concurrent.futures.ThreadPoolExecutor(len(TRIALS)) as threads:
        yield {
            name: threads.submit(Trial, name, frameworks, tmp_path_factory.mktemp(name))
            for name, frameworks in selected.items()
        }


def test_nothing_needs_a_restart_and_nothing_confirmed_is_missing(trials, trial, event, framework):
    failed = trials[trial].result().outcomes[event, framework]
    assert failed is None, failed
