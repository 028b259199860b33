"""Distance to the teacher by source and length, and the texts where student and teacher disagree most."""

from __future__ import annotations

from distilvec.report.figures import dots_figure
from distilvec.report.section import Figure, Section, get, make_section, notes
from distilvec.report.tables import Part, make_table, number

COLUMNS = {"Text": "text", "Source": "source", "tokens": ("tokens", 0), "distance": ("distance", 3)}
GROUPS = {"Group": "panel", "Texts": "name", "count": ("texts", 0), "distance": ("distance", 4), "± std": ("std", 4)}
TRAINED = {"trained on": ("trained", 4)}
NOTE = "Distance of {rows:,} validation texts to the teacher's vectors; mean {mean}. 0 is the same vector."
TRAINED_NOTE = " {rows:,} texts that were trained on: {mean}. Where these are much nearer, distinct texts are missing."


def section(report: Part) -> Section | None:
    """Return the distances by source and length, and the table of texts, those with the greatest distance first."""
    content = get(report, "texts")
    if not content.get("rows"):
        return None
    text = NOTE.format(rows=content["rows"], mean=number(content["mean"], 3))
    if trained := content.get("trained"):
        text += TRAINED_NOTE.format(rows=trained["rows"], mean=number(trained["mean"], 3))
    worst = make_table("text-table", "Texts with the greatest distance", content["worst"], COLUMNS)
    return make_section("Texts where the student is far", text, distance_figure(content), notes(worst))


def distance_figure(content: Part) -> Figure:
    """Return the mean distance by source and by length in tokens of the student, of new texts and of trained ones."""
    trained = {_place(row): row["distance"] for row in _groups(content.get("trained") or {})}
    rows = [{**row, "trained": trained.get(_place(row))} for row in _groups(content)]
    points = [
        (row["panel"], f"{row['name']} ({row['texts']:,})", name, row[key])
        for name, key in (("new texts", "distance"), ("trained on", "trained"))
        for row in rows
        if row[key] is not None
    ]
    data = make_table("data-texts", "Distance by source and length", rows, GROUPS | (TRAINED if trained else {}))
    return dots_figure("texts", "Distance by source and length", points, "mean distance", data)


def _groups(content: Part) -> list[Part]:
    sources = [{**row, "panel": "by source"} for row in content.get("by_source") or ()]
    lengths = [
        {**row, "panel": "by length", "name": f"{row['from']:,} to {row['to']:,} tokens"}
        for row in content.get("by_length") or ()
    ]
    return [*sources, *lengths]


def _place(row: Part) -> tuple[str, str | int]:
    """Name what groups of new and of trained texts have in common: the source, or where the lengths begin."""
    return row["panel"], row.get("from", row["name"])
