"""The end of an HTTP request is never ambiguous (RFC 9112): an ambiguous request is refused, and the bytes after it are not
parsed as a request. On the management port, and on the WebSocket port, which accepts only upgrades."""

import base64
import re
import socket

import pytest

from harness.management import leveret
from harness.patience import PATIENCE
from harness.websocket import UPGRADE

LOGIN = "authorization: Basic " + base64.b64encode(b"guest:guest").decode()
# Creates a virtual host, and is the last request on its connection.
SMUGGLED = f"PUT /api/vhosts/smuggled HTTP/1.1\nhost: 127.0.0.1\n{LOGIN}\ncontent-length: 0\nconnection: close\n\n"
GET = "GET /healthz HTTP/1.1\nhost: 127.0.0.1\n"
LAST = GET + "connection: close\n\n"


def put(*fields, version="1.1"):
    """A request that creates another virtual host, without its body."""
    return "\n".join([f"PUT /api/vhosts/wanted HTTP/{version}", "host: 127.0.0.1", LOGIN, *fields, "", ""])


def size(text):
    """The size on the wire."""
    return len(text) + text.count("\n")


def chunked(*pieces):
    return "".join(f"{size(piece):x}\n{piece}\n" for piece in [*pieces, ""])


# Lines end with CR LF on the wire; `\v` stands for a bare LF. The smuggled request follows each of them.
REFUSED = {
    "two lengths": put("content-length: 2", f"content-length: {2 + size(SMUGGLED)}") + "{}",
    "a list of lengths": put("content-length: 2, 3") + "{}",
    "a length with a sign": put("content-length: +2") + "{}",
    "a negative length": put("content-length: -2") + "{}",
    "a length in hexadecimal": put("content-length: 0x2") + "{}",
    "a length beyond 64 bits": put("content-length: 18446744073709551618") + "{}",
    "an empty length": put("content-length: ") + "{}",
    "a space before the colon": put("content-length : 2") + "{}",
    "an unknown coding": put("transfer-encoding: xchunked") + chunked("{}"),
    "another coding last": put("transfer-encoding: chunked, identity") + chunked("{}"),
    "a coding without chunks": put("transfer-encoding: gzip"),
    "chunks in HTTP/1.0": put("connection: keep-alive", "transfer-encoding: chunked", version="1.0") + chunked("{}"),
    "a folded line": GET + "x-a: b\n c: d\n\n",
    "a folded first line": "GET /healthz HTTP/1.1\n host: 127.0.0.1\nhost: 127.0.0.1\n\n",
    "a length in a folded line": put("x-a: b", " content-length: 2") + "{}",
    "a NUL in a value": GET + "x-a: b\0c\n\n",
    "a carriage return in a value": GET + "x-a: b\rc\n\n",
    "no host": "GET /healthz HTTP/1.1\n\n",
    "an unknown version": GET.replace("1.1", "1.2") + "\n",
}
BROKEN_CHUNKS = {
    "a size with a sign": "-2\n{}\n0\n\n",
    "a size with a prefix": "0x2\n{}\n0\n\n",
    "a size beyond 64 bits": "10000000000000002\n{}\n0\n\n",
    "no line end behind a chunk": "2\n{}xx0\n\n",
    "line feeds alone": "2\v{}\v0\v\v",
    "a line feed in an extension": "2;a\vb\n{}\n0\n\n",
}
TOO_LARGE = {
    "a long value": GET + f"cookie: {'c' * 20_000}\n\n",
    "many fields": GET + "a: b\n" * 200 + "\n",
    "a long target": f"GET /{'a' * 20_000} HTTP/1.1\nhost: 127.0.0.1\n\n",
}


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    with leveret(tmp_path_factory.mktemp("leveret"), "--ws", "127.0.0.1:0") as ours:
        yield ours


