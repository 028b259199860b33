"""A model as the query encoder of an index: its vectors of queries against the stored vectors of documents."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from distilvec.cli.options import names_by_key
from distilvec.config.recipe import section_of
from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError, about, plain_errors, set_by
from distilvec.core.files import user_cache
from distilvec.core.log import log, quiet_libraries
from distilvec.evaluation.columns import Columns, score_columns
from distilvec.evaluation.evaluator import EmbeddingCache, Score
from distilvec.evaluation.overlap import Judgement
from distilvec.evaluation.stored import judge_encoder, stored_tasks, tasks_in_table
from distilvec.evaluation.suite import load_suite
from distilvec.evaluation.tasks import TaskFailure
from distilvec.report.record import RunRecord
from distilvec.report.sections.use import index_words
from distilvec.report.verdicts import Reason, index_advice, index_reason, index_verdict, make_verdict
from distilvec.teachers.embedder import FirstDims
from distilvec.teachers.model_embedder import RoutedEmbedder
from distilvec.teachers.open import Source, expect_kind, open_table, opened
from distilvec.verbs.check.command import check as command
from distilvec.verbs.check.section import index_keys
from distilvec.verbs.distill.evaluation_data import suite_of


@dataclass(frozen=True)
class IndexCheck:
    """A model as the query encoder of an index: the judgement, and scores by model.

    `distill` is the command that trains a model for the index. `scores` have the tasks that are made of the index
    itself, and those of a suite. `dim`: dimensions of the index; `cut_from`: those of the model if it has more, of
    which the first were compared.
    """

    index: str
    judgement: Judgement
    distill: str
    scores: dict[str, list[Score]] = field(default_factory=dict)
    problems: list[TaskFailure] = field(default_factory=list)
    dim: int | None = None
    cut_from: int | None = None

    @property
    def fits(self) -> bool:
        """Whether a switch is advised, at once or with a second ranking."""
        return self.judgement.compatibility in ("yes", "in part")

    @property
    def reason(self) -> Reason:
        """Why the model fits the index or does not, from the numbers of the judgement."""
        return index_reason(self.judgement)

    @property
    def advice(self) -> str:
        """The next step."""
        cut = "" if self.cut_from is None else f"the first {self.dim} of {self.cut_from} dimensions"
        return index_advice(self.judgement, self.distill, cut)

    @property
    def line(self) -> str:
        """The verdict, as on the page of a run with this index."""
        return make_verdict(self.scores, record=RunRecord(overlap=self.judgement)).text

    def to_json(self) -> dict[str, Any]:
        """All metrics as plain data."""
        return {
            **asdict(self),
            "fits": self.fits,
            "verdict": index_verdict(self.judgement),
            "reason": self.reason,
            "advice": self.advice,
            "line": self.line,
        }


@plain_errors()
@set_by(names_by_key(command))
@quiet_libraries()
def check(
    model: Source,
    index: str | Path,
    *,
    test: str | Path | None = None,
    sample: int = 500,
    columns: Mapping[str, str] | None = None,
    texts: str | Path | None = None,
    limit: int | None = None,
    similarity: Literal["cosine", "dot", "euclidean"] | None = None,
    repeats: Literal["first", "drop"] | None = None,
    refresh: bool = False,
    trust_remote_code: bool = False,
) -> IndexCheck:
    """Judge a model as the query encoder of an index; nothing is trained, and no document is embedded again.

    Args:
        model: A model (hub id, folder, SentenceTransformer), the file of an export, or an API.
        index: A table or index of vectors, by path or address.
        test: Your own judged queries: rows of query and document, a folder in BEIR's form, or a suite. Tasks whose
            documents the index holds are scored, too.
        sample: Number of stored texts that are searched for, at most a fifth of the index.
        columns: The index's names of its columns, by text, embedding, id, role and origin (documents).
        texts: The file of the texts, for an index of vectors alone.
        limit: Read so many rows of the index, drawn at random.
        similarity: How the index compares vectors, where it does not say.
        repeats: Take the "first" of rows of one text with different vectors, or "drop" them; refused by default.
        refresh: Read the index again instead of using the local copy.
        trust_remote_code: Run code that comes with the model.

    Errors: DistilvecError for a model or index that cannot be used, or a model of fewer dims than the index.
    """
    keys = index_keys(index, "index", columns=columns, texts=texts, limit=limit, similarity=similarity, repeats=repeats)
    section = section_of(TeacherSection, "teacher", keys)
    suite = None if test is None else suite_of(Path(test), user_cache())
    return check_index(model, section, suite, sample, refresh, trust_remote_code)


def check_index(
    model: Source,
    section: TeacherSection,
    suite: Path | None = None,
    sample: int = 500,
    refresh: bool = False,
    trust_remote_code: bool = False,
) -> IndexCheck:
    """Judge a model as the query encoder of an index; nothing is trained, and no document is embedded again.

    With a suite the tasks whose documents the index holds are scored, too. Errors: DistilvecError for a model or index
    that cannot be used, or a model of fewer dims than the index.
    """
    problems: list[TaskFailure] = []
    distill = shlex.join(["distilvec", "distill", *map(str, index_words(section.model_dump(mode="json")))])
    tasks = load_suite(suite, problems) if suite is not None else []
    with about("model"):
        expect_kind(model, ("model", "export", "api"))
    with about("teacher"):
        index = open_table(section, refresh=refresh)
    with ExitStack() as stack:
        with about("model"):
            embedder = stack.enter_context(opened(model, trust_remote_code=trust_remote_code))
        if isinstance(embedder, RoutedEmbedder):
            embedder = embedder.query  # which asks the index
        student = embedder
        cut_from = None
        if embedder.dim > index.dim:
            log(
                f"{embedder.name} gives vectors of {embedder.dim} dimensions: the first {index.dim} are compared, as "
                "many as the index has"
            )
            cut_from = embedder.dim
            student = FirstDims(embedder, index.dim, index.normalized)
        elif embedder.dim < index.dim:
            raise DistilvecError(
                f"{embedder.name} gives vectors of {embedder.dim} dimensions, the index has {index.dim}.",
                f"Train one that can: {distill}.",
                key="model",
            )
        judgement = judge_encoder(student, index, sample)
        columns: Columns = {"teacher": (index, index), "asymmetric": (student, index)}
        all_tasks = tasks_in_table([*tasks, *stored_tasks(index, sample)], index)
        scores, _ = score_columns(all_tasks, columns, EmbeddingCache(), problems)
    return IndexCheck(index.name, judgement, distill, scores, problems, index.dim, cut_from)
