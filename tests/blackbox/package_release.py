"""The files of packaging/build-release.py: complete, with correct checksums, and reproducible."""

import hashlib
import json
import os
import platform
import re
import subprocess
import tarfile
import tomllib

import pytest

from harness.child import clean_environment
from harness.leveret import ROOT, binary, run
from harness.patience import PATIENCE

BUILD_SECONDS = 2 * PATIENCE
PROCESSOR = platform.machine()
TARGET = f"{PROCESSOR}-unknown-linux-musl"
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
ARCHIVE = f"leveret-{VERSION}-{PROCESSOR}-linux.tar.gz"


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return build(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def bill(release):
    return json.loads((release / f"leveret-{PROCESSOR}.cdx.json").read_text())


def test_every_file_is_summed_up_and_nothing_else(release):
    lines = (release / "SHA256SUMS").read_text().splitlines()
    sums = dict(reversed(line.split("  ", 1)) for line in lines)
    assert sums.keys() == {path.name for path in release.iterdir()} - {"SHA256SUMS"}
    assert sums == {name: hashlib.sha256((release / name).read_bytes()).hexdigest() for name in sums}
    debian = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    image, package = f"leveret-{VERSION}-image.tar", f"leveret_{VERSION}-1_{debian}.deb"
    assert sums.keys() == {ARCHIVE, image, package, f"leveret-{PROCESSOR}.cdx.json"}


def test_the_same_input_gives_the_same_bytes(release, tmp_path):
    again = build(tmp_path / "again")
    assert (again / "SHA256SUMS").read_text() == (release / "SHA256SUMS").read_text()


def test_the_archive_has_the_program_and_its_documents(release, tmp_path):
    with tarfile.open(release / ARCHIVE) as tar:
        tar.extractall(tmp_path, filter="data")
    [directory] = tmp_path.iterdir()
    assert directory.name == ARCHIVE.removesuffix(".tar.gz")
    done = subprocess.run([directory / "leveret", "--version"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == run("--version")[1]
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "leveret.toml", "leveret.service", "man/leveret-serve.1"):
        assert (directory / name).stat().st_size > 0, name
    assert "list_queues" in (directory / "completions" / "leveret.bash").read_text()


def test_the_bill_of_materials_names_the_crates_that_the_lock_file_has_for_the_program(bill):
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", bill["serialNumber"])
    assert bill["metadata"]["component"]["name"] == "leveret" and bill["metadata"]["component"]["version"] == VERSION
    locked = {(package["name"], package["version"]): package.get("checksum") for package in lock()}
    named = {(each["name"], each["version"]): each for each in bill["components"]}
    assert len(named) == len(bill["components"])
    assert named.keys() | {("leveret", VERSION)} == of_cargo("normal,build")
    assert {crate for crate, each in named.items() if each["scope"] == "required"} | {("leveret", VERSION)} == of_cargo("normal")
    for crate, each in named.items():
        sums = [entry["content"] for entry in each.get("hashes", [])]
        assert sums == ([locked[crate]] if locked[crate] else []), crate
        assert each.get("purl") == (f"pkg:cargo/{crate[0]}@{crate[1]}" if sums else None), "ours are in no registry"
        [license] = each["licenses"]
        assert re.fullmatch(r"[\w.\- ()+]+", license["expression"]), crate
    assert {"tokio", "aws-lc-sys", "tikv-jemalloc-sys", "broker"} <= {name for name, _ in named}
    assert not {"insta", "proptest", "criterion", "loom"} & {name for name, _ in named}, "what only tests need"


def test_the_bill_of_materials_says_which_crate_needs_which(bill):
    names = {each["bom-ref"]: each["name"] for each in [bill["metadata"]["component"], *bill["components"]]}
    needs = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert needs.keys() == names.keys()
    locked = {}
    for package in lock():
        locked.setdefault(package["name"], set()).update(each.split()[0] for each in package.get("dependencies", []))
    for crate, others in needs.items():
        assert {names[other] for other in others} <= locked[names[crate]], crate
    reached, pending = set(), [bill["metadata"]["component"]["bom-ref"]]
    while pending:
        crate = pending.pop()
        pending += [other for other in needs[crate] if other not in reached]
        reached.add(crate)
    assert reached == names.keys()


def test_no_file_names_the_directory_of_the_checkout(release):
    """Except for the binary, whose panics name source files, and the compressed package."""
    for path in release.glob("*.json"):
        assert str(ROOT) not in path.read_text(), path.name


def build(directory):
    argv = [ROOT / "packaging" / "build-release.py", "--quick", directory, binary()]
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=BUILD_SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == sorted(str(path) for path in directory.iterdir())
    return directory


def of_cargo(kinds):
    """The crates that cargo compiles for the program."""
    argv = ["cargo", "tree", "--locked", "--package", "leveret", "--target", TARGET, "--edges", kinds, "--prefix", "none", "--format", "{p}"]
    done = subprocess.run(argv, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=True)
    return {tuple(line.replace(" v", " ").split()[:2]) for line in done.stdout.splitlines()}


def environment():
    """The variables that cargo needs to find its toolchain and registry."""
    return clean_environment(**{key: os.environ[key] for key in ("HOME", "CARGO_HOME", "RUSTUP_HOME") if key in os.environ})


def lock():
    return tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
