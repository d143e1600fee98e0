"""AMQP over WebSocket by hand: valid and invalid frames on a plain socket."""

import base64
import hashlib
import os
import struct

from harness.wire import Closed, Wire

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN = 0x80
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
KEY = base64.b64encode(b"sixteen bytes!!!").decode()
UPGRADE = {
    "Host": "localhost",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
}


class Refused(Exception):
    """The server answered the upgrade request with a status other than 101."""

    def __init__(self, status, text):
        super().__init__(f"{status} {text}")
        self.status, self.text = status, text


class PeerClosed(Closed):
    """The server sent a close frame."""

    def __init__(self, code, reason):
        super().__init__(f"{code} {reason}")
        self.code, self.reason = code, reason


class WebSocketWire(Wire):
    """A `Wire` over binary WebSocket messages. Answers pings, unless `deaf`."""

    def __init__(self, port, path="/", deaf=False, tls=None, **headers):
        super().__init__(port)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.deaf = deaf
        self.raw = b""
        self.messages = []
        self.pings = 0
        self.headers = self.request(path, {name.replace("_", "-"): value for name, value in headers.items()})

    def request(self, path, headers):
        """Sends the upgrade request with these headers added, or removed if they are None; returns the answer's headers."""
        fields = {**UPGRADE, **headers}
        lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
        super().send("\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode())
        status, answer = self.read_head()
        if status != 101:
            raise Refused(status, self.read_rest())
        expected = base64.b64encode(hashlib.sha1(KEY.encode() + GUID).digest()).decode()
        assert answer["sec-websocket-accept"] == expected
        return answer

    def read_head(self):
        while b"\r\n\r\n" not in self.raw:
            self.raw += super()._receive()
        head, self.raw = self.raw.split(b"\r\n\r\n", 1)
        first, *lines = head.decode().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines)
        return int(first.split()[1]), {name.lower(): value for name, value in fields.items()}

    def read_rest(self):
        try:
            while True:
                self.raw += super()._receive()
        except Closed:
            return self.raw.decode()

    def send(self, data):
        self.send_frame(FIN | BINARY, data)

    def send_frame(self, first, payload=b"", masked=True):
        """Sends one frame; `first` is its first byte, with opcode and flags."""
        self.send_raw(framed(first, payload, masked))

    def send_raw(self, data):
        """Sends encoded frames in one write."""
        super().send(data)

    def _receive(self):
        while True:
            opcode, payload = self.read_ws_frame()
            if opcode == BINARY and payload:
                self.messages.append(payload)
                return payload
            if opcode == PING:
                self.pings += 1
                if not self.deaf:
                    self.send_frame(FIN | PONG, payload)
            if opcode == PONG:
                self.messages.append(("pong", payload))
            if opcode == CLOSE:
                code = struct.unpack(">H", payload[:2])[0] if payload else None
                raise PeerClosed(code, payload[2:].decode())

    def read_ws_frame(self):
        first, second = self.take(2)
        assert first & FIN and not second & 0x80, "a server's frames are whole and not masked"
        size = second
        if size == 126:
            size = struct.unpack(">H", self.take(2))[0]
        elif size == 127:
            size = struct.unpack(">Q", self.take(8))[0]
        return first & 0x0F, self.take(size)

    def take(self, count):
        while len(self.raw) < count:
            self.raw += super()._receive()
        data, self.raw = self.raw[:count], self.raw[count:]
        return data

    def expect_close(self):
        """Reads up to the close frame, answers it, and waits for the end of the stream: (code, reason)."""
        try:
            while True:
                self._receive()
        except PeerClosed as closed:
            self.send_frame(FIN | CLOSE, struct.pack(">H", closed.code) if closed.code else b"")
            assert self.read_rest() == ""
            return closed.code, closed.reason


def framed(first, payload=b"", masked=True):
    """Encodes one frame."""
    key = os.urandom(4) if masked else bytes(4)
    size, flag = len(payload), 0x80 if masked else 0
    if size < 126:
        head = bytes([first, flag | size])
    elif size < 65536:
        head = bytes([first, flag | 126]) + struct.pack(">H", size)
    else:
        head = bytes([first, flag | 127]) + struct.pack(">Q", size)
    repeated = (key * (size // 4 + 1))[:size]
    data = (int.from_bytes(payload) ^ int.from_bytes(repeated)).to_bytes(size) if masked else payload
    return head + (key if masked else b"") + data
