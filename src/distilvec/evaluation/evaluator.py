"""Scores of a pair (query embedder, document embedder) on local tasks.

Standard evaluation passes one embedder, asymmetric evaluation two that share a space, such as a student for queries and
its teacher for documents. Only retrieval has queries and documents; asymmetric scores of other types repeat those of
the query embedder (REDACT, appendix E, table 6). A `mixed` evaluation takes both embedders for every type:

    type              query embedder     document embedder
    retrieval         queries            documents
    sts, pair         sentence1          sentence2             (mixed)
    classification    test rows          training rows         (mixed)

The texts of the other types all get the task's `role` (document by default).

Vectors are compared by the similarity that the document embedder states: a student searches an index as the index does.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score

from distilvec.config.schema import Role
from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError, about, each_about
from distilvec.evaluation import metrics, significance
from distilvec.evaluation.search import Search, top_k, without_own
from distilvec.evaluation.tasks import (
    ClassificationTask,
    PairTask,
    RetrievalTask,
    StsTask,
    Task,
    embedded_texts,
)
from distilvec.teachers.embedder import Embedder

Array = np.ndarray[Any, Any]
Progress = Callable[[str, int, int], None]  # (name, done, all)


@dataclass(frozen=True)
class Score:
    """Result of one task. `value` is that of the main `metric`; all metrics are times 100.

    `rows` counts scored pairs, test texts or queries; `seconds` includes embedding. `warnings` name what was left out.
    `interval` is that of `value` over rows, at 95%; the verb `evaluate` adds it.
    """

    task: str
    type: str
    metric: str
    value: float
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    rows: int = 0
    warnings: tuple[str, ...] = ()
    domain: str | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Sample:
    """Row-by-row inputs of one task's main metric, so that differences can be tested row by row.

    sts, pair        predicted: similarities, float64 [rows]       gold: scores, float64, or matches, bool [rows]
    classification   predicted: label codes, int64 [rows]          gold: label codes, int64 [rows]
    retrieval        predicted: the metric of each query, 0..1     gold: keys of query and documents, int64

    Two samples with the same gold are of the same rows.
    """

    type: str
    metric: str
    predicted: Array
    gold: Array

    @cached_property
    def row_values(self) -> Array:
        """Values of the rows whose mean is the metric; see `significance.row_values`."""
        return significance.row_values(self)


@dataclass(frozen=True)
class EmbeddingRequest:
    """Distinct texts that a model embeds for some tasks, by role."""

    embedder: Embedder
    texts: Mapping[Role, list[str]]

    @property
    def size(self) -> int:
        """Number of texts."""
        return sum(map(len, self.texts.values()))


@dataclass(frozen=True)
class EmbeddingStep:
    """How much of a request is embedded: its texts, and the share of the work."""

    texts: int
    share: float


@dataclass
class EmbeddingCache:
    """Vectors by model, role and text that evaluations share: each text is embedded once per model and role.

    Models are distinguished as objects, not by name. Models and vectors live as long as the cache does. `sections` are
    those of APIs and tables, by model: keys of their errors are relative to their section.
    """

    sections: dict[int, str] = field(default_factory=dict, repr=False)

    _vectors: dict[tuple[int, Role], tuple[Embedder, dict[str, int], Array]] = field(default_factory=dict, repr=False)
    _classifiers: dict[tuple[int, int], tuple[Embedder, Task, LogisticRegression]] = field(
        default_factory=dict, repr=False
    )

    def vectors(self, embedder: Embedder, texts: Sequence[str], role: Role) -> Array:
        """Vectors of the texts, float32 [texts, dim]; those that are not here yet are embedded."""
        missing = self.lacking(embedder, texts, role)
        if missing:
            with about(self.sections.get(id(embedder), "")):
                new_vectors = embedder.embed(missing, role)
            self.add(embedder, missing, role, new_vectors)
        _, rows, vectors = self._vectors.get((id(embedder), role), (embedder, {}, np.empty((0, 0), dtype=np.float32)))
        return vectors[[rows[text] for text in texts]]

    def lacking(self, embedder: Embedder, texts: Sequence[str], role: Role) -> list[str]:
        """Return the distinct texts whose vectors are not here yet."""
        entry = self._vectors.get((id(embedder), role))
        rows = {} if entry is None else entry[1]
        return [text for text in dict.fromkeys(texts) if text not in rows]

    def missing(self, request: EmbeddingRequest) -> EmbeddingRequest:
        """Return the part of a request whose vectors are not here yet."""
        missing_texts = {}
        for role, texts in request.texts.items():
            missing = self.lacking(request.embedder, texts, role)
            if missing:
                missing_texts[role] = missing
        return EmbeddingRequest(request.embedder, missing_texts)

    def add(self, embedder: Embedder, texts: Sequence[str], role: Role, new_vectors: Array) -> None:
        """Take the vectors of texts that are not here yet, float32 [texts, dim]."""
        new_vectors = np.asarray(new_vectors, dtype=np.float32)
        check_vectors(embedder, texts, new_vectors)
        key = (id(embedder), role)
        _, rows, vectors = self._vectors.get(key, (embedder, {}, new_vectors[:0]))
        for text in texts:
            rows[text] = len(rows)
        self._vectors[key] = (embedder, rows, np.concatenate([vectors, new_vectors]) if len(vectors) else new_vectors)

    def embed(self, missing: EmbeddingRequest) -> Iterator[EmbeddingStep]:
        """Embed a request of `missing`; yield every batch."""
        embedder = missing.embedder
        section = self.sections.get(id(embedder), "")
        characters = {role: sum(map(len, texts)) for role, texts in missing.texts.items()}
        done, share = 0, 0.0
        for role, texts in missing.texts.items():
            vectors = np.empty((len(texts), embedder.dim), dtype=np.float32)
            for batch in each_about(embedder.embed_batches(texts, role), section):
                vectors[batch.rows] = batch.embedding
                done += len(batch.rows)
                share += batch.work * characters[role] / max(1, sum(characters.values()))
                yield EmbeddingStep(done, share)
            self.add(embedder, texts, role, vectors)

    def classifier(self, embedder: Embedder, task: ClassificationTask) -> LogisticRegression:
        """Classifier fitted to the embedder's vectors of the task's training rows."""
        key = (id(embedder), id(task))
        if key not in self._classifiers:
            vectors = self.vectors(embedder, task.train_texts, task.role)
            self._classifiers[key] = (embedder, task, fit_classifier(vectors, task.train_labels))
        return self._classifiers[key][2]


def score_tasks(
    tasks: Sequence[Task],
    query: Embedder,
    document: Embedder | None = None,
    memo: EmbeddingCache | None = None,
    samples: dict[str, Sample] | None = None,
    mixed: bool = False,
) -> list[Score]:
    """Score one embedder, or a query and a document embedder, on every task, in order.

    `mixed` takes both embedders for every type of task (see above). `memo` keeps vectors between calls; `samples` is
    filled with every task's Sample by name.
    """
    if not tasks:
        raise DistilvecError("there is nothing to evaluate.", "Name at least one task in the suite.", key="suite")
    if memo is None:
        memo = EmbeddingCache()
    scores = []
    for task in tasks:
        score, sample = score_task(task, *embedders(task, query, document or query, mixed), memo)
        scores.append(score)
        if samples is not None:
            samples[task.name] = sample
    return scores


def requests(tasks: Sequence[Task], query: Embedder, document: Embedder, mixed: bool = False) -> list[EmbeddingRequest]:
    """List what the tasks need of their embedders: one entry for each model."""
    texts: dict[int, tuple[Embedder, dict[Role, dict[str, None]]]] = {}
    for task in tasks:
        for embedder, (role, task_texts) in zip(
            embedders(task, query, document, mixed), embedded_texts(task), strict=True
        ):
            by_role = texts.setdefault(id(embedder), (embedder, {}))[1]
            by_role.setdefault(role, {}).update(dict.fromkeys(task_texts))
    return [
        EmbeddingRequest(embedder, {role: list(distinct) for role, distinct in by_role.items()})
        for embedder, by_role in texts.values()
    ]


def embedders(task: Task, query: Embedder, document: Embedder, mixed: bool = False) -> tuple[Embedder, Embedder]:
    """Return the query and the document embedder of a task: the query embedder alone unless the task has documents."""
    return query, document if mixed or isinstance(task, RetrievalTask) else query


def score_task(
    task: Task, query: Embedder, document: Embedder, memo: EmbeddingCache, search: Search | None = None
) -> tuple[Score, Sample]:
    """Score of one task, main metric first, and its Sample.

    `search` finds the documents of a retrieval task; by default those that are most similar.
    """
    start = time.perf_counter()
    search = search or partial(top_k, similarity=document.similarity)
    match task:
        case ClassificationTask():
            shares, notes, predicted, gold = _score_classification(task, query, document, memo)
        case RetrievalTask():
            shares, notes, predicted, gold = _score_retrieval(task, query, document, memo, search)
        case _:
            shares, notes, predicted, gold = _score_pairs(task, query, document, memo)
    values = {name: 100 * share for name, share in shares.items()}
    main = next(iter(values))
    seconds = time.perf_counter() - start
    score = Score(task.name, task.type, main, values[main], values, seconds, len(gold), notes, task.domain)
    return score, Sample(task.type, main, predicted, gold)


def check_vectors(embedder: Embedder, texts: Sequence[str], vectors: Array) -> None:
    """Raise DistilvecError for vectors of a wrong shape, with NaN or with infinity."""
    if vectors.ndim != 2 or len(vectors) != len(texts):
        problem = f"an array of shape {vectors.shape} for {len(texts)} texts; expected a row each. Check its modules"
        raise DistilvecError(f"'{embedder.name}' gave {problem}.", key="model")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        problem = f"NaN or infinite numbers for {len(bad)} of {len(texts)} texts; the first is {texts[bad[0]][:80]!r}"
        raise DistilvecError(
            f"'{embedder.name}' gave {problem}.", "Check its weights, or compute in float32.", key="model"
        )


def fit_classifier(vectors: Array, labels: Sequence[str]) -> LogisticRegression:
    """Multinomial logistic regression on raw vectors: lbfgs, C = 1, intercept, at most 2000 iterations.

    Note: as in MTEB, vectors are not normalized. Other than in MTEB, the classifier is fitted once to all training
    rows.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # reported by _score_classification from n_iter_
        return LogisticRegression(C=1.0, max_iter=2000).fit(vectors, np.asarray(labels))


