"""The container image of packaging/Dockerfile: its environment, command line and health check."""

import json
import shlex

from harness.leveret import ROOT

TEXT = (ROOT / "packaging" / "Dockerfile").read_text().replace("\\\n", " ")


def instruction(name):
    """The argument of an instruction that the last stage has once."""
    [line] = [line for line in TEXT.rpartition("\nFROM ")[2].splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(f"{name} ")


def variables():
    return dict(word.split("=", 1) for word in shlex.split(instruction("ENV")))


def command_line():
    return shlex.join(json.loads(instruction("ENTRYPOINT")) + json.loads(instruction("CMD")))


def health_check():
    return shlex.join(json.loads(instruction("HEALTHCHECK").rpartition("CMD ")[2]))
