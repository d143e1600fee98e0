"""RabbitMQs that one module after another uses: a reset takes a quarter of the CPU time of a start, and starts took 40 % of the
CPU time of all black-box tests."""

import pytest

from harness.ports import free_ports
from harness.rabbitmq import PLUGINS as USUAL
from harness.rabbitmq import RabbitMq
from harness.releases import release

# How many unused ones a worker keeps, each of which has some 100 MB: both releases, with each of the usual sets of plugins.
MAX_IDLE = 4
# Few sets of plugins, so that an unused server is rarely of the wrong kind.
PLUGINS = f"{USUAL},rabbitmq_mqtt"
MQTT = "mqtt.listeners.tcp.1 = 127.0.0.1:{}"

IDLE = []
"""Those that are not in use, the most recently used last."""


class BorrowedRabbitMq(RabbitMq):
    """`stop` gives it back, unless it was killed. A test that changes what a reset does not undo, such as a file of the server, must not borrow.
    `listeners` are the ports for which `{}` stands in the settings."""

    is_borrowed = False

    def __init__(self, directory, key, settings, plugins, version):
        self.key, self.listeners, filled = key, [], []
        for setting in settings:
            ports = free_ports(setting.count("{}"))
            self.listeners += ports
            filled.append(setting.format(*ports))
        super().__init__(directory, *filled, plugins=plugins, version=version)
        self.is_borrowed = True

    @property
    def mqtt(self):
        """The port of its MQTT listener, if it has the default plugins."""
        return self.listeners[0]

    def reset(self):
        """Closes all connections, and deletes everything that was declared, stored or set."""
        for command in ("stop_app", "reset", "start_app"):
            self.control(command)

    def stop(self):
        if not self.is_borrowed or not self.server.running():
            super().stop()
        elif self not in IDLE:
            IDLE.append(self)

    def end_for_good(self):
        self.is_borrowed = False
        self.stop()


@pytest.fixture(scope="session", autouse=True)
def lender(tmp_path_factory):
    """Where borrowed servers have their files; they end with the tests."""
    BorrowedRabbitMq.directories = tmp_path_factory
    yield
    while IDLE:
        IDLE.pop().end_for_good()


def borrow(*settings, version=None):
    """A RabbitMQ as if it had just been installed, with an MQTT listener."""
    return borrow_with(PLUGINS, MQTT, *settings, version=version)


def borrow_with(plugins, *settings, version=None):
    """One with these plugins. Each `{}` in its settings stands for a free port."""
    key = (release(version).name, plugins, settings)
    for server in [server for server in reversed(IDLE) if server.key == key]:
        IDLE.remove(server)
        try:
            server.check()
            server.reset()
            return server
        except (AssertionError, OSError):
            # Its last user broke it.
            server.end_for_good()
    while len(IDLE) >= MAX_IDLE:
        IDLE.pop(0).end_for_good()
    directory = BorrowedRabbitMq.directories.mktemp("borrowed")
    return BorrowedRabbitMq(directory, key, settings, plugins, version)
