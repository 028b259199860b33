"""The objectives of a job's stages: built, checked against the student, and what they require of a teacher."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sentence_transformers import SentenceTransformer

from distilvec.config.student import StudentSection
from distilvec.config.training import TrainSection
from distilvec.core.errors import DistilvecError
from distilvec.core.info import ObjectiveContext
from distilvec.core.objective import Objective
from distilvec.core.outputs import OutputSpec
from distilvec.core.registry import build_objective, method_class
from distilvec.data.examples import Examples
from distilvec.pipeline.job import Job
from distilvec.students.build import with_projection
from distilvec.train.checkpoint import load_objective
from distilvec.train.stages import Stage
from distilvec.train.trainer import measures_distance


def make_objective(stage: Stage, context: ObjectiveContext) -> Objective:
    """Build a stage's objective; its own parameters are drawn from the seed."""
    method, train = stage.recipe.method, stage.recipe.train
    torch.manual_seed(train.seed)
    objective = build_objective(method.name, method.options, method.weights, context)
    if objective.needs_fixed_batch and train.max_tokens:
        raise DistilvecError(
            f"{method.name} compares the texts of a batch with each other, so batches need a fixed number of rows.",
            "Remove max_tokens and set batch_size.",
            key="train.max_tokens",
        )
    if train.fixed_batches and stage.recipe.task is not None and stage.recipe.task.labels is not None:
        raise DistilvecError(
            "with task.labels, each epoch draws other examples without labels; fixed batches would keep the first.",
            "Remove one of the two keys.",
            key="train.fixed_batches",
        )
    if not context.student.layers:
        check_static(method.name, objective.student_outputs, train)
    if objective.student_outputs.second_view and not context.student.dropout:
        raise DistilvecError(
            f"{method.name} compares two views of a text under dropout; every rate of the student is 0, so that "
            "both are equal.",
            "Give a rate above 0, such as 0.1.",
            key="student.dropout",
        )
    return objective


def check_static(method: str, required: OutputSpec, train: TrainSection) -> None:
    """Raise DistilvecError for what a static student cannot give to a method, and for ways to train its layers."""
    inside = (required.pooled_layers, required.hidden_layers, required.attention_layers, required.projection_layers)
    if any(inside) or required.second_view or required.experts:
        raise DistilvecError(
            f"{method} reads hidden states, attention, experts or two views under dropout; a static student (layers 0) "
            "has none of them.",
            "Keep a layer, or take redact or offline_cosine.",
            key="student.layers",
        )
    for name in ("gradient_checkpointing", "shard"):
        if getattr(train, name):
            raise DistilvecError(
                "is for a student with layers; a static student (layers 0) has no layers.",
                "Leave it out.",
                key=f"train.{name}",
            )


def with_dropout_choice(section: StudentSection, objectives: Sequence[Objective]) -> StudentSection:
    """Decide on a dropout rate that the recipe leaves open.

    A regression to the teacher's vectors has no use for noise: students of mpnet and of e5 end nearer to their teacher
    without dropout. Methods that compare two dropout views, or learn labels, keep the model's own rates.
    """
    if section.dropout is not None:
        return section
    regression = all(
        measures_distance(objective) and not objective.student_outputs.second_view for objective in objectives
    )
    return section.model_copy(update={"dropout": 0.0 if regression else "own"})


def required_outputs(objective: Objective, examples: Examples | None) -> OutputSpec:
    """Return the outputs an objective requires of a teacher; without labels also embeddings, for validation."""
    return objective.teacher_outputs | OutputSpec(embedding=examples is None)


def trains_projection(job: Job) -> bool:
    """Return whether the method has a projection of the student's vectors into the teacher's space."""
    return method_class(job.stages[-1].recipe.method.name).space_projection is not Objective.space_projection


def projected_student(job: Job, student: SentenceTransformer) -> SentenceTransformer | None:
    """Return the student behind the projection that was trained with the student; None without one."""
    path = job.files.objective("student")
    if not trains_projection(job) or not path.exists():
        return None
    objective = make_objective(job.stages[-1], job.context)
    load_objective(path, objective)
    projection = objective.space_projection()
    return None if projection is None else with_projection(student, projection)
