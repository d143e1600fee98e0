"""Runs scenarios with pika: one JSON request a line on standard input, one JSON answer a line on standard output.

The first line out lists the scenarios this driver knows. `tests/README.md` describes the protocol."""

import json
import sys
import traceback

# Importing a module registers its scenarios.
import connecting  # noqa: F401
import consuming  # noqa: F401
import content  # noqa: F401
import exchanges  # noqa: F401
import publishing  # noqa: F401
import queues  # noqa: F401
import refusals  # noqa: F401
import replies  # noqa: F401
import retention  # noqa: F401
import settling  # noqa: F401
import transactions  # noqa: F401
from session import SCENARIOS, Session


def main():
    answer({"scenarios": sorted(SCENARIOS)})
    for line in sys.stdin:
        request = json.loads(line)
        answer(run(request["scenario"], request["uri"], request["prefix"]))


def run(scenario, uri, prefix):
    session = Session(uri, prefix)
    try:
        return {"scenario": scenario, "ok": True, "observed": SCENARIOS[scenario](session)}
    except Exception:
        return {"scenario": scenario, "ok": False, "error": traceback.format_exc()}
    finally:
        session.close()


def answer(message):
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
