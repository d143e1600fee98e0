"""The documents have no dead links, the README quotes measured figures, and its example works."""

import re
import subprocess
import sys

import pytest

import front_page
from harness.documents import ROOT, broken_links, documents
from harness.instances import leveret
from harness.patience import PATIENCE

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path):
    assert broken_links(path) == []


def test_the_manual_contains_every_document():
    contents = (ROOT / "docs" / "SUMMARY.md").read_text()
    named = {(ROOT / "docs" / name).resolve() for name in re.findall(r"\]\(([^)]+)\)", contents)}
    missing = {path for path in documents() if path.name != "SUMMARY.md"} - named
    assert missing == set()


def test_the_plot_of_the_front_page_shows_the_measured_figures():
    assert front_page.PICTURE.read_text() == front_page.drawn(), "make front-page draws it again"


def test_the_figures_of_the_front_page_are_those_that_were_measured():
    table = README.split("## Performance")[1].split("It is not free")[0]
    rows = [re.findall(r"[\d.,]+(?:/s| ms)(?= \|)", line) for line in table.splitlines() if line.startswith("|")]
    figures = [row for row in rows if row]
    assert [len(row) for row in figures] == [2] * 5
    measured = (ROOT / "docs" / "benchmarks.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in measured if line.startswith("|")]
    # The CPU figures without and with the pool are in two rows of one table; all others are in one row.
    together, [[before, after]] = figures[:3] + figures[4:], [figures[3]]
    assert [row for row in together if not any(set(row) <= set(cell) for cell in cells)] == []
    of_cpu = [cell for cell in cells if cell[0].startswith("CPU of RabbitMQ for a message")]
    assert before in of_cpu[0] and after in of_cpu[1]


def test_the_example_of_the_front_page_runs(tmp_path):
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    with leveret(tmp_path) as server:
        here = example.replace('ConnectionParameters("127.0.0.1")', f'ConnectionParameters("127.0.0.1", {server.port})')
        assert here != example
        done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, timeout=PATIENCE)
        assert (done.stdout, done.stderr) == ("b'hello'\n", "")
        server.stop()
