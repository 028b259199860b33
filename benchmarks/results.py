"""The files of results/ that several calls fill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def earlier_results(path: Path, empty: dict[str, Any]) -> dict[str, Any]:
    """Return what earlier calls wrote into a file of results, or `empty` before the first one."""
    if not path.exists():
        return empty
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results
