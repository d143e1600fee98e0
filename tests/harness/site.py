"""A web server with tests/websocket and the packages installed there, as an application's own would be."""

import contextlib
import http.server
import threading

from harness.leveret import ROOT

HERE = ROOT / "tests" / "websocket"


class Files(http.server.SimpleHTTPRequestHandler):
    extensions_map = {".html": "text/html", ".mjs": "text/javascript", ".js": "text/javascript"}

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, directory=str(HERE), **options)

    def log_message(self, *_):
        """Says nothing."""


@contextlib.contextmanager
def site():
    """The origin, for the length of a `with`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
