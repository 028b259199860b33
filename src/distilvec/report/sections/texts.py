"""Distance to the teacher by source and length, and the texts where student and teacher disagree most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from distilvec.evaluation.text_distances import TextDistances
from distilvec.report.figures import DotPoint, dots_figure
from distilvec.report.section import Figure, PageSection, make_section, notes
from distilvec.report.tables import make_table, number
from distilvec.report.values import Report

COLUMNS = {"Text": "text", "Source": "source", "tokens": ("tokens", 0), "distance": ("distance", 3)}
GROUPS: dict[str, Any] = {
    "Group": "panel", "Texts": "name", "count": ("texts", 0), "distance": ("distance", 4), "± std": ("std", 4),
}  # fmt: skip
TRAINED: dict[str, Any] = {"trained on": ("trained", 4)}
NOTE = "Distance of {rows:,} validation texts to the teacher's vectors; mean {mean}. 0 is the same vector."
TRAINED_NOTE = " {rows:,} trained texts: {mean}. If this is much smaller, you need more distinct texts."


@dataclass(frozen=True)
class GroupDistance:
    """Distance of a group of texts: the panel it is in, its name, and the distance of trained texts of the group.

    key: what groups of new and of trained texts have in common: the source, or where the lengths begin
    """

    panel: str
    name: str
    key: str | int
    texts: int
    distance: float
    std: float
    trained: float | None = None


def section(report: Report) -> PageSection | None:
    """Return the distances by source and length, and the table of texts, those with the greatest distance first."""
    texts = report.texts
    if texts is None:
        return None
    text = NOTE.format(rows=texts.rows, mean=number(texts.mean, 3))
    if texts.trained is not None:
        text += TRAINED_NOTE.format(rows=texts.trained.rows, mean=number(texts.trained.mean, 3))
    worst = make_table("text-table", "Texts with the greatest distance", texts.worst, COLUMNS)
    return make_section("Texts that differ most", distance_figure(texts), notes(text), worst)


def distance_figure(texts: TextDistances) -> Figure:
    """Return the mean distance by source and by length in tokens of the student, of new texts and of trained ones."""
    trained: dict[tuple[str, str | int], float] = {}
    if texts.trained is not None:
        trained = {(group.panel, group.key): group.distance for group in _distance_groups(texts.trained)}
    rows = [replace(group, trained=trained.get((group.panel, group.key))) for group in _distance_groups(texts)]
    points = [DotPoint(row.panel, f"{row.name} ({row.texts:,})", "new texts", row.distance) for row in rows]
    for row in rows:
        if row.trained is not None:
            points.append(DotPoint(row.panel, f"{row.name} ({row.texts:,})", "trained on", row.trained))
    columns = GROUPS | TRAINED if trained else GROUPS
    data = make_table("data-texts", "Distance by source and length", rows, columns)
    return dots_figure("texts", "Distance by source and length", points, "mean distance", data)


def _distance_groups(texts: TextDistances) -> list[GroupDistance]:
    groups = []
    for source in texts.by_source if len(texts.by_source) > 1 else []:
        groups.append(GroupDistance("by source", source.name, source.name, source.texts, source.distance, source.std))
    for length in texts.by_length:
        name = f"{length.first:,} to {length.last:,} tokens"
        groups.append(GroupDistance("by length", name, length.first, length.texts, length.distance, length.std))
    return groups
