"""A pytest plugin for known failures in front of an upstream, intended or not, each with its reason.

A module lists them in `EXCEPTIONS`, which maps a part of a test's name, parameters included, to the reason. If the module
has tests with a pool as parameter, the list applies to those alone. A listed test that passes fails the run; so does an
entry that matches no test. `SOMETIMES` lists tests that fail through a race, and may pass.
"""

import sys

import pytest

from harness.targets import POOL

# The timeout, in seconds, of tests that are expected to fail.
IMPATIENCE = 2
# Whether the tests of a table must fail, by the table's name.
TABLES = {"EXCEPTIONS": True, "SOMETIMES": False}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    with_pools = {item.module for item in items if of_pool(item)}
    unused = {item.module: {part for table in TABLES for part in getattr(item.module, table, {})} for item in items}
    for item in items:
        if of_pool(item) or item.module not in with_pools:
            for table in TABLES:
                listed = getattr(item.module, table, {})
                if part := next((part for part in listed if part in item.name), None):
                    item.stash[EXPECTED] = pytest.mark.xfail(reason=listed[part], strict=TABLES[table])
                    unused[item.module].discard(part)
    # A run of single tests does not collect the others.
    if not any("::" in argument for argument in config.args):
        left = [f"{module.__name__}: {part}" for module, parts in unused.items() for part in parts]
        if left:
            raise pytest.UsageError(f"exceptions without a test: {', '.join(left)}")


def of_pool(item):
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else []
    return any(str(value) in POOL for value in parameters)


EXPECTED = pytest.StashKey()
"""The mark of a test that is expected to fail."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    if EXPECTED not in item.stash:
        return (yield)
    # Not earlier, because the fixtures must not fail.
    item.add_marker(item.stash[EXPECTED])
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if (name.startswith("harness.") or module is item.module) and hasattr(module, "PATIENCE"):
                patch.setattr(module, "PATIENCE", IMPATIENCE)
        return (yield)
