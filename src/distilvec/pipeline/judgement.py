"""The judgement of a run's student without labels, and of any model as the query encoder of an index.

What is compared is in evaluation/overlap.py. Of a run, queries are validation texts and candidates further texts of
the corpus, whose teacher vectors are in the cache. Of an index, queries are stored texts that no student is trained on,
candidates all others, and no document is embedded again. No candidate has one origin with a query: the nearest
neighbours of a piece are the others of its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sentence_transformers import SentenceTransformer

from distilvec.core.device import pick_device
from distilvec.core.log import log, progress
from distilvec.core.outputs import OutputSpec
from distilvec.core.similarity import FEWEST_CANDIDATES, NEIGHBOR_COUNT
from distilvec.data.corpus import Corpus
from distilvec.data.origins import spread_over_origins
from distilvec.data.tokens import TokenStore
from distilvec.evaluation.evaluator import check_vectors
from distilvec.evaluation.overlap import (
    Judgement,
    QueryOverlaps,
    SourceOverlap,
    find_overlap,
    mean_cosine,
    nearest_rows,
)
from distilvec.evaluation.stored import judge_encoder
from distilvec.evaluation.text_distances import row_batches
from distilvec.pipeline.caches import cached_vectors
from distilvec.pipeline.job import Job
from distilvec.pipeline.prepare import tokenize_corpus
from distilvec.pipeline.start import read_start
from distilvec.pipeline.student import trained_student
from distilvec.pipeline.train import finished_training
from distilvec.teachers.embedder import Embedder, is_table
from distilvec.teachers.model_embedder import ModelEmbedder

if TYPE_CHECKING:
    from distilvec.teachers.table_embedder import TableEmbedder

QUERIES, CANDIDATES = 500, 10_000
TOKENS = 500_000  # that one model reads at most
LEAST = 200  # candidates, however long they are
LARGEST_SHARE = 5  # at most a fifth of the candidates are queries
FEWEST_OF_A_SOURCE = 20  # queries of a source that has a row of its own
SEED = 0
Array = np.ndarray[Any, Any]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class JudgedRows:
    """Rows of the corpus, int64: what is searched for, as many `trained` texts for comparison, and what is searched."""

    queries: Rows
    trained: Rows
    candidates: Rows

    @property
    def every(self) -> Rows:
        """All of them, in the order of the fields."""
        return np.concatenate([self.queries, self.trained, self.candidates])

    def parts(self, vectors: Array) -> list[Array]:
        """The vectors of every row as those of the three fields."""
        return np.split(vectors, np.cumsum([len(self.queries), len(self.trained)]))


@dataclass(frozen=True)
class RowVectors:
    """Vectors of rows of the corpus: int64 [n], float32 [n, dim]."""

    rows: Rows
    vectors: Array

    def of(self, rows: Rows, corpus: Corpus, embedder: Embedder) -> Array:
        """Return the vectors of other rows, float32 [rows, dim]; those that are missing are embedded."""
        embedded_rows, vectors = self.rows, self.vectors
        missing = np.setdiff1d(rows, embedded_rows)
        if len(missing):
            embedded_rows = np.concatenate([embedded_rows, missing])
            vectors = np.concatenate([vectors, embed_rows(corpus, missing, embedder)])
        order = np.argsort(embedded_rows)
        places = order[np.searchsorted(embedded_rows, rows, sorter=order)]
        return np.asarray(vectors[places])


@dataclass(frozen=True)
class JudgedRun:
    """The judgement of a run, and the trained student's vectors of the corpus that it took."""

    judgement: Judgement
    embedded: RowVectors | None = None


