"""The pairs of a recipe: linked to the documents of its index, negatives mined; and the decision on their stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sentence_transformers import SentenceTransformer

from distilvec.config import recipe as recipes
from distilvec.config.schema import PairsSection, Recipe, SourceSection
from distilvec.core.artifacts import ArtifactStore, open_or_build
from distilvec.core.errors import DistilvecError, about
from distilvec.core.hashing import hash_files
from distilvec.core.similarity import Similarity
from distilvec.core.vectors import cosine_pairs
from distilvec.data.corpus import describe_corpus
from distilvec.data.corpus_files import Rows, write_columns
from distilvec.data.examples import write_corpus
from distilvec.data.pairs import (
    AnsweredQuery,
    PairCounts,
    PairRow,
    PairRows,
    PairTable,
    StoredPairs,
    capped,
    gather,
    read_pairs,
    split_rows,
)
from distilvec.evaluation.overlap import overlap_by_query
from distilvec.evaluation.pairs import PairJudgement, compare_on_pairs
from distilvec.evaluation.search import top_k
from distilvec.losses.contrastive import SAME_DOCUMENT
from distilvec.pipeline.job import Job
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.table_embedder import TableEmbedder

FORMAT = 4
SPARE = 20  # neighbours that may be the same document as the answer
MOST_UNSTORED = 0.5  # of the rows; with more the column of ids is another one
HELD_OUT_TEXTS = 500  # stored texts that overlap@10 is measured on
LARGEST_WEIGHT = 10.0  # of a pair, in means: a single popular one would be the whole loss

Array = np.ndarray[Any, Any]


def load_pairs(recipe: Recipe, section: PairsSection, store: ArtifactStore) -> StoredPairs:
    """Read the recipe's pairs and link them to its index.

    Errors: DistilvecError for a teacher that is not an index, rows that cannot be read, ids that are not stored.
    """
    if recipe.teacher.vectors is None:
        raise DistilvecError("the teacher is a model, without stored documents.", "Name an index.", key="pairs")
    with about("teacher"):
        table = TableEmbedder(recipe.teacher)
        index = table.manifest().fingerprint
    with about("pairs", section.path):
        files = [section.path]
        if section.path.is_dir():
            files = sorted(path for path in section.path.rglob("*") if path.is_file())
        settings = section.model_dump(mode="json", exclude={"path"})
        name = recipes.fingerprint(FORMAT, settings, hash_files(files), index)
        needed = 4 * sum(path.stat().st_size for path in files)
        build = partial(_build, section, table, name)
        return open_or_build(store.folder("pairs", name), name, "pairs", needed, build, StoredPairs)


def _build(section: PairsSection, table: TableEmbedder, name: str, folder: Path) -> dict[str, Any]:
    """Read, split, link and write the pairs; the content of their meta.json."""
    with about("teacher"):
        texts, vectors = table.documents()
    with about("pairs", section.path):
        pair_rows = read_pairs(section.path, section.columns)
        rows, left_out = _linked(pair_rows, table, texts)
        train_rows, validation_rows = split_rows(rows, section.seed)
        train, validation = gather(train_rows, section.propensity), gather(validation_rows, section.propensity)

    all_pairs, validation_pairs = PairTable.of(train), PairTable.of(validation)
    is_kept = capped(all_pairs.documents, section.most, section.seed)
    pairs = all_pairs.chosen(is_kept)

    near = Neighborhood.of(all_pairs.documents, vectors, section.negatives + SPARE, table.similarity)
    stated = _stated(train, section.negatives)[pairs.queries]
    mined = near.others(pairs.documents, section.negatives)
    negatives = np.concatenate([stated, mined], axis=1)
    is_stated = np.concatenate([stated >= 0, np.zeros(mined.shape, dtype=np.bool_)], axis=1)
    candidates = np.unique(np.concatenate([pairs.documents, negatives[negatives >= 0]]))
    answers = np.searchsorted(candidates, pairs.documents)

    # No document that is the same as any answer of a query is a negative of this query
    copies = near.copies(all_pairs.documents)
    codes = all_pairs.queries[:, None] * len(candidates) + np.searchsorted(candidates, copies)

    write_columns(
        folder,
        queries=pairs.queries,
        answers=answers,
        weights=_weights(pairs.clicks),
        negatives=np.where(negatives >= 0, np.searchsorted(candidates, negatives), -1).ravel(),
        is_stated=is_stated.ravel(),
        log_frequency=_log_frequency(answers, len(candidates)),
        vectors=vectors[candidates].astype(np.float16).ravel(),
        codes=np.unique(codes[np.isin(copies, candidates)]),
        validation=np.stack([validation_pairs.queries + len(train), validation_pairs.documents], axis=1).ravel(),
        is_seen=np.isin(validation_pairs.documents, pairs.documents),
    )
    query_texts = [query.text for query in (*train, *validation)]
    _write_queries(section, table, name, query_texts, len(train), folder / "corpus")
    pair_counts = PairCounts(
        pairs=len(pairs),
        queries=len(np.unique(pairs.queries)),
        validation_queries=len(validation),
        capped=len(all_pairs) - len(pairs),
        most=section.most,
        later=len(rows) - len(train_rows) - len(validation_rows),
        left_out=len(left_out),
        example=left_out[0] if left_out else "",
        repeats_search=pair_rows.are_clicks and section.propensity is None,
    )
    return {"counts": asdict(pair_counts)}


def _write_queries(
    section: PairsSection, table: TableEmbedder, name: str, texts: list[str], train: int, folder: Path
) -> None:
    """Write the queries as a corpus; the first `train` are trained on."""
    source = SourceSection(path=section.path, role="query")
    report: dict[str, Any] = {"read": len(texts), "kept": len(texts), "train": train, "holdout": len(texts) - train}
    report["sources"] = [{"name": source.label, "kept": len(texts)}]
    meta = {"fingerprint": name, **describe_corpus(report, table.prompts, [source])}
    write_corpus(folder, texts, table.prompts["query"], np.arange(len(texts)) < train, meta)


def _linked(pair_rows: PairRows, table: TableEmbedder, texts: Sequence[str]) -> tuple[list[PairRow], list[str]]:
    """Rows with their document's row of the index; and of each other row why it is left out.

    An index changes after its log was written, and logs have empty queries and documents without a click: a few such
    rows should not cost the others.
    """
    numbers = {text: number for number, text in enumerate(texts)}
    if pair_rows.by_id:
        texts_by_id = table.table.texts_of({row.document for row in pair_rows.rows})
        numbers = {name: numbers[text] for name, text in texts_by_id.items() if text in numbers}
    is_timed = any(row.time is not None for row in pair_rows.rows)

    linked: list[PairRow] = []
    left_out: list[str] = []
    unstored: list[PairRow] = []
    for row in pair_rows.rows:
        if row.document not in numbers:
            unstored.append(row)
            left_out.append(f"{row.where}: '{row.document[:60]}' is not stored")
        elif not row.query:
            left_out.append(f"{row.where}: no query")
        elif row.count <= 0:
            left_out.append(f"{row.where}: {row.count:g} clicks")
        elif is_timed and row.time is None:
            left_out.append(f"{row.where}: no time, though other rows have one")
        else:
            linked.append(replace(row, stored=numbers[row.document]))
    if len(unstored) > MOST_UNSTORED * len(pair_rows.rows):
        what = "the id" if pair_rows.by_id else "the text"
        example = table.ids(texts[:1])[0] if pair_rows.by_id else texts[0][:60]
        raise DistilvecError(
            f"{unstored[0].where}: {what} '{unstored[0].document[:60]}' is not stored in {table.shown}; "
            f"{len(unstored):,} of {len(pair_rows.rows):,} rows name documents that are not stored.",
            f"Expected such as '{example}'. Name the column: pairs.columns={{id: NAME}}.",
        )
    return linked, left_out


@dataclass(frozen=True)
class Neighborhood:
    """Stored documents near some of them.

    `documents` int64 [documents], sorted; `neighbors` int64 [documents, n], nearest first; `is_same` bool
    [documents, n]: the neighbor is the document itself, or is stored as the same one (SAME_DOCUMENT).
    """

    documents: Rows
    neighbors: Rows
    is_same: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, documents: Rows, vectors: Array, count: int, similarity: Similarity) -> Neighborhood:
        """Search for the `count` nearest of each document, or all where there are fewer."""
        distinct = np.unique(documents)
        queries = vectors[distinct]
        neighbors = top_k(queries, vectors, count, similarity=similarity)[0]
        is_same = neighbors == distinct[:, None]
        for column in range(neighbors.shape[1]):  # vectors of all neighbors at once would fill the memory
            is_same[:, column] |= cosine_pairs(queries, vectors[neighbors[:, column]]) > SAME_DOCUMENT
        return cls(distinct, neighbors, is_same)

    def others(self, documents: Rows, count: int) -> Rows:
        """The `count` nearest that are not the same document, int64 [documents, count]; -1 where there are fewer."""
        others_first = np.argsort(self.is_same, axis=1, kind="stable")[:, :count]
        others = np.where(self.is_same, -1, self.neighbors)
        nearest = np.take_along_axis(others, others_first, axis=1)
        return np.asarray(nearest[np.searchsorted(self.documents, documents)])

    def copies(self, documents: Rows) -> Rows:
        """Each document and what is stored as the same one, int64 [documents, n]; the document fills the rest."""
        copies = np.where(self.is_same, self.neighbors, self.documents[:, None])
        copies = np.concatenate([self.documents[:, None], copies], axis=1)
        return np.asarray(copies[np.searchsorted(self.documents, documents)])


def _stated(queries: Sequence[AnsweredQuery], most: int) -> Rows:
    """The first documents that the file names as no answers of each query, -1 where there are fewer: [queries, n]."""
    negatives = [query.negatives[:most] for query in queries]
    stated = np.full((len(queries), max(map(len, negatives))), -1, dtype=np.int64)
    for number, documents in enumerate(negatives):
        stated[number, : len(documents)] = documents
    return stated


def _weights(clicks: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Weights of pairs in proportion to their clicks, of mean 1 and at most LARGEST_WEIGHT."""
    weights = clicks / clicks.mean()
    while weights.max() > 1.01 * LARGEST_WEIGHT:  # the mean falls with every cut
        weights = np.minimum(weights, LARGEST_WEIGHT)
        weights /= weights.mean()
    return weights.astype(np.float32)


