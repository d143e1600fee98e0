"""The studies of `leveret bench` in their quick form, on the embedded broker and through a pool that they start."""

import csv
import json
import os
import socket
import time

import pytest
from harness.child import Child, clean_environment
from harness.instances import leveret
from harness.leveret import binary, run

SHORT = ["--quick", "--time", "0.1"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("broker"), "--data-dir", "off") as server:
        yield server


def study(*arguments, seconds=60):
    """The report of a study that was made and met what was expected."""
    code, out, error = run("bench", *arguments, "--json", "-", seconds=seconds)
    assert code == 0, out + error
    return json.loads(out)


def figure(report, scenario, at, system, metric):
    [cell] = [c for c in report["cells"] if (c["scenario"], c["at"], c["system"]) == (scenario, at, system)]
    return {f["metric"]: f for f in cell["figures"]}[metric]


def test_the_proxy_study_brings_its_own_pool_and_loses_nothing(broker):
    report = study("proxy", *SHORT, "--uri", broker.uri, "--pid", broker.pid, "--latency", "0,40")
    assert {system["name"] for system in report["systems"]} == {"direct", "leveret"}
    for scenario, direct, pooled in [("no confirm", 6, 0), ("confirm", 8, 1)]:
        for system, round_trips in [("direct", direct), ("leveret", pooled)]:
            assert figure(report, scenario, 40, system, "p50")["median"] >= round_trips * 0.040 * 0.999
            assert figure(report, scenario, 40, system, "lost")["max"] == 0
        # Five or more round trips are saved, which is far more than a busy machine adds.
        direct, pooled = (figure(report, scenario, 40, system, "p50")["median"] for system in ("direct", "leveret"))
        assert pooled < direct / 2


def test_the_publish_study_measures_every_style_near_and_far(broker):
    report = study("publish", *SHORT, "--system", f"it={broker.uri},pid={broker.pid}", "--publishers", "1,2", "--latency", "10")
    styles = {"async", "async confirm", "sync confirm", "connection each", "connection each, confirm"}
    measured = [(cell["scenario"], cell["axis"], cell["at"]) for cell in report["cells"]]
    places = [("publishers", 1), ("publishers", 2), ("round_trip", 10)]
    assert sorted(measured) == sorted((style, axis, at) for style in styles for axis, at in places)
    one_by_one = [style for style in styles if style.startswith("connection")]
    assert all(figure(report, style, 10, "it", "rate")["median"] > 0 for style in one_by_one)


def test_the_churn_study_opens_and_closes_everything(broker):
    report = study("churn", *SHORT, "--uri", broker.uri, "--workers", "1,3", "--expect", "rate>0")
    assert {cell["scenario"] for cell in report["cells"]} == {"connection", "channel", "queue", "binding", "consumer"}
    assert len(report["cells"]) == 10


def test_expectations_of_single_cells_set_the_exit_code(broker):
    arguments = ["bench", "churn", *SHORT, "--uri", broker.uri, "--kind", "channel", "--workers", "1"]
    assert run(*arguments, "--expect", "channel@1: rate>0")[0] == 0
    code, out, _ = run(*arguments, "--expect", "channel@1: rate>999M")
    assert code == 1 and "NOT MET" in out
    assert run(*arguments, "--expect", "queue: rate>0")[0] == 2


def test_results_are_a_page_json_and_csv_and_two_runs_compare(broker, tmp_path):
    runs = [tmp_path / "a", tmp_path / "b"]
    for folder in runs:
        code, out, error = run("bench", "churn", *SHORT, "--uri", broker.uri, "--kind", "queue", "--output", folder)
        assert code == 0, out + error
        page = (folder / "report.html").read_text()
        assert page.count("<svg") == 3 and "http" not in page.replace("http://www.w3.org/2000/svg", "")
        rows = list(csv.DictReader((folder / "results.csv").open()))
        assert {row["scenario"] for row in rows} == {"queue"} and {"1", "4"} == {row["at"] for row in rows}
    a, b = (folder / "results.json" for folder in runs)
    both = study("compare", a, b, "--output", tmp_path / "both")
    assert [system["name"] for system in both["systems"]] == ["A:default", "B:default"]
    assert (tmp_path / "both" / "report.html").read_text().count("<svg") == 3
    assert run("bench", "compare", a, tmp_path / "none")[0] == 2


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
            client.settimeout(20)
            try:
                assert client.recv(1) == b""
            except ConnectionResetError:
                pass
    finally:
        orders.close()
        child.kill()


def greeting(port):
    """Seconds from connecting until the broker has answered the protocol header."""
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"AMQP\x00\x00\x09\x01")
        assert client.recv(1) == b"\x01"
    return time.monotonic() - start
