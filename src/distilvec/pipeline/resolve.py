"""All of a run's teachers together: what is wanted of them, what a method may know of them, who answers."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from distilvec.core.errors import DistilvecError
from distilvec.core.info import ObjectiveContext, StudentInfo, TeacherInfo
from distilvec.core.objective import Objective
from distilvec.core.outputs import OutputSpec
from distilvec.models.tokenizers import tokenizer_hash
from distilvec.pipeline.teachers import TeacherSide, special_tokens
from distilvec.students.encoder import Encoder
from distilvec.train.dataset import SeveralTeachers, Teacher, uncached

if TYPE_CHECKING:
    from distilvec.pipeline.run import Run


def context(run: Run, encoder: Encoder) -> ObjectiveContext:
    """Describe student and teachers for an objective."""
    tokenizer, dim = encoder.model.tokenizer, encoder.model.get_embedding_dimension()
    student = StudentInfo(
        encoder.hidden_width,
        encoder.layers,
        dim,
        encoder.backbone.config.get_text_config().num_attention_heads,
        tokenizer_hash(tokenizer),
        special_tokens(tokenizer),
        encoder.experts,
    )
    teachers = tuple(_teacher(side) for side in run.sides)
    return ObjectiveContext(student, teachers, None if run.examples is None else run.examples.info)


def _teacher(side: TeacherSide) -> TeacherInfo:
    info = side.info
    return TeacherInfo(
        info.width,
        info.normalized,
        weight=side.section.weight,
        logits=side.key == "teacher" and side.head is not None,
        hidden_size=info.hidden_width,
        layers=info.layers,
        heads=info.heads,
        tokenizer=info.tokenizer,
        special_tokens=info.special,
        pre_dense_dim=info.pre_dense_width,
    )


def wanted(run: Run) -> OutputSpec:
    """What all stages want of every teacher; without labels also the embeddings that the held-out distance needs."""
    encoder = Encoder(run.student())
    required = reduce(
        or_, (run.objective(encoder, stage).teacher_outputs for stage in run.stages), validation_outputs(run)
    )
    _refuse(run, required)
    return required


def _refuse(run: Run, required: OutputSpec) -> None:
    """DistilvecError for a teacher that cannot give what is wanted, or gives what another one gives."""
    method, inside = run.recipe.method.name, required.tokens or required.logits or required.vector or uncached(required)
    known: dict[str, TeacherSide] = {}
    for side in run.sides:
        if inside and side.section.vectors is not None:
            raise DistilvecError(
                f"[{side.key}.vectors] {side.info.name} is a table of vectors; {method} also wants what is inside of the "
                f"model. Set {side.key}.model, or choose a method that learns from embeddings alone."
            )
        if side.key == "teacher" and len(run.sides) == 1:  # the method itself has seen to the rest
            return
        if required.logits and side.head is None:
            raise DistilvecError(
                f"[{side.key}.model] {side.info.name} has no head for the recipe's task, and {method} wants every teacher's logits. "
                "Fine-tune it on the task (distilvec finetune), or leave it out."
            )
        if required.tokens and required.tokens.alignment is not None:
            raise DistilvecError(
                f"[more_teachers] {method} matches the student's tokens with those of one teacher; found {len(run.sides)}. "
                "Remove more_teachers, or choose a method that does not."
            )
        if (other := known.setdefault(side.own.fingerprint, side)) is not side:
            raise DistilvecError(
                f"[{side.key}] {side.info.name} gives the same vectors as {other.info.name} ({other.key}): weights, prompts, length, "
                f"dimensions and precision are equal. Leave one of them out, or change its weight ({other.key}.weight)."
            )


def validation_outputs(run: Run) -> OutputSpec:
    """What is looked at on the held-out rows, whatever the method itself reads."""
    return OutputSpec(embedding=run.examples is None)


def answering(run: Run, objective: Objective) -> Teacher:
    """Who answers what this objective wants."""
    required = objective.teacher_outputs | validation_outputs(run)
    return together([side.answering(required) for side in run.sides])


def together(teachers: list[Teacher]) -> Teacher:
    """Teachers as one."""
    first, *others = teachers
    return SeveralTeachers(first, others) if others else first
