"""The record of a run, `distillation.json`: teachers, student, data, method, training, metrics, versions."""

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
from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective
from distilvec.data.corpus import Corpus
from distilvec.evaluation.evaluator import Score
from distilvec.models.load import model_name
from distilvec.models.origin import is_hub_id, origin
from distilvec.pipeline.start import Start
from distilvec.report.model_card import DataRecord, Distillation, TeacherRecord, describe_student
from distilvec.report.run_files import RECORD_FORMAT
from distilvec.train.checkpoint import Progress
from distilvec.train.metrics import SCORES, read_metrics, validation_metric
from distilvec.train.optimizer import final_rate
from distilvec.train.stages import Stage


def distillation_record(
    stages: Sequence[tuple[Stage, Progress]],
    teachers: Sequence[TeacherRecord],
    student: Any,
    corpus: Corpus,
    objective: Objective,
    distance: Mapping[str, float],
    scores: Mapping[str, Sequence[Score]],
    start: Start,
    hub: Mapping[str, Any],
) -> Distillation:
    """Return the record: method and settings of the last stage; steps, texts and minutes of all stages.

    `hub` is that of the run's earlier record, if there is one, and is kept: its models may be gone since.
    """
    recipe = stages[-1][0].recipe
    base = recipe.student.model
    base = teachers[0]["name"] if base == "teacher" else base and model_name(base)
    kept = start.layers or (recipe.student.layers if isinstance(recipe.student.layers, list) else None)
    return {
        "format": RECORD_FORMAT,
        "name": recipe.name,
        "teacher": teachers[0],
        **({"more_teachers": list(teachers[1:])} if len(teachers) > 1 else {}),
        "student": describe_student(student, recipe.name, base, kept),
        "data": data_record(corpus),
        "method": {
            "name": recipe.method.name,
            "summary": " ".join((objective.__doc__ or "").strip().split("\n\n")[0].split()),
            "options": recipe.method.options,
            "weights": objective.weights,
            "citation": objective.citation,
        },
        "training": training_record(stages, start),
        "metrics": dict(distance),
        "scores": {
            name: [
                {"task": score.task, "type": score.type, "metric": score.metric, "value": round(score.value, 4)}
                for score in column
            ]
            for name, column in scores.items()
        },
        "versions": versions(),
        "hub": {**hub_record(recipe), **hub},
        "teacher_compatible": objective.in_teacher_space and student.get_embedding_dimension() == teachers[0]["width"],
    }


def training_record(stages: Sequence[tuple[Stage, Progress]], start: Start) -> dict[str, Any]:
    """Describe the training: settings of the last stage, cost of all."""
    (last, state), spent = stages[-1], [progress for _, progress in stages]
    train = last.recipe.train
    rows = train.batch_size * train.gradient_accumulation_steps
    return {
        "steps": sum(progress.step for progress in spent),
        "texts": sum(progress.texts for progress in spent),
        "epochs": train.epochs,
        "batch_size": f"{train.max_tokens} tokens" if train.max_tokens else rows,
        "learning_rate": state.learning_rate,
        "final_learning_rate": final_rate(train, state.learning_rate),
        "schedule": train.schedule.name,
        "weight_decay": train.weight_decay,
        **({} if train.optimizer == "adamw" else {"optimizer": train.optimizer}),
        "update": train.update.label,
        **({} if start == Start() else {"start": start.label}),
        "precision": train.precision,
        "seed": train.seed,
        "best_step": state.best_step,
        **shipped_start(state, last.recipe.task is not None),
        "minutes": round(sum(progress.seconds for progress in spent) / 60, 1),
        **({"stages": [stage_record(*stage) for stage in stages]} if last.name else {}),
    }


def shipped_start(state: Progress, labelled: bool) -> dict[str, str]:
    """Return the sentence for a run whose training has not improved on its start; the start ships then."""
    if state.best_step != 0 or state.step == 0:
        return {}
    if labelled:
        scores = f"{1 - state.start_distance:.4f} before, {1 - state.last_distance:.4f} after"
        return {
            "shipped": f"Training did not improve on the start, a logistic regression on the vectors as they were "
            f"(validation: {scores}), so the start ships."
        }
    distances = f"{state.start_distance:.4f} before, {state.last_distance:.4f} after"
    return {
        "shipped": f"Training did not bring the student nearer to its teacher ({distances}), so the student ships as "
        "it was before training."
    }


def hub_record(recipe: Recipe) -> dict[str, Any]:
    """Return the part of the model card's metadata that follows from the recipe: base_model, datasets, license."""
    sections, student = [recipe.teacher, *recipe.more_teachers], recipe.student
    models = [(section.model, section.revision) for section in sections if section.model is not None]
    adapters = [(name, None) for section in sections for name in section.adapters or ()]
    own = None if student.model is None else (student.model, student.revision)
    sources = [] if recipe.corpus is None else recipe.corpus.sources
    datasets = dict.fromkeys(source.dataset for source in sources if is_hub_id(source.dataset))
    found = origin(models[0] if student.model == "teacher" else own, [*models, *adapters])
    return {**found, **({"datasets": list(datasets)} if datasets else {})}


def stage_record(stage: Stage, state: Progress) -> dict[str, Any]:
    """Describe a stage: trained parameters, method and cost."""
    return {
        "name": stage.name,
        "method": stage.recipe.method.name,
        "trained": stage.trained,
        "learning_rate": state.learning_rate,
        "steps": state.step,
        "texts": state.texts,
        "minutes": round(state.seconds / 60, 1),
    }


def data_record(corpus: Corpus) -> DataRecord:
    """Describe the corpus by source."""
    kept = np.bincount(corpus.sources, minlength=len(corpus.source_names)).tolist()
    columns = zip(corpus.source_names, kept, corpus.roles, corpus.languages, strict=True)
    return {
        "fingerprint": corpus.fingerprint,
        "sources": [
            {"name": name, "rows": rows, "role": role, "language": language} for name, rows, role, language in columns
        ],
        "train_rows": corpus.report["train"],  # of a task: examples
        "holdout_rows": corpus.report["holdout"],
    }


def best_distance(metrics: Sequence[Path]) -> dict[str, float]:
    """Return the validation metrics of the best student, and the monitored one before training; one metrics file per
    stage.

    The monitored metric is `distance`; on a task it is a score: the greatest is best. A student in a space of its own
    has `similarity_gap`, and its last weights ship (train/validation.py).
    """
    first, last = (
        [line for line in read_metrics(path) if validation_metric(line)] for path in (metrics[0], metrics[-1])
    )
    if not first or not last:
        raise DistilvecError(
            "metrics.jsonl", f"{metrics[-1 if first else 0]} has no validation metrics.", "Start over: --restart."
        )
    name = validation_metric(last[0])
    best = last[-1]
    if name != "similarity_gap":
        best = (max if name in SCORES else min)(last, key=lambda line: float(line[f"eval/{name}"]))
    found = {key.removeprefix("eval/"): value for key, value in best.items() if key.startswith("eval/")}
    return found | {f"untrained_{key}": first[0][f"eval/{key}"] for key in [name] if f"eval/{key}" in first[0]}


def versions() -> dict[str, str]:
    """List the versions of the packages in use."""
    return {
        "distilvec": distilvec.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sentence-transformers": sentence_transformers.__version__,
        "numpy": np.__version__,
    }
