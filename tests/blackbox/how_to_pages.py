"""The pages of docs/how-to are short, and each has a test of its own that runs it."""

import re
from pathlib import Path

import pytest

from harness.how_to import DIRECTORY, HowTo

LINES_MAX = 60
PAGES = sorted(path.stem for path in DIRECTORY.glob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_run_by_a_test(page):
    path = HowTo(page).path
    assert len(path.read_text().splitlines()) < LINES_MAX
    test = Path(__file__).with_name(f"how_to_{page.replace('-', '_')}.py").read_text()
    assert re.search(rf'HowTo\("{re.escape(page)}"\)', test) and ".finish()" in test
