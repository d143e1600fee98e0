"""What a server tells of itself at /metrics, and waiting for it to change."""

import re
import time
import urllib.request

from harness.patience import PATIENCE


def metric(server, name):
    """The value of a series; of the only one if `name` is without its labels."""
    with urllib.request.urlopen(server.http + "/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found.group(1))


def wait_until(condition, seconds=PATIENCE):
    """For what the server offers no event for: asks again until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
