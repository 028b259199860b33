"""requirements/lock.txt: its versions fit the requirements of the packages that it installs, so pip need not search."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).parents[1] / "requirements" / "lock.txt"
PINS = {
    canonicalize_name(pin.name): next(iter(pin.specifier)).version
    for pin in (Requirement(line) for line in LOCK.read_text().splitlines() if "==" in line.partition("#")[0])
}


@pytest.mark.parametrize("name", sorted(PINS))
def test_locked_versions_fit_each_other(name):
    try:
        needs = distribution(name).requires or []
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    for need in map(Requirement, needs):
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        locked = PINS.get(canonicalize_name(need.name))
        assert locked is None or need.specifier.contains(locked, prereleases=True), f"{name} needs {need}"
