"""The files of results/ that several calls fill, and the arguments of experiments that make runs of real teachers."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def earlier_results(path: Path, empty: dict[str, Any]) -> dict[str, Any]:
    """Return what earlier calls wrote into a file of results, or `empty` before the first one."""
    if not path.exists():
        return empty
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def workspace_parser(description: str | None, teachers: str) -> argparse.ArgumentParser:
    """Return a parser of a folder that keeps the runs, of the option with the folder of `teachers`, and of --json."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument(teachers, type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    return parser
