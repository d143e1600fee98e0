"""The studies of `leveret bench` in their quick form, on the embedded broker and through a pool that they start."""

import base64
import contextlib
import csv
import json
import os
import re
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from harness.certificates import TestCa
from harness.child import Child, clean_environment
from harness.instances import leveret
from harness.leveret import binary, run
from harness.metrics import wait_until
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.rabbitmq import CREDENTIALS, RabbitMq

SHORT = ["--quick", "--time", "0.1"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("broker"), "--data-dir", "off") as server:
        yield server


def study(*arguments, seconds=PATIENCE):
    """Runs a study and asserts that its expectations are met; returns the report."""
    code, out, error = run("bench", *arguments, "--json", "-", seconds=seconds)
    assert code == 0, out + error
    return json.loads(out)


def figures(report, scenario, at, system):
    """The measurements of a system at a point, by metric."""
    [cell] = [c for c in report["cells"] if (c["scenario"], c["at"], c["system"]) == (scenario, at, system)]
    return {f["metric"]: f for f in cell["figures"]}


def figure(report, scenario, at, system, metric):
    return figures(report, scenario, at, system)[metric]


def test_the_proxy_study_brings_its_own_pool_and_loses_nothing(broker):
    report = study("proxy", *SHORT, "--uri", broker.uri, "--pid", broker.pid, "--latency", "0,40")
    assert {system["name"] for system in report["systems"]} == {"direct", "leveret", "spool"}
    for scenario, direct, pooled in [("no confirm", 6, 0), ("confirm", 8, 1)]:
        for system, round_trips in [("direct", direct), ("leveret", pooled), ("spool", 0)]:
            assert figure(report, scenario, 40, system, "p50")["median"] >= round_trips * 0.040 * 0.999
            assert figure(report, scenario, 40, system, "lost")["max"] == 0
        # At least five round trips are saved, far more time than a busy machine adds.
        systems = ("direct", "leveret", "spool")
        direct, pooled, spooled = (figure(report, scenario, 40, system, "p50")["median"] for system in systems)
        assert pooled < direct / 2 and spooled < direct / 2


def test_brokers_far_away_take_turns_with_a_pool_before_each(broker):
    uri, beside = f"{broker.uri},pid={broker.pid}", f"other={broker.uri},pid={broker.pid}"
    words = ["--uri", uri, "--beside", beside, "--no-spool", "--latency", "40", "--expect", "lost==0"]
    report = study("proxy", *SHORT, *words)
    assert [system["name"] for system in report["systems"]] == ["direct", "leveret", "direct-other", "leveret-other"]
    for direct, pooled in [("direct", "leveret"), ("direct-other", "leveret-other")]:
        assert figure(report, "no confirm", 40, direct, "p50")["median"] >= 6 * 0.040 * 0.999
        assert figure(report, "confirm", 40, pooled, "p50")["median"] >= 0.040 * 0.999


def test_the_publish_study_measures_every_style_near_and_far(broker):
    report = study("publish", *SHORT, "--system", f"it={broker.uri},pid={broker.pid}", "--publishers", "1,2", "--latency", "10")
    styles = {"async", "async confirm", "sync confirm", "connection each", "connection each, confirm"}
    measured = [(cell["scenario"], cell["axis"], cell["at"]) for cell in report["cells"]]
    places = [("publishers", 1), ("publishers", 2), ("round_trip", 10)]
    assert sorted(measured) == sorted((style, axis, at) for style in styles for axis, at in places)
    one_by_one = [style for style in styles if style.startswith("connection")]
    assert all(figure(report, style, 10, "it", "rate")["median"] > 0 for style in one_by_one)


def test_pools_near_publishers_are_measured_by_arrivals_at_the_broker(broker):
    words = ["--system", f"it={broker.uri},pid={broker.pid}", "--near", "spool,pool", "--publishers", "1", "--latency", "40"]
    words += ["--expect", "spool.lost==0", "--expect", "near-pool.lost==0"]
    # Enough time for confirms with this latency on a busy machine.
    report = study("publish", "--quick", "--time", "1", *words, "--persistent", "--size", "1000")
    assert [system["name"] for system in report["systems"]] == ["it", "near-pool", "spool"]
    for system in ("near-pool", "spool"):
        for style in ("async", "async confirm", "sync confirm", "connection each", "connection each, confirm"):
            assert figure(report, style, 1, system, "lost")["max"] == 0
        assert figure(report, "async confirm", 40, system, "forward")["median"] > 0
    # The pool forwards the broker's confirm; spool_forwarding.py shows that the spool does not wait for it.
    assert figure(report, "sync confirm", 40, "near-pool", "confirm.p50")["median"] >= 0.040 * 0.999


