#!/usr/bin/env python3
"""Makes a container image of static binaries, without Docker or a daemon: an OCI image layout, and the same as one file that
`docker load`, `podman load` and `skopeo copy oci-archive:` take.

    packaging/build-image.py DIRECTORY BINARY [BINARY...]

DIRECTORY gets `leveret-VERSION-image` and `leveret-VERSION-image.tar`. Several binaries, for different processors, make one image for all
of them. User, variables, ports, volume and command are read from the Dockerfile, so that both images are alike. The same input gives the
same bytes: times are SOURCE_DATE_EPOCH or 0, and owners are numbers.
"""

import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tarfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent

OCI = "application/vnd.oci.image"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# e_machine of an ELF header, and what the OCI image specification calls it (GOARCH).
PROCESSORS = {62: {"architecture": "amd64"}, 183: {"architecture": "arm64", "variant": "v8"}}
PT_INTERP = 3


class Unusable(Exception):
    """No image can be built from this input."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("binaries", type=Path, nargs="+")
    parser.add_argument("--certificates", type=Path, default=CERTIFICATES, help="CA certificates of the image, as PEM (default: this system's)")
    parser.add_argument("--compression", type=int, default=9, help="from 1, which is quick, to 9")
    parser.add_argument("--allow-dynamic", action="store_true", help="take a binary whose libraries somebody mounts: for tests")
    options = parser.parse_args()
    try:
        print(build(options))
    except (Unusable, OSError) as problem:
        sys.exit(f"build-image: {problem}")


def build(options):
    version = package_version()
    programs = {}
    for binary in options.binaries:
        content = binary.read_bytes()
        platform = platform_of(binary, content, options.allow_dynamic)
        if platform["architecture"] in programs:
            raise Unusable(f"{binary}: there is another binary for {platform['architecture']}")
        programs[platform["architecture"]] = platform, content
    layout = options.directory / f"leveret-{version}-image"
    shutil.rmtree(layout, ignore_errors=True)
    blobs = Blobs(layout / "blobs" / "sha256")
    base = Layer(blobs, base_files(options.certificates), options.compression)
    images = []
    for platform, content in programs.values():
        program = Layer(blobs, [File("usr/bin/leveret", content, mode=0o755)], options.compression)
        images.append(Image(blobs, platform, [base, program], version))
    index = blobs.add_json(f"{OCI}.index.v1+json", image_index([image.descriptor for image in images]))
    index["annotations"] = {"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"docker.io/library/leveret:{version}"}
    write_json(layout / "index.json", image_index([index]))
    write_json(layout / "oci-layout", {"imageLayoutVersion": "1.0.0"})
    # Where Docker does not use containerd's store, it takes one platform, and finds it here.
    write_json(layout / "manifest.json", [images[0].for_docker(f"leveret:{version}")])
    return archive(layout)


def package_version():
    return tomllib.loads((HERE.parent / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def platform_of(binary, content, allow_dynamic):
    """The platform of a 64-bit little-endian ELF program (ELF-64 object file format, figures 2 and 6)."""
    if content[:6] != b"\x7fELF\x02\x01":
        raise Unusable(f"{binary}: no 64-bit program of Linux")
    machine = int.from_bytes(content[18:20], "little")
    if machine not in PROCESSORS:
        raise Unusable(f"{binary}: a processor that this script does not know (e_machine {machine})")
    offset, size, count = (int.from_bytes(content[at : at + n], "little") for at, n in ((32, 8), (54, 2), (56, 2)))
    types = {int.from_bytes(content[at : at + 4], "little") for at in range(offset, offset + size * count, size)}
    if PT_INTERP in types and not allow_dynamic:
        raise Unusable(f"{binary}: needs shared libraries, and the image has none; `make static` builds one that does not")
    return {**PROCESSORS[machine], "os": "linux"}


class File:
    """A file of a layer, or a directory if it has no content."""

    def __init__(self, path, content=None, mode=0o755, owner=0):
        self.path, self.content, self.mode, self.owner = path, content, mode, owner

    def header(self, time):
        info = tarfile.TarInfo(self.path)
        info.type = tarfile.DIRTYPE if self.content is None else tarfile.REGTYPE
        info.size = len(self.content or b"")
        info.mode, info.uid, info.gid, info.mtime = self.mode, self.owner, self.owner, time
        return info


def base_files(certificates):
    """The directories and files beside the program. There is no shell; the user's name is for programs that print it."""
    user = int(instruction("USER").partition(":")[0])
    home = instruction("VOLUME")
    passwd = f"root:x:0:0:root:/:/sbin/nologin\nleveret:x:{user}:{user}:Leveret:{home}:/sbin/nologin\n"
    group = f"root:x:0:\nleveret:x:{user}:\n"
    return [
        File("etc"),
        File("etc/group", group.encode(), mode=0o644),
        File("etc/passwd", passwd.encode(), mode=0o644),
        File("etc/ssl"),
        File("etc/ssl/certs"),
        File("etc/ssl/certs/ca-certificates.crt", certificates.read_bytes(), mode=0o644),
        File("tmp", mode=0o1777),
        File("usr"),
        File("usr/bin"),
        File("var"),
        File("var/lib"),
        File(home.lstrip("/"), mode=0o700, owner=user),
    ]


