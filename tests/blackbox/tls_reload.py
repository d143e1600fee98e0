"""Certificates are replaced while Java and Go clients are connected: open connections continue, new ones see the new
certificate."""

import signal
import subprocess

import pytest

from harness.certificates import TestCa
from harness.child import Child
from harness.drivers import HOLDING
from harness.instances import leveret
from scenarios.catalogue import EXPECTED
from scenarios.left_out import expected_of

CLIENTS = ["java", "go"]


class Holder:
    """A client with one connection, which publishes words while it is open."""

    def __init__(self, by, uri, directory):
        self.child = Child([*HOLDING[by], uri], directory / f"{by}.log", stdin=subprocess.PIPE)
        self.child.wait_line("^connected$")

    def say(self, word):
        self.child.process.stdin.write(word + "\n")
        self.child.process.stdin.flush()
        self.child.wait_line(f"^{word}$")

    def end(self):
        self.child.process.stdin.close()
        assert self.child.wait() == 0, self.child.tail()


def test_sessions_go_on_and_new_ones_see_the_new_certificate(tmp_path, drivers):
    # The same file names, but issued by another CA: a client that trusts one does not trust the other.
    old, new = TestCa(tmp_path / "old", "old"), TestCa(tmp_path / "new", "new")
    pair = old.issue("server", ["localhost"])
    files = ["--tls-cert", pair.certificate, "--tls-key", pair.key]
    with leveret(tmp_path / "server", "--amqps", "127.0.0.1:0", *files) as server:
        port = server.child.wait_line(r"^amqps +listening on amqps://127\.0\.0\.1:(\d+)").group(1)
        uri_of = lambda ca: f"amqps://guest:guest@localhost:{port}/%2f?cacertfile={ca.file}"
        holders = {by: Holder(by, uri_of(old), tmp_path) for by in CLIENTS}
        try:
            for by, holder in holders.items():
                holder.say("before")
                refused(drivers[by], uri_of(new))
            replace(server, pair, new.issue("server", ["localhost"]))
            for by, holder in holders.items():
                connects(drivers[by], by, uri_of(new))
                refused(drivers[by], uri_of(old))
                holder.say("after")

            # Unusable files change nothing, for any client.
            pair.key.write_text("no key")
            server.child.send(signal.SIGHUP)
            server.child.wait_line("SIGHUP: files not reloaded.*tls_key: ")
            for by, holder in holders.items():
                connects(drivers[by], by, uri_of(new))
                holder.say("still")
                holder.end()
        finally:
            for holder in holders.values():
                holder.child.kill()
        server.stop()


def replace(server, pair, other):
    """Replaces the files by the other pair, and reloads; returns once that is done."""
    pair.certificate.write_bytes(other.certificate.read_bytes())
    pair.key.write_bytes(other.key.read_bytes())
    # The startup logs this line, too, possibly late.
    server.child.wait_line("TLS certificate loaded")
    before = len(server.child.lines)
    server.child.send(signal.SIGHUP)
    server.child.wait_line("TLS certificate loaded", behind=before)


def connects(driver, by, uri):
    assert driver.observe("connect", uri) == expected_of(by, EXPECTED)["connect"]


def refused(driver, uri):
    with pytest.raises(AssertionError, match="certificate|certification path"):
        driver.observe("connect", uri)
