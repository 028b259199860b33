"""Averages over tasks, percent of the teacher's score, main metrics of the papers. Scores are divided nowhere else.

average             plain mean over tasks (REDACT's table 2, "Avg. (Datasets)"; TALAS; DistillMoE)
average by type     mean of the means over the tasks of a type (MTEB; REDACT's table 2, "Avg."; TR-MTEB)
average retrieval   mean over the retrieval tasks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from distilvec.core.errors import DistilvecError
from distilvec.evaluation.tasks import OF_AN_INDEX

if TYPE_CHECKING:
    from distilvec.evaluation.evaluator import Score

    Scores = Sequence[Score] | Mapping[str, float]
K = TypeVar("K", bound=Hashable)

AVERAGE, BY_TYPE, RETRIEVAL = "average", "average by type", "average retrieval"  # as names alongside those of tasks
AVERAGES = {AVERAGE: "all", BY_TYPE: "by_type", RETRIEVAL: "retrieval"}  # their keys in report.json's "averages"

# Main metric by type of task. Retrieval (nDCG@10) is the same in all papers, STS (Spearman) in all but one.
PROTOCOLS = {
    # MTEB (Muennighoff et al. 2023), section 3.2. Note: its metrics only, not its ten classifiers on few rows.
    "mteb-like": {"classification": "accuracy", "pair": "average_precision"},
    # TALAS, section 4.1, table 1, appendix E. Note: "F1" is read as macro F1, "Average Precision" without a threshold.
    "talas": {"classification": "macro_f1", "pair": "average_precision"},
    # DistillMoE, table 14 and the text above it. Note: its row "BGEM3 base" is TALAS' F1 and AP; the text is followed.
    "distillmoe": {"classification": "accuracy", "pair": "best_accuracy"},
    # EMO, table 1, appendix B. Note: EMO fine-tunes its students with labels; here the encoder is frozen.
    "emo": {"classification": "accuracy", "pair": "best_accuracy"},
    # Turkish surgery, section 4 and table 1, whose rows are in the order of Pearson's correlation.
    "surgery": {"classification": "accuracy", "pair": "average_precision", "sts": "pearson"},
}
ALSO = {"surgery": {"sts": ("spearman", "cosine_spearman")}}  # metrics that a protocol reports in addition, by type
_MTEB_NAMES = {
    "macro_f1": "f1",
    "average_precision": "cosine_ap",
    "best_accuracy": "cosine_accuracy",
    "pearson": "cosine_pearson",
}


def without_index_tasks(scores: Sequence[Score]) -> list[Score]:
    """Return the scores without the tasks that are made of an index itself."""
    return [score for score in scores if score.task not in OF_AN_INDEX]


def average(scores: Sequence[Score] | Mapping[str, float]) -> float:
    """Plain mean over tasks of the main metric, also of values by task."""
    values = list(scores.values()) if isinstance(scores, Mapping) else [score.value for score in scores]
    if not values:
        raise DistilvecError("there is no average of no scores.", "Evaluate at least one task.", key="scores")
    return sum(values) / len(values)


def weights_of_averages(types: Mapping[K, str]) -> dict[str, dict[K, float]]:
    """Return the weights of tasks in each average, from their types; tasks of one type have the plain average alone."""
    counts = Counter(types.values())
    averages_by_name = {AVERAGE: dict.fromkeys(types, 1.0)}
    if len(counts) > 1:
        averages_by_name[BY_TYPE] = {task: 1 / counts[kind] for task, kind in types.items()}
        averages_by_name[RETRIEVAL] = {task: 1.0 for task, kind in types.items() if kind == "retrieval"}
    return {name: weights for name, weights in averages_by_name.items() if weights}


def weighted_averages(values: Mapping[K, Any], types: Mapping[K, str]) -> dict[str, Any]:
    """Return the averages of a model's values (numbers or arrays) by task."""
    return {
        name: sum(weight * values[task] for task, weight in weights.items()) / sum(weights.values())
        for name, weights in weights_of_averages(types).items()
    }


def averages(scores: Sequence[Score]) -> dict[str, float]:
    """Averages of "all" tasks, "by_type" and of "retrieval", and of tasks "in" and "out" of domain.

    {} without scores. "by_type" and "retrieval" need several types of task, "in" and "out" tasks with a domain.
    """
    if not scores:
        return {}
    values, types = dict[int, float](), dict[int, str]()
    for number, score in enumerate(scores):
        values[number], types[number] = score.value, score.type
    means = {AVERAGES[name]: value for name, value in weighted_averages(values, types).items()}
    for domain in ("in", "out"):
        group = [score for score in scores if score.domain == domain]
        if group:
            means[domain] = average(group)
    return means


def type_averages(scores: Sequence[Score]) -> dict[str, float]:
    """Means over the tasks of each type, which "average by type" averages."""
    groups: dict[str, list[float]] = {}
    for score in without_index_tasks(scores):
        groups.setdefault(score.type, []).append(score.value)
    return {kind: sum(values) / len(values) for kind, values in groups.items()}


def percent_of_teacher(value: float, teacher: float) -> float | None:
    """Score in percent of the teacher's; None if the teacher's is not above 0."""
    return 100 * value / teacher if teacher > 0 else None


def retention(student: Sequence[Score], teacher: Sequence[Score]) -> dict[str, float]:
    """Percent of the teacher's score by task, and of its averages by their names, over the tasks both were scored on.

    A task that only one of them has, with this metric, is left out, also of the averages. If the teacher's score on a
    task is not above 0, the task has no percentage but counts in the averages. Tasks that are made of an index itself
    count in none. {} without common tasks.
    """
    teacher_values = {(score.task, score.metric): score.value for score in teacher}
    student_values = {}
    types = {}  # of the tasks that count in the averages
    percents = {}
    for score in student:
        key = (score.task, score.metric)
        if key not in teacher_values:
            continue
        student_values[key] = score.value
        percents[score.task] = percent_of_teacher(score.value, teacher_values[key])
        if score.task not in OF_AN_INDEX:
            types[key] = score.type
    teacher_means = weighted_averages(teacher_values, types)
    for name, mean in weighted_averages(student_values, types).items():
        percents[name] = percent_of_teacher(mean, teacher_means[name])
    return {name: percent for name, percent in percents.items() if percent is not None}


def with_protocol(score: Score, protocol: str) -> Score:
    """Return the score with the protocol's main metric. Scores of other types stay as they are."""
    kind = {"pairclassification": "pair"}.get(score.type, score.type)  # mteb's name of the type
    main = PROTOCOLS[protocol].get(kind)
    if main is None:
        return score
    metric = main if main in score.metrics else _MTEB_NAMES.get(main, main)
    if metric not in score.metrics:
        raise DistilvecError(
            f"task '{score.task}': protocol {protocol} reports {main}, but the score holds {', '.join(score.metrics)}.",
            "Evaluate the task again.",
            key="--protocol",
        )
    return replace(score, metric=metric, value=score.metrics[metric])
