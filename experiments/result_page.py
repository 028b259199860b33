"""Puts a finished run's report into the repository: its figures in results/, its tables and pictures in docs/.

    python -m experiments.result_page runs/english-three-layers three-layers
    python -m experiments.result_page three-layers         the page and its pictures of scores again, from results/

Writes results/english-<name>.json (the run's record), results/english-<name>-report.json (report.json
without texts), docs/english-<name>.md and the pictures it shows. No text of an evaluation set is
copied.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.markdown import markdown_table
from distilvec.core.files import write_json
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.report.figures import write_figure
from distilvec.report.json_values import from_json
from distilvec.report.record import RunRecord
from distilvec.report.section import Block
from distilvec.report.sections.compression import section as compression
from distilvec.report.sections.margin import section as margin
from distilvec.report.sections.queries import section as queries
from distilvec.report.sections.scores import section as scores
from distilvec.report.sections.speed import section as speed
from distilvec.report.tables import to_markdown
from distilvec.report.values import Report
from distilvec.report.verdicts import make_verdict

ROOT = Path(__file__).parents[1]
PICTURES = ("scores", "compression", "margin", "speed", "training")
SECTIONS = (scores, queries, compression, margin, speed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("name")
    arguments = parser.parse_args()
    if arguments.run is None:
        rewrite(arguments.name)
        return
    run = FinishedRun.open(arguments.run)
    name = f"english-{arguments.name}"
    results = ROOT / "results"
    write_json(results / f"{name}-report.json", published(run.report).to_json())
    shutil.copyfile(run.files.record, results / f"{name}.json")
    pictures = ROOT / "docs" / "figures"
    pictures.mkdir(parents=True, exist_ok=True)
    shown = {}
    for path in sorted(run.files.figures.glob("*.png")):
        if path.stem.startswith(PICTURES):
            shown[path.stem] = f"figures/{name}-{path.name}"
            shutil.copyfile(path, ROOT / "docs" / shown[path.stem])
    (ROOT / "docs" / f"{name}.md").write_text(page(arguments.name, published(run.report), shown), encoding="utf-8")


def published(report: Report) -> Report:
    """Return the report without texts."""
    return replace(
        report, mistakes=None, overlap=None, supervised=None, experts=None, vocabulary=None, texts=None, changes={},
        warnings=[], exports={}, record=None, recipe="", measured=[],
    )  # fmt: skip


def rewrite(name: str) -> None:
    """Write the page again from results/, and draw its scores."""
    prefix, pictures = f"english-{name}", ROOT / "docs" / "figures"
    content = json.loads((ROOT / "results" / f"{prefix}-report.json").read_text(encoding="utf-8"))
    record = json.loads((ROOT / "results" / f"{prefix}.json").read_text(encoding="utf-8"))
    report = from_json(Report, content)
    report.verdict = make_verdict(
        report.scores, report.intervals.get("student"), report.speed, from_json(RunRecord, record)
    )
    blocks = [block for make in (scores, compression) if (section := make(report)) for block in section.blocks]
    with tempfile.TemporaryDirectory() as folder:
        for figure in (figure for block in blocks if block.kind == "figures" for figure in block.content):
            write_figure(figure, Path(folder))
            shutil.copyfile(Path(folder) / f"{figure.name}.png", pictures / f"{prefix}-{figure.name}.png")
    shown = {
        path.stem.removeprefix(f"{prefix}-"): f"figures/{path.name}"
        for path in sorted(pictures.glob(f"{prefix}-*.png"))
    }
    (ROOT / "docs" / f"{prefix}.md").write_text(page(name, report, shown), encoding="utf-8")


def page(name: str, report: Report, pictures: dict[str, str]) -> str:
    """The report as Markdown, in the order of the report page; its tables are folded, but for the scores."""
    verdict = "" if report.verdict is None else report.verdict.text
    parts = [
        f"# A report in full: {report.name}",
        f"{verdict[:1].upper()}{verdict[1:]}.",
        f"One run of `distilvec run recipes/english.yaml --variant {name}`, one seed, two CPU cores: the figures of its report. "  # noqa: E501
        f"`python -m experiments.result_page RUN {name}` writes this page. [Report](report.md) explains each part.",
        scores_in_short(report),
        "All scores are times 100; `asymmetric` is the student's queries against the teacher's documents in retrieval.",
    ]
    for section in filter(None, (make(report) for make in SECTIONS)):
        parts += [f"## {section.title}", *markdown(section.blocks, pictures)]
    return "\n\n".join(parts) + "\n"


def scores_in_short(report: Report) -> str:
    """Every task's score of teacher, untrained student and student, and of the student in asymmetric retrieval."""
    columns = ("teacher", "untrained", "student", "asymmetric")
    found = {column: {score.task: score.value for score in report.scores[column]} for column in columns}
    rows = []
    for score in report.scores["teacher"]:
        values = [f"{found[column][score.task]:.2f}" for column in columns]
        rows.append([score.task, score.metric, *values])
    return markdown_table(["task", "metric", *columns], rows, columns="ll" + "r" * len(columns))


def markdown(blocks: Sequence[Block], pictures: dict[str, str]) -> list[str]:
    """The pictures and tables of a section's blocks, each table behind its caption."""
    parts = []
    for block in blocks:
        if block.kind == "figures":
            parts += [
                f"![{figure.name}]({pictures[figure.name]})" for figure in block.content if figure.name in pictures
            ]
            tables = [figure.table for figure in block.content]
        elif block.kind == "details":
            parts += markdown(block.content, pictures)
            continue
        else:
            tables = [block.content] if block.kind == "table" else []
        parts += [folded(table.caption, to_markdown(table)) for table in tables]
    return parts


def folded(title: str, text: str) -> str:
    """A part of a page that is read on demand, on GitHub and on the site."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text.strip()}\n\n</details>'


if __name__ == "__main__":
    main()
