"""axe-core on a page that is open in a browser."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

OPTIONS = "resultTypes: ['violations']"
OF_COLOURS = "runOnly: ['color-contrast', 'link-in-text-block']"  # rules that another colour scheme can break


def violations(page: Any, of_colours: bool = False) -> list[tuple[str, list[str]]]:
    """Return axe's findings outside of pictures, or those `of_colours` alone: the rule, and up to five places.

    Skips without axe-core's script.
    """
    package = importlib.util.find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        pytest.skip("axe-playwright-python, which ships axe-core, is not installed")
    page.evaluate(Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    options = f"{OPTIONS}, {OF_COLOURS}" if of_colours else OPTIONS
    found = page.evaluate(f"axe.run({{ exclude: ['svg'] }}, {{ {options} }})")
    return [(fault["id"], [node["html"][:120] for node in fault["nodes"]][:5]) for fault in found["violations"]]
