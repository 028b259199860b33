"""The two runs of `classify` as recipes: the teacher learns the labels, then the student learns from both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from distilvec.cli.options import option_keys
from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError
from distilvec.data.labelled_rows import LabelledTexts
from distilvec.verbs.classify.command import classify as command
from distilvec.verbs.classify.split import SplitRows

DEFAULT_TEACHER = "all-MiniLM-L6-v2"  # 22.7 M parameters, as in `quickstart`
# Of a training on few rows. The teacher begins nearly where it ends; its first layers alone have more to learn.
TEACHER_STEPS, STUDENT_STEPS = 100, 300
MOST_PASSES, MOST_TEXTS = 5, 60_000  # of a training: five passes, fewer where there are many texts
# all-MiniLM-L6-v2, with 384 numbers per token, learns 20 intents at 2e-4 (docs/task_student.md). Wider models are
# trained at lower rates: 5e-5 for 768 and 3e-5 for 1,024 numbers are the usual ones.
RATE, RATE_WIDTH = 2e-4, 384
LOWEST_RATE = 1e-5
OF_A_PASS = {f"teacher.{name}" for name in ("dtype", "batch_tokens", "quantize", "device_map")}  # in no saved teacher
STUDENT_FACTOR = 2.5  # a student of a few layers bears a higher rate than its teacher


@dataclass(frozen=True)
class LabelledTask:
    """The task of both runs: its kind, the folder with the split rows, and what the trainings need to know of them."""

    name: str
    kind: Literal["classification", "multilabel", "pair"]
    folder: Path
    training_rows: int
    has_validation: bool

    def section(self) -> dict[str, Any]:
        """The recipe's section `task`."""
        section = {"type": self.kind, "path": str(self.folder.resolve()), "name": self.name}
        return {**section, "validation_split": "validation"} if self.has_validation else section


def describe_labels(data: LabelledTexts, split: SplitRows, folder: Path) -> LabelledTask:
    """The task of both runs."""
    kind: Literal["classification", "multilabel", "pair"] = "classification"
    if data.several:
        kind = "multilabel"
    elif len(data.columns.texts) == 2:
        kind = "pair"
    return LabelledTask(data.name, kind, folder, len(split.train), bool(split.validation))


def teacher_recipe(
    teacher: str,
    labels: LabelledTask,
    epochs: int | None,
    seed: int,
    trust_remote_code: bool,
    overrides: Mapping[str, Any],
) -> Recipe:
    """The teacher's own backbone with a head, trained on the labels from a logistic regression on."""
    trusted = {"trust_remote_code": True} if trust_remote_code else {}
    tree = {
        "name": f"{labels.name}-teacher",
        "description": "The teacher of a classifier: learns the labels.",
        "teacher": {"model": teacher, **trusted},
        "student": {"model": "teacher", "head": {"start": "logistic"}, **trusted},
        "task": labels.section(),
        "method": {"name": "task"},
        "train": training(labels.training_rows, epochs, TEACHER_STEPS, seed),
        "evaluation": {"parts": []},
    }
    changes = {key: value for key, value in overrides.items() if not key.startswith("student.")}
    return recipes.recipe_from(tree, changes, "classify")


def student_recipe(
    teacher: Path,
    teacher_name: str,
    cut: Mapping[str, Any],
    labels: LabelledTask,
    epochs: int | None,
    seed: int,
    trust_remote_code: bool,
    overrides: Mapping[str, Any],
    learned_before: bool = False,
) -> Recipe:
    """The teacher in `teacher`, cut to layers or a size, trained on the labels and on the teacher's probabilities.

    `cut` has the keys of the section `student` that say so: layers or size, and the model where it is not the teacher.
    Changes of a teacher that learns the labels first are in what it saves, but for those of its passes.
    """
    trusted = {"trust_remote_code": True} if trust_remote_code else {}
    tree = {
        "name": labels.name,
        "description": "A classifier, distilled from a teacher that learned the same labels.",
        "teacher": {"model": str(teacher.resolve()), "name": teacher_name, **trusted},
        "student": {"model": "teacher", **cut, "head": {"start": "logistic"}, **trusted},
        "task": labels.section(),
        "method": {"name": "mined", "options": {"on": "logits"}},
        "train": training(labels.training_rows, epochs, STUDENT_STEPS, seed),
        "evaluation": {"parts": []},
    }
    changes = {}
    for key, value in overrides.items():
        if learned_before or key in OF_A_PASS or not key.startswith("teacher."):
            changes[key] = value
    return recipes.recipe_from(tree, changes, "classify")


def training(rows: int, epochs: int | None, least_steps: int, seed: int) -> dict[str, Any]:
    """The section `train` for a number of training rows; `least_steps` count where `epochs` is not stated."""
    batch_size = 16 if rows < 2000 else 32
    if epochs is None:
        passes = max(1, min(MOST_PASSES, MOST_TEXTS // rows))
        epochs = max(passes, math.ceil(least_steps / math.ceil(rows / batch_size)))
    return {
        "epochs": epochs,
        "batch_size": batch_size,
        "schedule": {"name": "linear", "warmup": 0.1},
        "max_grad_norm": 1.0,
        "seed": seed,
    }


def with_rate(recipe: Recipe, width: int, factor: float = 1.0) -> Recipe:
    """The recipe with a learning rate for a model of `width` numbers per token, unless it states one."""
    if recipe.train.learning_rate is not None:
        return recipe
    rate = factor * max(LOWEST_RATE, min(RATE, RATE * (RATE_WIDTH / width) ** 2))
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"learning_rate": float(f"{rate:.1e}")})})


def default_layers(layers: int) -> int:
    """The student's layers: a third of the teacher's, at least one."""
    return max(1, math.ceil(layers / 3))


def whole_cut(cut: Mapping[str, Any], overrides: Mapping[str, Any] | None, layers: int) -> dict[str, Any]:
    """Return the keys of `student` that say how small it is: so many layers where neither `cut` nor a change does."""
    return dict(cut) if stated_cut(cut, overrides) else {"layers": layers}


def stated_cut(cut: Mapping[str, Any], overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what says how small the student is, and of which model: keys of `cut`, and changes of the recipe."""
    changes = {name: (overrides or {}).get(f"student.{name}") for name in ("model", "size", "layers")}
    return {**cut, **{name: value for name, value in changes.items() if value is not None}}


def check_cut(size: str | int | None, layers: int | None) -> dict[str, Any]:
    """Return the key of the section `student` that says how small the student is; none where neither is stated."""
    if size is not None and layers is not None:
        raise DistilvecError("size and layers both say how small the student is.", "Give one of them.", key="size")
    if size is not None:
        return {"size": str(size)}
    return {} if layers is None else {"layers": layers}


def check_arguments(
    overrides: Mapping[str, Any], *, teacher: Any, student: Any, size: Any, layers: Any, epochs: Any, seed: int
) -> None:
    """DistilvecError for keys that `classify` decides on, and for arguments whose key is changed as well."""
    for key in overrides:
        if key.split(".")[0] in ("task", "corpus", "method", "name", "stages", "sweep", "more_teachers"):
            raise DistilvecError("is decided by classify.", "Change it in a recipe: distilvec run task.", key=key)
    values = {"teacher": teacher, "student": student, "size": size, "layers": layers, "epochs": epochs}
    recipes.check_stated_once(option_keys(command), {**values, "seed": seed or None}, overrides)
