"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distilvec.report.exports import export_note, export_table
from distilvec.report.record import RunRecord
from distilvec.report.section import Block, Figure, PageSection, make_section
from distilvec.report.sections import (
    compression,
    experts,
    margin,
    mistakes,
    overlap,
    queries,
    record,
    scores,
    speed,
    texts,
    training,
    use,
    vocabulary,
)
from distilvec.report.tables import number, templates
from distilvec.report.values import Marks, Report, Verdict
from distilvec.report.verdicts import OVERLAP_MARKS, index_verdict


def problems_section(report: Report) -> PageSection | None:
    """Return the failed measurements by task and model, and the warnings of the training by step."""
    failures = [f"{failure.task} ({failure.column or 'all'}): {failure.message}" for failure in report.failures]
    warnings = [f"{line['warning']} (step {line['step']:,})" for line in report.warnings]
    return make_section("Problems", Block("list", failures), Block("list", warnings))


def exports_section(report: Report) -> PageSection | None:
    """Return the table of `distilvec export`, for a run whose student was exported."""
    return make_section("Exported files", export_table(report.exports), export_note(report.exports))


SECTIONS: dict[str, Callable[[Report], PageSection | None]] = {  # by their ids, in the order of the page
    "problems": problems_section,
    "overlap": overlap.section,
    "scores": scores.section,
    "use": use.section,
    "mistakes": mistakes.section,
    "queries": queries.section,
    "texts": texts.section,
    "compression": compression.section,
    "margin": margin.section,
    "speed": speed.section,
    "exports": exports_section,
    "vocabulary": vocabulary.section,
    "experts": experts.section,
    "training": training.section,
    "record": record.section,
}
OF_A_SUITE = ("problems", "scores", "overlap")  # sections that come first
OF_LABELS = ("problems", "scores", "mistakes", "use")
TILES = {  # key of the verdict: what follows the number; the first key of a group is its tile, the others its notes
    "task_score": ("", "{task_metric} on {task}"),
    "teacher_score": ("", "the teacher"),
    "retention": ("%", "of the teacher's average{coverage}"),
    "asymmetric_retention": ("%", "with the teacher's documents"),
    "retrieval": ("%", "of the teacher's retrieval score"),
    "asymmetric_retrieval": ("%", "with the teacher's documents"),
    "overlap_among": ("", "overlap@10 among the teacher's vectors"),
    "overlap_alone": ("", "overlap@10 with its own vectors"),
    "times_faster": (" times", "the teacher's speed on queries"),
    "documents_times_faster": (" times", "on documents"),
    "megabytes": (" MB", "of weights in float32"),
    "times_smaller": (" times", "fewer parameters than the teacher"),
    "vocabulary_tokens": ("", "tokens in the vocabulary"),
    "vocabulary_tokens_before": ("", "tokens before"),
    "worst_change": ("%", "on {worst_task}, the lowest task"),
    "teacher_cost": ("", "paid for the teacher's vectors"),
    "teacher_tokens": ("", "tokens sent to the teacher"),
    "teacher_requests": ("", "requests to the teacher"),
}
NOTES = {
    "teacher_score",
    "asymmetric_retention",
    "asymmetric_retrieval",
    "overlap_alone",
    "documents_times_faster",
    "times_smaller",
    "vocabulary_tokens_before",
    "teacher_requests",
}
DIGITS = {
    "teacher_cost": 2, "teacher_tokens": 0, "teacher_requests": 0, "overlap_among": 2, "overlap_alone": 2,
    "vocabulary_tokens": 0, "vocabulary_tokens_before": 0,
}  # fmt: skip
Draw = Callable[[Figure], str]

WORDS = {
    "good": "good: from {good:g}{unit} on",
    "fair": "fair: good if the interval is above {good:g}{unit}",
    "poor": "poor: fair from {fair:g}{unit} on",
}


