"""Every request on a persistent HTTP connection is answered, whatever it contains; the answer says whether the connection
closes."""

import base64
import collections
import random
import socket

from harness.management import leveret
from harness.patience import PATIENCE

SEED, REQUESTS = 20, 1500
# The bytes of a body larger than any route accepts.
LARGE = 8 << 20
LOGIN = b"authorization: Basic " + base64.b64encode(b"guest:guest")
METHODS = b"GET GET HEAD POST PUT DELETE OPTIONS PATCH TRACE get BREW".split()
PATHS = b"""/healthz /readyz /metrics /metrics/per-object / /dashboard/api.js /nothing /api/overview /api/whoami /api/auth
/api/nope /api/queues /api/queues/%2F/fuzz /api/queues/%2F/fuzz/get /api/vhosts/%2F /api/definitions
/api/exchanges/%2F/amq.default/publish /api/leveret/limits""".split()
HEADERS = b"accept:a,cookie:c=d,range:bytes=0-1,if-none-match:*,x-reason:r,origin:http://x,connection:keep-alive,te:,x:\xe9".split(
    b","
)
MESSAGE = b'{"properties":{},"routing_key":"fuzz","payload":"x","payload_encoding":"string"}'


def made_up(chance):
    """A random complete request, as the pieces in which it is sent. Its framing is valid."""
    body = chance.choice([b"", b"", b"", b"{}", b"x", b'{"a":1}', MESSAGE, b"y" * chance.randrange(1, 3000)])
    framing = [b"content-length: %d" % len(body)] if body else []
    if body and chance.random() < 0.3:
        pieces = [body[at : at + 100] for at in range(0, len(body), 100)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        framing = [b"transfer-encoding: chunked"]
    elif body and chance.random() < 0.1:
        framing.append(b"expect: 100-continue")
    lines = [b"%s %s HTTP/1.1" % (chance.choice(METHODS), chance.choice(PATHS)), b"host: 127.0.0.1"]
    lines += chance.sample(HEADERS, chance.randrange(3)) + [LOGIN] * (chance.random() < 0.7)
    if chance.random() < 0.3:
        lines = mutated(chance, lines)
    head = b"\r\n".join([*lines, *framing]) + b"\r\n\r\n"
    at = chance.choice([0, len(head), chance.randrange(len(head))])
    return [piece for piece in (head[:at], head[at:] + body) if piece] if chance.random() < 0.5 else [head, body]


def mutated(chance, lines):
    """Changes, adds or removes a few bytes."""
    lines = [bytearray(line) for line in lines]
    for _ in range(chance.randrange(1, 4)):
        line = chance.choice(lines)
        at, byte = chance.randrange(len(line)), chance.choice([each for each in range(256) if each not in b"\r\n"])
        line[at : at + chance.randrange(2)] = bytes([byte] * chance.randrange(2))
    return [bytes(line) for line in lines if line]


class Client:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending = b""

    def ask(self, pieces):
        """The status of the answer, and whether the connection closes; `None` if there is no answer."""
        for piece in pieces:
            try:
                self.socket.sendall(piece)
            except ConnectionError:
                break  # It is answered already, or is not going to be.
        status = 100
        while status == 100:
            head = self.until(b"\r\n\r\n")
            if head is None:
                return None
            status = int(head.split()[1])
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        has_body = not b"".join(pieces).startswith(b"HEAD ") and status not in (204, 304)
        length = int(fields.get(b"content-length", 0)) if has_body else 0
        while len(self.pending) < length:
            assert self.receive(), "a whole body"
        self.pending = self.pending[length:]
        return status, fields.get(b"connection") == b"close"

    def until(self, end):
        while end not in self.pending:
            if not self.receive():
                return None
        found, _, self.pending = self.pending.partition(end)
        return found

    def receive(self):
        try:
            received = self.socket.recv(65536)
        except ConnectionError:
            return False
        self.pending += received
        return bool(received)


def test_every_request_is_answered(tmp_path):
    chance = random.Random(SEED)
    statuses, client = collections.Counter(), None
    with leveret(tmp_path) as ours:
        for number in range(REQUESTS):
            pieces = [piece for piece in made_up(chance) if piece]
            client = client or Client(ours.port)
            answer = client.ask(pieces)
            assert answer is not None, (number, pieces, statuses)
            status, is_last = answer
            statuses[status] += 1
            if is_last:
                client.socket.close()
                client = None
    assert {200, 204, 400, 401, 404, 405} <= set(statuses), statuses


def test_a_request_that_says_twice_where_it_goes_is_refused(tmp_path):
    with leveret(tmp_path) as ours:
        status = lambda text: Client(ours.port).ask([text.replace("\n", "\r\n").encode()])[0]
        assert status("GET /healthz HTTP/1.1\nhost: a\n\n") == 200
        assert status("GET /healthz HTTP/1.1\nhost: a\nhost: a\n\n") == 400
        assert status("GET /healthz HTTP/1.1\nhost: a\nHost: b\n\n") == 400
        assert status("GET /healthz HTTP/1.1\n\n") == 400
        assert status("GET /healthz HTTP/1.0\n\n") == 200


def test_an_answer_arrives_though_a_large_body_is_on_its_way(tmp_path):
    with leveret(tmp_path) as ours:
        for path, login, status in (
            (b"/api/queues/%2F/q", b"", 401),
            (b"/api/queues/%2F/q", LOGIN + b"\r\n", 413),
            (b"/healthz", b"", 405),
        ):
            head = b"PUT %s HTTP/1.1\r\nhost: 127.0.0.1\r\n%scontent-length: %d\r\n\r\n" % (path, login, LARGE)
            assert Client(ours.port).ask([head, bytes(LARGE)]) == (status, True), path
