"""Metadata of a model card for the hub: the YAML front matter that huggingface_hub reads and validates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from distilvec.core.escape import one_line

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


def eval_results(record: Mapping[str, Any]) -> list[EvalResult]:
    """Return a student's scores, times 100; of two towers those of the student's queries and teacher's documents."""
    supervised: Mapping[str, Any] = record.get("supervised") or {}
    scores = (record.get("scores") or {}).get("asymmetric" if record.get("documents") else "student") or []
    found: dict[tuple[str, ...], EvalResult] = {}
    for kind, task, metric, value in [*_scores(scores), *_metrics(supervised)]:
        task_type, task_name = _TASKS.get(kind, (kind or "sentence-similarity", None))
        if value is not None and math.isfinite(value):
            found[task_type, task, metric] = EvalResult(
                task_type=task_type,
                task_name=task_name,
                dataset_type=one_line(task),
                dataset_name=one_line(task),
                metric_type=metric.replace("@", "_at_"),
                metric_name=metric,
                metric_value=round(value, 4),
            )
    return list(found.values())


def _scores(scores: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, str, float | None]]:
    yield from ((score.get("type") or "", score["task"], score["metric"], score["value"]) for score in scores)


def _metrics(supervised: Mapping[str, Any]) -> Iterator[tuple[str, str, str, float | None]]:
    """Yield the metrics on a labelled task's test split."""
    for metric, value in ((supervised.get("scores") or {}).get("student") or {}).items():
        yield supervised["type"], supervised["task"], metric, None if value is None else 100 * value
