#!/usr/bin/env python3
"""Makes the files of a release of static binaries, and checks their sums.

    packaging/build-release.py DIRECTORY BINARY [BINARY...]

For each binary: an archive, a Debian package and a bill of materials. Of all of them: one container image, and SHA256SUMS. A binary for
another processor writes its man pages under qemu. The same input gives the same bytes, with SOURCE_DATE_EPOCH or 0 for times.
"""

import argparse
import gzip
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

# e_machine of an ELF header (ELF-64 object file format), and the processor as Linux and Rust call it.
# The pages of the manual that an operator needs without a network.
MANUAL = (
    "authentication", "configuration", "installation", "migration", "monitoring", "mqtt-and-stomp", "operations", "pool", "spool",
    "troubleshooting", "upgrades",
)  # fmt: skip
PROCESSORS = {62: "x86_64", 183: "aarch64"}
SHELLS = {"bash": "leveret.bash", "zsh": "_leveret", "fish": "leveret.fish"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("binaries", type=Path, nargs="+")
    parser.add_argument("--quick", action="store_true", help="compress little, and take a binary that needs shared libraries: for tests")
    options = parser.parse_args()
    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")
    # Remove the files of earlier releases.
    shutil.rmtree(options.directory, ignore_errors=True)
    options.directory.mkdir(parents=True)
    for binary in options.binaries:
        processor = processor_of(binary)
        archive(options.directory, binary, processor, options.quick)
        package(options.directory, binary, options.quick)
        bill_of_materials(options.directory, processor)
    image(options.directory, options.binaries, options.quick)
    sums(options.directory)
    for path in sorted(options.directory.iterdir()):
        print(path)


def processor_of(binary):
    with binary.open("rb") as file:
        header = file.read(20)
    if header[:4] != b"\x7fELF" or (machine := int.from_bytes(header[18:20], "little")) not in PROCESSORS:
        sys.exit(f"build-release: {binary}: no program of Linux for {' or '.join(PROCESSORS.values())}")
    return PROCESSORS[machine]


def archive(directory, binary, processor, quick):
    """The binary with its documents, man pages and completions; only the binary is needed to run it."""
    program = [binary.resolve()] if processor == platform.machine() else [f"qemu-{processor}", binary.resolve()]
    version = run(*program, "--version").split()[1]
    name = f"leveret-{version}-{processor}-linux"
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        shutil.copy(binary, root / "leveret")
        for document in ("LICENSE", "README.md", "CHANGELOG.md", *(f"docs/{page}.md" for page in MANUAL)):
            shutil.copy(ROOT / document, root)
        for settings in ("leveret.toml", "leveret.service"):
            shutil.copy(HERE / settings, root)
        run(*program, "man", "--output", root / "man")
        (root / "completions").mkdir()
        for shell, file in SHELLS.items():
            (root / "completions" / file).write_text(run(*program, "completions", shell))
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for path in sorted(path for path in root.rglob("*") if path.is_file()):
                info = tarfile.TarInfo(f"{name}/{path.relative_to(root)}")
                info.size, info.mtime = path.stat().st_size, int(os.environ["SOURCE_DATE_EPOCH"])
                info.mode = 0o755 if path.name == "leveret" else 0o644
                tar.addfile(info, io.BytesIO(path.read_bytes()))
    (directory / f"{name}.tar.gz").write_bytes(gzip.compress(packed.getvalue(), 1 if quick else 9, mtime=0))


def package(directory, binary, quick):
    run(HERE / "build-deb.sh", binary, directory, env={"COMPRESSION": "none"} if quick else {})


def bill_of_materials(directory, processor):
    (directory / f"leveret-{processor}.cdx.json").write_text(run(HERE / "sbom.py", f"{processor}-unknown-linux-musl"))


def image(directory, binaries, quick):
    path = Path(run(HERE / "build-image.py", *(["--allow-dynamic", "--compression", "1"] if quick else []), directory, *binaries).strip())
    # It is the layout in one file.
    shutil.rmtree(path.with_suffix(""))


def sums(directory):
    names = sorted(path.name for path in directory.iterdir())
    (directory / "SHA256SUMS").write_text(run("sha256sum", "--", *names, cwd=directory))
    run("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS", cwd=directory)


def run(*argv, cwd=None, env=None):
    """Returns a command's output; shows its error message if it fails."""
    done = subprocess.run([str(word) for word in argv], cwd=cwd, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"build-release: {argv[0]} has failed")
    return done.stdout


if __name__ == "__main__":
    main()
