"""Base class of methods: an Objective declares required outputs and turns them into named, per-example loss terms.

A method is one file with one Objective: `methods/yours.py`, or a path given as `method.name`. The constructor's
keywords after `context` and `weights` are the recipe's `method.options`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError, nearest
from distilvec.core.info import ObjectiveContext
from distilvec.core.options import refuse_unknown
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.core.task_head import TaskHead

__all__ = [
    "LinearPairs",
    "LossTerms",
    "Objective",
    "ObjectiveContext",
    "Projection",
    "TextBatch",
    "Weights",
]  # imported together by methods


class Projection(NamedTuple):
    """Linear map from a student's vectors to the teacher's space, trained by an objective and not shipped.

    `pre_dense`: it reads the vector before the student's first Dense layer, else the embedding at length 1.
    """

    weight: Float[Tensor, "teacher_dim dim"]
    bias: Float[Tensor, " teacher_dim"] | None = None
    pre_dense: bool = False


LossTerms = dict[str, Float[Tensor, " batch"]]
# batch, student's and teacher's outputs -> inputs and targets of a linear layer
LinearPairs = Callable[[TextBatch, ModelOutputs, ModelOutputs], tuple[Float[Tensor, "n d"], Float[Tensor, "n e"]]]
Weights = Mapping[str, float]  # of loss terms, by name


class Objective(nn.Module):
    """A method: the outputs it requires, parameters that only help training, and its loss terms. Never runs a model.

    A subclass defines `__init__(self, context, weights, **options)` and `forward`. Its constructor calls
    `super().__init__(context, weights)`, then sets `student_outputs` and `teacher_outputs` to what the terms with a
    weight need. A method that trains on labels has a term "task" and calls `add_task_head()`. What ships is a module of
    the student, never of the objective.

    Attributes:
        default_weights: of the terms. A method whose terms depend on its options passes `defaults` to
            `super().__init__` instead.
        weights: the defaults, replaced term by term by those of the recipe.
        student_outputs, teacher_outputs: what `forward` reads; teacher_outputs hold for every teacher.
        in_teacher_space: False if the student's vectors cannot be compared with the teacher's. Such a student keeps
            the dim of its model, has no distance to the teacher's vectors and is not scored against the teacher's
            documents.
        max_teachers: the most teachers that `forward` can read; None: any number.
        needs_fixed_batch: True if examples are compared with each other, so that batches need a fixed number of rows.
        reads_pairs: True if it learns from queries and stored documents that answer them (`batch.pairs`). It may lead
            away from the teacher's vectors, so their distance does not rank its students: the last one is compared
            with the start on pairs that it has not seen.
        trains_dims: True if it trains the first dimensions of the vectors that `student.dims` names (Matryoshka).
        learns_labels: True if the method as published has a term "task", which is left out on texts without labels.
        head: of a labelled task; `student.logits` are its outputs.
        matmul_dtype: of large products: bf16 if the run trains in bf16, else None. The trainer sets it when the
            precision is known.
        citation: BibTeX, printed in the model card.
    """

    default_weights: ClassVar[Weights] = {}
    student_outputs: OutputSpec = OutputSpec(embedding=True)
    teacher_outputs: OutputSpec = OutputSpec(embedding=True)
    in_teacher_space: bool = True
    max_teachers: int | None = 1
    needs_fixed_batch: bool = False
    reads_pairs: bool = False
    trains_dims: bool = False
    learns_labels: bool = False
    citation: str = ""
    head: nn.Module | None

    def __init__(self, context: ObjectiveContext, weights: Weights, defaults: Weights | None = None) -> None:
        super().__init__()
        self.context = context
        self.matmul_dtype = context.matmul_dtype
        self.head = None  # not a class attribute, which would hide the module
        name = type(self).__name__
        teachers = len(context.teachers)
        if self.max_teachers is not None and teachers > self.max_teachers:
            raise DistilvecError(
                f"{name} learns from {self.max_teachers} teacher; found {teachers}.",
                "Remove more_teachers, or take redact, offline_cosine or distillmoe.",
                key="more_teachers",
            )
        self.terms_vary = defaults is not None  # with the options: forward may offer terms that have no weight here
        defaults = self.default_weights if defaults is None else defaults
        if not defaults:
            raise DistilvecError(f"{name} has no loss terms.", "Give the class default_weights.", key="method.name")
        refuse_unknown(weights, defaults, "method.weights", f"{name} has no term")
        self.weights = {**defaults, **weights}
        if not any(self.weights.values()):
            raise DistilvecError(
                f"every term of {name} has weight 0: {', '.join(defaults)}.",
                "Give one of them a weight.",
                key="method.weights",
            )

    def add_task_head(self) -> None:
        """Add the head of the recipe's labelled task, if it has one."""
        if self.context.task is not None:
            self.head = TaskHead(self.context.student.hidden_size, self.context.task, self.context.head)
            self.student_outputs |= OutputSpec(vector=True)

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return named, unweighted terms, one value per example (or per text); only terms of weight 0 are left out."""
        raise DistilvecError(
            f"{type(self).__name__} does not implement forward.", "Add it to the method's file.", key="method.name"
        )

    def weighted_terms(self, **terms: Callable[[], Tensor]) -> LossTerms:
        """Compute the terms that have a weight. Errors: DistilvecError for a term that `default_weights` lacks."""
        if not self.terms_vary:
            for name in terms:
                if name not in self.weights:
                    hint = nearest(name, self.weights) or "."
                    problem = f"forward computes the term '{name}', which has no weight{hint}"
                    raise _file_error(self, problem, "Name it in default_weights, or leave it out.")
        return {name: compute() for name, compute in terms.items() if self.weights.get(name)}

    def space_projection(self) -> Projection | None:
        """Return the map into the first teacher's space that training has learned for the student's vectors, if any.

        The student ships without this map. The evaluation scores the student behind it as the model "projected".
        """
        return None

    def linear_maps(self) -> Mapping[str, LinearPairs]:
        """Return functions to inputs and targets of linear layers without bias that ridge regression can start.

        Keys are names of the objective's modules. Rows of length 1 are regressions of directions.
        """
        return {}

    def metrics(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> dict[str, Float[Tensor, ""]]:
        """Return further numbers for the training log, without gradient."""
        return {}

    def problem(self, metrics: Mapping[str, float]) -> str:
        """Return what the means of `metrics` say of options that do not fit the teacher or the texts; "" if nothing.

        A run shows it once, as a warning.
        """
        return ""


def weighted_loss(terms: LossTerms, weights: Weights) -> Float[Tensor, ""]:
    """Return the loss: the weighted sum of the terms' means. Terms are reduced and weighted nowhere else."""
    return torch.stack([weights[name] * values.mean() for name, values in terms.items()]).sum()


