"""The pairs of a recipe: linked to the documents of its index, negatives mined; and the decision on their stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from distilvec.core.vectors import cosine_pairs
from distilvec.data.corpus import describe_corpus
from distilvec.data.corpus_files import Rows, write_columns
from distilvec.data.examples import write_corpus
from distilvec.data.pairs import PairRow, Pairs, StoredPairs, capped, gather, read_pairs, split_rows
from distilvec.evaluation.overlap import overlap_by_query
from distilvec.evaluation.pairs import PairJudgement, compare_on_pairs
from distilvec.evaluation.search import top_k
from distilvec.losses.contrastive import SAME_DOCUMENT
from distilvec.pipeline.job import Job
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.table_embedder import TableEmbedder

FORMAT = 2
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
    if recipe.student.built_in_prompt is not None:
        # It embeds no stored text, so nothing would tell what clicks cost there
        raise DistilvecError("a student with a built-in prompt embeds queries alone.", "Leave one out.", key="pairs")
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

    documents = np.array(train.documents, dtype=np.int64)  # their numbers in the index
    is_kept = capped(train.pairs[:, 1], section.most, section.seed)
    pairs, clicks = train.pairs[is_kept], train.clicks[is_kept]
    negatives, is_stated = _negatives(section, table, train, pairs, documents, vectors)

    answers = documents[pairs[:, 1]]
    candidates = np.unique(np.concatenate([documents, negatives[negatives >= 0]]))
    counts = np.bincount(np.searchsorted(candidates, answers), minlength=len(candidates))
    mean_count = counts.sum() / np.count_nonzero(counts)
    frequency = np.log(np.where(counts > 0, counts / mean_count, 1.0))
    codes = train.pairs[:, 0] * len(candidates) + np.searchsorted(candidates, documents[train.pairs[:, 1]])
    weights = np.minimum(clicks / clicks.mean(), LARGEST_WEIGHT)
    validated = np.array(validation.documents, dtype=np.int64)[validation.pairs[:, 1]]
    write_columns(
        folder,
        queries=pairs[:, 0],
        answers=np.searchsorted(candidates, answers),
        weights=(weights / weights.mean()).astype(np.float32),
        negatives=np.where(negatives >= 0, np.searchsorted(candidates, negatives), -1).ravel(),
        is_stated=is_stated.ravel(),
        log_frequency=frequency.astype(np.float32),
        vectors=vectors[candidates].astype(np.float16).ravel(),
        codes=np.sort(codes),
        validation=np.stack([validation.pairs[:, 0] + len(train.queries), validated], axis=1).ravel(),
        is_seen=np.isin(validated, answers),
    )

    queries = train.queries + validation.queries
    is_trained = np.arange(len(queries)) < len(train.queries)
    source = SourceSection(path=section.path, role="query")
    count = len(queries)
    corpus_report: dict[str, Any] = {"read": count, "kept": count}
    corpus_report |= {"train": len(train.queries), "holdout": len(validation.queries)}
    corpus_report["sources"] = [{"name": source.label, "kept": count}]
    meta = {"fingerprint": name, **describe_corpus(corpus_report, table.prompts, [source])}
    write_corpus(folder / "corpus", queries, table.prompts["query"], is_trained, meta)
    report = {
        "pairs": len(pairs),
        "queries": len(np.unique(pairs[:, 0])),
        "validation_queries": len(np.unique(validation.pairs[:, 0])),
        "capped": int((~is_kept).sum()),
        "most": section.most,
        "later": len(rows) - len(train_rows) - len(validation_rows),
        "lost": len(lost),
        "lost_one": lost[0].document[:60] if lost else "",
        "repeats_search": pair_rows.are_clicks and section.propensity is None,
    }
    return {"report": report}


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


def _negatives(
    section: PairsSection, table: TableEmbedder, train: Pairs, pairs: Rows, documents: Rows, vectors: Array
) -> tuple[Rows, Array]:
    """Documents that may be negatives of each pair [pairs, n], -1 for none, and which of them the file states."""
    count = section.negatives
    answers, answer_of_pair = np.unique(documents[pairs[:, 1]], return_inverse=True)
    neighbors = top_k(vectors[answers], vectors, count + SPARE, similarity=table.similarity)[0]
    cosines = cosine_pairs(np.repeat(vectors[answers], neighbors.shape[1], axis=0), vectors[neighbors.ravel()]).reshape(
        neighbors.shape
    )
    is_other = (neighbors != answers[:, None]) & (cosines <= SAME_DOCUMENT)
    order = np.argsort(~is_other, axis=1, kind="stable")[:, :count]  # the nearest others first
    mined = np.where(np.take_along_axis(is_other, order, axis=1), np.take_along_axis(neighbors, order, axis=1), -1)[
        answer_of_pair
    ]

    stated = np.full((len(train.queries), count), -1, dtype=np.int64)
    places = np.zeros(len(train.queries), dtype=np.int64)
    for query, document in train.rejected:
        if places[query] < count:
            stated[query, places[query]] = documents[document]
            places[query] += 1
    stated = stated[:, : int(places.max(initial=0))][pairs[:, 0]]
    negatives = np.concatenate([stated, mined], axis=1)
    is_stated = np.concatenate([stated >= 0, np.zeros(mined.shape, dtype=np.bool_)], axis=1)
    return negatives, is_stated


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
    own = np.array([numbers[text] for text in stored_texts], dtype=np.int64)

    query_rows, queries = np.unique(pairs.validation[:, 0], return_inverse=True)
    query_texts = pairs.corpus.stored(query_rows)
    answers = np.stack([queries, pairs.validation[:, 1]], axis=1)
    query_vectors: list[Array] = []
    overlaps: list[float] = []
    for name, model in (("the student before the stage", start), ("student", trained)):
        embedder = ModelEmbedder(model, name, job.recipe.evaluation.batch_tokens, job.student_prompts)
        query_vectors.append(embedder.embed(query_texts, "query"))
        overlap = overlap_by_query(
            vectors[own], vectors, embedder.embed(stored_texts), vectors, table.similarity, table.similarity, own
        )
        overlaps.append(float(overlap.mean()))
    before, after = query_vectors
    score, (low, high), seen, unseen = compare_on_pairs(
        before, after, vectors, answers, pairs.is_seen, table.similarity
    )
    return PairJudgement(
        stage, score, low, high, overlaps[0], overlaps[1], seen, unseen, bool(pairs.report["repeats_search"])
    )
