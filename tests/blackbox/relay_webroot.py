"""The webroot's files are served beside WebSocket, and no other file of the disk."""

import http.client

import pytest

from harness.instances import leveret
from harness.patience import PATIENCE
from harness.relay import HERE, Echo, RelayWire, relay

PAGE = b"<!doctype html><title>hello</title>"
DATA = bytes(range(256)) * 1000


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    directory = tmp_path_factory.mktemp("webroot")
    secret = directory / "secret"
    secret.write_bytes(b"secret")
    root = directory / "root"
    for name in ("sub", "empty", ".git"):
        (root / name).mkdir(parents=True)
    (root / "index.html").write_bytes(PAGE)
    (root / "sub" / "index.html").write_bytes(b"sub")
    (root / "data.bin").write_bytes(DATA)
    for name in ("module.mjs", "style.css", "picture.svg", "code.wasm", "a b.txt", ".git/config"):
        (root / name).write_bytes(b"x")
    (root / "out").symlink_to(secret)
    (root / "directory").symlink_to(directory)
    with leveret(directory, "--ws", f"{HERE}:0", "--webroot", str(root)) as server:
        yield server.ws_port


def ask(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection(HERE, port, timeout=PATIENCE)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def test_an_index_is_served_and_amqp_still_is_at_the_same_path(port):
    status, headers, body = ask(port, "/")
    assert (status, body) == (200, PAGE)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Length"] == str(len(PAGE)) and headers["X-Content-Type-Options"] == "nosniff"
    assert ask(port, "/sub/?query=1")[2] == b"sub"
    assert ask(port, "/sub")[0] == 307
    with RelayWire(port, "/") as wire:
        wire.handshake()


@pytest.mark.parametrize(
    "path, kind",
    [
        ("/module.mjs", "text/javascript; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/picture.svg", "image/svg+xml"),
        ("/code.wasm", "application/wasm"),
        ("/a%20b.txt", "text/plain; charset=utf-8"),
        ("/data.bin", "application/octet-stream"),
    ],
)
def test_types_are_right(port, path, kind):
    status, headers, _ = ask(port, path)
    assert (status, headers["Content-Type"]) == (200, kind)


@pytest.mark.parametrize(
    "asked, status, expected",
    [
        ("bytes=0-9", 206, DATA[:10]),
        ("bytes=255990-", 206, DATA[255990:]),
        ("bytes=-5", 206, DATA[-5:]),
        ("bytes=1000-300000", 206, DATA[1000:]),
        ("bytes=256000-", 416, None),
        ("bytes=0-1,5-6", 416, None),
        ("bytes=256000-", 416, None),
        ("bytes=18446744073709551615-", 416, None),
    ],
)
def test_one_range_is_served(port, asked, status, expected):
    answered, headers, body = ask(port, "/data.bin", Range=asked)
    assert answered == status
    if expected is None:
        assert headers["Content-Range"] == "bytes */256000"
    else:
        assert body == expected and headers["Content-Range"].endswith("/256000")


@pytest.mark.parametrize("first", [2**64, 2**64 + 1, 2**80])
def test_a_range_beyond_64_bits_is_none(port, first):
    for asked in (f"bytes={first}-", f"bytes={first}-{first + 1}", f"bytes=0-{first}", f"bytes=-{first}"):
        answered, headers, body = ask(port, "/data.bin", Range=asked)
        assert (answered, "Content-Range" in headers, body) == (200, False, DATA), asked


def test_head_has_no_body_and_an_unmodified_file_is_answered_with_304(port):
    status, headers, body = ask(port, "/data.bin", "HEAD")
    assert (status, headers["Content-Length"], body) == (200, "256000", b"")
    status, _, body = ask(port, "/data.bin", If_Modified_Since=headers["Last-Modified"])
    assert (status, body) == (304, b"")
    assert ask(port, "/data.bin", If_Modified_Since="Mon, 01 Jan 2001 00:00:00 GMT")[2] == DATA


@pytest.mark.parametrize(
    "path",
    [
        "/none", "/empty/", "/empty", "/out", "/directory/secret", "/.git/config", "/%2egit/config", "/../secret",
        "/%2e%2e/secret", "/sub/..%2f..%2fsecret", "/sub/%2e%2e/%2e%2e/secret", "//etc/passwd", "/%2fetc/passwd",
        "/..%5csecret", "/data.bin/", "/data.bin%00", "/%ff",
    ],
)
def test_nothing_else_is_served(port, path):
    status, _, body = ask(port, path)
    assert status == 404 and b"secret" not in body and b"root:" not in body


@pytest.mark.parametrize("method, status", [("POST", 405), ("PUT", 405), ("DELETE", 405)])
def test_files_are_read_only(port, method, status):
    assert ask(port, "/data.bin", method)[0] == status


def test_a_relays_own_listener_serves_files_too(tmp_path):
    (tmp_path / "page.html").write_bytes(PAGE)
    with Echo() as upstream, relay(tmp_path, upstream.url, "--webroot", str(tmp_path)) as (_, port):
        assert ask(port, "/page.html")[2] == PAGE
        with RelayWire(port, "/page.html") as wire:
            wire.send(b"relayed")
            assert wire.read(7) == b"relayed"


def test_without_a_webroot_there_are_no_files(tmp_path):
    with leveret(tmp_path, "--ws", f"{HERE}:0") as server:
        assert ask(server.ws_port, "/")[0] == 426
