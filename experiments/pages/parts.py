"""What the pages share: the files of results/, and the students that several pages show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.surgery_tables import by_short_name
from experiments.untouched import Untouched, untouched_from

ROOT = Path(__file__).parents[2]
# Students of scientific and patent texts that were chosen because they resemble Cranfield, which they are tested on
CHOSEN_TEXTS = ("17m-rank", "8m-pieces", "5m-pieces")
STAR = (
    "\\* Trained also on scientific and patent texts, which were chosen because they resemble Cranfield: retrieval on "
    "other subjects may be lower."
)
# Students of one teacher, beside one another
ENGLISH = ("english-5m", "english-10m", "english-23m", "english-23m-480k")
Parts = dict[str, dict[str, str]]  # by page and by the name between its marks: Markdown; empty without figures


def read(name: str) -> Any:
    """results/NAME.json, or None."""
    path = ROOT / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def tables(*parts: tuple[str, Callable[[Any], str]]) -> str:
    """What is made of each results file that is there; nothing if none is."""
    texts = []
    for name, make in parts:
        figures = read(name)
        if figures is not None:
            texts.append(make(figures))
    return "\n\n".join(text for text in texts if text)


def surgery_part(name: str, make: Callable[[Any], str]) -> str:
    """What is made of one part of results/surgery.json."""
    figures = (read("surgery") or {}).get(name)
    return make(figures) if figures else ""


def rival() -> Untouched:
    """What a user would take in place of a student of a larger teacher."""
    return untouched_from(read("students_against_minilm"))


def main_students(*names: str) -> dict[str, Any]:
    """The records of the main students, by a name that describes them, or of the variants `names` and the plain cuts.

    A star marks those of CHOSEN_TEXTS.
    """
    records = {f"{name} layers": read(f"english-{name}-layers") for name in ("three", "two")}
    variants = names or (*CHOSEN_TEXTS, "5m-narrow", "2m-narrow")
    for name, record in by_short_name((read("surgery") or {}).get("students", {})).items():
        if name in variants:
            layers = record["student"]["layers"]
            star = "\\*" if name in CHOSEN_TEXTS else ""
            records[f"{name}{star}: {layers} layer{'s' * (layers != 1)}, {record['tokens']:,} tokens"] = record
    present = [(name, record) for name, record in records.items() if record]
    return dict(sorted(present, key=lambda item: -item[1]["student"]["parameters"]))
