"""Authentication settings that cannot work are refused at startup, with their names."""

import re

import pytest

from harness.leveret import run


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--auth-backends", "ldap"], "ldap is not supported"),
        (["--auth-backends", "cache:internal"], "only http has answers to cache"),
        (["--auth-backends", "internal+oauth2"], "oauth2 does both or neither"),
        (["--auth-backends", "http"], "auth_http_user_path.*is needed for http"),
        (["--auth-http-user-path", "http://127.0.0.1:1/"], "has no effect unless auth_backends has http"),
        (["--auth-cache-ttl", "1s"], "has no effect unless auth_backends has cache:http"),
        (["--auth-http-user-path", "http://me:secret@127.0.0.1"], "must not hold a user or password"),
        (["--auth-backends", "kerberos"], "none of: internal"),
        (["--auth-backends", "oauth2"], "oauth2_resource_server_id"),
        (["--auth-backends", "oauth2", "--oauth2-resource-server-id", "r"], "oauth2_jwks"),
        (["--oauth2-resource-server-id", "r"], "has no effect unless auth_backends has oauth2"),
        (["--upstream", "amqp://127.0.0.1:1", "--auth-backends", "oauth2"], "applies to the embedded broker only"),
    ],
)
def test_a_setting_that_cannot_be_obeyed_is_refused(arguments, complaint):
    code, _, complaints = run("config", "check", *arguments)
    assert code == 2
    assert re.search(complaint, complaints), complaints


def test_keys_that_cannot_be_read_stop_the_start(tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": []}')
    flags = ["--auth-backends", "oauth2", "--oauth2-resource-server-id", "r", "--oauth2-jwks", str(keys)]
    code, _, complaints = run("serve", *flags, "--data-dir", "off", "--amqp", "127.0.0.1:0")
    assert code == 2
    assert "oauth2_jwks: the JSON Web Key Set has no usable verification key" in complaints
