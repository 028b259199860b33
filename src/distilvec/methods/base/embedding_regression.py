"""Methods that compare a text's vector with its teacher's, and nothing else: for any number of teachers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from distilvec.core.batch import TextBatch
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec

Rows = Float[Tensor, "batch width"]
Distance = Callable[[Tensor, Tensor], Tensor]


class Pointwise(Objective):
    """A term for every teacher: `distance` of the student's embedding to the first one's, and of projections of it to the others'.

    The student's own embedding lives in the first teacher's space, so that it can stand beside this teacher's vectors. For each
    further teacher a linear layer without bias, which lives here and is not shipped, takes it to that teacher's width; the
    result is normalised where that teacher's vectors are. Terms are called `term`, `term`_2, `term`_3 and so on. Their weights
    are those of the teachers divided by their sum, so that the loss keeps its size, and with one teacher is that teacher's.
    With `signal` "pre_dense" the vectors are those before the first Dense layer, of the student and of every teacher; they are
    not normalised. Every teacher must have such vectors, the first one of the student's own width: the method sees to it.
    Note: vectors that are not normalised may be long, and so their distances: weigh such a teacher down, or compare directions alone.
    """

    several_teachers = True

    def __init__(
        self, sizes: Sizes, term: str, distance: Distance, signal: Literal["embedding", "pre_dense"] = "embedding"
    ) -> None:
        super().__init__()
        self.distance, self.signal = distance, signal
        inner = signal == "pre_dense"
        width = sizes.student_width if inner else sizes.embedding_width or sizes.teacher_width
        widths = [other.pre_dense_width or 0 if inner else other.width for other in sizes.others]
        self.projections = nn.ModuleList(nn.Linear(width, other, bias=False) for other in widths)
        self.unit = [other.normalized and not inner for other in sizes.others]
        self.student_outputs = self.teacher_outputs = (
            OutputSpec(pre_dense=True) if inner else OutputSpec(embedding=True)
        )
        given = [sizes.teacher_weight, *(other.weight for other in sizes.others)]
        self.weights = {term if n == 1 else f"{term}_{n}": weight / sum(given) for n, weight in enumerate(given, 1)}

    def views(self, vector: Rows) -> list[Tensor]:
        """The student's vector [batch, width] in each teacher's space, in their order."""
        projected = [projection(vector) for projection in self.projections]
        return [
            vector,
            *(F.normalize(view, dim=-1) if unit else view for view, unit in zip(projected, self.unit, strict=True)),
        ]

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        pairs = zip(self.weights, self.views(self._vector(student)), (teacher, *teacher.others), strict=True)
        return {name: self.distance(view, self._vector(answer)) for name, view, answer in pairs if self.weights[name]}

    def _vector(self, encoded: ModelOutputs) -> Rows:
        """What is compared, of a student or a teacher."""
        found = encoded.embedding if self.signal == "embedding" else encoded.pre_dense
        assert found is not None
        return found
