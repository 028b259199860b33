"""The columns of the score table: one line for each. A new pair of models needs nothing else in the source.

Every column is a pair of models: one embeds queries, one documents. Only retrieval has queries and documents; on other
tasks a column repeats the scores of its query model, unless it takes both models in every task
(evaluation/evaluator.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

# untrained: the student before its training; projected: the student behind the linear map into the teacher's space that
# its method has trained
ScoredModel = Literal["teacher", "untrained", "student", "projected"]


@dataclass(frozen=True)
class ScoreColumn:
    """A column of the score table.

    queries, documents: the models that embed them; two models have a space in common
    by_default: scored unless the recipe names other columns
    has_change: its change against the teacher stands beside it
    every_task: both models also embed the texts of tasks without queries
    note: what the report says of it
    """

    name: str
    queries: ScoredModel
    documents: ScoredModel
    by_default: bool = True
    has_change: bool = False
    every_task: bool = False
    note: str = ""

    @property
    def models(self) -> set[ScoredModel]:
        """The models that the column needs."""
        return {self.queries, self.documents}


SCORE_COLUMNS = {
    column.name: column
    for column in (
        ScoreColumn("teacher", "teacher", "teacher"),
        ScoreColumn("untrained", "untrained", "untrained"),
        ScoreColumn("student", "student", "student", has_change=True),
        ScoreColumn(
            "projected", "projected", "projected", has_change=True,
            note="Projected: the student behind the linear map into the teacher's space that was trained with it.",
        ),
        ScoreColumn(
            "asymmetric", "student", "teacher", has_change=True,
            note="Asymmetric: in retrieval, queries embedded by the student, documents by the teacher; on other tasks "
            "the student's own score.",
        ),
        ScoreColumn(
            "untrained_asymmetric", "untrained", "teacher", by_default=False,
            note="Untrained, asymmetric: the same with the student before its training.",
        ),
        ScoreColumn(
            "mixed", "student", "teacher", by_default=False, every_task=True,
            note="Mixed: first sentences, queries and test rows by the student; second sentences, documents and "
            "training rows by the teacher.",
        ),
    )
}  # fmt: skip

if TYPE_CHECKING:
    ColumnName = str
else:
    ColumnName = Literal[tuple(SCORE_COLUMNS)]


def columns_with(model: ScoredModel) -> frozenset[str]:
    """Return the names of the columns that need a model."""
    return frozenset(name for name, column in SCORE_COLUMNS.items() if model in column.models)
