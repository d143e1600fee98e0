"""The repository's documents and the links in them."""

import re
import subprocess
from pathlib import Path

from prose import CODE, FENCED

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"!?\[(?P<text>[^\]]*)\]\((?P<target>[^()\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def documents():
    """The Markdown files that git tracks or would add."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    return [ROOT / name for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()]


def links(path):
    """A document's links into the repository: (file, anchor), one of which may be empty."""
    text = CODE.sub("", FENCED.sub("", path.read_text()))
    targets = [found["target"] for found in LINK.finditer(text)]
    return [target.partition("#")[::2] for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(path):
    """The anchors of a document's headings, as GitHub and mdBook generate them."""
    found = {}
    for heading in HEADING.findall(FENCED.sub("", path.read_text())):
        words = re.sub(r"[^\w\- ]", "", LINK.sub(r"\1", heading).lower()).strip().replace(" ", "-")
        count = found[words] = found.get(words, -1) + 1
        yield f"{words}-{count}" if count else words


def broken_links(path):
    """A document's dead links."""
    broken = []
    for name, anchor in links(path):
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(f"{name}#{anchor}" if anchor else name)
    return broken
