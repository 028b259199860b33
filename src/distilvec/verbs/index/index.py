"""From an existing index to a judged query encoder: the recipe of `index distill`, and the judgement of `index check`.

A model is judged as a query encoder of the index: its vectors of queries against the stored vectors of documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.config.schema import Role, TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.evaluation.evaluator import EmbeddingCache, Score
from distilvec.evaluation.metrics import cosine_pairs
from distilvec.evaluation.neighbors import Judgement
from distilvec.evaluation.stored import stored_tasks
from distilvec.evaluation.suite import load_suite
from distilvec.evaluation.tasks import TaskFailure
from distilvec.pipeline.columns import Columns, score_columns
from distilvec.pipeline.judgement import judge_encoder
from distilvec.pipeline.local import log_similarity
from distilvec.pipeline.opened_run import Run
from distilvec.report.advice import index_advice
from distilvec.report.record import RunRecord
from distilvec.report.scores import make_verdict
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import Source, expect_kind, open_embedder, open_model, open_table
from distilvec.teachers.table_embedder import TableEmbedder

SAMPLE = 64  # stored texts that a candidate embeds
SAME = 0.99  # mean cosine from which on a candidate is the index's own model


@dataclass(frozen=True)
class IndexCheck:
    """A model as the query encoder of an index: the judgement, and scores by model.

    `scores` have the tasks that are made of the index itself, and those of a suite.
    """

    index: str
    judgement: Judgement
    scores: dict[str, list[Score]] = field(default_factory=dict)
    problems: list[TaskFailure] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether a switch is advised, at once or with a second ranking."""
        return self.judgement.compatibility in ("yes", "in part")

    @property
    def advice(self) -> str:
        """The next step."""
        return index_advice(self.judgement)

    @property
    def line(self) -> str:
        """The verdict, as on the page of `index distill`."""
        return make_verdict(self.scores, record=RunRecord(neighbors=self.judgement)).text

    def to_json(self) -> dict[str, Any]:
        """All metrics as plain data."""
        return {**asdict(self), "fits": self.fits, "advice": self.advice, "line": self.line}


def check_index(
    model: Source, section: TeacherSection, suite: Path | None = None, queries: int = 500, refresh: bool = False
) -> IndexCheck:
    """Judge a model as the query encoder of an index; nothing is trained, and no document is embedded again.

    With a suite the tasks whose documents the index holds are scored, too. Errors: DistilvecError for a model or index
    that cannot be used, or vectors of another dim.
    """
    problems: list[TaskFailure] = []
    tasks = load_suite(suite, problems) if suite is not None else []
    expect_kind(model, ("model", "export", "api"), "model")
    index = open_table(section, refresh=refresh)
    student = open_embedder(model, key="model")
    if student.dim != index.dim:
        raise DistilvecError(
            "model",
            f"{student.name} gives vectors of {student.dim} dimensions, the index has {index.dim}.",
            "Train one that can: distilvec index distill.",
        )
    log_similarity(index.section, index.normalized)
    judgement = judge_encoder(student, index, queries)
    columns: Columns = {"teacher": (index, index), "asymmetric": (student, index)}
    scores, _ = score_columns([*tasks, *stored_tasks(index, queries)], columns, EmbeddingCache(), problems)
    return IndexCheck(index.name, judgement, scores, problems)


def read_check(run: Run) -> IndexCheck:
    """Return the check that a run against an index has made.

    Errors: DistilvecError for a run without a judgement.
    """
    teacher, judgement = run.record.teacher, run.record.neighbors
    if teacher is None or teacher.name is None or judgement is None:
        raise DistilvecError("--out", f"{run.folder} has no judgement.", "Start over: --restart.")
    scores = {model: list(column) for model, column in run.scores.items()}
    return IndexCheck(teacher.name, judgement, scores, run.problems)


# -- training ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A model that may have made the index: mean cosine with the stored vectors, with the best of its prompts."""

    model: str
    cosine: float
    prompt: str
    prompts: dict[Role, str]

    @property
    def same(self) -> bool:
        """Whether the index's vectors are this model's."""
        return self.cosine >= SAME


def recognize(index: TableEmbedder, candidates: Sequence[str]) -> list[Candidate]:
    """Embed a sample of stored texts with every candidate and each of its prompts; the most alike first.

    A candidate of another dim has cosine 0.
    """
    texts, vectors = index.documents()
    chosen = np.linspace(0, len(texts) - 1, min(SAMPLE, len(texts))).astype(int)
    sample = [texts[row] for row in chosen]
    compared = []
    for name in candidates:
        with open_model(name, key="--candidate") as model:
            compared.append(_compare(model, name, sample, vectors[chosen]))
    return sorted(compared, key=lambda candidate: candidate.cosine, reverse=True)


def _compare(model: ModelEmbedder, name: str, texts: list[str], vectors: Any) -> Candidate:
    """Return a candidate with the prompt that comes nearest to the stored vectors, float32 [texts, dim]."""
    if model.dim != vectors.shape[1]:
        return Candidate(name, 0.0, "", dict(model.prompts))
    cosines = {}
    for prompt in dict.fromkeys(["", *model.prompts.values()]):
        embedded = model.embed_prompted([prompt + text for text in texts])
        cosines[prompt] = float(cosine_pairs(embedded, vectors).mean())
    best = max(cosines, key=lambda prompt: cosines[prompt])
    return Candidate(name, cosines[best], best, dict(model.prompts))


def index_recipe(
    teacher: Mapping[str, Any],
    student: Mapping[str, Any],
    name: str,
    queries: int = 500,
    suite: str | None = None,
    epochs: int | None = None,
) -> dict[str, Any]:
    """Return the recipe of `index distill` as plain data: trained on the index's texts, judged on others of them."""
    evaluation = {"stored": queries, "columns": ["teacher", "asymmetric"], "parts": ["agreement"]}
    if suite is not None:
        evaluation["suite"] = suite
    return {
        "name": name,
        "teacher": dict(teacher),
        "student": dict(student),
        "corpus": {"sources": [{"builtin": "teacher"}]},
        "method": {"name": "redact"},
        "train": {} if epochs is None else {"epochs": epochs},
        "evaluation": evaluation,
    }