def test_the_churn_study_opens_and_closes_everything(broker):
    report = study("churn", *SHORT, "--uri", broker.uri, "--workers", "1,3", "--expect", "rate>0")
    assert {cell["scenario"] for cell in report["cells"]} == {"connection", "channel", "queue", "binding", "consumer"}
    assert len(report["cells"]) == 10


def test_the_strategies_study_loses_nothing_on_a_broker_and_through_a_pool_that_it_starts(broker):
    arguments = ["--uri", broker.uri, "--with", "broker,pool", "--workers", "3", "--messages", "50", "--rounds", "2"]
    report = study("strategies", *arguments, "--expect", "lost==0", "--expect", "rate>0")
    assert {system["name"] for system in report["systems"]} == {"default", "broker", "pool"}
    assert {cell["scenario"] for cell in report["cells"]} == {"one connection", "connection each", "pool of channels"}
    # Its CPU time may be below one clock tick.
    assert "cpu" in figures(report, "one connection", 3, "pool")


def test_streams_follow_patterns_keys_schedules_and_arguments(broker, tmp_path):
    common = ["--uri", broker.uri, "--rounds", "1", "--messages", "300"]
    none_lost = ["--expect", "lost==0", "--expect", "duplicated==0", "--expect", "p50<60s"]
    many = ["--producers", "2", "--consumers", "3", "--queue", "pattern-%d-x", "--queues", "5", "--first-queue", "7"]
    study("stream", *common, *many, "--persistent", "--queue-argument", "x-max-length=100000", *none_lost)
    keys = ["--exchange", "bench-topic", "--exchange-type", "topic", "--routing-key", "a.%d.b", "--routing-keys", "9"]
    study("stream", *common, *keys, "--queues", "4", "--property", "priority=5", "--property", "header.x=1", *none_lost)
    report = study("stream", *common, "--rate", "1000:0.1,0:0.05,1000..5000:0.1", *none_lost)
    assert report["workload"]["rate"] == "1000:0.1,0:0.05,1000..5000:0.1"
    for name, size in [("a", 10), ("b", 200_000)]:
        (tmp_path / name).write_bytes(b"x" * size)
    bodies = ["--body", tmp_path / "a", "--body", tmp_path / "b", "--property", "content-type=text/plain"]
    report = study("stream", *common, *bodies, "--expect", "lost==0")
    assert report["systems"][0]["rounds"][0]["counts"]["consumed"] == 300
    channels = ["--channels", "3", "--producers", "2", "--consumers", "2", "--size", "200000", "--confirms", "20"]
    study("stream", *common, *channels, *none_lost, "--expect", "reordered==0")
    refused = run("bench", "stream", *common, "--queue-argument", "x-max-length=-1")
    assert refused[0] == 1 and "406" in refused[2]


def test_streams_go_over_tls(tmp_path):
    ca = TestCa(tmp_path)
    pair = ca.issue("server")
    tls = ["--amqps", "127.0.0.1:0", "--tls-cert", pair.certificate, "--tls-key", pair.key]
    with leveret(tmp_path / "tls", "--data-dir", "off", *tls) as server:
        port = server.child.wait_line(r"^amqps +listening on amqps://127\.0\.0\.1:(\d+)").group(1)
        uri = f"amqps://guest:guest@localhost:{port}"
        arguments = ["--rounds", "1", "--messages", "5000", "--expect", "lost==0"]
        study("stream", *arguments, "--uri", f"{uri}?cacertfile={ca.file}")
        study("stream", *arguments, "--uri", f"{uri}?verify=verify_none")
        code, _, error = run("bench", "stream", *arguments, "--uri", uri)
        assert code == 1 and "certificate" in error, error


def test_a_system_is_watched_by_process_name_and_by_its_own_metrics(tmp_path):
    # A unique process name: other tests start and end Leverets meanwhile.
    program = tmp_path / f"it-{os.getpid()}"
    program.symlink_to(binary())
    with (
        leveret(tmp_path / "told", "--data-dir", "off") as server,
        leveret(tmp_path / "named", "--data-dir", "off", program=program) as other,
    ):
        told = f"told={server.uri},prometheus={server.http}/metrics"
        name = f"named={other.uri},process={program.name}"
        report = study("churn", *SHORT, "--system", told, "--system", name, "--kind", "channel", "--workers", "1")
    for system in ("told", "named"):
        assert figure(report, "channel", 1, system, "rss")["median"] > 1_000_000
        assert "cpu" in figures(report, "channel", 1, system)


