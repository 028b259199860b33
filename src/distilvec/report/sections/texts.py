"""Distance to the teacher by source and length, and the texts where student and teacher disagree most."""

from __future__ import annotations

from distilvec.report.figures import dots_figure
from distilvec.report.section import Figure, Section, get, make_section, notes
from distilvec.report.tables import Part, make_table, number

COLUMNS = {"Text": "text", "Source": "source", "tokens": ("tokens", 0), "distance": ("distance", 3)}
GROUPS = {"Group": "panel", "Texts": "name", "count": ("texts", 0), "distance": ("distance", 4), "± std": ("std", 4)}
NOTE = "Distance of {rows:,} validation texts to the teacher's vectors; mean {mean}. 0 is the same vector."


def section(report: Part) -> Section | None:
    """Return the distances by source and length, and the table of texts, those with the greatest distance first."""
    content = get(report, "texts")
    if not content.get("rows"):
        return None
    text = NOTE.format(rows=content["rows"], mean=number(content["mean"], 3))
    worst = make_table("text-table", "Texts with the greatest distance", content["worst"], COLUMNS)
    return make_section("Texts where the student is far", text, distance_figure(content), notes(worst))


def distance_figure(content: Part) -> Figure:
    """Return the mean distance by source and by length in tokens of the student."""
    groups = [{**row, "panel": "by source"} for row in content["by_source"]]
    groups += [
        {**row, "panel": "by length", "name": f"{row['from']:,} to {row['to']:,} tokens"}
        for row in content["by_length"]
    ]
    points = [(row["panel"], f"{row['name']} ({row['texts']:,})", "mean", row["distance"]) for row in groups]
    data = make_table("data-texts", "Distance by source and length", groups, GROUPS)
    return dots_figure("texts", "Distance by source and length", points, "mean distance", data)
