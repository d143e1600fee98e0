"""docs/how-to/sizing.md: each figure occurs in the section that it cites, and the settings take effect."""

import re

import pytest

from harness.exposition import scrape
from harness.how_to import DIRECTORY, HowTo
from harness.reader import Reader

CITED = re.compile(r"\]\((\.\./\w+\.md)#([\w-]+)\)")
CODE_AND_LINKS = re.compile(r"`[^`]*`|\[[^\]]*\]\([^)]*\)")
# Numbers with a unit, and plain numbers, but not the parts of a version.
FIGURE = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)(?![\w.]*\d)(?: (KiB|MiB|µs|bytes))?")
VERSION = re.compile(r"RabbitMQ \d[\d.]*")


def section(document, anchor):
    """The text below a heading, up to the next heading of the same or a higher level."""
    lines = (DIRECTORY / document).read_text().splitlines()
    heading = re.compile(r"(#+) (.*)")
    level, found = None, []
    for line in lines:
        if match := heading.match(line):
            if level and len(match[1]) <= level:
                break
            if anchor == re.sub(r"[^\w -]", "", match[2].lower()).replace(" ", "-"):
                level = len(match[1])
        if level:
            found.append(line)
    assert found, f"{document} has no section {anchor}"
    return found


def claims():
    """Each paragraph and row that cites a section, and that section."""
    page = HowTo("sizing").path.read_text()
    for paragraph in page.split("\n\n"):
        for claim in paragraph.splitlines() if paragraph.startswith("|") else [" ".join(paragraph.splitlines())]:
            if cited := CITED.findall(claim):
                yield pytest.param(VERSION.sub("", CODE_AND_LINKS.sub("", claim)), *cited[0], id=claim[:40])


@pytest.mark.parametrize(("claim", "document", "anchor"), list(claims()))
def test_a_figure_is_in_the_section_that_is_cited(claim, document, anchor):
    lines = section(document, anchor)
    for number, unit in FIGURE.findall(claim):
        number = number.rstrip(",")
        as_it_is = re.compile(rf"(?<![\d.,]){re.escape(number)}(?![\d.,]*\d)")
        # The unit of a row is often only after its last figure.
        assert any(as_it_is.search(line) and unit in line for line in lines), f"{number} {unit} is not in {document}#{anchor}"


def test_no_row_has_figures_without_a_source():
    rows = [line for line in HowTo("sizing").path.read_text().splitlines() if line.startswith("|")]
    without = [row for row in rows if not CITED.search(row) and FIGURE.search(row)]
    assert without == []
    figures = [figure for claim in claims() for figure in FIGURE.findall(claim.values[0])]
    assert ("6.8", "KiB") in figures and ("1,000", "") in figures and len(figures) > 20, figures


def test_the_three_settings_are_accepted_and_in_effect(tmp_path):
    page = HowTo("sizing")
    with Reader(tmp_path) as reader:
        reader.write("leveret.toml", page.file("leveret.toml"))
        page.finish()
        reader.run("leveret config check --config leveret.toml")
        server = reader.serve("leveret serve --config leveret.toml --amqp 127.0.0.1:0 --http 127.0.0.1:0")
        metrics = scrape(server.http + "/metrics")
        assert metrics.value("rabbitmq_resident_memory_limit_bytes") == 4 << 30
        assert metrics.value("rabbitmq_disk_space_available_limit_bytes") == 2 << 30
        settings = reader.run("leveret config print --config leveret.toml")
        assert re.search(r"max_connections\b.*20000.*leveret\.toml", settings), settings
