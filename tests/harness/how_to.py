"""Runs the pages of docs/how-to and docs/tutorials: every command and file that a reader would copy comes from the page."""

import re

from harness.leveret import ROOT

DIRECTORY = ROOT / "docs" / "how-to"
TUTORIALS = ROOT / "docs" / "tutorials"
# A fenced block, its language, and the text before it.
BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
# A file name at the end of the paragraph before a block: "…, `leveret.toml`:".
NAMED = re.compile(r"`([^`\n]+)`:\s*\Z")


class HowTo:
    """A page. A test takes each of its blocks, edited as a reader would edit it, and finally asserts that no block is left."""

    def __init__(self, name, directory=DIRECTORY):
        self.path = directory / f"{name}.md"
        page = self.path.read_text()
        self.blocks = []
        for found in BLOCK.finditer(page):
            indent = found["indent"]
            text = re.sub(f"^{indent}", "", found["text"], flags=re.MULTILINE)
            named = NAMED.search(page[: found.start()])
            self.blocks.append(Block(named and named[1], found["language"], text))

    def file(self, name, changes=()):
        """The block after "`name`:"."""
        return self.take(lambda block: block.name == name, changes)

    def block(self, language, changes=()):
        """The next unused block in a language that is not the content of a file."""
        return self.take(lambda block: block.language == language and not block.name and not block.is_taken, changes)

    def take(self, is_meant, changes):
        block = next((block for block in self.blocks if is_meant(block)), None)
        assert block, [(block.name, block.language) for block in self.blocks]
        block.is_taken = True
        return changed(block.text, changes)

    def finish(self):
        """Asserts that every block was taken."""
        assert [block for block in self.blocks if not block.is_taken] == []


class Block:
    def __init__(self, name, language, text):
        self.name = name
        self.language = language
        self.text = text
        self.is_taken = False

    def __repr__(self):
        return f"{self.name or self.language}: {self.text!r}"


def changed(text, changes):
    """Replaces words of the text, each of which must occur: the usual ports and directories become the test's."""
    for old, new in dict(changes).items():
        assert old in text, f"{old!r} is not in {text!r}"
        text = text.replace(old, str(new))
    return text
