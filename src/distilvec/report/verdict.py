"""The verdict on a student in one sentence and its numbers: what it keeps of the teacher, costs and loses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from distilvec.evaluation.aggregate import average, retention
from distilvec.evaluation.evaluator import Score

Part = Mapping[str, Any]
Column = Sequence[Score | Part]


def make_verdict(
    scores: Mapping[str, Column], intervals: Part | None, speed: Part | None, record: Part | None
) -> dict[str, Any]:
    """report.json's "verdict": `text` and the numbers in it; what is not known is None and left out of the sentence.

    `scores` by column, as Score or as report.json's dicts. `retention`, `asymmetric_retention`: percent of the teacher's
    average, over the tasks that both columns were scored on (`tasks` of the student's and the teacher's). `speedup`:
    the teacher's time over the student's for queries, `document_speedup` for documents. `smaller`: the teacher's
    parameters over the student's. `worst_task`, `worst_change`: the task with the lowest retention, its change in
    percent of the teacher's figure (above 0 if nothing is lost). `within_interval`: does the confidence interval of the
    difference of averages hold 0; None if there is none.
    """
    student, teacher, mixed = (_as_scores(scores.get(name) or ()) for name in ("student", "teacher", "asymmetric"))
    ours, theirs = _shared(student, teacher)
    kept = retention(ours, theirs) if ours else {}
    tested = (intervals or {}).get("student") or {}
    tasks = {task: share for task, share in kept.items() if task != "average"}
    worst = min(tasks, key=lambda task: tasks[task], default=None)
    ratio = (speed or {}).get("ratio") or {}
    verdict: dict[str, Any] = {
        "retention": kept.get("average"),
        "asymmetric_retention": retention(*pair).get("average") if (pair := _shared(mixed, teacher))[0] else None,
        "speedup": _ratio(ratio.get("query")),
        "document_speedup": _ratio(ratio.get("document")),
        "smaller": _smaller(speed or {}, record or {}),
        "worst_task": worst,
        "worst_change": None if worst is None else tasks[worst] - 100,
        "within_interval": _holds_zero(tested.get("average")),
        "tasks": len(ours) if theirs else len(student),
        "labelled": bool((record or {}).get("supervised")),
    }
    quality = _kept(verdict, student, teacher)
    if len(ours) < max(len(student), len(teacher)) and ours:
        quality += f" on {len(ours)} of {max(len(student), len(teacher))} tasks"
    parts = [
        _on_the_task((record or {}).get("supervised") or {}),
        quality,
        _speed(verdict["speedup"], verdict["document_speedup"]),
        _size(verdict["smaller"]),
    ]
    loss = _loss(worst, verdict["worst_change"], _holds_zero(tested.get(worst))) if len(tasks) > 1 else ""
    text = "; ".join(part for part in (", ".join(part for part in parts if part), loss) if part)
    return {"text": text or "not evaluated", **verdict}


def _on_the_task(supervised: Part) -> str:
    """The clause on a labelled task: the student's main figure on the test split, beside a fine-tuned teacher's."""
    scores, metric = supervised.get("scores") or {}, "spearman" if supervised.get("type") == "sts" else "accuracy"
    found = {
        name: value for name in ("student", "teacher") if (value := (scores.get(name) or {}).get(metric)) is not None
    }
    if "student" not in found:
        return ""
    beside = f" (the teacher {100 * found['teacher']:.1f})" if "teacher" in found else ""
    return f"{metric} {100 * found['student']:.1f} on {supervised['task']}{beside}"


def _kept(verdict: Part, student: Sequence[Score], teacher: Sequence[Score]) -> str:
    """The clause on quality: kept, better, or not to be told apart; a mean where there is no teacher."""
    share, within = verdict["retention"], verdict["within_interval"]
    if share is None:
        if not student or verdict["labelled"]:
            return ""
        reason = "the teacher's average is not above 0" if teacher else "there is no teacher to compare with"
        return f"scores {average(student):.1f} on average ({reason})"
    remarks = ["a difference within the confidence interval"] if within else []
    if verdict["asymmetric_retention"] is not None:
        remarks.append(f"{verdict['asymmetric_retention']:.1f} % with the teacher's documents")
    brackets = f" ({'; '.join(remarks)})" if remarks else ""
    if share <= 100:
        return f"keeps {share:.1f} % of the teacher{brackets}"
    if within is False:
        return f"is better than the teacher, with {share:.1f} % of its score{brackets}"
    untested = "" if within else ", untested"
    return f"reaches {share:.1f} % of the teacher{untested}{brackets}"


def _speed(query: float | None, document: float | None) -> str:
    if query is None or document is None or _times(query, "faster", "slower") == _times(document, "faster", "slower"):
        known = query if query is not None else document
        where = "" if (query is None) == (document is None) else " on queries" if document is None else " on documents"
        return "" if known is None else _times(known, "faster", "slower") + where
    first, second = _times(query, "faster", "slower"), _times(document, "faster", "slower")
    if query > 1.05 and document > 1.05:
        second = second.removesuffix(" times faster")
    return f"{first} on queries, {second} on documents"


def _size(smaller: float | None) -> str:
    return "" if smaller is None else _times(smaller, "smaller", "larger")


def _times(ratio: float, more: str, less: str) -> str:
    """ "2.1 times faster", "1.3 times slower", "no faster" where it rounds to 1."""
    factor = f"{max(ratio, 1 / ratio):.1f}"
    return f"no {more}" if factor == "1.0" else f"{factor} times {more if ratio > 1 else less}"


def _loss(task: str | None, change: float | None, within: bool | None) -> str:
    if task is None or change is None:
        return ""
    if change >= 0:
        return "loses on no task"
    return f"loses most on {task} ({change:.1f} %{', which may be chance' if within else ''})"


def _as_scores(column: Column) -> list[Score]:
    """The column as Score, those of report.json and distillation.json by their main figure only."""
    return [
        Score(score["task"], score["type"], score["metric"], score["value"], {}, 0.0, 0)
        if isinstance(score, Mapping)
        else score
        for score in column
    ]


def _shared(ours: Sequence[Score], theirs: Sequence[Score]) -> tuple[list[Score], list[Score]]:
    """The two columns on the tasks and metrics that both have."""
    both = {(score.task, score.metric) for score in ours} & {(score.task, score.metric) for score in theirs}
    left, right = ([score for score in scores if (score.task, score.metric) in both] for scores in (ours, theirs))
    return left, right


def _holds_zero(interval: Sequence[float] | None) -> bool | None:
    """Does the interval [low, high, p] hold 0; None if there is none."""
    if not interval or interval[0] is None or interval[1] is None:
        return None
    return interval[0] <= 0 <= interval[1]


def _smaller(speed: Part, record: Part) -> float | None:
    """The teacher's parameters over the student's, as the record or else the speed table tells them."""
    for info in (record, speed.get("models") or {}):
        teacher, student = ((info.get(name) or {}).get("parameters") for name in ("teacher", "student"))
        if teacher and student:
            return float(teacher / student)
    return None


def _ratio(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) and value > 0 else None
