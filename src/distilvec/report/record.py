"""The record of a run (`distillation.json`), put together from what the stages left."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers

import distilvec
from distilvec.data.corpus import Corpus
from distilvec.evaluation.evaluate import Score
from distilvec.objective import Objective
from distilvec.report.card import FORMAT, DataRecord, Distillation, TeacherRecord, describe_student
from distilvec.schema import Recipe
from distilvec.teachers.local import LocalTeacher
from distilvec.teachers.vectors import VectorsTeacher
from distilvec.train.checkpoint import Progress
from distilvec.train.metrics import read_metrics


def distillation_record(
    recipe: Recipe,
    teacher: LocalTeacher | VectorsTeacher,
    fingerprint: str,
    student: Any,
    corpus: Corpus,
    objective: Objective,
    state: Progress,
    distance: Mapping[str, float],
    scores: Mapping[str, Sequence[Score]],
) -> Distillation:
    """Everything known about how a student was made; JSON throughout."""
    train = recipe.train
    kept = recipe.student.layers if isinstance(recipe.student.layers, list) else None
    return {
        "format": FORMAT,
        "name": recipe.name,
        "teacher": teacher_record(teacher, fingerprint),
        "student": describe_student(student, recipe.name, recipe.student.model, kept),
        "data": data_record(corpus),
        "method": {
            "name": recipe.method.name,
            "summary": (objective.__doc__ or "").strip().split("\n")[0],
            "options": recipe.method.options,
            "weights": objective.weights,
            "citation": objective.citation,
        },
        "training": {
            "steps": state.step,
            "texts": state.texts,
            "epochs": train.epochs,
            "batch_size": f"{train.max_tokens} tokens" if train.max_tokens else train.batch_size * train.gradient_accumulation_steps,
            "learning_rate": train.learning_rate,
            "final_learning_rate": train.final_learning_rate,
            "schedule": train.schedule.name,
            "weight_decay": train.weight_decay,
            "update": train.update,
            "precision": train.precision,
            "seed": train.seed,
            "best_epoch": state.best_epoch,
            "minutes": round(state.seconds / 60, 1),
        },
        "metrics": dict(distance),
        "scores": {
            name: [{"task": score.task, "type": score.type, "metric": score.metric, "value": round(score.value, 4)} for score in column]
            for name, column in scores.items()
        },
        "versions": versions(),
        "teacher_compatible": student.get_embedding_dimension() == teacher.width,
    }


def teacher_record(teacher: LocalTeacher | VectorsTeacher, fingerprint: str) -> TeacherRecord:
    """The teacher's facts; a table of vectors has no parameters."""
    record: TeacherRecord = {
        "name": teacher.name,
        "fingerprint": fingerprint,
        "width": teacher.width,
        "prompts": {role: prompt for role, prompt in teacher.prompts.items() if prompt},
        "normalized": teacher.normalized,
    }
    if isinstance(teacher, LocalTeacher):
        record["parameters"] = sum(weight.numel() for weight in teacher.model.parameters())
    return record


def data_record(corpus: Corpus) -> DataRecord:
    """The corpus by source."""
    kept = np.bincount(corpus.sources, minlength=len(corpus.source_names)).tolist()
    columns = zip(corpus.source_names, kept, corpus.roles, corpus.languages, strict=True)
    return {
        "fingerprint": corpus.fingerprint,
        "sources": [{"name": name, "rows": rows, "role": role, "language": language} for name, rows, role, language in columns],
        "train_rows": len(corpus.train_rows),
        "holdout_rows": len(corpus.holdout_rows),
    }


def best_distance(metrics: Path) -> dict[str, float]:
    """The smallest held-out distance after an epoch, its cosine, and the distance before training."""
    lines = [line for line in read_metrics(metrics) if "eval/distance" in line]
    best = min(lines[1:] or lines, key=lambda line: float(line["eval/distance"]))
    return {"distance": best["eval/distance"], "cosine": best["eval/cosine"], "untrained_distance": lines[0]["eval/distance"]}


def versions() -> dict[str, str]:
    """The versions that made a student."""
    return {
        "distilvec": distilvec.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sentence-transformers": sentence_transformers.__version__,
        "numpy": np.__version__,
    }
