"""Workers get the longest files first, by their durations in the last complete run. Shown by a separate run of three files."""

import json
import subprocess
import sys

from harness.leveret import ROOT
from harness.longest_first import SLOWEST, longest_first
from harness.patience import PATIENCE

CONFTEST = """
from pathlib import Path
import harness.longest_first
from conftest_of_all import pytest_addoption

pytest_plugins = ["harness.longest_first"]
harness.longest_first.DURATIONS_FILE = Path(__file__).parent / "durations.json"
"""
SETTINGS = f"""
[pytest]
pythonpath = {ROOT / "tests"} .
python_files = *.py
testpaths = inner
addopts = -p pytest_timeout -p xdist.plugin -p no:cacheprovider
"""
TESTS = ["def test_a():\n    pass\n", "def test_a():\n    pass\n\ndef test_b():\n    pass\n"]


def test_files_are_ordered_by_their_durations_in_the_last_whole_run(tmp_path):
    (tmp_path / "inner").mkdir()
    for name in ("one.py", "two.py", "three.py"):
        (tmp_path / "inner" / name).write_text(TESTS[name == "three.py"])
    (tmp_path / "conftest_of_all.py").symlink_to(ROOT / "tests" / "conftest.py")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    # Nothing was measured yet: sorted by the number of tests.
    assert order(tmp_path) == ["three", "one", "two"]
    kept = tmp_path / "durations.json"
    assert sorted(json.loads(kept.read_text())) == ["inner/one.py", "inner/three.py", "inner/two.py"]
    seconds = json.dumps({"inner/three.py": 1, "inner/two.py": 3, "inner/one.py": 2})
    kept.write_text(seconds)
    # A partial run does not change the durations.
    assert order(tmp_path, "-k", "test_a") == ["two", "one", "three"]
    assert order(tmp_path, "--client", "pika") == ["two", "one", "three"]
    # Nor does one that runs nothing.
    assert order(tmp_path, "--collect-only") == []
    assert kept.read_text() == seconds


def order(directory, *arguments):
    """The order in which one worker ran the files."""
    argv = [sys.executable, "-m", "pytest", "-n", "1", "--dist", "loadfile", "--no-loadscope-reorder", "-v", *arguments]
    # In the shared directory, pytest would remove permissions that some tests set for other users.
    argv += ["--basetemp", directory / "kept"]
    environment = {"PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(argv, cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split("inner/")[1].split(".py")[0] for line in done.stdout.splitlines() if "PASSED" in line]
    return list(dict.fromkeys(ran))


def test_a_new_file_goes_before_those_that_are_known_and_keeps_its_order():
    items = ["b 1", "a 1", "b 2", "new 1", "a 2"]
    sorted_items = longest_first(items, {"a": 2.0, "b": 1.0}, key=lambda item: item.split()[0])
    assert sorted_items == ["new 1", "a 1", "a 2", "b 1", "b 2"]


def test_the_files_preferred_on_a_new_machine_exist():
    assert [file for file in SLOWEST if not (ROOT / "tests" / file).exists()] == []
