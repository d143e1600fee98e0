"""AMQP over TLS with the Java and the Go client: the same answers, certificates by name, and by certificate a login."""

import json
import urllib.parse

import pytest
from cryptography.x509.oid import NameOID

from harness.certificates import TestCa
from harness.definitions import permission, user
from harness.instances import leveret
from scenarios.catalogue import EXPECTED
from scenarios.left_out import expected_of

# Scenarios whose result must be the same over TLS: small and large messages, and both kinds of refused logins.
SCENARIOS = ["connect", "wrong_password", "wrong_vhost", "frame_max_131072", "ten_connections"]
CLIENTS = ["go", "java"]


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return TestCa(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(tmp_path_factory, ca):
    pairs = [ca.issue("first", ["localhost"]), ca.issue("second", ["second.example"])]
    files = [flag for certificate, key in pairs for flag in ("--tls-cert", certificate, "--tls-key", key)]
    directory = tmp_path_factory.mktemp("server")
    verify = ["--tls-client-ca", ca.file, "--tls-verify-client", "optional"]
    names = ["guest", *(f"CN={by} worker,O=Hares" for by in CLIENTS)]
    permissions = [permission(name, configure=".*", write=".*", read=".*") for name in names]
    users = [user(name, "administrator") for name in names]
    definitions = directory / "definitions.json"
    definitions.write_text(json.dumps({"vhosts": [{"name": "/"}], "users": users, "permissions": permissions}))
    with leveret(directory, "--amqps", "127.0.0.1:0", *files, *verify, "--definitions", definitions) as server:
        server.tls_port = server.child.wait_line(r"^amqps +listening on amqps://[^\s/]+:(\d+)").group(1)
        yield server
        server.stop()


def uri(server, ca, credentials="guest:guest@", host="localhost", **options):
    query = urllib.parse.urlencode({"cacertfile": ca.file, **options}, safe="/")
    return f"amqps://{credentials}{host}:{server.tls_port}/%2f?{query}"


@pytest.mark.parametrize("by", CLIENTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_answers_are_those_without_tls(drivers, server, ca, by, scenario):
    observed = drivers[by].observe(scenario, uri(server, ca))
    assert observed == expected_of(by, EXPECTED)[scenario]


@pytest.mark.parametrize("by", CLIENTS)
def test_a_name_is_answered_by_its_certificate(drivers, server, ca, by):
    # The certificates have no IP address, so the host name must match.
    named = lambda name: uri(server, ca, host="127.0.0.1", server_name_indication=name)
    assert drivers[by].observe("connect", named("second.example")) == expected_of(by, EXPECTED)["connect"]
    with pytest.raises(AssertionError, match="certificate|subject alternative"):
        drivers[by].observe("connect", named("unknown.example"))


@pytest.mark.parametrize("by", CLIENTS)
def test_a_client_certificate_is_a_login(drivers, server, ca, by):
    subject = [(NameOID.ORGANIZATION_NAME, "Hares"), (NameOID.COMMON_NAME, f"{by} worker")]
    pair = ca.issue(f"{by}-worker", subject=subject)
    shown = {"certfile": pair.certificate, "keyfile": pair.key}
    external = uri(server, ca, "", auth_mechanism="external", **shown)
    assert drivers[by].observe("connect", external) == expected_of(by, EXPECTED)["connect"]
    server.child.wait_line(f"connection opened.*CN={by} worker,O=Hares")


@pytest.mark.parametrize("by", CLIENTS)
def test_a_certificate_that_is_nobodys_is_no_login(drivers, server, ca, by):
    pair = ca.issue(f"{by}-nobody")
    shown = {"certfile": pair.certificate, "keyfile": pair.key}
    with pytest.raises(AssertionError, match=r"ACCESS.REFUSED|AuthenticationFailure|\(403\)|username or password"):
        drivers[by].observe("connect", uri(server, ca, "", auth_mechanism="external", **shown))
    server.check()


@pytest.mark.parametrize("by", CLIENTS)
def test_a_client_that_does_not_trust_the_ca_stays_away(drivers, server, tmp_path, by):
    with pytest.raises(AssertionError, match="certificate|unable to find valid certification path"):
        drivers[by].observe("connect", uri(server, TestCa(tmp_path / "other", "other")))
    server.check()
