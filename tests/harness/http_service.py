"""HTTP servers of the tests' own process."""

import contextlib
import threading

# Of a look whether it is to end.
POLL = 0.05


@contextlib.contextmanager
def serving(server):
    """Has an `http.server` serve for the length of a `with`."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": POLL}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
