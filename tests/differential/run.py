#!/usr/bin/env python3
"""Starts RabbitMQ and Leveret, and runs the differential tests between them. Arguments are passed on, but for --release: that of
RabbitMQ, which Leveret is told to follow."""

import argparse
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
from harness.releases import RELEASES, TAKEN_AFTER, missing
from harness.targets import MESSAGE_SIZE


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--release", choices=RELEASES, default=TAKEN_AFTER)
    options, others = parser.parse_known_args()
    if reason := missing(options.release):
        print(f"random programs on RabbitMQ {options.release} are left out: {reason}")
        return 0
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "differential"
    program = os.environ.get("DIFFERENTIAL_BIN", built)
    with tempfile.TemporaryDirectory() as directory:
        definitions = Path(directory) / "definitions.json"
        definitions.write_text(json.dumps(DEFINITIONS))
        rabbitmq = RabbitMq(Path(directory) / "rabbitmq", f"load_definitions = {definitions}", MESSAGE_SIZE, version=options.release)
        try:
            leveret = Leveret(Path(directory) / "leveret", "--definitions", definitions, "--compatibility", options.release)
            try:
                targets = ["--rabbitmq", f"127.0.0.1:{rabbitmq.port}", "--leveret", leveret.address]
                code = subprocess.run([program, *targets, *others]).returncode
                leveret.check()
            finally:
                leveret.stop()
        finally:
            rabbitmq.stop()
    return code


if __name__ == "__main__":
    sys.exit(main())
