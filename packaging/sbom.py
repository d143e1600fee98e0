#!/usr/bin/env python3
"""The bill of materials of the binary: which crates are in it, as CycloneDX 1.5 (JSON).

    packaging/sbom.py TARGET        such as x86_64-unknown-linux-musl

Cargo tells what is built for that target with the default features, and Cargo.lock has the sums. Crates that only take part in the
build have the scope `excluded`. Tools that make one from the whole workspace also list what only tests need, and name the directory of
the checkout. The same tree gives the same bytes.
"""

import datetime
import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINE = re.compile(r"(?P<depth>\d+)(?P<name>\S+) v(?P<version>\S+)(?: \((?P<note>[^|]*)\))*\|(?P<license>[^|]*)\|(?P<repository>\S*)")


def main():
    [target] = sys.argv[1:]
    print(json.dumps(bill_of_materials(target), indent=2))


def bill_of_materials(target):
    built, edges = tree(target, "normal,build")
    linked, _ = tree(target, "normal")
    sums = checksums()
    [program] = [crate for crate in built if crate[0] == "leveret"]
    components = [component(crate, facts, sums, crate in linked) for crate, facts in sorted(built.items()) if crate != program]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([target, components]))}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {**component(program, built[program], sums, True), "type": "application"},
            "properties": [{"name": "cargo:target", "value": target}, {"name": "rustc", "value": compiler()}],
        },
        "components": components,
        "dependencies": [
            {"ref": reference(crate, sums), "dependsOn": sorted(reference(each, sums) for each in edges.get(crate, ()))} for crate in sorted(built)
        ],
    }


def tree(target, kinds):
    """The crates with license and repository, and the dependencies of each. Cargo lists a crate's dependencies only once."""
    argv = ["cargo", "tree", "--locked", "--package", "leveret", "--target", target, "--edges", kinds]
    done = subprocess.run([*argv, "--prefix", "depth", "--format", "{p}|{l}|{r}"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"sbom: {done.stderr.strip()}")
    crates, edges, above = {}, {}, []
    for line in done.stdout.splitlines():
        match = LINE.match(line)
        crate = match["name"], match["version"]
        crates[crate] = match["license"], match["repository"]
        del above[int(match["depth"]) :]
        if above:
            edges.setdefault(above[-1], set()).add(crate)
        above.append(crate)
    return crates, edges


def checksums():
    """Checksums of the crates from a registry; workspace crates have none."""
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    return {(package["name"], package["version"]): package["checksum"] for package in packages if "checksum" in package}


def component(crate, facts, sums, is_linked):
    name, version = crate
    license, repository = facts
    described = {"type": "library", "bom-ref": reference(crate, sums), "name": name, "version": version}
    described["scope"] = "required" if is_linked else "excluded"
    if license:
        # Cargo's older syntax.
        described["licenses"] = [{"expression": license.replace("/", " OR ")}]
    if crate in sums:
        described["purl"] = reference(crate, sums)
        described["hashes"] = [{"alg": "SHA-256", "content": sums[crate]}]
    if repository:
        described["externalReferences"] = [{"type": "vcs", "url": repository}]
    return described


def reference(crate, sums):
    """Workspace crates are in no registry, where an unrelated crate may have the same name."""
    name, version = crate
    return f"pkg:cargo/{name}@{version}" if crate in sums else f"leveret/{name}@{version}"


def compiler():
    return subprocess.run(["rustc", "--version"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
