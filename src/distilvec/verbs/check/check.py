"""A model as the query encoder of an index: its vectors of queries against the stored vectors of documents."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from distilvec.cli.options import names_by_key
from distilvec.config.recipe import section_of
from distilvec.config.schema import SourceSection, TeacherSection
from distilvec.core.errors import DistilvecError, about, plain_errors, set_by
from distilvec.core.files import user_cache
from distilvec.core.log import log, quiet_libraries
from distilvec.data.sources import read_source
from distilvec.evaluation.columns import Columns, score_columns
from distilvec.evaluation.evaluator import EmbeddingCache, Score
from distilvec.evaluation.logged import QueryLog, judge_log
from distilvec.evaluation.overlap import Judgement
from distilvec.evaluation.stored import judge_encoder, stored_tasks, tasks_in_table
from distilvec.evaluation.suite import load_suite
from distilvec.evaluation.tasks import TaskFailure
from distilvec.pipeline.inputs import Texts
from distilvec.report.next_step import index_words
from distilvec.report.record import RunRecord
from distilvec.report.verdicts import Reason, index_advice, index_reason, index_verdict, make_verdict
from distilvec.teachers.embedder import Embedder, FirstDims, is_api
from distilvec.teachers.model_embedder import ModelEmbedder, RoutedEmbedder
from distilvec.teachers.open import Source, expect_kind, open_table, opened
from distilvec.teachers.sources import index_keys
from distilvec.teachers.table_embedder import TableEmbedder
from distilvec.verbs.check.command import check as command
from distilvec.verbs.distill.evaluation_data import suite_of
from distilvec.verbs.distill.made_by import compare_maker
from distilvec.verbs.distill.texts import text_sources


@dataclass(frozen=True)
class IndexCheck:
    """A model as the query encoder of an index: the judgement, and scores by model.

    `distill` is the command that trains a model for the index. `scores` have the tasks that are made of the index
    itself, and those of a suite. `dim`: dimensions of the index; `cut_from`: those of the model if it has more, of
    which the first were compared. `at_least`: the overlap@10 that the caller asks for.
    """

    index: str
    judgement: Judgement
    distill: str
    scores: dict[str, list[Score]] = field(default_factory=dict)
    problems: list[TaskFailure] = field(default_factory=list)
    dim: int | None = None
    cut_from: int | None = None
    at_least: float | None = None

    @property
    def fits(self) -> bool:
        """Whether a switch is advised, at once or with a second ranking."""
        return self.judgement.compatibility in ("yes", "in part")

    @property
    def passes(self) -> bool:
        """Whether overlap@10 is what the caller asks for; without that, whether the model fits."""
        if self.at_least is None:
            return self.fits
        share = self.judgement.share
        return share is not None and share.mean >= self.at_least

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
            "passes": self.passes,
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
    queries: Texts | Sequence[Path] | None = None,
    made_by: str | None = None,
    at_least: float | None = None,
    test: str | Path | None = None,
    sample: int = 500,
    columns: Mapping[str, str] | None = None,
    texts: str | Path | None = None,
    where: Mapping[str, str | int | list[str | int | None] | None] | None = None,
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
        queries: Real queries, such as a search's log, in the forms of the texts of `distill`. At most 1,000 of them are
            embedded, by the model and by `made_by`, and the whole index is searched: they decide the verdict.
        made_by: The model or API that made the index. It is compared with some of the stored vectors before.
        at_least: The overlap@10 that `passes`, and the command's exit status, ask for.
        test: Your own judged queries: rows of query and document, a folder in BEIR's form, or a suite. Tasks whose
            documents the index holds are scored, too.
        sample: Without queries, the number of stored texts that are searched for, at most a fifth of the index.
        columns: The index's names of its columns, by text, embedding, id, role and origin (documents).
        texts: The file of the texts, for an index of vectors alone.
        where: Read only rows whose columns have these values, one of those in a list; None: rows without a value.
        limit: Read so many rows of the index, drawn at random.
        similarity: How the index compares vectors, where it does not say.
        repeats: Take the "first" of rows of one text with different vectors, or "drop" them; refused by default.
        refresh: Read the index again instead of using the local copy.
        trust_remote_code: Run code that comes with the models.

    Errors: DistilvecError for a model or index that cannot be used, or a model of fewer dims than the index.
    """
    with about("index"):
        keys = index_keys(
            index,
            columns=columns,
            texts=texts,
            where=where,
            limit=limit,
            similarity=similarity,
            repeats=repeats,
        )
    section = section_of(TeacherSection, "teacher", keys)
    suite = None if test is None else suite_of(Path(test), user_cache())
    if (queries is None) != (made_by is None):
        raise DistilvecError(
            "queries are judged by what the model that made the index finds: both are named, or none.",
            "Give --queries FILE and --made-by MODEL.",
            key="queries" if queries is None else "made_by",
        )
    query_log = None if queries is None else QueryLog.of(_query_texts(queries))
    result = check_index(model, section, suite, sample, refresh, trust_remote_code, query_log, made_by)
    return replace(result, at_least=at_least)


