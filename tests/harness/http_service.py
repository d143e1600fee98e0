"""HTTP servers in the test process."""

import contextlib
import threading

# Seconds between checks for the shutdown request.
POLL = 0.05


@contextlib.contextmanager
def serving(server):
    """Runs an `http.server` for the length of a `with`."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": POLL}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
