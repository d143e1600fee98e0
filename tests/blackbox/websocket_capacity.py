"""`leveret bench websockets` opens the requested connections, loses nothing, and reports refused connections."""

import json

from harness.instances import leveret
from harness.leveret import run

SHORT = ("--hold", "1", "--interval", "0.3", "--json", "-")


def test_levels_are_reached_and_every_message_comes_back(tmp_path):
    with leveret(tmp_path, "--ws", "127.0.0.1:0") as server:
        system = f"ours=amqp+ws://127.0.0.1:{server.ws_port}/ws/amqp,pid={server.pid}"
        code, out, err = run("bench", "websockets", "--system", system, "--connections", "20,50", *SHORT)
        server.stop()
    assert code == 0, err
    (ours,) = json.loads(out)["systems"]
    assert [level["connections"] for level in ours["levels"]] == [20, 50]
    assert all(level["published"] > 0 and level["lost"] == 0 for level in ours["levels"])
    assert all(level["received"] >= level["published"] for level in ours["levels"])
    assert ours["stopped"] is None
    assert ours["dropped"]["connections"] == 50 and ours["dropped"]["missing"] == 0


def test_a_connection_limit_ends_the_ramp_and_is_reported(tmp_path):
    with leveret(tmp_path, "--ws", "127.0.0.1:0", "--max-connections", "30") as server:
        system = f"ours=amqp+ws://127.0.0.1:{server.ws_port}/"
        code, out, err = run("bench", "websockets", "--system", system, "--connections", "50", *SHORT)
        server.stop()
    assert code == 0, err
    (ours,) = json.loads(out)["systems"]
    assert ours["levels"][0]["connections"] == 30
    assert "1013" in ours["stopped"]


def test_clients_that_share_topics_count_their_own_messages(tmp_path):
    with leveret(tmp_path, "--web-mqtt", "127.0.0.1:0") as server:
        port = server.child.wait_line(r"^web-mqtt +listening on ws://127\.0\.0\.1:(\d+)").group(1)
        system = f"ours=mqtt+ws://127.0.0.1:{port}/ws"
        code, out, err = run("bench", "websockets", "--system", system, "--connections", "30", "--topics", "3", *SHORT)
        server.stop()
    assert code == 0, err
    (ours,) = json.loads(out)["systems"]
    (level,) = ours["levels"]
    assert level["connections"] == 30 and level["lost"] == 0
    assert 0 < level["published"] <= level["received"]
    assert ours["dropped"]["missing"] == 0