def _query_texts(queries: Texts | Sequence[Path]) -> Iterator[str]:
    with set_by({"corpus.sources": "queries"}):
        for position, source in enumerate(text_sources(queries, user_cache(), role="query", language=None)):
            yield from read_source(SourceSection.model_validate(source), position)


def check_index(
    model: Source,
    section: TeacherSection,
    suite: Path | None = None,
    sample: int = 500,
    refresh: bool = False,
    trust_remote_code: bool = False,
    query_log: QueryLog | None = None,
    made_by: str | None = None,
) -> IndexCheck:
    """Judge a model as the query encoder of an index; nothing is trained, and no document is embedded again.

    With a suite the tasks whose documents the index holds are scored, too. With a log of queries, which `made_by`
    embeds as well, these are judged in the place of stored texts, and the vectors are read batch by batch. Errors:
    DistilvecError for a model or index that cannot be used, or a model of fewer dims than the index.
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
        if query_log is None:
            judgement = judge_encoder(student, index, sample)
        else:
            assert made_by is not None
            maker = stack.enter_context(_maker(made_by, index, trust_remote_code))
            judgement = judge_log(query_log, maker.name, maker.embed(query_log.queries, "query"), student, index)
        scores: dict[str, list[Score]] = {}
        if query_log is None or tasks:  # tasks are searched among all texts of the index, which are held in memory
            columns: Columns = {"teacher": (index, index), "asymmetric": (student, index)}
            all_tasks = tasks_in_table([*tasks, *stored_tasks(index, sample)], index)
            scores, _ = score_columns(all_tasks, columns, EmbeddingCache(), problems)
    return IndexCheck(index.name, judgement, distill, scores, problems, index.dim, cut_from)


@contextmanager
def _maker(name: str, index: TableEmbedder, trust_remote_code: bool) -> Iterator[Embedder]:
    """Open the model that made an index, as far as some stored texts tell, cut to the index's dims."""
    with about("made_by"):
        expect_kind(name, ("model", "api"))
    with ExitStack() as stack:
        with about("made_by"):
            embedder = stack.enter_context(opened(name, trust_remote_code=trust_remote_code))
            of_documents = embedder.document if isinstance(embedder, RoutedEmbedder) else embedder
            assert isinstance(of_documents, ModelEmbedder) or is_api(of_documents)
            candidate = compare_maker(index, of_documents, name)
        candidate.check(index.dim)
        prompts = f"prompt {candidate.prompt!r} before documents, {embedder.prompts['query']!r} before queries"
        log(f"{name}: {candidate.result(index.dim)}, {prompts}")
        yield embedder if embedder.dim == index.dim else FirstDims(embedder, index.dim, index.normalized)
