"""A client that does not complete its login in time is disconnected; one that did may be silent (S4)."""

import threading
import time

from harness.instances import leveret
from harness.wire import CONNECTION_START, CONNECTION_TUNE, PROTOCOL_HEADER, Closed, Wire

# More than a busy machine needs for a login.
TIMEOUT_SECONDS = 5


def test_s4_a_login_that_is_never_finished_is_cut_off(tmp_path):
    with leveret(tmp_path, "--handshake-timeout", f"{TIMEOUT_SECONDS}s") as server:
        started = time.monotonic()
        finished = Wire(server.port).handshake()
        silent, halfway, logged_in, dripping = (Wire(server.port) for _ in range(4))
        halfway.send(PROTOCOL_HEADER)
        halfway.expect(CONNECTION_START)
        logged_in.start()
        logged_in.expect(CONNECTION_TUNE)
        # Sending a byte now and then does not extend the timeout.
        threading.Thread(target=drip, args=(dripping,), daemon=True).start()
        for peer in (silent, halfway, logged_in, dripping):
            peer.expect_end()
        elapsed = time.monotonic() - started
        assert elapsed >= TIMEOUT_SECONDS
        finished.open_channel()


def drip(wire):
    try:
        for byte in PROTOCOL_HEADER[:-1]:
            wire.send(bytes([byte]))
            time.sleep(TIMEOUT_SECONDS / 3)
    except (Closed, OSError):
        pass
