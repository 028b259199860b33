"""Write the tables and figures of README.md and docs/ from the JSON files in results/; no number is typed by hand.

    python -m experiments.readme

A module of experiments/pages says which file of results/ is in which part of its pages; docs/reproduce.md says what
writes each file.
"""

from __future__ import annotations

from experiments.figures import figures
from experiments.pages import front, guides, papers, results, sizes, speed
from experiments.pages.parts import ROOT, Parts, main_students, read
from experiments.quality_over_time import draw_quality
from experiments.size_figure import draw_sizes
from experiments.students_figure import draw_students, student_points
from experiments.switch_figure import draw_switch

FIGURES = ROOT / "docs" / "figures"


def main() -> None:
    """Fill every marked part of every page, and draw the figures."""
    for page, parts in pages().items():
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        for name, table in parts.items():
            begin, end = marks(name)
            before, after = text.split(begin)[0], text.split(end)[1]
            text = before + begin + (table + "\n" if table else "") + end + after
        path.write_text(text, encoding="utf-8")

    students = main_students("5m-narrow", "2m-narrow")  # trained on texts that resemble no test
    others = [read(name) or {} for name in ("alternatives", "int8_scores", "exports")]
    draw_students(FIGURES / "students.svg", student_points(students, *others))
    pictures = figures()
    for name, file, draw in (
        ("time-to-quality", "time_to_quality", draw_quality),
        ("sizes", "sizes", draw_sizes),
        ("switch", "switch", draw_switch),
    ):
        measured = read(file)
        if measured is not None:
            pictures[name] = draw(measured)
    for name, picture in pictures.items():
        (FIGURES / f"{name}.svg").write_text(picture, encoding="utf-8")


def pages() -> Parts:
    """Every page with its marked parts and what belongs into them; empty where there are no figures yet."""
    parts: Parts = {}
    for module in (front, sizes, results, speed, guides, papers):
        parts |= module.parts()
    return parts


def marks(name: str) -> tuple[str, str]:
    """The lines around a marked part."""
    return f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"


if __name__ == "__main__":
    main()
