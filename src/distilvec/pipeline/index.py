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
from distilvec.evaluation.significance import mean_interval
from distilvec.evaluation.stored import KNOWN_ITEM, NEIGHBORS, overlaps, stored_tasks
from distilvec.evaluation.suite import load_suite
from distilvec.evaluation.tasks import TaskFailure
from distilvec.pipeline.columns import make_columns, score_columns
from distilvec.pipeline.resolve import cache_root
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.model import LocalTeacher, load_teacher
from distilvec.teachers.precomputed import VectorsTeacher

SAMPLE = 64  # stored texts that a candidate embeds
SAME = 0.99  # mean cosine from which on a candidate is the index's own model
FITS, DOUBTFUL = 0.8, 0.5  # overlap of the top 10


@dataclass(frozen=True)
class IndexCheck:
    """A judgement: overlap of the top 10 with the index, scores by model, cosine with the stored vectors, advice.

    `overlap` is (mean, low, high) over stored texts that were not trained on, with a 95 % interval. `cosine` is the
    mean over these texts. `fits` is False where a switch is not advised.
    """

    index: str
    texts: int
    queries: int
    overlap: tuple[float, float, float]
    known_item: float
    recall: float
    cosine: float
    fits: bool
    advice: str
    scores: dict[str, list[Score]] = field(default_factory=dict)
    problems: list[TaskFailure] = field(default_factory=list)

    @property
    def line(self) -> str:
        """The last line of `index distill` and `index check`."""
        mean, low, high = self.overlap
        judged = [score for score in self.scores.get("asymmetric", []) if score.task not in (NEIGHBORS, KNOWN_ITEM)]
        ndcg = [f"; nDCG@10 {score.value:.1f} on {score.task}" for score in judged if score.type == "retrieval"]
        own = f"; a stored text is found at rank 1 to 10 with MRR {self.known_item / 100:.2f}"
        return f"expected overlap of the top 10 with your index: {mean:.2f} [{low:.2f}, {high:.2f}]{own}{''.join(ndcg)}"

    def to_json(self) -> dict[str, Any]:
        """All metrics as plain data."""
        return {**asdict(self), "line": self.line}


def open_index(section: TeacherSection, refresh: bool = False) -> VectorsTeacher:
    """The table of an index, or of its local copy, which is made first."""
    return VectorsTeacher(local_table(section, cache_root(), refresh))


def check_index(
    model: str | Path, section: TeacherSection, suite: Path | None = None, queries: int = 500, refresh: bool = False
) -> IndexCheck:
    """Judge a model as the query encoder of an index; nothing is trained, and no document is embedded again.

    With a suite the tasks whose documents the index holds are scored, too. Errors: DistilvecError for a model or index
    that cannot be used, or vectors of another dim.
    """
    problems: list[TaskFailure] = []
    tasks = load_suite(suite, problems) if suite is not None else []
    index, student = open_index(section, refresh), load_teacher(TeacherSection(model=str(model)), key="model")
    if student.dim != index.dim:
        raise DistilvecError(
            f"[model] {model} gives vectors of {student.dim} dimensions, the index has {index.dim}: it cannot search "
            "this index. Train one that can: distilvec index distill."
        )
    stored, memo = stored_tasks(index, queries), EmbeddingCache()
    columns = make_columns(student, teacher=index)
    columns = {name: columns[name] for name in ("teacher", "asymmetric")}
    scores, _ = score_columns([*tasks, *stored], columns, memo, problems)
    mean = mean_interval(overlaps(stored[0], student, index, memo))
    texts = stored[0].queries
    cosine = float(
        cosine_pairs(memo.vectors(student, texts, "document"), memo.vectors(index, texts, "document")).mean()
    )
    by_task = {score.task: score.metrics for score in scores["asymmetric"]}
    recall, known = by_task[NEIGHBORS]["recall@100"], by_task[KNOWN_ITEM]["mrr@10"]
    fits, advice = _advice(mean, recall, cosine)
    return IndexCheck(
        index.name, len(stored[1].documents), len(texts), mean, known, recall, cosine, fits, advice, scores, problems
    )


def _advice(overlap: tuple[float, float, float], recall: float, cosine: float) -> tuple[bool, str]:
    """Whether a switch is advised, and the next step."""
    if overlap[1] >= FITS:
        return True, "The model fits the index. Switch, and compare answers on real queries for some days."
    if overlap[0] >= DOUBTFUL:
        return True, (
            f"The model fits in part: {recall:.0f} % of the index's top 10 are in its top 100. Rank its top 100 again "
            "with the large model or a cross-encoder, or train longer, with more layers or more texts."
        )
    if cosine < DOUBTFUL:
        return False, (
            f"Do not switch: the model's vectors have a mean cosine of {cosine:.2f} with the stored ones, so it is of "
            "another space, or reads another prompt. Train one for this index: distilvec index distill."
        )
    return False, (
        "Do not switch: the model is in the index's space, and not close enough. Train longer (--epochs), keep more "
        "layers, or read more of the index (--limit)."
    )


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


def recognize(index: VectorsTeacher, candidates: Sequence[str]) -> list[Candidate]:
    """Embed a sample of stored texts with every candidate and each of its prompts; the most alike first.

    A candidate of another dim has cosine 0.
    """
    texts, vectors = index.documents()
    chosen = np.linspace(0, len(texts) - 1, min(SAMPLE, len(texts))).astype(int)
    found = []
    for name in candidates:
        with load_teacher(TeacherSection(model=name), key="--candidate") as model:
            found.append(_compared(model, name, [texts[row] for row in chosen], vectors[chosen]))
    return sorted(found, key=lambda one: -one.cosine)


def _compared(model: LocalTeacher, name: str, texts: list[str], vectors: Any) -> Candidate:
    if model.dim != vectors.shape[1]:
        return Candidate(name, 0.0, "", dict(model.prompts))
    cosines = {}
    for prompt in dict.fromkeys(["", *model.prompts.values()]):
        own = model.signals([prompt + text for text in texts])["embedding"]
        cosines[prompt] = float(cosine_pairs(own, vectors).mean())
    best = max(cosines, key=lambda prompt: cosines[prompt])
    return Candidate(name, cosines[best], best, dict(model.prompts))


def index_recipe(
    teacher: Mapping[str, Any], student: Mapping[str, Any], name: str, queries: int = 500,
    suite: str | None = None, epochs: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The recipe of `index distill` as plain data: trained on the index's own texts, judged on others of them."""
    evaluation = {"stored": queries, "columns": ["teacher", "asymmetric"], "parts": ["agreement"]}
    return {
        "name": name,
        "teacher": dict(teacher),
        "student": dict(student),
        "corpus": {"sources": [{"builtin": "teacher"}]},
        "method": {"name": "redact"},
        "train": {} if epochs is None else {"epochs": epochs},
        "evaluation": {**evaluation, **({} if suite is None else {"suite": suite})},
    }
