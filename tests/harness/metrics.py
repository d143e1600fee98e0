"""Reads a server's metrics, and polls for changes."""

import re
import time
import urllib.request

from harness.patience import PATIENCE


def metric(server, name):
    """The value of a series; `name` may omit the labels if the family has one series."""
    with urllib.request.urlopen(server.http + "/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found.group(1))


def wait_until(condition, seconds=PATIENCE):
    """Polls until the condition holds, for changes that no event announces."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
