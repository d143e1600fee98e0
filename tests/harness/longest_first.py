"""A pytest plugin that gives the workers of a parallel run the slowest files first, by the durations of the last complete
run on this machine. No worker then ends with a slow file while the others are idle."""

import collections
import json
import os

import pytest

from harness.drivers import COMMANDS
from harness.leveret import ROOT
from harness.targets import NAMES

DURATIONS_FILE = ROOT / ".cache" / "durations.json"
# The slowest files, for the first run on a machine.
SLOWEST = [
    "scenarios/same_answers.py",
    "blackbox/migrate_kills.py",
    "blackbox/package_debian.py",
    "blackbox/bench_studies.py",
    "blackbox/http_openapi.py",
    "blackbox/migrate_in.py",
    "blackbox/oauth_beside_rabbitmq4.py",
    "blackbox/ctl_commands.py",
    "blackbox/oauth_tokens.py",
    "blackbox/stomp_in_front_of_rabbitmq.py",
    "blackbox/mqtt_retained_upstream.py",
    "blackbox/spool_clients.py",
    "blackbox/mqtt_listeners.py",
    "blackbox/mqtt_session_state.py",
    "blackbox/mqtt_exchange.py",
    "blackbox/mqtt_upstream_sessions.py",
    "blackbox/mqtt_shared.py",
    "blackbox/mqtt_mqttjs.py",
    "blackbox/http_rabbitmqadmin.py",
    "blackbox/mqtt_beside_upstream.py",
    "blackbox/mqtt_live.py",
    "blackbox/package_release.py",
    "blackbox/mqtt_upstream.py",
    "blackbox/migrate_cut_over.py",
    "blackbox/mqtt_slow_clients.py",
    "blackbox/migrate.py",
    "blackbox/cross_protocol.py",
    "blackbox/http_tags.py",
    "blackbox/proxy_transient_topology.py",
    "blackbox/http_beside_rabbitmq.py",
    "blackbox/mqtt_cluster.py",
    "blackbox/spool_cluster.py",
    "blackbox/proxy_outage.py",
    "blackbox/mqtt_beside_rabbitmq4.py",
    "frameworks/no_restart.py",
    "blackbox/mqtt_clients.py",
    "blackbox/mqtt_takeover.py",
    "blackbox/permissions_revoked.py",
    "blackbox/firehose.py",
    "blackbox/proxy_streams.py",
    "blackbox/spool_deferring.py",
    "blackbox/spool_offline_logins.py",
    "blackbox/paging.py",
    "blackbox/benchmark_servers.py",
    "blackbox/cluster_maintenance.py",
    "blackbox/proxy_prefetch.py",
    "blackbox/longest_file_first.py",
    "blackbox/websocket_sessions.py",
]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """All workers must collect in the same order, so the controller reads the file."""
    node.workerinput["longest_first"] = last_run()


def last_run():
    try:
        return json.loads(DURATIONS_FILE.read_text())
    except (OSError, ValueError):
        return {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        items[:] = longest_first(items, worker["longest_first"], key=lambda item: item.nodeid.partition("::")[0])


def longest_first(items, seconds, key):
    """Sorts `items` by the durations of their files, the longest first, and keeps each file together and in order. Files
    without a duration come first: those in SLOWEST, then by their number of tests."""
    counts = collections.Counter(map(key, items))
    first = {file: place for place, file in enumerate(SLOWEST)}

    def rank(item):
        file = key(item)
        return (-seconds.get(file, float("inf")), first.get(file, len(SLOWEST)), -counts[file], file)

    return sorted(items, key=rank)


class Durations:
    """Records the duration of each file; saved if every file ran to its end."""

    def __init__(self):
        self.seconds = collections.Counter()

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            DURATIONS_FILE.parent.mkdir(exist_ok=True)
            written = DURATIONS_FILE.with_suffix(f".{os.getpid()}")
            written.write_text(json.dumps({file: round(seconds, 1) for file, seconds in self.seconds.most_common()}, indent=1))
            written.replace(DURATIONS_FILE)


def pytest_configure(config):
    partial = any(config.getoption(name) for name in ("keyword", "markexpr", "maxfail", "collectonly"))
    whole = config.args == config.getini("testpaths") and not partial
    if whole and not hasattr(config, "workerinput") and not narrowed(config):
        config.pluginmanager.register(Durations())


def narrowed(config):
    """Whether options exclude some servers or clients."""
    return any(config.getoption(option) != ",".join(known) for option, known in (("--target", NAMES), ("--client", COMMANDS)))
