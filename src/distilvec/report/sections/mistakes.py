"""Mistakes of a classifier on its test split: confused classes, every class, the wrong texts."""

from __future__ import annotations

from distilvec.report.section import Section, folded, get, make_section
from distilvec.report.tables import Part, make_table

CONFUSED = {"Class → taken for": "classes", "test rows": ("rows", 0)}
CLASSES = {
    "Class": "class",
    "Most taken for": "most_taken_for",
    "test rows": ("rows", 0),
    "precision": ("precision", 1, 100),
    "recall": ("recall", 1, 100),
    "F1": ("f1", 1, 100),
}
TEXTS = {"Text": "text", "Class": "class", "Taken for": "taken_for", "probability, %": ("probability", 1, 100)}


def section(report: Part) -> Section | None:
    """Return the student's mistakes on a labelled task of classes."""
    found = get(report, "mistakes")
    if not found:
        return None
    texts, wrong = found.get("texts") or (), found.get("wrong") or 0
    few = f", {len(texts)} of {wrong:,}" if len(texts) < wrong else ""
    confused = [
        {**one, "classes": f"{one['class']} → {one['taken_for']}"}
        for one in found.get("confused") or ()
        if one["rows"] > 1
    ]
    return make_section(
        "Mistakes",
        f"The student is wrong on {wrong:,} of {found.get('rows') or 0:,} test examples.",
        make_table("confused-table", "Confused most", confused, CONFUSED),
        make_table("wrong-table", f"Wrong test examples, the surest first{few}", texts, TEXTS),
        folded("Every class", make_table("class-table", "Every class, times 100", found.get("classes") or (), CLASSES)),
    )
