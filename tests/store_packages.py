"""Tests that need the package of a store of vectors."""

from __future__ import annotations

import os

import pytest

from benchmarks.indexes import lacking


def needed(kind):
    """Skip a test of a kind of index whose package is missing; fail where DISTILVEC_REQUIRE_COMPAT=1."""
    package = lacking(kind)
    if package is None:
        return
    reason = f"{package} is missing (make .stores/installed has the packages of stores)"
    if os.environ.get("DISTILVEC_REQUIRE_COMPAT") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