@dataclass(frozen=True)
class Tile:
    """A number of the verdict: its key, value and text, what follows it, and what it is.

    interval: its bounds as text; empty without any
    grade: good, fair or poor; empty for a number that has no such mark
    mark: the grade in words, with its threshold
    """

    key: str
    value: float
    text: str
    unit: str
    label: str
    interval: str = ""
    grade: str = ""
    mark: str = ""


def render_page(report: Report, draw: Draw) -> str:
    """Return a run's page; `draw` returns the `<svg>` of a figure. Missing parts are left out."""
    run = report.record or RunRecord()
    origin = [f"teacher: {teacher.name}" for teacher in run.teachers if teacher.name]
    if run.method is not None and run.method.name:
        origin.append(f"method: {run.method.name}")
    origin.append((report.created or "")[:10])
    first: tuple[str, ...] = ()
    if run.supervised is not None:
        first = OF_LABELS
    elif report.scores and not (report.verdict or Verdict()).of_index:
        first = OF_A_SUITE
    sections = {name: SECTIONS[name](report) for name in dict.fromkeys((*first, *SECTIONS))}
    title = report.name or run.name or "student"
    verdict = report.verdict or Verdict()
    if verdict.of_index and report.overlap is not None:  # the decision first, as the owner of an index asks for it
        verdict = replace(verdict, text=f"{index_verdict(report.overlap)}: {verdict.text}")
    return render(title, origin, verdict, sections, draw, tiles(verdict, report.marks))


def tiles(verdict: Verdict, marks: Marks) -> list[list[Tile]]:
    """Return the verdict's numbers in groups, a tile each with its notes.

    A note without its tile's number gets a tile of its own.
    """
    thresholds = {
        "overlap_among": OVERLAP_MARKS,
        "retention": marks,
    }
    groups: list[list[Tile]] = []
    has_tile = False  # whether the tile of the next note is there
    keys = list(TILES)
    if verdict.of_index:
        keys.sort(key=lambda key: not key.startswith("overlap"))  # what the owner of an index looks for
    for key in keys:
        unit, label = TILES[key]
        if key == "overlap_among" and verdict.of_index:
            label = "overlap@10 in the index"
        value = getattr(verdict, key)
        if key not in NOTES:
            has_tile = value is not None
        if value is None:
            continue
        text = number(value, DIGITS.get(key, 1), sign=key == "worst_change")
        bounds = getattr(verdict, f"{key}_interval", None)
        interval = ""
        if bounds is not None:
            low, high = (number(bound, DIGITS.get(key, 1)) for bound in bounds)
            interval = f"[{low}, {high}]"
        grade, mark = "", ""
        if key in thresholds:
            limits = thresholds[key]
            grade = limits.grade(value, value if bounds is None else bounds[0])
            mark = WORDS[grade].format(good=limits.good, fair=limits.fair, unit=unit)
        tile = Tile(key, value, text, unit, label.format(**vars(verdict)), interval, grade, mark)
        if key in NOTES and has_tile:
            groups[-1].append(tile)
        else:
            groups.append([tile])
            has_tile = True
    return groups


def render(
    title: str,
    origin: Sequence[str],
    verdict: Verdict,
    sections: Mapping[str, PageSection | None],
    draw: Draw,
    groups: Sequence[Sequence[Tile]] = (),
) -> str:
    """Return a page of sections, which begins with the verdict's text, the tiles in groups and the advice."""
    style, script = _page_files("css"), _page_files("js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = templates().get_template("page.html.jinja")
    page = template.render(
        title=title,
        subtitle=", ".join(part for part in origin if part),
        verdict=verdict.text,
        tiles=groups,
        advice=verdict.advice,
        sections={name: section for name, section in sections.items() if section},
        draw=draw,
        style=style,
        script=script,
        digest=digest,
    )
    return page.strip() + "\n"


def _page_files(ending: str) -> str:
    """The style or the scripts of the page."""
    files = sorted((Path(__file__).parent / "page").glob(f"*.{ending}"))
    return "\n".join(path.read_text(encoding="utf-8").strip() for path in files)