def judge_run(job: Job) -> JudgedRun | None:
    """Judge the student of a run, and the student before its training.

    None without a teacher, for pairs of texts that are one input, and for too few texts.
    """
    if job.required == OutputSpec() or job.corpus.paired:
        return None
    if job.recipe.teacher.vectors is not None and job.recipe.student.built_in_prompt is not None:
        with job.teacher.load(job.recipe.train.device) as index:
            assert is_table(index)
            return JudgedRun(_judge_queries(job, index))
    if job.recipe.evaluation.stored is not None:
        with job.teacher.load(job.recipe.train.device) as index:
            assert is_table(index)
            student = _open_student(job, "student")
            start = _open_student(job, "start") if job.trains else None
            return JudgedRun(judge_encoder(student, index, job.recipe.evaluation.stored, start))
    rows = draw_rows(job, tokenize_corpus(job, job.corpus, trained_student(job)))
    if rows is None:
        log(f"no overlap@10: it takes validation texts and at least {FEWEST_CANDIDATES} texts to search")
        return None
    return _judge_students(job, rows)


def _judge_queries(job: Job, index: TableEmbedder) -> Judgement:
    """Judge a student that embeds the queries of an index by queries that were held out, over the whole index.

    The vectors that the index's model gives them with its prompt are in the cache.
    """
    from distilvec.evaluation.logged import QueryLog, judge_log  # with the readers of tables, which few runs need

    rows = _drawn(job.corpus, job.corpus.holdout_rows, QUERIES, np.random.default_rng(SEED))
    log = QueryLog(job.corpus.stored(rows), len(job.corpus.holdout_rows))
    maker = str(job.teacher.section.made_by)
    start = _open_student(job, "start") if job.trains else None
    return judge_log(log, maker, _teacher_vectors(job, rows), _open_student(job, "student"), index, start)


