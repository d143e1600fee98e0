"""The pages of docs/how-to and docs/tutorials as tests run them: what a reader would copy comes from the page, and nothing else does."""

import re

from harness.leveret import ROOT

DIRECTORY = ROOT / "docs" / "how-to"
TUTORIALS = ROOT / "docs" / "tutorials"
# A fenced block, the text in front of it, and its language.
BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
# A file's name at the end of the paragraph in front of a block: "…, `leveret.toml`:".
NAMED = re.compile(r"`([^`\n]+)`:\s*\Z")


class HowTo:
    """A page. A test takes each of its blocks, changed as a reader would change it, and says in the end that it has."""

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
        """The block behind "`name`:"."""
        return self.take(lambda block: block.name == name, changes)

    def block(self, language, changes=()):
        """The next block of a language that is no file and was not taken."""
        return self.take(lambda block: block.language == language and not block.name and not block.is_taken, changes)

    def take(self, is_meant, changes):
        block = next((block for block in self.blocks if is_meant(block)), None)
        assert block, [(block.name, block.language) for block in self.blocks]
        block.is_taken = True
        return changed(block.text, changes)

    def finish(self):
        """Every block has been taken."""
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
    """The text with other words, each of which must be in it: a test's ports and directories in place of the usual ones."""
    for old, new in dict(changes).items():
        assert old in text, f"{old!r} is not in {text!r}"
        text = text.replace(old, str(new))
    return text