def weighted_losses(terms: LossTerms, weights: Weights) -> Float[Tensor, " batch"]:
    """Return each example's part of the loss; their mean is `weighted_loss`."""
    return torch.stack([weights[name] * values for name, values in terms.items()]).sum(0)


def check_terms(objective: Objective, terms: Any, lengths: set[int]) -> None:
    """Check the value of `forward`: weighted terms of one value per example; `lengths` are the allowed numbers."""
    if _terms_fit(objective, terms, lengths):
        for name, weight in objective.weights.items():
            if weight and name not in terms:
                problem = f"forward left out the term '{name}', which has weight {weight:g}."
                raise _file_error(objective, problem, "Compute it, or give it no weight.")
        return
    returned = f"a {type(terms).__name__}"
    if isinstance(terms, dict):
        returned = str({name: list(getattr(value, "shape", [type(value).__name__])) for name, value in terms.items()})
    raise _file_error(
        objective,
        f"forward returned {returned}; expected tensors of shape {sorted(lengths)}, named as in weights "
        f"({', '.join(objective.weights)}).",
    )


def _file_error(objective: Objective, problem: str, fix: str = "Correct that file.") -> DistilvecError:
    """Return the error for a mistake in a method's forward, with its class and file."""
    method = type(objective)
    place = f"{method.forward.__code__.co_filename}: {method.__name__}"
    return DistilvecError(f"{place}: {problem}", fix, key="method.name")


def _terms_fit(objective: Objective, terms: Any, lengths: set[int]) -> bool:
    if not isinstance(terms, dict) or not terms:
        return False
    for name, values in terms.items():
        if name not in objective.weights:
            return False
        if not isinstance(values, Tensor) or values.ndim != 1 or len(values) not in lengths:
            return False
    return True