def test_a_system_is_watched_by_its_unit(broker):
    with control_group(broker.pid) as unit:
        one = f"it={broker.uri},unit={unit}"
        report = study("churn", *SHORT, "--system", one, "--kind", "channel", "--workers", "1")
    assert figure(report, "channel", 1, "it", "rss")["median"] > 1_000_000
    assert "cpu" in figures(report, "channel", 1, "it")
    code, _, error = run("bench", "churn", *SHORT, "--system", f"it={broker.uri},unit=no-such-unit", "--kind", "channel")
    assert code == 2 and "no-such-unit" in error, error


@contextlib.contextmanager
def control_group(pid):
    """The unit name of a process's control group: one created as systemd would, or if that is not allowed the inherited one."""
    made = made_group(pid)
    if made is None:
        units = [part for _, _, path in groups_of(pid) for part in path.split("/") if "." in part]
        if not units:
            pytest.skip("there are no control groups here, and none may be made; the unit tests have a directory instead")
        yield units[0]
        return
    group, before = made
    try:
        yield group.stem
    finally:
        # The process may have exited, which other assertions report better.
        with contextlib.suppress(OSError):
            (before / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def made_group(pid):
    """The directories of a control group created for a process, and of its previous one."""
    for mount in [line.split() for line in Path("/proc/mounts").read_text().splitlines()]:
        root, group = Path(mount[1]), Path(mount[1]) / f"leveret-test-{pid}.service"
        if mount[2] == "cgroup2":
            mine = [path for number, _, path in groups_of(pid) if number == "0"]
        elif "name=systemd" in mount[3]:
            mine = [path for _, controllers, path in groups_of(pid) if controllers == "name=systemd"]
        else:
            continue
        if ".." in mine[0]:
            # Its group is outside the visible hierarchy, so the process could not be moved back.
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / "cgroup.procs").write_text(str(pid))
            return group, root / mine[0].lstrip("/")
        except OSError:
            group.rmdir()
    return None


def groups_of(pid):
    """A process's control groups: number, controllers, path."""
    return [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]


def test_a_rabbitmq_elsewhere_is_watched_through_its_metrics_and_its_management(tmp_path):
    metrics, management = free_ports(2)
    settings = [f"prometheus.tcp.port = {metrics}", f"management.tcp.port = {management}"]
    settings += ["prometheus.tcp.ip = 127.0.0.1", "management.tcp.ip = 127.0.0.1", "collect_statistics_interval = 500"]
    rabbitmq = RabbitMq(tmp_path / "rabbitmq", *settings, plugins="rabbitmq_prometheus,rabbitmq_management")
    try:
        # The management API reports no memory before its first statistics interval.
        wait_until(lambda: "mem_used" in nodes(management))
        told = f"told={rabbitmq.uri},prometheus=http://127.0.0.1:{metrics}/metrics"
        asked = f"asked={rabbitmq.uri},management=http://guest:guest@127.0.0.1:{management}"
        churn = ["--kind", "channel", "--workers", "1"]
        report = study("churn", *SHORT, "--system", told, "--system", asked, *churn, seconds=2 * PATIENCE)
    finally:
        rabbitmq.stop()
    for system in ("told", "asked"):
        assert figure(report, "channel", 1, system, "rss")["median"] > 10_000_000
    assert "cpu" in figures(report, "channel", 1, "told") and "cpu" not in figures(report, "channel", 1, "asked")


def nodes(port):
    """The nodes according to RabbitMQ's management API."""
    login = base64.b64encode(CREDENTIALS.encode()).decode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/nodes", headers={"Authorization": f"Basic {login}"})
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


# A study's part of a page, which can be folded.
SECTION = r'<details open id="(\w+)">'