def draw_rows(job: Job, tokens: TokenStore) -> JudgedRows | None:
    """Draw the texts that students are judged on, by seed; None if there are too few.

    Fewer than CANDIDATES are drawn where a model would read more than TOKENS. Queries are spread over as many origins
    as there are.
    """
    corpus = job.corpus
    generator = np.random.default_rng(SEED)
    count = min(len(corpus), CANDIDATES, max(LEAST, int(TOKENS / tokens.lengths.mean())))
    # Of labelled examples a text may be in both parts
    held_out = corpus.holdout_rows
    held_out = held_out[~np.isin(corpus.origins[held_out], corpus.origins[corpus.train_rows])]
    queries = _drawn(corpus, held_out, min(QUERIES, count // LARGEST_SHARE), generator)

    trained_origins = np.unique(corpus.origins[corpus.train_rows])
    origins = min(len(np.unique(corpus.origins[queries])), len(trained_origins) // LARGEST_SHARE)
    is_asked = np.isin(corpus.origins[corpus.train_rows], generator.choice(trained_origins, origins, replace=False))
    trained = _drawn(corpus, corpus.train_rows[is_asked], len(queries), generator)

    query_origins = np.unique(corpus.origins[np.concatenate([queries, trained])])
    others = np.flatnonzero(~np.isin(corpus.origins, query_origins))
    candidates = np.sort(generator.choice(others, min(count, len(others)), replace=False))
    if not len(queries) or len(candidates) < FEWEST_CANDIDATES:
        return None
    return JudgedRows(queries, trained, candidates)


def _drawn(corpus: Corpus, rows: Rows, count: int, generator: np.random.Generator) -> Rows:
    """Return `count` of the rows, drawn at random, spread over their origins."""
    rows = generator.permutation(rows)
    return spread_over_origins(rows, corpus.origins[rows], count)


def _judge_students(job: Job, rows: JudgedRows) -> JudgedRun:
    """Judge the trained student and its start on rows of the corpus, one model in memory at a time."""
    origins, similarity = job.corpus.origins, job.teacher.info.similarity
    teacher, teacher_trained, candidates = rows.parts(_teacher_vectors(job, rows.every))
    expected = nearest_rows(teacher, candidates, NEIGHBOR_COUNT, similarity)
    shares, cosine, trained = dict[str, QueryOverlaps](), None, None
    training = finished_training(job)
    ships_start = training is not None and training.ships_start
    for name in ("start", "student"):
        if name == "student" and ships_start:
            shares[name] = shares["start"]  # the same weights give the same vectors
            continue
        vectors = embed_rows(job.corpus, rows.every, _open_student(job, name))
        query_vectors, trained_vectors, candidate_vectors = rows.parts(vectors)
        common_space = job.in_teacher_space and candidate_vectors.shape == candidates.shape
        of_queries = origins[rows.queries]
        shares[name] = find_overlap(
            expected, candidates, similarity, query_vectors, candidate_vectors, common_space, of_queries
        )
    # The vectors are the trained student's now
    if common_space:
        cosine = mean_cosine(query_vectors, teacher)
    if len(rows.trained):
        seen = nearest_rows(teacher_trained, candidates, NEIGHBOR_COUNT, similarity)
        of_trained = origins[rows.trained]
        trained = find_overlap(
            seen, candidates, similarity, trained_vectors, candidate_vectors, common_space, of_trained
        )
    judgement = Judgement(
        origin="teacher",
        queries=len(rows.queries),
        candidates=len(rows.candidates),
        texts=len(job.corpus),
        similarity=similarity,
        student=shares["student"].summary(),
        start=shares["start"].summary() if job.trains else None,
        gain=shares["student"].less(shares["start"]) if job.trains else None,
        trained=None if trained is None else trained.summary(),
        sources=_by_source(job.corpus, rows.queries, shares["student"]),
        cosine=cosine,
        query_origins=len(np.unique(of_queries)),
    )
    return JudgedRun(judgement, RowVectors(rows.every, vectors))


def _by_source(corpus: Corpus, queries: Rows, shares: QueryOverlaps) -> tuple[SourceOverlap, ...]:
    """Return the shares by language, or by source where all have the same; empty for a single group."""
    names = corpus.source_labels
    if len(set(names)) == 1:
        names = corpus.source_names
    source_of_query = np.array([names[source] for source in corpus.sources[queries]])
    groups = [(name, source_of_query == name) for name in dict.fromkeys(names)]
    groups = [(name, mask) for name, mask in groups if mask.sum() >= FEWEST_OF_A_SOURCE]
    if len(groups) < 2:
        return ()
    return tuple(SourceOverlap(name, int(mask.sum()), shares.summary(mask)) for name, mask in groups)


def _open_student(job: Job, name: str) -> ModelEmbedder:
    """Open the trained "student" of a run, or its "start"."""
    device = pick_device(job.recipe.train.device)
    model = trained_student(job, device) if name == "student" else read_start(job).student(job).to(device)
    return student_embedder(job, model, name if name == "student" else "the student before training")


def student_embedder(job: Job, model: SentenceTransformer, name: str) -> ModelEmbedder:
    """Wrap a student with the prompts that it is trained with."""
    return ModelEmbedder(model, name, job.recipe.evaluation.batch_tokens, job.student_prompts)


def _teacher_vectors(job: Job, rows: Rows) -> Array:
    """Return the teacher's vectors of rows of the corpus, from its cache; a teacher without one computes them."""
    vectors = cached_vectors(job, rows)
    if vectors is not None:
        return np.asarray(vectors)
    with job.teacher.load(job.recipe.train.device) as teacher:
        return embed_rows(job.corpus, rows, teacher)


def embed_rows(corpus: Corpus, rows: Rows, embedder: Embedder) -> Array:
    """Return the vectors of rows of the corpus, float32 [rows, dim], with a bar."""
    vectors = np.empty((len(rows), embedder.dim), dtype=np.float32)
    with progress(f"embedding with {embedder.name}", len(rows), "texts") as advance:
        done, work = 0, 0.0
        for batch in row_batches(corpus, rows, embedder):
            vectors[batch.rows] = batch.embedding
            done += len(batch.rows)
            work += batch.work * len(rows)
            advance(done, work=work)
    check_vectors(embedder, corpus.stored(rows), vectors)
    return vectors
