"""Nobody without a login keeps others from HTTP, and nobody at all keeps health and metrics from being answered."""

import base64
import contextlib
import socket

import pytest

from harness.management import leveret
from harness.metrics import wait_until
from harness.patience import PATIENCE

# More than twice of what an HTTP listener has at once, so that each place is taken by one of them.
MANY = 600
PROBES = ("/healthz", "/readyz", "/metrics")
WRONG = "authorization: Basic " + base64.b64encode(b"nobody:wrong").decode()
GOOD = "authorization: Basic " + base64.b64encode(b"guest:guest").decode()
UNFINISHED = {
    "nothing": "",
    "half a head": "GET /healthz HTTP/1.1\r\nhost: x\r\n",
    "a body for a route that takes none": "GET /api/auth HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n",
    "a body without a login": "POST /api/definitions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n",
    "a body with a wrong password": f"PUT /api/vhosts/v HTTP/1.1\r\nhost: x\r\n{WRONG}\r\ncontent-length: 10\r\n\r\n",
    "a body for a page": "GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n",
    "a body for a path that is not there": "POST /nope HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
}


@contextlib.contextmanager
def held(port, request):
    """Many connections on which a request was begun."""
    with contextlib.ExitStack() as stack:
        for _ in range(MANY):
            each = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
            # The server may have closed it for those behind it.
            with contextlib.suppress(ConnectionError):
                each.sendall(request.encode())
        yield


def status(port, path, headers=""):
    """That of an answer on a connection of its own; None if there is no answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}\r\n".encode())
            answer = client.recv(65536)
            return int(answer.split()[1]) if answer else None


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("leveret"), "--prometheus", "127.0.0.1:0") as ours:
        metrics = ours.server.child.wait_line(r"^prometheus listening on http://\S+:(\d+)").group(1)
        ours.metrics_port = int(metrics)
        yield ours


@pytest.mark.parametrize("what", UNFINISHED)
def test_strangers_keep_nobody_out(ours, what):
    with held(ours.port, UNFINISHED[what]):
        assert {path: status(ours.port, path) for path in PROBES} == dict.fromkeys(PROBES, 200)
        assert status(ours.port, "/api/overview", GOOD + "\r\n") == 200


def test_strangers_keep_nobody_from_the_metrics_listener(ours):
    with held(ours.metrics_port, UNFINISHED["a body for a page"]):
        assert status(ours.metrics_port, "/metrics") == 200


def test_users_keep_nobody_from_health_and_metrics(ours):
    # Beyond the size from which bodies wait for their turn, so that all of them are at work.
    request = f"POST /api/definitions HTTP/1.1\r\nhost: 127.0.0.1\r\n{GOOD}\r\ncontent-length: {2 << 20}\r\n\r\n"
    with held(ours.port, request):
        for _ in range(3):
            assert {path: status(ours.port, path) for path in PROBES} == dict.fromkeys(PROBES, 200)
        # Until the server has read what all of them began.
        wait_until(lambda: status(ours.port, "/api/overview", GOOD + "\r\n") == 503)
    wait_until(lambda: status(ours.port, "/api/overview", GOOD + "\r\n") == 200)