def test_every_study_has_its_part_in_the_report_of_all(tmp_path):
    with leveret(tmp_path / "both", "--data-dir", "off", "--ws", "127.0.0.1:0") as server:
        web = f"web=amqp+ws://127.0.0.1:{server.ws_port}/ws/amqp,pid={server.pid}"
        arguments = ["--quick", "--rounds", "1", "--system", f"it={server.uri},pid={server.pid}", "--websocket", web]
        only = ["--only", "proxy,strategies,stream,routing,websockets"]
        # A slow machine would skip points, and then growth could not be computed.
        only += ["--set", "routing: --limit-seconds 3600"]
        code, out, error = run("bench", "all", *arguments, *only, "--output", tmp_path / "all", seconds=2 * PATIENCE)
    assert code == 0, out + error
    page = (tmp_path / "all" / "report.html").read_text()
    parts = ["proxy", "strategies", "stream", "routing", "websockets"]
    for part, title in zip(parts, re.findall(SECTION, page), strict=True):
        assert part == title
        [section] = re.findall(rf'<details open id="{part}">.*?(?=<details open|</body>)', page, re.S)
        assert "<svg" in section and "<table" in section, part
    # A study of several systems begins with its verdict.
    assert page.index("Compared with direct, leveret reaches") < page.index("<svg")
    studies = json.loads((tmp_path / "all" / "results.json").read_text())["studies"]
    assert len(studies) == len(parts)
    # All of it compares with itself.
    results = tmp_path / "all" / "results.json"
    code, out, error = run("bench", "compare", results, results, "--output", tmp_path / "twice")
    assert code == 0, out + error
    page = (tmp_path / "twice" / "report.html").read_text()
    assert re.findall(SECTION, page) == parts and "A:it" in page and "B:web" in page
    assert len(json.loads((tmp_path / "twice" / "results.json").read_text())["studies"]) == len(parts)
    with (tmp_path / "all" / "results.csv").open() as lines:
        assert {row["study"] for row in csv.DictReader(lines)} == set(parts)


def test_bench_all_takes_options_and_expectations_for_each_study(broker):
    arguments = ["bench", "all", "--quick", "--uri", broker.uri, "--only", "churn,stream", "--set", "churn: --kind channel"]
    expected = ["--expect", "churn: channel@1: rate>0", "--expect", "stream: lost==0"]
    code, out, error = run(*arguments, *expected)
    assert code == 0 and out.count(": met") == 2, out + error
    assert re.search(r"^churn: \d+ s$", error, re.M), "whoever has no terminal is told how far it is"
    code, out, _ = run(*arguments, "--expect", "stream: rate>999M")
    assert code == 1 and "NOT MET" in out
    assert run(*arguments, "--expect", "proxy: rate>1")[0] == 2, "that study is not made"


def test_routing_and_websocket_studies_check_their_expectations(tmp_path):
    with leveret(tmp_path / "both", "--data-dir", "off", "--ws", "127.0.0.1:0") as server:
        routing = ["bench", "routing", "--quick", "--uri", server.uri, "--exchange", "direct", "--limit-seconds", "3600"]
        point = "direct publish, 4 bindings per queue@8: mean"
        assert run(*routing, "--expect", f"{point}<9s", "--expect", "mean<99s")[0] == 0
        code, out, _ = run(*routing, "--expect", f"{point}<1ns")
        assert code == 1 and "NOT MET" in out
        assert run(*routing, "--expect", "topic create: growth<9")[0] == 2
        sockets = ["bench", "websockets", "--connections", "20,40", "--hold", "0.5", "--interval", "0.2"]
        sockets += ["--system", f"it=amqp+ws://127.0.0.1:{server.ws_port}/ws/amqp,pid={server.pid}"]
        code, out, error = run(*sockets, "--rounds", "2", "--expect", "lost==0", "--expect", "@40: rss>1MiB", seconds=2 * PATIENCE)
        assert code == 0 and "it, round 2" in out, out + error
        assert run(*sockets, "--expect", "@20: rss<1KiB", seconds=2 * PATIENCE)[0] == 1
        assert run(*sockets, "--expect", "@30: rss<1KiB")[0] == 2


def test_expectations_of_single_cells_set_the_exit_code(broker):
    arguments = ["bench", "churn", *SHORT, "--uri", broker.uri, "--kind", "channel", "--workers", "1"]
    assert run(*arguments, "--expect", "channel@1: rate>0")[0] == 0
    code, out, _ = run(*arguments, "--expect", "channel@1: rate>999M")
    assert code == 1 and "NOT MET" in out
    assert run(*arguments, "--expect", "queue: rate>0")[0] == 2


