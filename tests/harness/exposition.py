"""A strict parser of Prometheus' text format: each family occurs once, with its type, and no sample occurs twice."""

import re
import urllib.request

from harness.patience import PATIENCE

SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"(?:,|$)')
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


class Scrape:
    """Families by name; a sample is a dictionary of labels and a value."""

    def __init__(self, text):
        self.text = text
        self.types = {}
        self.families = {}
        self.seen = set()
        family = None
        for line in text.splitlines():
            if match := re.fullmatch(r"# TYPE (\S+) (\S+)", line):
                family = match[1]
                assert family not in self.types, f"{family} comes twice"
                self.types[family] = match[2]
                self.families[family] = []
            elif line and not line.startswith("#"):
                self.add(family, line)

    def add(self, family, line):
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        assert name in {family + suffix for suffix in SUFFIXES.get(self.types[family], ("",))}, line
        assert (name, labels) not in self.seen, f"twice: {line}"
        self.seen.add((name, labels))
        self.families[family].append((dict(LABEL.findall(labels or "")), float(value)))

    def value(self, name, **labels):
        """The sum of a family's samples that match these labels."""
        found = [value for given, value in self.families[name] if labels.items() <= given.items()]
        assert found, f"no {name} with {labels}"
        return sum(found)


def scrape(url):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return Scrape(answer.read().decode())
