"""Builds the manual as a site with search (make docs): the documents keep their paths, docs/SUMMARY.md is the table of
contents, and a dead link is an error."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

from harness.documents import LINK, ROOT, broken_links, documents

DOCS = ROOT / "docs"
PICTURES = ("*.svg", "*.png", "*.html")
INDEX = "index.md"
HREF = re.compile(r"""(?:href|src)="([^"#?]*)(?:#[^"]*)?\"""")


def contents():
    """The documents that docs/SUMMARY.md lists."""
    return [(DOCS / name).resolve() for name in re.findall(r"\]\(([^)]+)\)", (DOCS / "SUMMARY.md").read_text())]


def copied(page, pages, files):
    """A page's text, without links to files that are not part of the site."""

    def link(found):
        target = found["target"]
        name = target.partition("#")[0]
        if not name or re.match(r"[a-z]+:", target):
            return found[0]
        path = (page.parent / name).resolve()
        if path in pages:
            return found[0].replace("README.md", INDEX)
        return found[0] if path in files else found["text"]

    return LINK.sub(link, page.read_text())


def place(page):
    """A page's path in the site: mdBook turns each README.md into index.html, but leaves the links to it unchanged."""
    path = page.relative_to(ROOT)
    return path.with_name(INDEX) if path.name == "README.md" else path


def prepare(directory):
    """Creates mdBook's source directory."""
    shutil.rmtree(directory, ignore_errors=True)
    pages = contents()
    files = {path for pattern in PICTURES for path in DOCS.rglob(pattern)}
    for page in pages:
        copy = directory / "src" / place(page)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(copied(page, set(pages), files))
    for file in files:
        copy = directory / "src" / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    summary = (DOCS / "SUMMARY.md").read_text()
    for page in pages:
        summary = summary.replace(f"]({os.path.relpath(page, DOCS)})", f"]({place(page)})")
    (directory / "src" / "SUMMARY.md").write_text(summary)
    shutil.copy(DOCS / "book.toml", directory / "book.toml")


def dead_ends(site):
    """Links of the site to missing files."""
    found = []
    for page in site.rglob("*.html"):
        if page.relative_to(site).parts[:2] == ("docs", "benchmarks") and page.name == "report.html":
            continue
        for target in HREF.findall(page.read_text()):
            if target and not re.match(r"(?:[a-z]+:|//)", target) and not (page.parent / unquote(target)).exists():
                found.append(f"{page.relative_to(site)}: {target}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mdbook", required=True, type=Path)
    parser.add_argument("--into", type=Path, default=ROOT / "target" / "site")
    options = parser.parse_args()
    broken = [f"{path.relative_to(ROOT)}: {link}" for path in documents() for link in broken_links(path)]
    if broken:
        sys.exit("links that lead nowhere:\n" + "\n".join(broken))
    prepare(options.into)
    subprocess.run([options.mdbook.resolve(), "build", options.into], check=True)
    if missing := dead_ends(options.into / "book"):
        sys.exit("links of the site that lead nowhere:\n" + "\n".join(sorted(set(missing))))
    print(f"{(options.into / 'book' / 'index.html').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
