"""How much of each crate's code the tests reach: the unit tests, and the scenarios with an instrumented debug build of Leveret, whose
counters outlive kill -9. The table is target/coverage/report.md, the lines are under target/coverage/html.

    make coverage [ARGS="--target leveret"]
"""

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

from harness.leveret import ROOT

TARGET = ROOT / "target" / "coverage"
# The number of processes that may share a file of counters: each file takes some megabytes, and a run starts thousands of
# servers.
PROFILES = 4
KINDS = ("lines", "functions", "regions")


def main():
    environment = os.environ | {"CARGO_TARGET_DIR": str(TARGET)}
    shown = subprocess.check_output(["cargo", "llvm-cov", "show-env"], cwd=ROOT, env=environment, text=True)
    for line in shown.splitlines():
        name, _, value = line.partition("=")
        environment[name] = "".join(shlex.split(value))
    # Keep the counters in the file continuously (%c), because tests kill servers.
    environment["RUSTFLAGS"] = environment.get("RUSTFLAGS", "") + " -Cllvm-args=-runtime-counter-relocation"
    environment["LLVM_PROFILE_FILE"] = str(TARGET / f"leveret-%{PROFILES}m%c.profraw")
    environment["LEVERET_BIN"] = str(TARGET / "debug" / "leveret")

    def step(*command, directory=ROOT, check=True, **options):
        return subprocess.run(command, cwd=directory, env=environment, check=check, **options)

    step("cargo", "llvm-cov", "clean", "--workspace")
    step("cargo", "test", "--workspace", "--locked", "--quiet", "--no-fail-fast")
    step("cargo", "build", "--workspace", "--bin", "leveret", "--bin", "lapin-scenarios", "--locked", "--quiet")
    tests = [sys.executable, "-m", "pytest", "-n", "4", "--dist", "loadfile", "--no-loadscope-reorder", *sys.argv[1:]]
    failed = step(*tests, directory=ROOT / "tests", check=False).returncode
    step("cargo", "llvm-cov", "report", "--html", "--output-dir", TARGET)
    summary = json.loads(step("cargo", "llvm-cov", "report", "--json", "--summary-only", stdout=subprocess.PIPE).stdout)
    report = table(summary["data"][0]["files"])
    (TARGET / "report.md").write_text(report)
    print(report)
    # After a failure the coverage means little.
    sys.exit(failed)


def table(files):
    """A row for each crate, and one for the total."""
    counts, covered = Counter(), Counter()
    for file in files:
        path = Path(file["filename"]).relative_to(ROOT)
        for crate in (path.parts[1], "all"):
            for kind in KINDS:
                counts[crate, kind] += file["summary"][kind]["count"]
                covered[crate, kind] += file["summary"][kind]["covered"]
    rows = [f"| crate | {' | '.join(KINDS)} | lines not reached |", "|---|---|---|---|---|"]
    for crate in [*sorted({crate for crate, _ in counts} - {"all"}), "all"]:
        shares = [f"{100 * covered[crate, kind] / max(counts[crate, kind], 1):.1f} %" for kind in KINDS]
        rows.append(f"| {crate} | {' | '.join(shares)} | {counts[crate, 'lines'] - covered[crate, 'lines']} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