class Blobs:
    """Contents by their SHA-256 sums (OCI image layout)."""

    def __init__(self, directory):
        self.directory = directory
        directory.mkdir(parents=True)

    def add(self, media_type, content):
        digest = sha256(content)
        (self.directory / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def add_json(self, media_type, value):
        return self.add(media_type, as_json(value))


class Layer:
    def __init__(self, blobs, files, compression):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for file in files:
                tar.addfile(file.header(epoch()), io.BytesIO(file.content or b""))
        self.diff_id = f"sha256:{sha256(packed.getvalue())}"
        self.descriptor = blobs.add(f"{OCI}.layer.v1.tar+gzip", gzip.compress(packed.getvalue(), compression, mtime=0))


class Image:
    """The image of one platform: its configuration and its manifest."""

    def __init__(self, blobs, platform, layers, version):
        self.layers = layers
        self.config = blobs.add_json(f"{OCI}.config.v1+json", configuration(platform, layers, version))
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": self.config,
            "layers": [layer.descriptor for layer in layers],
        }
        self.descriptor = {**blobs.add_json(manifest["mediaType"], manifest), "platform": platform}

    def for_docker(self, name):
        paths = [descriptor["digest"].replace("sha256:", "blobs/sha256/") for descriptor in (self.config, *(each.descriptor for each in self.layers))]
        return {"Config": paths[0], "RepoTags": [name], "Layers": paths[1:]}


def configuration(platform, layers, version):
    return {
        "created": moment(),
        **platform,
        "config": {
            "User": instruction("USER"),
            "ExposedPorts": {f"{port}/tcp": {} for port in instruction("EXPOSE").split()},
            "Env": ["PATH=/usr/bin", *shlex.split(instruction("ENV"))],
            "Entrypoint": json.loads(instruction("ENTRYPOINT")),
            "Cmd": json.loads(instruction("CMD")),
            "Volumes": {instruction("VOLUME"): {}},
            "Healthcheck": health_check(),
            "Labels": {
                "org.opencontainers.image.title": "leveret",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": moment(), "created_by": "packaging/build-image.py"} for _ in layers],
    }


def image_index(manifests):
    return {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": manifests}


def instruction(name):
    """The argument of an instruction that the Dockerfile's last stage has once."""
    text = (HERE / "Dockerfile").read_text().replace("\\\n", " ")
    [line] = [line for line in text.rpartition("\nFROM ")[2].splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(f"{name} ")


def health_check():
    """A Docker extension of the configuration, in nanoseconds."""
    options, _, command = instruction("HEALTHCHECK").partition("CMD ")
    spans = {name: int(seconds) * 1_000_000_000 for name, seconds in re.findall(r"--([\w-]+)=(\d+)s", options)}
    keys = {"interval": "Interval", "timeout": "Timeout", "start-period": "StartPeriod"}
    return {"Test": ["CMD", *json.loads(command)]} | {keys[name]: span for name, span in spans.items()}


def archive(layout):
    """The layout as one file, with its members sorted by name."""
    path = layout.with_name(f"{layout.name}.tar")
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for member in sorted(layout.rglob("*")):
            name = str(member.relative_to(layout))
            file = File(name) if member.is_dir() else File(name, member.read_bytes(), mode=0o644)
            tar.addfile(file.header(epoch()), io.BytesIO(file.content or b""))
    return path


def write_json(path, value):
    path.write_bytes(as_json(value))


def as_json(value):
    return json.dumps(value, indent=2).encode()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def epoch():
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def moment():
    return datetime.datetime.fromtimestamp(epoch(), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    main()
