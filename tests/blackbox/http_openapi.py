"""The OpenAPI description says what is there: schemathesis asks by it, and judges the answers."""

import json
import subprocess
import sys
from pathlib import Path

from harness.child import clean_environment
from harness.management import leveret

SECONDS = 600
# Each operation is asked so often with made-up values. What would end the server is left out, and checks that say 503.
EXAMPLES = 15
LEFT_OUT = "drain|-listener"


def test_answers_are_as_described(tmp_path):
    # No user may lock itself out, so that schemathesis keeps its login: it asks as one that it cannot name.
    user = "of-the-tests-and-nobody-else"
    with leveret(tmp_path) as ours:
        assert ours.status("PUT", f"users/{user}", {"password": "x", "tags": "administrator"}) == 201
        grant = {"configure": ".*", "write": ".*", "read": ".*"}
        assert ours.status("PUT", f"permissions/%2F/{user}", grant) == 201
        argv = [
            *(Path(sys.executable).parent / "schemathesis", "run", f"{ours.url}/api/openapi.json"),
            *("--auth", f"{user}:x", "--exclude-path-regex", LEFT_OUT, "--max-examples", EXAMPLES, "--seed", 1),
            *("--phases", "examples,coverage,fuzzing", "--no-color", "--workers", 1),
            *("--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"),
        ]  # fmt: skip
        done = subprocess.run(
            list(map(str, argv)), cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        ours.server.check()


def test_every_path_is_there(tmp_path):
    with leveret(tmp_path) as ours:
        described = ours.get("openapi.json", user=None)
        assert described["openapi"].startswith("3.") and len(described["paths"]) > 80
        for path, operations in described["paths"].items():
            concrete = path.strip("/").replace("{vhost}", "%2F")
            for name in ("name", "node", "user", "component", "source", "destination", "exchange", "props"):
                concrete = concrete.replace("{" + name + "}", "nope")
            concrete = concrete.replace("{port}", "1").replace("{protocol}", "amqp")
            concrete = concrete.replace("{within}", "1").replace("{unit}", "days")
            status, headers, _ = ours.ask("OPTIONS", concrete)
            allowed = set(headers["allow"].split(", ")) - {"HEAD", "OPTIONS"}
            assert (status, allowed) == (200, {name.upper() for name in operations} - {"PARAMETERS"}), path
        assert json.dumps(described)
