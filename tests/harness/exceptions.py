"""A pytest plugin: tests that fail in front of an upstream, on purpose or for now, with the reason for each.

A module has them in `EXCEPTIONS`: a part of a test's name, with its parameters, and the reason. If the module has tests with a pool as
a parameter, they are for these alone. A test that is listed and passes fails the run, and so does an entry without a test. In
`SOMETIMES` a module has those that fail by a fault that a race shows; they may pass.
"""

import sys

import pytest

from harness.targets import POOL

# What a test waits for in vain, it does not wait for long.
IMPATIENCE = 2
# By the name of a table, whether its tests must fail.
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
    # Whoever names single tests does not have the others.
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
    # Now, since its fixtures are not expected to fail.
    item.add_marker(item.stash[EXPECTED])
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if (name.startswith("harness.") or module is item.module) and hasattr(module, "PATIENCE"):
                patch.setattr(module, "PATIENCE", IMPATIENCE)
        return (yield)
