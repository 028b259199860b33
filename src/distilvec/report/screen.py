"""The end screens of a run and of a comparison: at most six lines of 80 columns with what a user decides by.

The first line is the decision, or the number that comes first; the last one is a command. All else is on the page.
Paths and commands stay whole, so that they can be copied.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from distilvec.core.escape import one_line, shortened
from distilvec.evaluation.aggregate import AVERAGE
from distilvec.report.comparison import Comparison, Row
from distilvec.report.next_step import NextStep, next_step
from distilvec.report.record import RunRecord
from distilvec.report.tables import number
from distilvec.report.values import Report, Verdict
from distilvec.report.verdicts import OVERLAP_MARKS, index_verdict, labels_sentence, retention_text

LINES, WIDTH = 6, 80
_NAME = 24  # characters of a run's name in a comparison
_ASIDE = re.compile(r" \([^()]*\)")  # numbers that a sentence can do without
_END_OF_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z0-9])")


def run_screen(report: Report, page: Path | None, step: NextStep | None = None) -> list[str]:
    """Return the lines: headline, facts, the advice that there is room for, the page, the next command."""
    step = step or next_step(report)
    first = headline(report)
    decision = first.partition(": ")[0]
    advice = []
    for text in (report.verdict or Verdict()).advice:
        text = text.removeprefix(f"{decision}: ")
        advice.append(text[:1].upper() + text[1:])
    return _screen(first, [facts(report)], advice, step.why, _end(page, step.command))


def comparison_screen(comparison: Comparison, page: Path | None, command: str) -> list[str]:
    """Return the lines: who leads, the best runs, notes that there is room for, the page, the next command."""
    end = _end(page, command)
    room = max(2, LINES - len(_wrapped(comparison.verdict)) - _height(end))
    rows = _run_rows(comparison.rows, room)
    return _screen(comparison.verdict, rows, comparison.notes if len(rows) < room else [], "", end)


# -- the parts ---------------------------------------------------------------------------------------------------------


def headline(report: Report) -> str:
    """Return what comes first: an index's decision, the share of the teacher's average, overlap@10, or labels."""
    verdict, record = report.verdict or Verdict(), report.record or RunRecord()
    judgement = record.overlap
    if judgement is not None and judgement.share is not None and _leads_with_overlap(verdict):
        share = judgement.share
        if verdict.of_index:
            decision = index_verdict(judgement).capitalize()
            return f"{decision}: finds {share.mean:.2f} of the index's ten nearest {share.text}"
        mark = OVERLAP_MARKS.grade(share.mean, share.low)
        return f"It finds {share.mean:.2f} of the teacher's ten nearest (overlap@10) {share.text}: {mark}"
    if verdict.task is not None and record.supervised is not None:
        return labels_sentence(record.supervised)
    if verdict.retention is not None:
        low, high = verdict.retention_interval or (verdict.retention, None)
        interval = "" if high is None else f" [{low:.1f}, {high:.1f}]"
        return f"{retention_text(verdict)}{interval}: {report.marks.grade(verdict.retention, low)}"
    return verdict.text or "not evaluated"


def _leads_with_overlap(verdict: Verdict) -> bool:
    """Whether no score of a test or on labels comes before overlap@10."""
    return verdict.of_index or (verdict.task is None and not verdict.task_count)


def facts(report: Report) -> str:
    """Return further numbers in one line, the first ones where there are too many."""
    verdict, record = report.verdict or Verdict(), report.record or RunRecord()
    judgement = record.overlap
    found = []
    if judgement is not None and judgement.share is not None and verdict.task is None:
        start = None if judgement.start is None else judgement.start.among or judgement.start.alone
        if not _leads_with_overlap(verdict):
            found.append(f"overlap@10 {judgement.share.mean:.2f} {judgement.share.text}")
        elif start is not None:
            found.append(f"{start.mean:.2f} before training")
        if verdict.of_index:
            asked = "stored texts" if judgement.log is None else f"{judgement.queries:,} queries"
            found.append(f"judged on {asked}")
        if judgement.all_rows is not None:
            found.append(f"{judgement.texts:,} of {judgement.all_rows:,} rows read")
    if verdict.retrieval is not None:
        found.append(f"retrieval {verdict.retrieval:.1f}%")
    if verdict.megabytes is not None:
        found.append(f"{number(verdict.megabytes, 0 if verdict.megabytes >= 10 else 1)} MB")
    if verdict.times_smaller is not None:
        found.append(f"{verdict.times_smaller:.1f}x smaller")
    if verdict.times_faster is not None:
        found.append(f"{verdict.times_faster:.1f}x faster")
    while len(", ".join(found)) > WIDTH:
        found.pop()
    return ", ".join(found)


def _run_rows(rows: Sequence[Row], most: int) -> list[str]:
    """Return a line for each of the best runs, its columns as far as they fit; the last line names the others."""
    shown = rows if len(rows) <= most else rows[: most - 1]
    columns = [column for column in zip(*map(_cells, shown), strict=True) if any(column)]
    while sum(3 + max(map(len, column)) for column in columns) - 3 > WIDTH:
        columns.pop()
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    lines = ["   ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    others = ", ".join(one_line(row.run) for row in rows[len(shown) :])
    return [*lines, shortened(f"and {len(rows) - len(shown)} more: {others}", WIDTH)] if others else lines


def _cells(row: Row) -> list[str]:
    """Return a run's name and numbers; empty where a number is not known."""
    average, share, overlap = row.mean.get(AVERAGE), row.retention.get(AVERAGE), row.overlap
    deviation = row.std.get(AVERAGE)
    return [
        shortened(one_line(row.run), _NAME),
        "" if average is None else f"average {number(average)}" + (f" ± {number(deviation)}" if deviation else ""),
        "" if share is None else f"{share:.1f}% of its teacher",
        "" if overlap is None else f"overlap@10 {number(overlap.mean)} {overlap.interval}",
        "" if row.parameters is None else f"{row.parameters / 1e6:.1f}M",
        "" if row.minutes is None else f"{row.minutes:.1f} min",
    ]


# -- lines -------------------------------------------------------------------------------------------------------------


def _screen(first: str, rows: Sequence[str], advice: Sequence[str], last: str, end: Sequence[str]) -> list[str]:
    """Return the first sentence, the rows, the sentences of the advice that fit before the last one, and the end."""
    lines = [*_wrapped(first), *filter(None, rows)]
    room = max(1, LINES - len(lines) - _height(end))  # paths may be long, and the reason of the command is said
    sentences: list[str] = []
    for sentence in [part for text in advice if text != last for part in _END_OF_SENTENCE.split(text)]:
        if len(_wrapped(" ".join([*sentences, sentence, last]))) > room:
            break
        sentences.append(sentence)
    text = " ".join([*sentences, last]).strip() or _ASIDE.sub("", " ".join(advice[:1]))
    return [*lines, *_wrapped(text, room), *end]


def _end(page: Path | None, command: str) -> list[str]:
    """Return the lines of the page, if there is one, and of the next command."""
    if page is None:
        return [f"next: {command}"]
    return [f"report: {page}", f"next: {command}"]


def _height(lines: Sequence[str]) -> int:
    """Return how many lines of WIDTH columns these take."""
    return sum(math.ceil(len(line) / WIDTH) for line in lines)


def _wrapped(text: str, most: int | None = None) -> list[str]:
    """Return a text in lines, cut after `most` of them."""
    return textwrap.wrap(one_line(text), WIDTH, max_lines=most, placeholder=" …", break_on_hyphens=False)
