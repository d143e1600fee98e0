"""An HTTP auth service that speaks the protocol of the plugin rabbitmq_auth_backend_http."""

import contextlib
import http.server
import threading
import time
from urllib.parse import parse_qsl, urlsplit

from harness.http_service import serving
from harness.patience import PATIENCE

KINDS = ("user", "vhost", "resource", "topic")


class Hold:
    """Requests of one kind that wait until the test releases them."""

    def __init__(self):
        self.arrived, self.released = threading.Semaphore(0), threading.Event()

    def wait(self, questions=1):
        """Returns once this many requests are waiting."""
        for _ in range(questions):
            assert self.arrived.acquire(timeout=PATIENCE)

    def release(self):
        self.released.set()


class HttpAuthService:
    """Allows everything to users who present the right password, except what `refuses` denies. `asked` has (kind, fields) of
    each request."""

    def __init__(self, users=None, tls=None, address=("127.0.0.1", 0)):
        # User names, passwords and tags.
        self.users = users or {"alice": ("secret", ""), "admin": ("secret", "administrator"), "manager": ("secret", "management")}
        self.refuses = lambda kind, fields: False
        # Faulty answers by kind: a status, a body, or a delay in seconds.
        self.faults = {}
        self.holds = {}
        self.asked, self.methods, self.peers = [], [], set()
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Without this, the second part of a small answer waits for the acknowledgement of the first (Nagle).
            disable_nagle_algorithm = True

            def do_GET(self):
                self.answer(urlsplit(self.path).query)

            def do_POST(self):
                self.answer(self.rfile.read(int(self.headers["content-length"])).decode())

            def answer(self, form):
                fields = parse_qsl(form, keep_blank_values=True, strict_parsing=True)
                assert len(dict(fields)) == len(fields), fields
                kind = urlsplit(self.path).path.strip("/")
                service.methods.append(self.command)
                service.peers.add(self.client_address)
                status, body = service.judge(kind, dict(fields))
                content = body.encode()
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("content-length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                """A client may disconnect; that is not an error."""

        self.server = Server(address, Handler)
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.scheme = "https" if tls else "http"
        self.port = self.server.server_port

    def judge(self, kind, fields):
        self.asked.append((kind, fields))
        if hold := self.holds.get(kind):
            hold.arrived.release()
            hold.released.wait(PATIENCE)
        fault = self.faults.get(kind)
        if isinstance(fault, float):
            time.sleep(fault)
        elif isinstance(fault, int):
            return fault, "allow"
        elif fault:
            return 200, fault
        if kind == "user":
            password, tags = self.users.get(fields["username"], (None, ""))
            is_known = password is not None and fields.get("password", password) == password
            return 200, f"allow {tags}".strip() if is_known and not self.refuses(kind, fields) else "deny"
        return 200, "deny" if self.refuses(kind, fields) else "allow"

    @contextlib.contextmanager
    def holding(self, kind):
        """Holds requests of a kind back until they are released, or until the block ends."""
        hold = self.holds[kind] = Hold()
        try:
            yield hold
        finally:
            del self.holds[kind]
            hold.release()

    def url(self, kind):
        return f"{self.scheme}://127.0.0.1:{self.port}/{kind}"

    def flags(self, *backends, **settings):
        """Leveret's flags to use this service."""
        words = [word for backend in backends or ("http",) for word in ("--auth-backends", backend)]
        for kind in KINDS:
            words += [f"--auth-http-{kind}-path", self.url(kind)]
        for name, value in settings.items():
            words += ["--" + name.replace("_", "-"), str(value)]
        return words

    def settings(self, method="get"):
        """RabbitMQ's settings to use this service."""
        return ["auth_backends.1 = http", f"auth_http.http_method = {method}"] + [f"auth_http.{kind}_path = {self.url(kind)}" for kind in KINDS]

    def take(self, *kinds):
        """The requests since the last call, of these kinds or of all."""
        asked, self.asked = self.asked, []
        return [(kind, fields) for kind, fields in asked if not kinds or kind in kinds]

    def operations(self):
        """The requests since the last call in words, without logins and virtual hosts."""
        asked = self.take("resource", "topic")
        return [" ".join([fields["permission"], fields["resource"], fields["name"], *([fields["routing_key"]] if kind == "topic" else [])])
                for kind, fields in asked]  # fmt: skip


@contextlib.contextmanager
def http_auth_backend(**options):
    service = HttpAuthService(**options)
    with serving(service.server):
        yield service
