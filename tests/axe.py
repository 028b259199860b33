"""axe-core on a page that is open in a browser."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

OPTIONS = "{ resultTypes: ['violations'] }"


def violations(page: Any) -> list[tuple[str, list[str]]]:
    """Return axe's findings outside of pictures: the rule, and up to five places; skips without axe-core's script."""
    package = importlib.util.find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        pytest.skip("axe-playwright-python, which ships axe-core, is not installed")
    page.evaluate(Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate(f"axe.run({{ exclude: ['svg'] }}, {OPTIONS})")
    return [(fault["id"], [node["html"][:120] for node in fault["nodes"]][:5]) for fault in found["violations"]]
