"""Clients and servers for relay tests: a client that receives fragments, and upstream servers that the test controls."""

import contextlib
import re
import socket
import struct
import threading

from harness.instances import leveret
from harness.websocket import BINARY, CLOSE, CONTINUATION, FIN, PeerClosed, WebSocketWire
from harness.patience import PATIENCE
from harness.wire import Closed

HERE = "127.0.0.1"


class RelayWire(WebSocketWire):
    """A WebSocket whose messages may be fragmented; `frames` records (fin, payload) of all that were received."""

    def __init__(self, *args, **options):
        self.frames = []
        super().__init__(*args, **options)

    def read_ws_frame(self):
        first, second = self.take(2)
        assert not second & 0x80, "a server's frames are not masked"
        size = second
        if size == 126:
            size = struct.unpack(">H", self.take(2))[0]
        elif size == 127:
            size = struct.unpack(">Q", self.take(8))[0]
        payload = self.take(size)
        opcode = first & 0x0F
        if opcode in (BINARY, CONTINUATION):
            self.frames.append((bool(first & FIN), payload))
            opcode = BINARY
        return opcode, payload

    def send_close(self, code=1000):
        self.send_frame(FIN | CLOSE, struct.pack(">H", code))

    def read_to_close(self):
        """Reads everything up to the close frame; returns it with the close code and reason."""
        data = self.pending
        self.pending = b""
        while True:
            try:
                data += self._receive()
            except PeerClosed as closed:
                return data, closed.code, closed.reason


class Acceptor:
    """A server that accepts connections on demand."""

    def __init__(self, family=socket.AF_INET, address=None):
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.bind(address or (HERE, 0))
        self.socket.listen()
        self.socket.settimeout(PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    @property
    def url(self):
        name = self.socket.getsockname()
        return f"unix:{name}" if isinstance(name, str) else f"tcp://{name[0]}:{name[1]}"

    def accept(self):
        accepted, _ = self.socket.accept()
        accepted.settimeout(PATIENCE)
        return accepted


class Echo(Acceptor):
    """Echoes everything, and closes when its client does."""

    def __init__(self):
        super().__init__()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self.socket.accept()
                threading.Thread(target=self._echo, args=(accepted,), daemon=True).start()

    @staticmethod
    def _echo(accepted):
        with accepted, contextlib.suppress(OSError):
            while data := accepted.recv(65536):
                accepted.sendall(data)
            accepted.shutdown(socket.SHUT_WR)


def exactly(sock, count):
    data = bytearray()
    while len(data) < count:
        more = sock.recv(min(count - len(data), 65536))
        if not more:
            raise Closed
        data += more
    return data


def to_the_end(sock):
    data = b""
    while more := sock.recv(65536):
        data += more
    return data


@contextlib.contextmanager
def relay(directory, upstream, *flags, wait=True, program=None, **keys):
    """A server with one relay on its own listener; yields the server and that listener's port."""
    fields = {"listen": f"{HERE}:0", "upstream": upstream, **keys}
    table = "{" + ", ".join(f"{key} = {toml(value)}" for key, value in fields.items()) + "}"
    with leveret(directory, "--relay", table, *flags, program=program) as server:
        yield server, relay_port(server)


def relay_port(server):
    return int(server.child.wait_line(r"^relay +listening on wss?://[^\s]*:(\d+)$").group(1))


def toml(value):
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