# -- by type of task: metrics (0..1, main one first), warnings, predicted and gold of the Sample --------------------

Result = tuple[dict[str, float], tuple[str, ...], Array, Array]


def _score_pairs(task: StsTask | PairTask, query: Embedder, document: Embedder, memo: EmbeddingCache) -> Result:
    if len(task.first) < 3:
        raise DistilvecError(
            f"the task has {len(task.first)} pairs.", "Add pairs: at least three are needed.", key="suite"
        )
    left, right = memo.vectors(query, task.first, task.role), memo.vectors(document, task.second, task.role)
    _check_dims(left.shape[1], right.shape[1], query, document)
    similarities = metrics.similarity_pairs(left, right, document.similarity)
    if isinstance(task, PairTask):
        values = {
            "average_precision": float(
                average_precision_score(task.positive, similarities)
            ),  # tied rows enter together
            "best_accuracy": metrics.best_accuracy(similarities, task.positive),
            "best_f1": metrics.best_f1(similarities, task.positive),
        }
        return values, (), similarities, task.positive
    values = metrics.correlations(similarities, task.gold)
    if all(np.isfinite(value) for value in values.values()):
        return values, (), similarities, task.gold
    note = "all similarities are equal, so there is no correlation; counted as 0"
    return dict.fromkeys(values, 0.0), (note,), similarities, task.gold


