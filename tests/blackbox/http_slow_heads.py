"""Clients that send a request's head byte by byte block nobody, and are closed although each byte arrives in time."""

import contextlib
import selectors
import socket
import time

import pytest

from harness.management import leveret
from harness.patience import PATIENCE
from harness.websocket import WebSocketWire

# Fewer than the connection limit: they are closed because they are slow, not to make room.
STRANGERS = 200
HEAD = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: "
ROUND_SECONDS = 0.2


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    flags = ("--ws", "127.0.0.1:0", "--handshake-timeout", "5s")
    with leveret(tmp_path_factory.mktemp("leveret"), *flags) as ours:
        yield ours


def ask_health(ours):
    assert ours.status("GET", "whoami") == 200


def open_websocket(ours):
    with WebSocketWire(ours.server.ws_port) as wire:
        wire.handshake().open_channel()


@pytest.mark.parametrize("visit", [ask_health, open_websocket], ids=["management", "websocket"])
def test_clients_sending_byte_by_byte_block_no_others_and_are_closed(ours, visit):
    port = ours.port if visit is ask_health else ours.server.ws_port
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(STRANGERS):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
            selector.register(stranger, selectors.EVENT_READ)
        sent, ends, deadline = 0, [], time.monotonic() + PATIENCE
        while selector.get_map():
            assert time.monotonic() < deadline, f"{len(selector.get_map())} are still read"
            byte = HEAD[sent : sent + 1] or b"x"
            for key in list(selector.get_map().values()):
                # It may be closed already, which is checked below.
                with contextlib.suppress(ConnectionError):
                    key.fileobj.sendall(byte)
            sent += 1
            # They are still connected, and others are served.
            visit(ours)
            for key, _ in selector.select(ROUND_SECONDS):
                ends.append(end_of(key.fileobj))
                selector.unregister(key.fileobj)
    # Answered with a timeout or closed, but never answered otherwise.
    assert set(ends) <= {"", "408"}, ends
    visit(ours)


def end_of(stranger):
    """The status of the answer before the close; empty if there is none."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := stranger.recv(4096):
            received += data
    return received.split(b" ")[1].decode() if received else ""
