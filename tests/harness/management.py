"""A client of the management API of Leveret or RabbitMQ."""

import base64
import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from harness.child import clean_environment
from harness.ctl import managed_rabbitmq
from harness.leveret import Leveret
from harness.patience import PATIENCE
from harness.releases import TAKEN_AFTER, missing

PLUGINS = Path("/usr/lib/rabbitmq/lib")
ADMIN = "rabbitmq_server-*/plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin"


class Management:
    """A server's management API and its AMQP address."""

    def __init__(self, server, url):
        self.server, self.url = server, url
        self.host, self.port = urlsplit(url).hostname, urlsplit(url).port

    def ask(self, method, path, body=None, user="guest:guest", headers=None):
        """Returns status, headers and the body's JSON, or `None` if the body is not JSON."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        headers = {"content-type": "application/json", **(headers or {})}
        if user:
            headers["authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        content = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        try:
            connection.request(method, "/api/" + path, content, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        is_json = text and answer.headers.get("content-type", "").startswith("application/json")
        return answer.status, answer.headers, json.loads(text) if is_json else None

    def get(self, path, **options):
        status, _, body = self.ask("GET", path, **options)
        assert status == 200, (path, status, body)
        return body

    def status(self, method, path, body=None, **options):
        return self.ask(method, path, body, **options)[0]

    def eventually(self, path, holds, **options):
        """The answer for a path once `holds` accepts it, because RabbitMQ updates its statistics periodically."""
        deadline = time.monotonic() + PATIENCE
        while not holds(body := self.get(path, **options)):
            assert time.monotonic() < deadline, body
            time.sleep(0.2)
        return body

    def admin(self, *arguments):
        """Runs the script rabbitmqadmin that RabbitMQ's management plugin serves; returns exit code and output."""
        [script] = PLUGINS.glob(ADMIN)
        # -S skips site-packages, which the script does not need; it halves the start-up time.
        argv = [sys.executable, "-S", script, "-H", self.host, "-P", str(self.port), *map(str, arguments)]
        # With an empty home directory, because the script reads a settings file there.
        with tempfile.TemporaryDirectory() as home:
            environment = clean_environment(HOME=home)
            done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        return done.returncode, done.stdout + done.stderr


def path(*parts):
    return "/".join(quote(part, safe="") for part in parts)


@contextlib.contextmanager
def leveret(directory, *flags):
    server = Leveret(directory, *flags)
    try:
        yield Management(server, server.http)
    finally:
        server.stop()


@contextlib.contextmanager
def beside(directories, version):
    """Leveret with the compatibility of a RabbitMQ release, and that RabbitMQ."""
    if reason := missing(version):
        pytest.skip(f"RabbitMQ {version}: {reason}")
    flags = ("--compatibility", version)
    with rabbitmq(version) as theirs, leveret(directories.mktemp("leveret"), *flags) as ours:
        yield ours, theirs


@contextlib.contextmanager
def rabbitmq(version=TAKEN_AFTER):
    server = managed_rabbitmq(version)
    try:
        yield Management(server, server.http)
    finally:
        server.stop()