def _score_classification(
    task: ClassificationTask, query: Embedder, document: Embedder, memo: EmbeddingCache
) -> Result:
    classifier = memo.classifier(document, task)
    test = memo.vectors(query, task.test_texts, task.role)
    _check_dims(test.shape[1], classifier.n_features_in_, query, document)
    predicted = classifier.predict(test)
    gold = np.asarray(task.test_labels)
    steps = int(np.max(classifier.n_iter_))
    notes: tuple[str, ...] = ()
    if steps >= classifier.max_iter:
        notes = (f"the classifier stopped after {steps} iterations before it converged",)
    values = {
        "accuracy": float(np.mean(predicted == gold)),
        "macro_f1": float(f1_score(gold, predicted, average="macro", zero_division=0)),
    }
    labels = np.asarray(classifier.classes_)
    return values, notes, np.searchsorted(labels, predicted), np.searchsorted(labels, gold)


def _score_retrieval(
    task: RetrievalTask, query: Embedder, document: Embedder, memo: EmbeddingCache, search: Search
) -> Result:
    """Search, scored query by query. Note: a document without text is not embedded and ranks last."""
    queries, documents, filled = retrieval_vectors(task, query, document, memo)
    ranked = ranked_documents(task, queries, documents, filled, 100, search)
    gains = metrics.found_gains(ranked, len(documents), task.judged, task.gains)
    if task.own:
        gains[ranked == np.asarray(task.own)[:, None]] = 0
    judged_gains: list[list[float]] = [[] for _ in task.queries]
    for row, gain in zip(task.judged[:, 0].tolist(), task.gains.tolist(), strict=True):
        judged_gains[row].append(gain)
    ideal = np.array(list(zip_longest(*judged_gains, fillvalue=0.0))).T
    values = {
        "ndcg@10": metrics.ndcg(gains, ideal, 10),
        "recall@100": metrics.recall(gains, ideal, 100),
        "mrr@10": metrics.reciprocal_rank(gains, 10),
    }
    notes = [*task.warnings, *task.notes]
    empty = int(np.sum(~filled))
    if empty:
        notes.append(f"{empty} of {len(filled)} documents are empty and rank last")
    means = {name: float(by_query.mean()) for name, by_query in values.items()}
    return means, tuple(notes), values["ndcg@10"], row_keys(task.queries, task.documents)


