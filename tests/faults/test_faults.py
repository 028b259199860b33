"""Every fault of the table ends as it should, and no file that was there before is lost."""

from __future__ import annotations

import shutil

import pytest

from faults.harness import all_cases, try_case


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """One path for all worlds, so that what prepares a fault is done once."""
    return tmp_path_factory.mktemp("faults") / "world"


@pytest.mark.parametrize("chosen", all_cases().values(), ids=all_cases().keys())
def test_fault(chosen, root):
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    verdict, reason, _ = try_case(chosen, root)
    assert verdict == "right", f"{verdict}: {reason}"
