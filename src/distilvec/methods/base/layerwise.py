"""Methods that compare layers token by token, in addition to REDACT's distance (REDACT, appendix B)."""

from __future__ import annotations

from jaxtyping import Bool
from torch import Tensor

from distilvec.core.errors import DistilvecError
from distilvec.core.info import TeacherInfo
from distilvec.core.objective import Objective, ObjectiveContext, Weights
from distilvec.core.outputs import ModelOutputs, OutputSpec, Projections
from distilvec.losses.distance import DISTANCES, DistanceName, PerRow
from distilvec.losses.relation_heads import left_align
from distilvec.losses.tokens import from_first_token, shared_mask
from distilvec.methods.base.terms import embeddings

Mask = Bool[Tensor, "batch tokens"]


def require_student_layers(context: ObjectiveContext) -> None:
    """Raise DistilvecError for a static student."""
    if not context.student.layers:
        raise DistilvecError(
            "the method reads the student's layers, but a static student (layers 0) has no layers.",
            "Keep a layer, or take redact or offline_cosine.",
            key="student.layers",
        )


def require_layers(teacher: TeacherInfo) -> tuple[int, int]:
    """Return the teacher's number of layers and its hidden size."""
    if teacher.layers is None or teacher.hidden_size is None:
        raise DistilvecError(
            "the method reads the teacher's layers, but a table of vectors or an API has no layers.",
            "Give a local model as teacher.model, or take a method that needs only vectors, such as redact.",
            key="method.name",
        )
    return teacher.layers, teacher.hidden_size


class LayerwiseObjective(Objective):
    """distance: as redact; further `terms` on the tokens of two models with one tokenizer, each of weight 1."""

    def __init__(
        self, context: ObjectiveContext, weights: Weights, distance: DistanceName, terms: tuple[str, ...]
    ) -> None:
        super().__init__(context, weights, dict.fromkeys(("distance", *terms), 1.0))
        self.distance = DISTANCES[distance]
        self.terms = [name for name in terms if self.weights[name]]
        self.student_outputs = self.teacher_outputs = OutputSpec(embedding=bool(self.weights["distance"]))
        if self.terms:
            require_student_layers(context)
            self.teacher_layers, self.teacher_size = require_layers(context.teacher)
            if not context.same_tokenizer:
                raise DistilvecError(
                    "the method compares token by token, and these models split texts differently.",
                    "Take a student with the teacher's tokenizer (student.model: teacher), or redact or emo.",
                    key="method.name",
                )

    def require_same_heads(self) -> None:
        """Raise DistilvecError unless student and teacher have the same number of attention heads."""
        student_heads = self.context.student.heads
        teacher_heads = self.context.teacher.heads
        if student_heads is None or student_heads != teacher_heads:
            raise DistilvecError(
                f"attention is compared by head; found {student_heads} heads (student) and {teacher_heads} (teacher).",
                "Take a student with as many heads, or minilm with the option relation_heads.",
                key="method.name",
            )

    def distance_term(self, student: ModelOutputs, teacher: ModelOutputs) -> PerRow:
        """Return the distance of the two embeddings."""
        return self.distance(*embeddings(student, teacher))

    def states(self, outputs: ModelOutputs, layer: int, mask: Mask) -> Tensor:
        """Return a layer's hidden states [batch, tokens, hidden] at the positions of `mask` (see `common_mask`)."""
        assert outputs.mask is not None
        return from_first_token(outputs.hidden_layers[layer], outputs.mask, mask.shape[1])

    def projections(self, outputs: ModelOutputs, layer: int, mask: Mask) -> Projections:
        """Return a layer's queries, keys and values at the positions of `mask` (see `common_mask`)."""
        assert outputs.mask is not None
        return left_align(outputs.projections[layer], outputs.mask, mask.shape[1])


def common_mask(student: ModelOutputs, teacher: ModelOutputs) -> Mask:
    """Return a mask of the tokens that both models have, from each text's first one on."""
    assert student.mask is not None and teacher.mask is not None
    return shared_mask(student.mask, teacher.mask)
