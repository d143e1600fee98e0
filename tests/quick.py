"""Checks a change in progress: lints, the unit tests of the crates that it touches, and one client's scenarios
on the broker and on the pool, with the debug build (which also asserts the order of locks). Not a replacement for `make test`.

    make quick [BASE=origin/main] [CLIENT=pika]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD", help="the commit that the change is compared with")
    parser.add_argument("--client", default="pika", help="whose scenarios run")
    parser.add_argument("cargo", nargs="+", help="what `make unit` tells cargo, so that no dependency is built again")
    options = parser.parse_args()

    step("format", "cargo", "fmt", "--all", "--check")
    step("tidy", sys.executable, "tests/tidy.py")
    step("clippy", "cargo", "clippy", *options.cargo, "--all-targets", "--", "-D", "warnings")
    changed = changed_crates(options.base)
    programs = test_programs(changed, options.cargo)
    for program, directory in programs:
        step(f"unit tests: {program.name}", program, "--quiet", directory=directory)
    step("build", "cargo", "build", *options.cargo, "--bin", "leveret")
    scenarios = ["scenarios", "--target", "leveret,proxy", "--client", options.client, "-n", "2", "--dist", "worksteal"]
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "leveret"
    environment = os.environ | {"LEVERET_BIN": str(built)}
    step("scenarios", sys.executable, "-m", "pytest", *scenarios, directory=ROOT / "tests", env=environment)
    print(f"passed: {len(programs)} test programs of {', '.join(changed) or 'no crate'}, and {options.client}'s scenarios")


def step(name, *command, directory=ROOT, **options):
    began = time.monotonic()
    done = subprocess.run(command, cwd=directory, **options)
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode:
        again = " ".join(str(word) for word in command)
        sys.exit(f"failed; again alone: (cd {directory} && {again})")


def changed_crates(base):
    """Crates with a file that differs from the commit, or is not in git yet."""
    differing = git("diff", "--name-only", base) + git("ls-files", "--others", "--exclude-standard")
    return sorted({Path(path).parts[1] for path in differing if path.startswith("crates/")})


def git(*arguments):
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).splitlines()


def test_programs(crates, cargo):
    """Builds all tests; returns those of these crates."""
    build = ["cargo", "test", *cargo, "--no-run", "--message-format", "json-render-diagnostics"]
    output = subprocess.run(build, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout
    found = []
    for line in output.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            directory = Path(message["manifest_path"]).parent
            if directory.name in crates:
                found.append((Path(message["executable"]), directory))
    return found


if __name__ == "__main__":
    main()
