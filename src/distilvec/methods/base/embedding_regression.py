"""Methods that compare a text's vector with those of its teachers, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from distilvec.core.objective import LinearPairs, LossTerms, Objective, ObjectiveContext, TextBatch, Weights
from distilvec.core.outputs import ModelOutputs, OutputSpec

Rows = Float[Tensor, "batch dim"]


class EmbeddingRegression(Objective):
    """One term per teacher: `distance` of the student's embedding, or of a projection, to the teacher's.

    The student's embedding is in the first teacher's space. For each further teacher a linear layer without bias, which
    is not shipped, maps it to that teacher's dim; the result is normalised if that teacher's vectors are. Terms are
    called `term`, `term`_2 and so on. Their weights are those of the teachers, divided by their sum. With `pre_dense`
    the vectors are those before the first Dense layer of every model, not normalised; the caller checks that all have
    such vectors.
    Note: distances of long vectors are large. Reduce such a teacher's weight, or compare directions alone.
    """

    max_teachers = None

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        term: str,
        distance: Callable[[Tensor, Tensor], Tensor],
        pre_dense: bool = False,
    ) -> None:
        given = [teacher.weight for teacher in context.teachers]
        names = [term, *(f"{term}_{number}" for number in range(2, len(given) + 1))]
        super().__init__(context, weights, {name: one / sum(given) for name, one in zip(names, given, strict=True)})
        self.distance, self.pre_dense = distance, pre_dense
        dim = context.student.hidden_size if pre_dense else context.student_dim
        others = context.teachers[1:]
        dims = [teacher.pre_dense_dim or 0 if pre_dense else teacher.dim for teacher in others]
        self.projections = nn.ModuleList(nn.Linear(dim, other, bias=False) for other in dims)
        self.unit = [teacher.normalized and not pre_dense for teacher in others]
        self.student_outputs = self.teacher_outputs = OutputSpec(embedding=not pre_dense, pre_dense=pre_dense)

    def views(self, vector: Rows) -> list[Tensor]:
        """Return the student's vector [batch, dim] in each teacher's space."""
        projected = [projection(vector) for projection in self.projections]
        pairs = zip(projected, self.unit, strict=True)
        return [vector, *(F.normalize(view, dim=-1) if unit else view for view, unit in pairs)]

    def linear_maps(self) -> dict[str, LinearPairs]:
        """Return the pairs of each further teacher's projection: the student's vector and that teacher's."""

        def pairs(number: int) -> LinearPairs:
            return lambda batch, ours, theirs: (self._vector(ours), self._vector(theirs.others[number]))

        return {f"projections.{number}": pairs(number) for number in range(len(self.projections))}

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the terms that have a weight."""
        pairs = zip(self.weights, self.views(self._vector(student)), (teacher, *teacher.others), strict=True)
        return {name: self.distance(view, self._vector(other)) for name, view, other in pairs if self.weights[name]}

    def _vector(self, outputs: ModelOutputs) -> Rows:
        found = outputs.pre_dense if self.pre_dense else outputs.embedding
        assert found is not None
        return found
