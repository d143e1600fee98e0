"""A web server with tests/websocket and its installed packages, in the role of an application's own."""

import contextlib
import http.server

import pytest

from harness.browser import browser
from harness.http_service import serving
from harness.leveret import ROOT

HERE = ROOT / "tests" / "websocket"


class Files(http.server.SimpleHTTPRequestHandler):
    extensions_map = {".html": "text/html", ".mjs": "text/javascript", ".js": "text/javascript"}

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, directory=str(HERE), **options)

    def log_message(self, *_):
        """Suppresses the request log."""


@contextlib.contextmanager
def site(files=Files):
    """Yields the origin, for the length of a `with`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), files)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}"


# Fixtures to import: such a server for each file, and a browser on its MQTT and STOMP page.


@pytest.fixture(scope="module")
def origin():
    with site() as origin:
        yield origin


@pytest.fixture(scope="module")
def window(tmp_path_factory, origin):
    with browser(tmp_path_factory.mktemp("browser")) as window:
        window.open(f"{origin}/mqtt_page.html")
        yield window
