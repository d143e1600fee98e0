#!/usr/bin/env python3
"""Starts RabbitMQ and Leveret, and runs the differential tests between them. Arguments are passed on."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from differential.definitions import DEFINITIONS
from harness.leveret import ROOT, Leveret
from harness.rabbitmq import RabbitMq


def main():
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "differential"
    program = os.environ.get("DIFFERENTIAL_BIN", built)
    with tempfile.TemporaryDirectory() as folder:
        definitions = Path(folder) / "definitions.json"
        definitions.write_text(json.dumps(DEFINITIONS))
        rabbitmq = RabbitMq(Path(folder) / "rabbitmq", f"load_definitions = {definitions}")
        try:
            leveret = Leveret(Path(folder) / "leveret", "--definitions", definitions)
            try:
                targets = ["--rabbitmq", f"127.0.0.1:{rabbitmq.port}", "--leveret", leveret.address]
                code = subprocess.run([program, *targets, *sys.argv[1:]]).returncode
                leveret.check()
            finally:
                leveret.stop()
        finally:
            rabbitmq.stop()
    return code


if __name__ == "__main__":
    sys.exit(main())
