"""Libraries of a few functions that stand between a process and its system (LD_PRELOAD)."""

import functools
import hashlib
import os
import subprocess
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache"


@functools.cache
def preloaded(name):
    """The library of this source, a file beside this one without its suffix."""
    source = Path(__file__).with_name(f"{name}.c")
    library = CACHE / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"
    if not library.exists():
        # Others may be at it, too.
        new = library.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", new, source, "-ldl"], check=True)
        new.rename(library)
    return library
