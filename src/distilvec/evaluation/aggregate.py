"""Averages over tasks, percent of the teacher's score, main metrics of the papers. Scores are divided nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distilvec.core.errors import DistilvecError

if TYPE_CHECKING:
    from distilvec.evaluation.evaluator import Score

    Scores = Sequence[Score | Mapping[str, Any]] | Mapping[str, float]

# Main metric of classification and of pair tasks. STS (Spearman) and retrieval (nDCG@10) are the same in all papers.
PROTOCOLS = {
    # MTEB (Muennighoff et al. 2023), section 3.2. Note: its metrics only, not its ten classifiers on few rows.
    "mteb-like": {"classification": "accuracy", "pair": "average_precision"},
    # TALAS, section 4.1, table 1, appendix E. Note: "F1" is read as macro F1, "Average Precision" without a threshold.
    "talas": {"classification": "macro_f1", "pair": "average_precision"},
    # DistillMoE, table 14 and the text above it. Note: its row "BGEM3 base" is TALAS' F1 and AP; the text is followed.
    "distillmoe": {"classification": "accuracy", "pair": "best_accuracy"},
    # EMO, table 1, appendix B. Note: EMO fine-tunes its students with labels; here the encoder is frozen.
    "emo": {"classification": "accuracy", "pair": "best_accuracy"},
}
_MTEB_NAMES = {"macro_f1": "f1", "average_precision": "cosine_ap", "best_accuracy": "cosine_accuracy"}


def average(scores: Scores) -> float:
    """Plain mean over tasks of the main metric. Errors: DistilvecError for no scores.

    Here and below scores are `Score` objects, entries of report.json, or a mapping {task: value}.
    """
    values = list(scores.values()) if isinstance(scores, Mapping) else [_entry(score)["value"] for score in scores]
    if not values:
        raise DistilvecError("[scores] there is no average of no scores. Evaluate at least one task.")
    return sum(values) / len(values)


def averages(scores: Sequence[Score | Mapping[str, Any]]) -> dict[str, float]:
    """Averages of "all" tasks, and of those "in" and "out" of domain if tasks have a domain; {} without scores.

    Every task counts once, as in TALAS' table 1 and DistillMoE's table 14.
    """
    groups = {"all": list(scores)}
    groups |= {domain: [score for score in scores if _entry(score)["domain"] == domain] for domain in ("in", "out")}
    return {name: average(group) for name, group in groups.items() if group}


def share(value: float, teacher: float) -> float | None:
    """Score in percent of the teacher's; None if the teacher's is not above 0."""
    return 100 * value / teacher if teacher > 0 else None


def retention(student: Scores, teacher: Scores) -> dict[str, float]:
    """Percent of the teacher's score by task, and of its average under "average", over the tasks both were scored on.

    A task that only one of them has is left out, also of the average. If the teacher's score on a task is not above 0,
    the task has no share but counts in the average. {} without common tasks.
    """
    ours, theirs = _by_task(student), _by_task(teacher)
    shared = [key for key in ours if key in theirs]
    if not shared:
        return {}
    found = {task: share(ours[task, metric], theirs[task, metric]) for task, metric in shared}
    found["average"] = share(*(sum(values[key] for key in shared) / len(shared) for values in (ours, theirs)))
    return {task: value for task, value in found.items() if value is not None}


def with_protocol(score: Score, protocol: str) -> Score:
    """Return the score with the protocol's main metric. STS and retrieval scores stay as they are.

    Errors: DistilvecError if the metric is not among the score's.
    """
    kind = {"pairclassification": "pair"}.get(score.type, score.type)  # mteb's name of the type
    main = PROTOCOLS[protocol].get(kind)
    if main is None:
        return score
    metric = main if main in score.metrics else _MTEB_NAMES.get(main, main)
    if metric not in score.metrics:
        raise DistilvecError(
            f"[--protocol] task '{score.task}': protocol {protocol} reports {main}, but the score holds "
            f"{', '.join(score.metrics)}. Evaluate the task again."
        )
    return replace(score, metric=metric, value=score.metrics[metric])


def _entry(score: Score | Mapping[str, Any]) -> dict[str, Any]:
    return {"domain": None, **(score if isinstance(score, Mapping) else vars(score))}


def _by_task(scores: Scores) -> dict[tuple[str, str], float]:
    """Values by (task, metric)."""
    if isinstance(scores, Mapping):
        return {(task, ""): value for task, value in scores.items()}
    return {(entry["task"], entry.get("metric", "")): float(entry["value"]) for entry in map(_entry, scores)}
