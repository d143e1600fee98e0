"""STOMP clients: stomp.py, and frames written byte by byte to test the wire format."""

import contextlib
import queue
import socket

import stomp

from harness.patience import PATIENCE

# The result of tests/websocket/stomp_conversation.mjs if everything works.
EVERYTHING = {
    "errors": [],
    "version": "1.2",
    "protocol": "v12.stomp",
    "text": {"body": "größe", "own": "a:b\nc"},
    "bytes": True,
    "redelivered": "true",
    "committed": "committed",
    "large": True,
}
PROTOCOLS = {"1.0": stomp.Connection10, "1.1": stomp.Connection11, "1.2": stomp.Connection12}


class Events(stomp.ConnectionListener):
    """Puts a client's events into queues, by kind."""

    def __init__(self):
        self.queues = {kind: queue.Queue() for kind in ("connected", "message", "receipt", "error", "disconnected")}

    def on_connected(self, frame):
        self.queues["connected"].put(frame)

    def on_message(self, frame):
        self.queues["message"].put(frame)

    def on_receipt(self, frame):
        self.queues["receipt"].put(frame.headers["receipt-id"])

    def on_error(self, frame):
        self.queues["error"].put(frame)

    def on_disconnected(self):
        self.queues["disconnected"].put(True)


class Client:
    """A logged-in stomp.py client. With `binary`, it does not decode bodies as text."""

    def __init__(self, port, version="1.2", user="guest", password="guest", vhost="/", binary=False, **headers):
        # STOMP 1.0 has neither header.
        options = {} if version == "1.0" else {"heartbeats": (0, 0), "vhost": vhost}
        self.version = version
        self.connection = PROTOCOLS[version]([("127.0.0.1", port)], reconnect_attempts_max=1, auto_decode=not binary, **options)
        self.events = Events()
        self.connection.set_listener("events", self.events)
        self.connection.connect(user, password, wait=True, headers=headers)
        self.receipts = 0

    def get(self, kind, seconds=PATIENCE):
        return self.events.queues[kind].get(timeout=seconds)

    def message(self, seconds=PATIENCE):
        return self.get("message", seconds)

    def heard(self, kind="message"):
        """The number of unread events of a kind."""
        return self.events.queues[kind].qsize()

    def do(self, method, *arguments, **headers):
        """Sends a request with a receipt, and waits for it."""
        self.receipts += 1
        name = f"receipt-{self.receipts}"
        own = {"receipt": name} if method == "disconnect" else {}
        if method == "disconnect":
            self.connection.disconnect(**own)
        else:
            extra = {"headers": {"receipt": name, **headers.pop("headers", {})}}
            getattr(self.connection, method)(*arguments, **headers, **extra)
        assert self.get("receipt") == name

    def send(self, destination, body="", **headers):
        self.do("send", destination, body, headers=underscored(headers))

    def subscribe(self, destination, id="1", ack="auto", **headers):
        self.do("subscribe", destination, id=id, ack=ack, headers=underscored(headers))

    def acknowledge(self, frame, how="ack", **headers):
        """Sends ACK or NACK with the header that the protocol version requires."""
        name = "ack" if self.version == "1.2" else "message-id"
        more = [frame.headers["subscription"]] if self.version == "1.1" else []
        self.receipts += 1
        receipt = f"receipt-{self.receipts}"
        getattr(self.connection, how)(frame.headers[name], *more, receipt=receipt, **headers)
        assert self.get("receipt") == receipt

    def close(self):
        with contextlib.suppress(stomp.exception.StompException):
            self.connection.disconnect()


def underscored(headers):
    """Translates keyword arguments to headers: underscores become hyphens."""
    return {name.replace("_", "-"): value for name, value in headers.items()}


class StompWire:
    """A socket that sends and reads frames."""

    def __init__(self, port=None, stream=None):
        self.socket = stream or socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.unread = b""

    def send(self, *frames):
        """Sends frames given as lines, with an empty line before the body; adds the NUL."""
        self.socket.sendall(b"".join(frame.encode() + b"\0" for frame in frames))

    def connect(self, version="1.2", login="guest", passcode="guest", host="/", more=""):
        self.send(f"CONNECT\naccept-version:{version}\nhost:{host}\nlogin:{login}\npasscode:{passcode}\n{more}\n")
        return self.frame()

    def frame(self):
        """The next frame: (command, raw headers, body); `None` at the end of the stream."""
        while True:
            self.unread = self.unread.lstrip(b"\n")
            head, found, rest = self.unread.partition(b"\n\n")
            if found:
                command, *lines = head.decode().split("\n")
                headers = dict(line.split(":", 1) for line in lines)
                length = int(headers["content-length"]) if "content-length" in headers else rest.find(b"\0")
                if 0 <= length < len(rest):
                    assert rest[length] == 0
                    self.unread = rest[length + 1 :]
                    return command, headers, rest[:length].decode()
            if not self.read():
                assert not self.unread, self.unread
                return None

    def read(self):
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        self.unread += data
        return bool(data)

    def close(self):
        self.socket.close()
