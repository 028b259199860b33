"""Methods that compare a text's vector with those of its teachers, and nothing else."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from distilvec.core.errors import DistilvecError
from distilvec.core.objective import LinearPairs, LossTerms, Objective, ObjectiveContext, TextBatch, Weights
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.distance import Distance, mean_over_dims

Rows = Float[Tensor, "batch dim"]


class EmbeddingRegression(Objective):
    """One term per teacher: `distance` of the student's embedding, or of a projection, to the teacher's.

    The student's embedding is in the first teacher's space. For each further teacher a linear layer without bias, which
    is not shipped, maps it to that teacher's dim; the result is normalised if that teacher's vectors are. Terms are
    called `term`, `term`_2 and so on. Their weights are those of the teachers, divided by their sum. With `pre_dense`
    the vectors are those before the first Dense layer of every model, not normalised; the caller checks that all have
    such vectors.
    With `student.dims` the first teacher's term is the mean over these first dimensions of both vectors, each cut
    scaled to length 1 where that teacher's vectors have it. Terms of further teachers read the whole vector.
    Note: distances of long vectors are large. Reduce such a teacher's weight, or compare directions alone.
    """

    max_teachers = None

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        term: str,
        distance: Distance,
        pre_dense: bool = False,
    ) -> None:
        teachers = context.teachers
        total = sum(teacher.weight for teacher in teachers)
        names = [term] + [f"{term}_{number}" for number in range(2, len(teachers) + 1)]
        shares = [teacher.weight / total for teacher in teachers]
        super().__init__(context, weights, dict(zip(names, shares, strict=True)))
        self.terms = names
        self.distance = distance
        self.pre_dense = pre_dense
        self.trains_dims = not pre_dense
        self.dims = context.dims
        if self.dims and self.dims[0] != context.student_dim:
            raise DistilvecError(
                f"found {list(self.dims)}; the largest has to be the student's {context.student_dim} dimensions.",
                f"Begin with {context.student_dim}.",
                key="student.dims",
            )

        dim = context.student.hidden_size if pre_dense else context.student_dim
        self.projections = nn.ModuleList()
        for teacher in teachers[1:]:
            teacher_dim = (teacher.pre_dense_dim or 0) if pre_dense else teacher.dim
            self.projections.append(nn.Linear(dim, teacher_dim, bias=False))
        self.student_outputs = self.teacher_outputs = OutputSpec(embedding=not pre_dense, pre_dense=pre_dense)

    def projected(self, y: Rows) -> list[Tensor]:
        """Return the student's vectors y [batch, dim] in each teacher's space."""
        vectors = [y]
        for projection, teacher in zip(self.projections, self.context.teachers[1:], strict=True):
            vector = projection(y)
            is_unit = teacher.normalized and not self.pre_dense
            vectors.append(F.normalize(vector, dim=-1) if is_unit else vector)
        return vectors

    def linear_maps(self) -> dict[str, LinearPairs]:
        """Return the pairs of each further teacher's projection: the student's vector and that teacher's."""

        def pairs(number: int) -> LinearPairs:
            return lambda batch, student, teacher: (self._vector(student), self._vector(teacher.others[number]))

        return {f"projections.{number}": pairs(number) for number in range(len(self.projections))}

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return ||y - y_hat||, or another distance, for each teacher (REDACT, eq. 3)."""
        teachers = (teacher, *teacher.others)
        terms = {}
        for term, y, outputs in zip(self.terms, self.projected(self._vector(student)), teachers, strict=True):
            if not self.weights[term]:
                continue
            y_hat = self._vector(outputs)
            if self.dims and outputs is teacher:
                is_unit = self.context.teacher.normalized
                terms[term] = mean_over_dims(self.distance, y, y_hat, self.dims, is_unit)
            else:
                terms[term] = self.distance(y, y_hat)
        return terms

    def _vector(self, outputs: ModelOutputs) -> Rows:
        vector = outputs.pre_dense if self.pre_dense else outputs.embedding
        assert vector is not None
        return vector