def row_keys(texts: Sequence[Text], among: Sequence[Text] = ()) -> Array:
    """Return a number for each text, int64 [texts]: the same for the same texts among the same others."""
    shared = hashlib.blake2b(digest_size=16)
    for text in among:
        shared.update(repr(text).encode(errors="surrogatepass"))
    keys = [
        hashlib.blake2b(repr(text).encode(errors="surrogatepass"), digest_size=8, key=shared.digest()).digest()
        for text in texts
    ]
    return np.frombuffer(b"".join(keys), dtype="<i8").astype(np.int64)


def ranked_documents(
    task: RetrievalTask, queries: Array, documents: Array, filled: Array, count: int, search: Search
) -> Array:
    """Rows of the first documents of every query, int64 [queries, count]; a query does not find itself."""
    if not task.own:
        return search(queries, documents, count, ~filled)[0]
    return without_own(search(queries, documents, count + 1, ~filled)[0], task.own, count)


def retrieval_vectors(
    task: RetrievalTask, query: Embedder, document: Embedder, memo: EmbeddingCache
) -> tuple[Array, Array, Array]:
    """Vectors of queries and documents, and bool [documents]: has text. A document without text has a zero vector."""
    filled = np.array([bool(text.strip()) for text in task.documents])
    embedded = memo.vectors(document, [text for text in task.documents if text.strip()], "document")
    documents = np.zeros((len(filled), embedded.shape[1]), dtype=np.float32)
    documents[filled] = embedded
    queries = memo.vectors(query, task.queries, task.query_role)
    _check_dims(queries.shape[1], documents.shape[1], query, document)
    return queries, documents, filled


def _check_dims(queries: int, documents: int, query: Embedder, document: Embedder) -> None:
    if documents != queries:
        raise DistilvecError(
            f"'{query.name}' gives vectors of dim {queries}, '{document.name}' of dim {documents}; an asymmetric "
            "evaluation needs one space.",
            "Evaluate each model by itself, or give the student a Dense layer.",
            key="model",
        )
