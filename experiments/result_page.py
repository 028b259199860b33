"""Puts a finished run's report into the repository: its figures in results/, its tables and pictures in docs/.

    python -m experiments.result_page runs/english-three-layers three-layers

Writes results/english-<name>.json (the run's distillation.json), results/english-<name>-report.json (report.json without
texts and projections), docs/english-<name>.md and the pictures it shows. No text of an evaluation set is copied.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from distilvec.report import page_tables
from distilvec.report.page_cells import Cell, Table
from distilvec.report.plain_tables import to_markdown

ROOT = Path(__file__).parents[1]
KEPT = (
    "name",
    "created",
    "verdict",
    "scores",
    "failures",
    "averages",
    "intervals",
    "compression",
    "margin",
    "speed",
    "history",
)
PICTURES = ("scores", "compression", "margin", "speed", "training")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    arguments = parser.parse_args()
    report = json.loads((arguments.run / "report.json").read_text(encoding="utf-8"))
    found = {key: report[key] for key in KEPT if key in report}
    found["agreement"] = {
        task: {key: value for key, value in part.items() if key != "examples"}
        for task, part in (report.get("agreement") or {}).items()
    }
    name = f"english-{arguments.name}"
    results = ROOT / "results"
    (results / f"{name}-report.json").write_text(
        json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    shutil.copyfile(arguments.run / "distillation.json", results / f"{name}.json")
    pictures = ROOT / "docs" / "figures"
    pictures.mkdir(parents=True, exist_ok=True)
    shown = {}
    for path in sorted((arguments.run / "figures").glob("*.png")):
        if path.stem.startswith(PICTURES):
            shown[path.stem] = f"figures/{name}-{path.name}"
            shutil.copyfile(path, ROOT / "docs" / shown[path.stem])
    (ROOT / "docs" / f"{name}.md").write_text(page(arguments.name, found, shown), encoding="utf-8")


def page(name: str, report: dict[str, Any], pictures: dict[str, str]) -> str:
    """The report as Markdown, in the order of the report page."""
    command = f"distilvec run recipes/english.yaml --variant {name}"
    parts = [
        f"# {report['name']}",
        f"`{command}`, two CPU cores; this page is written by `python -m experiments.result_page RUN {name}` from the run's report.",
        f"The student {report['verdict']['text']}.",
        section("Scores", pictures, "scores", [page_tables.scores_table(report["scores"], report["intervals"])]),
        section("Rankings", pictures, "agreement", [page_tables.agreement_table(report["agreement"])]),
        section(
            "Fewer dimensions, fewer bits",
            pictures,
            "compression",
            page_tables.compression_tables(report["compression"]),
        ),
        section("Robustness margin", pictures, "margin", page_tables.margin_tables(report["margin"])),
        section(
            "Speed",
            pictures,
            "speed",
            [page_tables.models_table(report["speed"]["models"]), page_tables.timings_table(report["speed"])],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def section(title: str, pictures: dict[str, str], kind: str, tables: list[Table]) -> str:
    """A heading, the pictures of this kind, the tables."""
    images = [f"![{stem}]({path})" for stem, path in pictures.items() if stem.startswith(kind)]
    return "\n\n".join(
        [f"## {title}", *images, *(f"{table.caption}\n\n{to_markdown(cells(table))}".rstrip() for table in tables)]
    )


def cells(table: Table) -> list[list[str]]:
    """A table's text, header first."""

    def text(cell: Cell) -> str:
        return f"{cell.text} ({cell.note})" if cell.note else cell.text

    return [list(table.header), *([text(cell) for cell in row] for row in [*table.rows, *table.foot])]


if __name__ == "__main__":
    main()
