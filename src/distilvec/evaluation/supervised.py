"""How well a model and its head do a labelled task: figures of classes and of scores on the test split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sklearn.metrics import accuracy_score, precision_recall_fscore_support

from distilvec.core.task_head import TaskHead
from distilvec.data.labeled import Labelled
from distilvec.evaluation.evaluator import Sample, Score
from distilvec.evaluation.metrics import pearson, spearman
from distilvec.students.task_head import predict_logits

Array = np.ndarray[Any, Any]
Models = Mapping[str, tuple[SentenceTransformer, TaskHead]]


def supervised_report(name: str, models: Models, test: Labelled) -> tuple[dict[str, Any], dict[str, dict[str, Sample]]]:
    """What report.json holds as "supervised" (task, kind, test examples and, for each model, its figures), and the rows behind it."""
    kind = next(iter(models.values()))[1].task.kind
    scores: dict[str, Mapping[str, float | None]] = {}
    samples = {}
    for model_name, (model, head) in models.items():
        answers = predict_logits(model, head, test.inputs).numpy()
        if kind == "sts":
            scores[model_name] = score_figures(answers[:, 0], test.labels)
            sample = Sample(
                "sts", "spearman", answers[:, 0].astype(np.float64), np.asarray(test.labels, dtype=np.float64)
            )
        else:
            scores[model_name] = class_figures(answers.argmax(1), test.labels)
            sample = Sample("classification", "accuracy", answers.argmax(1), np.asarray(test.labels, dtype=np.int64))
        samples[model_name] = {name: sample}
    return {"task": name, "type": kind, "rows": len(test.labels), "scores": scores}, samples


def as_scores(report: Mapping[str, Any]) -> dict[str, list[Score]]:
    """The figures of `supervised_report` as those of a suite of this one task; a model without a main figure is left out."""
    kind, metric = ("sts", "spearman") if report["type"] == "sts" else ("classification", "accuracy")
    found = {}
    for name, figures in report["scores"].items():
        if figures[metric] is not None:
            metrics = {key: 100 * value for key, value in figures.items() if value is not None}
            found[name] = [Score(report["task"], kind, metric, metrics[metric], metrics, 0.0, report["rows"])]
    return found


def class_figures(predicted: Array, gold: Array) -> dict[str, float]:
    """Accuracy, and precision, recall and F1 averaged over the classes of `gold` or `predicted`; a class without a prediction counts 0."""
    precision, recall, f1, _ = precision_recall_fscore_support(gold, predicted, average="macro", zero_division=0)
    figures = {
        "accuracy": accuracy_score(gold, predicted),
        "macro_precision": precision,
        "macro_recall": recall,
        "macro_f1": f1,
    }
    return {name: float(value) for name, value in figures.items()}


def score_figures(predicted: Array, gold: Array) -> dict[str, float | None]:
    """Spearman's and Pearson's correlation, None where all predictions are alike."""
    found = {"spearman": spearman(predicted, gold), "pearson": pearson(predicted, gold)}
    return {name: None if np.isnan(value) else value for name, value in found.items()}