def test_results_are_a_page_json_and_csv_and_two_runs_compare(broker, tmp_path):
    runs = [tmp_path / "a", tmp_path / "b"]
    for directory in runs:
        code, out, error = run("bench", "churn", *SHORT, "--uri", broker.uri, "--kind", "queue", "--output", directory)
        assert code == 0, out + error
        page = (directory / "report.html").read_text()
        assert page.count("<svg") == 3 and "http" not in page.replace("http://www.w3.org/2000/svg", "")
        with (directory / "results.csv").open() as lines:
            rows = list(csv.DictReader(lines))
        assert {row["scenario"] for row in rows} == {"queue"} and {"1", "4"} == {row["at"] for row in rows}
    a, b = (directory / "results.json" for directory in runs)
    both = study("compare", a, b, "--output", tmp_path / "both")
    assert [system["name"] for system in both["systems"]] == ["A:default", "B:default"]
    assert (tmp_path / "both" / "report.html").read_text().count("<svg") == 3
    assert run("bench", "compare", a, tmp_path / "none")[0] == 2


def test_runs_of_streams_routing_and_websockets_compare(tmp_path):
    with leveret(tmp_path / "both", "--data-dir", "off", "--ws", "127.0.0.1:0") as server:
        web = f"it=amqp+ws://127.0.0.1:{server.ws_port}/ws/amqp,pid={server.pid}"
        studies = {
            "stream": ["--uri", server.uri, "--messages", "300", "--rounds", "1", "--rate", "0..9000:1"],
            "routing": ["--uri", server.uri, "--quick", "--exchange", "fanout"],
            "websockets": ["--system", web, "--connections", "10", "--hold", "0.2"],
        }
        for name, arguments in studies.items():
            runs = [tmp_path / f"{name}-{letter}" for letter in "ab"]
            for directory in runs:
                study(name, *arguments, "--output", directory)
            a, b = (directory / "results.json" for directory in runs)
            both = study("compare", a, b, "--output", tmp_path / f"{name}-both")
            systems = [system["name"] for system in both["systems"]]
            assert [system[:2] for system in systems] == ["A:", "B:"], systems
            page = (tmp_path / f"{name}-both" / "report.html").read_text()
            assert "<svg" in page and all(page.count(system) > 1 for system in systems), name
    assert run("bench", "compare", tmp_path / "stream-a" / "results.json", b)[0] == 2, "of different studies"


def test_the_sink_accepts_a_stream_and_cpu_use_is_reported_on_both_sides(tmp_path):
    child = Child([binary(), "bench", "sink"], tmp_path / "sink.log", env=clean_environment())
    try:
        uri = child.wait_line(r"^sink  listening on (amqp://127\.0\.0\.1:\d+)$").group(1)
        # Longer than a clock tick, the unit of a process's CPU time, even on a busy machine.
        arguments = ["--system", f"sink={uri},pid={child.pid}", "--consumers", "0", "--time", "3", "--rounds", "1"]
        report = study("stream", *arguments, "--expect", "publish>0")
        [round] = report["systems"][0]["rounds"]
        assert round["processes"]["cpu_cores"] > 0 and 0 < round["generator"]["busiest_thread"] <= 1.1
    finally:
        child.kill()


def test_the_link_knows_how_late_it_is():
    # Whether the accuracy is within 0.2 ms depends on the machine; the command reports it, and is never early.
    code, out, error = run("bench", "link", "--check")
    assert code in (0, 1), error
    late, least = re.match(r"a link of 1 ms is late by ([\d.]+ \S+) .* no round trip was below ([\d.]+) ms;", out).groups()
    assert float(least) >= 1 and late, out


def test_the_link_delays_and_obeys_orders(broker, tmp_path):
    read_end, write_end = os.pipe()
    child = Child(
        [binary(), "bench", "link", "--to", broker.address, "--latency", "20"],
        tmp_path / "link.log",
        env=clean_environment(),
        stdin=read_end,
    )
    orders = open(write_end, "w", buffering=1)
    try:
        port = int(child.wait_line(r"^link  listening on tcp://127\.0\.0\.1:(\d+)$").group(1))
        assert greeting(port) >= 0.040, "a round trip for TCP's handshake, and one for the answer"
        orders.write("latency 60\n")
        child.wait_line("^done$")
        assert greeting(port) >= 0.120
        orders.write("wait\n")
        child.wait_line("^not done: ")
        with socket.create_connection(("127.0.0.1", port)) as client:
            orders.write("cut\n")
            client.settimeout(PATIENCE)
            try:
                assert client.recv(1) == b""
            except ConnectionResetError:
                pass
    finally:
        orders.close()
        child.kill()


def greeting(port):
    """Seconds from connecting until the broker answers the protocol header."""
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"AMQP\x00\x00\x09\x01")
        assert client.recv(1) == b"\x01"
    return time.monotonic() - start
