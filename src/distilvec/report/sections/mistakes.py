"""Mistakes of a classifier on its test split: confused classes, every class, the wrong texts."""

from __future__ import annotations

from distilvec.report.section import PageSection, folded, make_section, notes
from distilvec.report.tables import make_table
from distilvec.report.values import Report

MOST_CONFUSED = 10  # pairs in sight
CONFUSED = {"Class → taken for": "classes", "test rows": ("rows", 0)}
CLASSES = {
    "Class": "name",
    "Most taken for": "most_taken_for",
    "test rows": ("rows", 0),
    "precision": ("precision", 1, 100),
    "recall": ("recall", 1, 100),
    "F1": ("f1", 1, 100),
}
TEXTS = {"Text": "text", "Class": "name", "Taken for": "taken_for", "probability, %": ("probability", 1, 100)}


def section(report: Report) -> PageSection | None:
    """Return the student's mistakes on a labelled task of classes."""
    mistakes = report.mistakes
    if mistakes is None:
        return None
    count = ""
    if len(mistakes.texts) < mistakes.wrong:
        count = f", {len(mistakes.texts)} of {mistakes.wrong:,}"
    confused = [pair for pair in mistakes.confused if pair.rows > 1]
    more = confused if len(confused) > MOST_CONFUSED else []
    return make_section(
        "Mistakes",
        make_table("confused-table", "Confused most", confused[:MOST_CONFUSED], CONFUSED),
        notes(
            f"The student is wrong on {mistakes.wrong:,} of {mistakes.rows:,} test examples.",
            folded(f"All {len(confused)} pairs", make_table("pair-table", "Every pair", more, CONFUSED)),
            folded("Every class", make_table("class-table", "Every class, times 100", mistakes.classes, CLASSES)),
        ),
        make_table("wrong-table", f"Wrong test examples, the most confident first{count}", mistakes.texts, TEXTS),
    )
