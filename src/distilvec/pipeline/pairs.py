"""The pairs of a recipe: linked to the documents of its index, negatives mined; and the decision on their stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
from distilvec.data.pairs import PairCounts, PairRow, Pairs, StoredPairs, capped, gather, read_pairs, split_rows
from distilvec.evaluation.overlap import overlap_by_query
from distilvec.evaluation.pairs import PairJudgement, compare_on_pairs
from distilvec.evaluation.search import top_k
from distilvec.losses.contrastive import SAME_DOCUMENT
from distilvec.pipeline.job import Job
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.table_embedder import TableEmbedder

FORMAT = 3
SPARE = 20  # neighbours that may be the same document as the answer
MOST_LOST = 0.5  # of the rows; of more the column of ids is another one
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
        rows, lost = _linked(pair_rows.rows, pair_rows.by_id, table, texts)
        train_rows, validation_rows = split_rows(rows, section.seed)
        train, validation = gather(train_rows, section.propensity), gather(validation_rows, section.propensity)

    # Documents are numbers in the index until they are written as numbers of candidates
    documents = np.array(train.documents, dtype=np.int64)
    all_answers, answer_of_pair = np.unique(documents[train.pairs[:, 1]], return_inverse=True)
    neighbors, cosines = _nearest(all_answers, vectors, section.negatives + SPARE, table.similarity)
    is_same = (neighbors == all_answers[:, None]) | (cosines > SAME_DOCUMENT)

    is_kept = capped(train.pairs[:, 1], section.most, section.seed)
    queries, answers = train.pairs[is_kept, 0], documents[train.pairs[is_kept, 1]]
    mined = _first_others(neighbors, is_same, section.negatives)[answer_of_pair[is_kept]]
    stated = _stated(train, documents, section.negatives)[queries]
    negatives = np.concatenate([stated, mined], axis=1)
    is_stated = np.concatenate([stated >= 0, np.zeros(mined.shape, dtype=np.bool_)], axis=1)

    # No document that is the same as any answer of a query is a negative of this query
    candidates = np.unique(np.concatenate([documents, negatives[negatives >= 0]]))
    copies = np.where(is_same, neighbors, all_answers[:, None])
    same_as_answer = np.column_stack([all_answers, copies])[answer_of_pair]  # [pairs, n]
    codes = train.pairs[:, :1] * len(candidates) + np.searchsorted(candidates, same_as_answer)
    codes = np.unique(codes[np.isin(same_as_answer, candidates)])

    counts = np.bincount(np.searchsorted(candidates, answers), minlength=len(candidates))
    mean_count = counts.sum() / np.count_nonzero(counts)
    frequency = np.log(np.where(counts > 0, counts / mean_count, 1.0))
    weights = train.clicks[is_kept] / train.clicks[is_kept].mean()
    while weights.max() > 1.01 * LARGEST_WEIGHT:  # the mean falls with every cut
        weights = np.minimum(weights, LARGEST_WEIGHT)
        weights /= weights.mean()

    validated = np.array(validation.documents, dtype=np.int64)[validation.pairs[:, 1]]
    write_columns(
        folder,
        queries=queries,
        answers=np.searchsorted(candidates, answers),
        weights=weights.astype(np.float32),
        negatives=np.where(negatives >= 0, np.searchsorted(candidates, negatives), -1).ravel(),
        is_stated=is_stated.ravel(),
        log_frequency=frequency.astype(np.float32),
        vectors=vectors[candidates].astype(np.float16).ravel(),
        codes=codes,
        validation=np.stack([validation.pairs[:, 0] + len(train.queries), validated], axis=1).ravel(),
        is_seen=np.isin(validated, answers),
    )
    _write_queries(section, table, name, train.queries, validation.queries, folder / "corpus")
    pair_counts = PairCounts(
        pairs=len(queries),
        queries=len(np.unique(queries)),
        validation_queries=len(np.unique(validation.pairs[:, 0])),
        capped=int((~is_kept).sum()),
        most=section.most,
        later=len(rows) - len(train_rows) - len(validation_rows),
        lost=len(lost),
        lost_example=lost[0].document[:60] if lost else "",
        repeats_search=pair_rows.are_clicks and section.propensity is None,
    )
    return {"counts": asdict(pair_counts)}


def _write_queries(
    section: PairsSection,
    table: TableEmbedder,
    name: str,
    train: Sequence[str],
    validation: Sequence[str],
    folder: Path,
) -> None:
    """Write the queries as a corpus, those that are trained on first."""
    queries = [*train, *validation]
    source = SourceSection(path=section.path, role="query")
    report: dict[str, Any] = {"read": len(queries), "kept": len(queries)}
    report |= {"train": len(train), "holdout": len(validation)}
    report["sources"] = [{"name": source.label, "kept": len(queries)}]
    meta = {"fingerprint": name, **describe_corpus(report, table.prompts, [source])}
    write_corpus(folder, queries, table.prompts["query"], np.arange(len(queries)) < len(train), meta)


def _linked(
    rows: Sequence[PairRow], by_id: bool, table: TableEmbedder, texts: Sequence[str]
) -> tuple[list[PairRow], list[PairRow]]:
    """Rows with the number of their document in the index, and the rows whose document is not stored.

    An index changes after its log was written: a few deleted documents should not cost the others.
    """
    numbers = {text: number for number, text in enumerate(texts)}
    if by_id:
        texts_by_id = table.table.texts_of({row.document for row in rows})
        numbers = {name: numbers[text] for name, text in texts_by_id.items() if text in numbers}
    linked: list[PairRow] = []
    lost: list[PairRow] = []
    for row in rows:
        number = numbers.get(row.document)
        if number is None:
            lost.append(row)
        else:
            linked.append(replace(row, document=str(number)))
    if len(lost) > MOST_LOST * len(rows):
        what = "the id" if by_id else "the text"
        example = table.ids(texts[:1])[0] if by_id else texts[0][:60]
        raise DistilvecError(
            f"{lost[0].where}: {what} '{lost[0].document[:60]}' is not stored in {table.shown}, nor are those of "
            f"{len(lost):,} of {len(rows):,} rows.",
            f"Expected such as '{example}'. Name the column: pairs.columns={{id: NAME}}.",
        )
    return linked, lost


def _nearest(rows: Rows, vectors: Array, count: int, similarity: Similarity) -> tuple[Rows, Array]:
    """The documents nearest to some of them, and their cosines with these: both [rows, at most `count`]."""
    queries = vectors[rows]
    neighbors = top_k(queries, vectors, count, similarity=similarity)[0]
    cosines = np.empty(neighbors.shape)
    for column in range(neighbors.shape[1]):  # vectors of all neighbors at once would fill the memory
        cosines[:, column] = cosine_pairs(queries, vectors[neighbors[:, column]])
    return neighbors, cosines


def _first_others(neighbors: Rows, is_same: Array, count: int) -> Rows:
    """The first `count` neighbors of each row that are not the same document, -1 where there are not as many."""
    order = np.argsort(is_same, axis=1, kind="stable")[:, :count]
    others = np.where(is_same, -1, neighbors)
    return np.asarray(np.take_along_axis(others, order, axis=1))


def _stated(train: Pairs, documents: Rows, count: int) -> Rows:
    """The first `count` documents that the file names as no answers of each query, -1 where there are not as many."""
    stated = np.full((len(train.queries), count), -1, dtype=np.int64)
    places = np.zeros(len(train.queries), dtype=np.int64)
    for query, document in train.rejected:
        if places[query] < count:
            stated[query, places[query]] = documents[document]
            places[query] += 1
    return stated[:, : int(places.max(initial=0))]


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