def answers(port, text):
    """The statuses of the answers until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall(text.replace("\n", "\r\n").replace("\v", "\n").encode())
        received = b""
        try:
            while data := client.recv(65536):
                received += data
        except ConnectionResetError:
            pass
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3})", received)]


@pytest.fixture(autouse=True)
def nothing_is_smuggled(ours):
    yield
    assert ours.status("DELETE", "vhosts/smuggled") == 404


@pytest.mark.parametrize("what", REFUSED)
def test_a_malformed_request_is_refused_and_the_connection_is_closed(ours, what):
    assert answers(ours.port, REFUSED[what] + SMUGGLED) == [400]


@pytest.mark.parametrize("what", BROKEN_CHUNKS)
def test_a_broken_chunk_ends_the_connection(ours, what):
    statuses = answers(ours.port, put("transfer-encoding: chunked") + BROKEN_CHUNKS[what] + SMUGGLED)
    # The server may answer before the body has arrived.
    assert len(statuses) <= 1 and 201 not in statuses, statuses


@pytest.mark.parametrize("step", [1, -1])
def test_chunks_win_over_a_length_and_end_the_connection(ours, step):
    fields = ["content-length: 2", "transfer-encoding: chunked"][::step]
    # RFC 9112, 6.1: a server may use the chunked encoding, but must close the connection afterwards.
    assert len(answers(ours.port, put(*fields) + chunked("{}") + SMUGGLED)) == 1


@pytest.mark.parametrize("what", TOO_LARGE)
@pytest.mark.parametrize("port", ["management", "websocket"])
def test_a_head_that_is_too_large_is_refused_and_the_last(ours, what, port):
    number = ours.port if port == "management" else ours.server.ws_port
    assert answers(number, TOO_LARGE[what] + SMUGGLED) == [431]


def test_a_body_is_no_request(ours):
    assert answers(ours.port, f"{GET}content-length: {size(SMUGGLED)}\n\n{SMUGGLED}{LAST}") == [200, 200]
    assert answers(ours.port, f"{GET}transfer-encoding: chunked\n\n{chunked(SMUGGLED)}{LAST}") == [200, 200]
    # Neither chunk extensions nor trailers are parsed as a request.
    text = "2;PUT=1\n{}\n0\nx-put: PUT\n\n"
    assert answers(ours.port, GET + "transfer-encoding: chunked\n\n" + text + LAST) == [200, 200]


def test_requests_may_follow_each_other_without_waiting(ours):
    ours.status("DELETE", "vhosts/wanted")
    wanted = put("content-length: 2") + "{}" + put("transfer-encoding: chunked") + chunked("{", "}")
    nothing = "HEAD /healthz HTTP/1.1\nhost: 127.0.0.1\n\nGET /nothing HTTP/1.1\nhost: 127.0.0.1\n\n"
    assert answers(ours.port, GET + "\n" + wanted + nothing + LAST) == [200, 201, 204, 200, 404, 200]


UPGRADES = {
    "another body": (["Content-Length: 5"], "hello", 400),
    "two lengths": (["Content-Length: 0", "Content-Length: 5"], "", 400),
    "no number": (["Content-Length: x"], "", 400),
    "chunks": (["Transfer-Encoding: chunked"], chunked("{}"), 400),
    "chunks and a length": (["Transfer-Encoding: chunked", "Content-Length: 0"], chunked("{}"), 400),
    "a folded line": (["X-A: b", " c"], "", 400),
    "a space before a colon": (["X-A : b"], "", 400),
    "two hosts": (["Host: other"], "", 400),
    "a request behind it": ([], SMUGGLED, 400),
}


@pytest.mark.parametrize("what", UPGRADES)
def test_an_upgrade_has_no_body_and_nothing_behind_it(ours, what):
    fields, behind, status = UPGRADES[what]
    lines = ["GET / HTTP/1.1", *(f"{name}: {value}" for name, value in UPGRADE.items()), *fields, "", ""]
    assert answers(ours.server.ws_port, "\n".join(lines) + behind) == [status]


@pytest.mark.parametrize("what", [*REFUSED, "a whole request"])
def test_the_websocket_port_answers_once(ours, what):
    [status] = answers(ours.server.ws_port, REFUSED.get(what, GET + "\n") + SMUGGLED)
    assert status in (400, 405, 426)
