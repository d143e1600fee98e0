"""Container images that packaging/build-image.py writes, as OCI layouts."""

import gzip
import hashlib
import json
import subprocess

from harness.child import clean_environment
from harness.leveret import ROOT
from harness.patience import PATIENCE

MEDIA = "application/vnd.oci.image"


def build(directory, *programs, flags=("--allow-dynamic",)):
    argv = [ROOT / "packaging" / "build-image.py", *flags, "--compression", "1", directory, *programs]
    done = subprocess.run(argv, env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, done.stdout.strip(), done.stderr


def images(layout, seen=None):
    """Each image of a layout; adds the names of the blobs it refers to to `seen`."""

    def blob(descriptor):
        algorithm, _, digest = descriptor["digest"].partition(":")
        content = (layout / "blobs" / algorithm / digest).read_bytes()
        assert algorithm == "sha256" and hashlib.sha256(content).hexdigest() == digest
        assert len(content) == descriptor["size"]
        if seen is not None:
            seen.add(digest)
        return content

    [top] = json.loads((layout / "index.json").read_text())["manifests"]
    assert top["mediaType"] == f"{MEDIA}.index.v1+json"
    for descriptor in json.loads(blob(top))["manifests"]:
        assert descriptor["mediaType"] == f"{MEDIA}.manifest.v1+json"
        manifest = json.loads(blob(descriptor))
        assert {layer["mediaType"] for layer in manifest["layers"]} == {f"{MEDIA}.layer.v1.tar+gzip"}
        layers = [gzip.decompress(blob(layer)) for layer in manifest["layers"]]
        config = json.loads(blob(manifest["config"]))
        yield {"platform": descriptor["platform"], "manifest": manifest, "config": config, "layers": layers}
