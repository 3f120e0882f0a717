"""Leaves out tests by their whole names, which pytest's own option takes for beginnings of names.

PROJECT_NOT_RUN has a name a line. A name that no test has is an error when all tests are collected,
so that the list stays true.
"""

import os

import pytest


def pytest_collection_modifyitems(config, items):
    listed = set(os.environ["PROJECT_NOT_RUN"].splitlines())
    left_out = [item for item in items if item.nodeid in listed]
    missing = listed - {item.nodeid for item in left_out}
    if missing and os.environ["PROJECT_IS_WHOLE"] == "1":
        raise pytest.UsageError(f"listed as not run, but there are no such tests: {sorted(missing)}")
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.nodeid not in listed]
