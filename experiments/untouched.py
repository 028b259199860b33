"""The rival of every student of a larger teacher: all-MiniLM-L6-v2 as it is, by which the documents are embedded again.

    distilvec evaluate RUN/student --suite recipes/suites/english_retrieval.yaml --teacher all-MiniLM-L6-v2 \\
        --json results/students_against_minilm.json

It needs no training and no index of the larger teacher. The column "teacher" of that file has its scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

TITLE = "all-MiniLM-L6-v2 untouched, documents embedded again"
SIZE = "22.7 M"


@dataclass(frozen=True)
class Untouched:
    """Scores by task, and averages by their names in report.json; times 100."""

    scores: Mapping[str, float]
    averages: Mapping[str, float]


def untouched_from(found: Mapping[str, Any]) -> Untouched:
    """Return the scores that results/students_against_minilm.json has of all-MiniLM-L6-v2."""
    scores = {row["task"]: row["value"] for row in found["teacher"]}
    return Untouched(scores, found["averages"]["teacher"])


def beside(value: float, students: Iterable[float]) -> str:
    """Return a figure of the rival with one decimal, bold where it is better than that of every student."""
    text = f"{value:.1f}"
    return f"**{text}**" if value > max(students) else text
