"""Metadata of a model card for the hub: the YAML front matter that huggingface_hub reads and validates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from distilvec.core.escape import one_line
from distilvec.report.record import RunRecord

TAGS = ["sentence-transformers", "feature-extraction", "sentence-similarity", "distilvec"]
_LANGUAGE = re.compile(r"[a-z]{2,3}|code|multilingual")  # ISO 639 and the hub's special values
_TASKS = {
    "sts": ("semantic-similarity", "Semantic Similarity"),
    "retrieval": ("information-retrieval", "Information Retrieval"),
    "classification": ("text-classification", "Text Classification"),
    "pair": ("binary-classification", "Binary Classification"),
}  # of ours: task type and name in sentence-transformers' own cards


def card_data(
    hub: Mapping[str, Any],
    tags: Iterable[str] = (),
    languages: Iterable[str] = (),
    name: str | None = None,
    results: list[EvalResult] | None = None,
) -> ModelCardData:
    """Return a card's metadata. `hub` has base_model, datasets and license, as far as they are known.

    `languages` that are no codes of the hub are left out. `results` belong to the model `name`.
    """
    known = {**({"base_model_relation": "finetune"} if hub.get("base_model") else {}), **hub}
    codes = sorted({code for code in languages if _LANGUAGE.fullmatch(code)})
    return ModelCardData(
        language=codes or None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=[*TAGS, *tags],
        model_name=one_line(name) if results else None,
        eval_results=results or None,
        **known,
    )


@dataclass(frozen=True)
class _Result:
    """A score on the card: kind and name of its task, metric, value times 100."""

    kind: str
    task: str
    metric: str
    value: float | None


def eval_results(record: RunRecord) -> list[EvalResult]:
    """Return a student's scores, times 100; of two towers those of the student's queries and teacher's documents."""
    results: dict[tuple[str, str, str], EvalResult] = {}
    for result in _results(record):
        if result.value is None or not math.isfinite(result.value):
            continue
        task_type, task_name = _TASKS.get(result.kind, (result.kind or "sentence-similarity", None))
        results[task_type, result.task, result.metric] = EvalResult(
            task_type=task_type,
            task_name=task_name,
            dataset_type=one_line(result.task),
            dataset_name=one_line(result.task),
            metric_type=result.metric.replace("@", "_at_"),
            metric_name=result.metric,
            metric_value=round(result.value, 4),
        )
    return list(results.values())


def _results(record: RunRecord) -> list[_Result]:
    """Return the scores of the card's model, then the metrics on a labelled task's test split."""
    model = "asymmetric" if record.documents else "student"
    results = [_Result(score.type, score.task, score.metric, score.value) for score in record.scores.get(model, ())]
    supervised = record.supervised
    if supervised is not None:
        for metric, value in supervised.scores.get("student", {}).items():
            percent = None if value is None else 100 * value
            results.append(_Result(supervised.type, supervised.task, metric, percent))
    return results
