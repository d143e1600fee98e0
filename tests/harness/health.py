"""The health check endpoints of a server."""

import urllib.error
import urllib.request

from harness.metrics import wait_until
from harness.patience import PATIENCE


def status(url):
    """The HTTP status code; `None` if the server does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.status
    except urllib.error.HTTPError as answer:
        return answer.code
    except OSError:
        return None


def wait_for_status(url, wanted):
    wait_until(lambda: status(url) == wanted)
