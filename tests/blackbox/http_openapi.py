"""The OpenAPI description is accurate: schemathesis generates requests from it and checks the answers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.child import clean_environment
from harness.leveret import ROOT
from harness.management import leveret
from harness.patience import PATIENCE, TEST_SECONDS
from harness.releases import RELEASES

# Thousands of requests, one after the other.
SECONDS = 3 * TEST_SECONDS
pytestmark = pytest.mark.timeout(4 * TEST_SECONDS)
# Random examples per operation, beside some dozens at the boundaries of the schema. `make openapi` and `make soak` use more,
# and other seeds.
EXAMPLES = int(os.environ.get("LEVERET_OPENAPI_EXAMPLES", "5"))
SEED = os.environ.get("LEVERET_OPENAPI_SEED", "1")
# Excludes operations that would end the server, and health checks that answer 503.
LEFT_OUT = "drain|-listener"


@pytest.mark.parametrize("release", RELEASES)
def test_answers_are_as_described(tmp_path, release):
    # No request can name this user, so schemathesis cannot delete its own login.
    user = "of-the-tests-and-nobody-else"
    with leveret(tmp_path, "--compatibility", release) as ours:
        assert ours.status("PUT", f"users/{user}", {"password": "x", "tags": "administrator"}) == 201
        grant = {"configure": ".*", "write": ".*", "read": ".*"}
        assert ours.status("PUT", f"permissions/%2F/{user}", grant) == 201
        argv = [
            *(Path(sys.executable).parent / "schemathesis", "run", f"{ours.url}/api/openapi.json"),
            *("--auth", f"{user}:x", "--exclude-path-regex", LEFT_OUT, "--max-examples", EXAMPLES, "--seed", SEED),
            *("--phases", "examples,coverage,fuzzing", "--no-color", "--workers", 1),
            *("--request-timeout", PATIENCE),
            *("--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"),
        ]  # fmt: skip
        done = subprocess.run(
            list(map(str, argv)), cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        ours.server.check()


@pytest.mark.parametrize("release", RELEASES)
def test_every_path_is_there(tmp_path, release):
    with leveret(tmp_path, "--compatibility", release) as ours:
        described = ours.get("openapi.json", user=None)
        assert described["openapi"].startswith("3.") and len(described["paths"]) > 80
        for path, operations in described["paths"].items():
            concrete = path.strip("/").replace("{vhost}", "%2F")
            for name in ("name", "node", "user", "component", "source", "destination", "exchange", "props", "pattern"):
                concrete = concrete.replace("{" + name + "}", "nope")
            concrete = concrete.replace("{password}", "x")
            concrete = concrete.replace("{port}", "1").replace("{protocol}", "amqp").replace("{protocols}", "amqp")
            concrete = concrete.replace("{within}", "1").replace("{unit}", "days")
            status, headers, _ = ours.ask("OPTIONS", concrete)
            allowed = set(headers["allow"].split(", ")) - {"HEAD", "OPTIONS"}
            assert (status, allowed) == (200, {name.upper() for name in operations} - {"PARAMETERS"}), path
        assert json.dumps(described)


def test_the_documentation_lists_the_paths_specific_to_each_release(tmp_path):
    described = {}
    for release in RELEASES:
        with leveret(tmp_path / release, "--compatibility", release) as ours:
            described[release] = {path.strip("/") for path in ours.get("openapi.json", user=None)["paths"]}
    rows = re.findall(r"^\| `([^`]+)` \| (3\.10|4) \|$", (ROOT / "docs" / "http-api.md").read_text(), re.MULTILINE)
    documented = {release: {path for path, of in rows if of == release} for release in RELEASES}
    both = described["3.10"] & described["4"]
    assert {release: paths - both for release, paths in described.items()} == documented
