"""The length of sentences in the documents that operators read."""

import re

MAX_WORDS = 30
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
# An indented command between paragraphs.
COMMAND = re.compile(r"^ {4,}(?:make|leveret|LEVERET_\w+=\S+|cargo|tests?/|\\|--)\b.*$", re.MULTILINE)
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")
END = re.compile(r"(?<=[.!?])\)?\s+(?=[^a-z\s])")


def long_sentences(place, text):
    """Sentences above the limit. Each cell of a table counts as a sentence."""
    for number, paragraph in paragraphs(text):
        for sentence in END.split(LINK.sub(r"\1", CODE.sub("code", paragraph))):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > MAX_WORDS:
                yield f"{place}:{number}: a sentence of {len(words)} words; {MAX_WORDS} are the most: {' '.join(words)[:60]}"


def paragraphs(text):
    """Each paragraph, list item and cell, with its line number."""
    # Keep the newlines, so that line numbers stay correct.
    blank = lambda found: "\n" * found.group().count("\n")
    begin, lines = 0, []
    for number, line in enumerate([*COMMAND.sub(blank, FENCED.sub(blank, text)).split("\n"), ""], 1):
        if line.startswith("|"):
            yield from ((number, cell) for cell in line.strip("|").split("|"))
        elif line.strip() and not line.startswith("#"):
            if ITEM.match(line) and lines:
                yield begin, " ".join(lines)
                begin, lines = 0, []
            begin, lines = begin or number, [*lines, line.strip()]
            continue
        if lines:
            yield begin, " ".join(lines)
            begin, lines = 0, []
