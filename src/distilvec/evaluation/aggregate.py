"""Scores side by side: averages, what is kept of the teacher, and the table of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distilvec.core.errors import DistilvecError
from distilvec.core.escape import markdown_cell

if TYPE_CHECKING:
    from distilvec.evaluation.evaluator import Score

ABSENT = "–"  # noqa: RUF001 (an en dash stands for "no value")


def average(scores: Sequence[Score]) -> float:
    """The plain mean of the main figures, each task counting the same; DistilvecError for no scores."""
    if not scores:
        raise DistilvecError("[scores] there is no average of no scores. Evaluate at least one task.")
    return sum(score.value for score in scores) / len(scores)


def averages(scores: Sequence[Score]) -> dict[str, float]:
    """Means over tasks, each task counting once: "all", and "in" and "out" of domain where scores state one; {} without scores.

    As TALAS' table 1 (Avg-In, Avg-Out, Avg.) and DistillMoE's table 14 (Avg In domain, Avg Out domain); there is no mean
    of means.
    """
    groups = {
        "all": list(scores),
        **{domain: [score for score in scores if score.domain == domain] for domain in ("in", "out")},
    }
    return {name: sum(score.value for score in group) / len(group) for name, group in groups.items() if group}


def retention(student: Sequence[Score], teacher: Sequence[Score]) -> dict[str, float]:
    """What the student keeps of the teacher's figures, in percent, by task, and of its mean under `average`.

    A share of a figure that is not above 0 has no meaning and is left out. Errors: DistilvecError if the two were not
    scored on the same tasks.
    """
    ours, theirs = ({score.task: score.value for score in scores} for scores in (student, teacher))
    if set(ours) != set(theirs):
        odd = ", ".join(sorted(set(ours) ^ set(theirs)))
        raise DistilvecError(
            f"[scores] retention needs the same tasks for student and teacher; scored for only one of them: {odd}."
        )
    pairs = {
        **{task: (value, theirs[task]) for task, value in ours.items()},
        "average": (average(student), average(teacher)),
    }
    return {task: 100 * value / whole for task, (value, whole) in pairs.items() if whole > 0}


def scores_table(columns: Mapping[str, Sequence[Score]], reference: str | None = None) -> list[list[str]]:
    """Rows of text, header first: one row a task, one column a model, then the average.

    Where tasks state their domain, the averages in and out of domain come first. A model without a score on some task gets a
    dash there and no average. `reference` names a column; a last row then gives every average as a share of its average.
    """
    tasks = dict.fromkeys((score.task, score.metric) for scores in columns.values() for score in scores)
    values = {name: {(score.task, score.metric): score.value for score in scores} for name, scores in columns.items()}
    means = {name: averages(scores) if len(scores) == len(tasks) else {} for name, scores in columns.items()}
    rows = [["Task", "Metric", *columns]]
    rows += [[task, metric, *(_figure(values[name].get((task, metric))) for name in columns)] for task, metric in tasks]
    for domain, label in (("in", "average in domain"), ("out", "average out of domain"), ("all", "average")):
        if domain == "all" or any(domain in found for found in means.values()):
            rows.append([label, "", *(_figure(found.get(domain)) for found in means.values())])
    whole = means.get(reference, {}).get("all", 0.0) if reference is not None else 0.0
    if whole > 0:
        shares = (None if not found else 100 * found["all"] / whole for found in means.values())
        rows.append([f"% of {reference}", "", *(_figure(share, 1) for share in shares)])
    return rows


def to_markdown(rows: Sequence[Sequence[str]]) -> str:
    """The rows of a table, header first, as a Markdown table; columns after the second are aligned to the right."""
    header, *body = [[markdown_cell(cell) for cell in row] for row in rows]
    rule = ["---" if place < 2 else "---:" for place in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *body]) + "\n"


def _figure(value: float | None, digits: int = 2) -> str:
    return ABSENT if value is None else f"{value:.{digits}f}"