def _log_frequency(answers: Rows, candidates: int) -> npt.NDArray[np.float32]:
    """Log of how often each candidate is an answer, over the mean of those that are; 0 for all others."""
    counts = np.bincount(answers, minlength=candidates)
    is_answer = counts > 0
    frequency = np.zeros(candidates, dtype=np.float32)
    frequency[is_answer] = np.log(counts[is_answer] / counts[is_answer].mean())
    return frequency


def judge_stage(job: Job, stage: str, start: SentenceTransformer, trained: SentenceTransformer) -> PairJudgement:
    """Compare the student before and after a stage on validation pairs and on held-out stored texts."""
    pairs = job.pairs
    assert pairs is not None
    with about("teacher"):
        table = TableEmbedder(job.recipe.teacher)
    texts, vectors = table.documents()
    numbers = {text: number for number, text in enumerate(texts)}
    held_out = np.random.Generator(np.random.PCG64(0)).permutation(job.corpus.holdout_rows)
    stored_texts = [text for text in job.corpus.stored(held_out) if text in numbers][:HELD_OUT_TEXTS]
    stored_rows = np.array([numbers[text] for text in stored_texts], dtype=np.int64)

    query_rows, queries = np.unique(pairs.validation[:, 0], return_inverse=True)
    query_texts = pairs.corpus.stored(query_rows)
    answers = np.stack([queries, pairs.validation[:, 1]], axis=1)
    query_vectors: list[Array] = []
    overlaps: list[float] = []
    for name, model in (("the student before the stage", start), ("student", trained)):
        embedder = ModelEmbedder(model, name, job.recipe.evaluation.batch_tokens, job.student_prompts)
        query_vectors.append(embedder.embed(query_texts, "query"))
        overlap = overlap_by_query(
            vectors[stored_rows],
            vectors,
            embedder.embed(stored_texts),
            vectors,
            table.similarity,
            table.similarity,
            own=stored_rows,
        )
        overlaps.append(float(overlap.mean()))
    before, after = query_vectors
    score, (low, high), seen, unseen = compare_on_pairs(
        before, after, vectors, answers, pairs.is_seen, table.similarity
    )
    return PairJudgement(stage, score, low, high, overlaps[0], overlaps[1], seen, unseen, pairs.counts.repeats_search)
