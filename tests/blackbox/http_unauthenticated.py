"""Clients without a login cannot block HTTP for others, and nobody can block health checks and metrics."""

import base64
import contextlib
import socket

import pytest

from harness.management import leveret
from harness.metrics import wait_until
from harness.patience import PATIENCE

# More than twice the HTTP connection limit, so that they occupy every slot.
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
    """Many connections with a partial request; yields a function that opens one more."""
    with contextlib.ExitStack() as stack:

        def hold():
            each = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
            # The server may have closed it to make room.
            with contextlib.suppress(ConnectionError):
                each.sendall(request.encode())

        for _ in range(MANY):
            hold()
        yield hold


def status(port, path, headers=""):
    """The status of an answer on a new connection; `None` if there is no answer."""
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
    # Above the size from which bodies wait for a permit, so that all connections are at work.
    request = f"POST /api/definitions HTTP/1.1\r\nhost: 127.0.0.1\r\n{GOOD}\r\ncontent-length: {2 << 20}\r\n\r\n"
    with held(ours.port, request) as hold:
        for _ in range(3):
            assert {path: status(ours.port, path) for path in PROBES} == dict.fromkeys(PROBES, 200)
        # Until all connections are at work. A request that comes before the server has read one of theirs displaces it.
        wait_until(lambda: hold() or status(ours.port, "/api/overview", GOOD + "\r\n") == 503)
    wait_until(lambda: status(ours.port, "/api/overview", GOOD + "\r\n") == 200)
