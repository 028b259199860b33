"""Scores a pair (query embedder, document embedder) on local tasks.

Standard evaluation passes one embedder, asymmetric evaluation two that share a space, such as a student for queries
and its teacher for documents. What each side embeds:

    sts, pair         query side: sentence1       document side: sentence2
    classification    query side: test rows       document side: the rows the classifier is fitted to
    retrieval         query side: queries         document side: documents

Only retrieval has roles of its own; the texts of the other types all get the task's `role` (document by default).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError
from distilvec.evaluation import metrics
from distilvec.evaluation.search import Search, top_k
from distilvec.evaluation.tasks import ClassificationTask, PairTask, RetrievalTask, StsTask, Task, TaskFailure

Array = np.ndarray[Any, Any]


class Embedder(Protocol):
    """A model that gives texts their vectors: float32 [texts, width], in the order of the texts, prompts put in front by role."""

    @property
    def name(self) -> str:
        """What messages call the model."""

    def embed(self, texts: Sequence[str], role: Role = "document") -> Array:
        """The vectors of the texts."""


@dataclass(frozen=True)
class Score:
    """One task's result. `value` is the figure of the main `metric`; all figures are times 100.

    `rows` counts what was scored (pairs, test texts, queries), `seconds` includes the embedding that was still to do.
    `warnings` say what was left out or undefined.
    """

    task: str
    type: str
    metric: str
    value: float
    metrics: dict[str, float]
    seconds: float
    rows: int
    warnings: tuple[str, ...] = ()
    domain: str | None = None


def read_score(entry: Mapping[str, Any]) -> Score:
    """A score from what `asdict` made of it and JSON kept."""
    return Score(**{**entry, "warnings": tuple(entry["warnings"])})


@dataclass(frozen=True)
class Sample:
    """What one task's main figure is computed from, row by row, so that differences can be tested by resampling rows.

    sts, pair        predicted: similarities, float64 [rows]       gold: scores, float64, or matches, bool [rows]
    classification   predicted: label codes, int64 [rows]          gold: label codes, int64 [rows]
    retrieval        predicted: the metric of each query, 0..1     gold: ones
    """

    type: str
    metric: str
    predicted: Array
    gold: Array


@dataclass
class EmbeddingCache:
    """Vectors, by model, role and text, that evaluations share: each text is embedded once a model and role.

    Models are told apart as objects, so two of one name do not mix; a model whose weights change needs a new Memo.
    The models and their vectors live as long as the Memo does.
    """

    _vectors: dict[tuple[int, Role], tuple[Embedder, dict[str, int], Array]] = field(default_factory=dict, repr=False)
    _classifiers: dict[tuple[int, int], tuple[Embedder, Task, LogisticRegression]] = field(
        default_factory=dict, repr=False
    )

    def vectors(self, embedder: Embedder, texts: Sequence[str], role: Role) -> Array:
        """The texts' vectors, float32 [texts, width]. Errors: DistilvecError as `embed_checked`."""
        key = (id(embedder), role)
        _, rows, known = self._vectors.get(key, (embedder, {}, np.empty((0, 0), dtype=np.float32)))
        if missing := [text for text in dict.fromkeys(texts) if text not in rows]:
            found = embed_checked(embedder, missing, role)
            known = np.concatenate([known, found]) if rows else found
            rows |= dict(zip(missing, range(len(rows), len(known)), strict=True))
            self._vectors[key] = (embedder, rows, known)
        return known[[rows[text] for text in texts]]

    def classifier(self, embedder: Embedder, task: ClassificationTask) -> LogisticRegression:
        """The classifier fitted to the task's training rows as the embedder sees them."""
        key = (id(embedder), id(task))
        if key not in self._classifiers:
            vectors = self.vectors(embedder, task.train_texts, task.role)
            self._classifiers[key] = (embedder, task, fit_classifier(vectors, task.train_labels))
        return self._classifiers[key][2]


def evaluate(
    tasks: Sequence[Task],
    query: Embedder,
    document: Embedder | None = None,
    memo: EmbeddingCache | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    problems: list[TaskFailure] | None = None,
    samples: dict[str, Sample] | None = None,
) -> list[Score]:
    """Score one embedder, or a query and a document embedder, on every task, in order.

    `memo` keeps vectors between calls; `progress` is called with (task's name, tasks done, all tasks) before each task
    and once at the end. `samples` is filled with every task's Sample by name. A task that cannot be scored is added to
    `problems`, and the others are scored; without `problems` it is an error.
    Errors: DistilvecError for no tasks, an embedder's faulty vectors, or two different widths.
    """
    if not tasks:
        raise DistilvecError(
            "[suite] there is nothing to evaluate: the list of tasks is empty. Name at least one task in the suite."
        )
    memo, document = memo if memo is not None else EmbeddingCache(), document if document is not None else query
    scores = []
    for done, task in enumerate(tasks):
        if progress is not None:
            progress(task.name, done, len(tasks))
        try:
            score, sample = score_task(task, query, document, memo)
        except DistilvecError as error:
            if problems is None:
                raise
            problems.append(TaskFailure(task.name, str(error)))
            continue
        scores.append(score)
        if samples is not None:
            samples[task.name] = sample
    if progress is not None:
        progress(tasks[-1].name, len(tasks), len(tasks))
    return scores


def score_task(
    task: Task, query: Embedder, document: Embedder, memo: EmbeddingCache, search: Search = top_k
) -> tuple[Score, Sample]:
    """One task's Score and what it was computed from; the main figure is the first of the metrics.

    `search` finds the documents of a retrieval task (by cosine unless another one is given).
    """
    start = time.perf_counter()
    match task:
        case StsTask():
            figures, notes, predicted, gold = _score_sts(task, query, document, memo)
        case PairTask():
            figures, notes, predicted, gold = _score_pairs(task, query, document, memo)
        case ClassificationTask():
            figures, notes, predicted, gold = _score_classification(task, query, document, memo)
        case RetrievalTask():
            figures, notes, predicted, gold = _score_retrieval(task, query, document, memo, search)
    figures = {name: 100 * value for name, value in figures.items()}
    main = next(iter(figures))
    seconds = time.perf_counter() - start
    score = Score(task.name, task.type, main, figures[main], figures, seconds, len(gold), notes, task.domain)
    return score, Sample(task.type, main, predicted, gold)


def embed_checked(embedder: Embedder, texts: Sequence[str], role: Role) -> Array:
    """The embedder's vectors, float32 [texts, width]; DistilvecError if their shape is wrong or one is not finite."""
    vectors = np.asarray(embedder.embed(texts, role), dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise DistilvecError(
            f"[model] '{embedder.name}' gave an array of shape {vectors.shape} for {len(texts)} texts; expected one row a text."
        )
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise DistilvecError(
            f"[model] '{embedder.name}' gave vectors with NaN or infinite numbers for {len(bad)} of {len(texts)} texts; the first is "
            f"{texts[bad[0]][:80]!r}. Check its weights, or compute in float32."
        )
    return vectors


def fit_classifier(vectors: Array, labels: Sequence[str]) -> LogisticRegression:
    """Multinomial logistic regression on raw vectors: lbfgs, C = 1, intercept, at most 2000 iterations.

    Note: vectors are neither normalised nor standardised, as in MTEB's classification tasks; other than there, the
    classifier is fitted once to the whole training split instead of ten times to a few rows a label.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # reported by _score_classification from n_iter_
        return LogisticRegression(C=1.0, max_iter=2000).fit(vectors, np.asarray(labels))


# -- one function a type of task: figures (0..1, main one first), warnings, and the Sample's predicted and gold --------

Result = tuple[dict[str, float], tuple[str, ...], Array, Array]


def _score_sts(task: StsTask, query: Embedder, document: Embedder, memo: EmbeddingCache) -> Result:
    similarities = _similarities(task.first, task.second, task.role, query, document, memo)
    figures = {
        "spearman": metrics.spearman(similarities, task.gold),
        "pearson": metrics.pearson(similarities, task.gold),
    }
    if not all(np.isfinite(value) for value in figures.values()):
        note = "all similarities are equal, so there is no correlation; counted as 0"
        return dict.fromkeys(figures, 0.0), (note,), similarities, task.gold
    return figures, (), similarities, task.gold


def _score_pairs(task: PairTask, query: Embedder, document: Embedder, memo: EmbeddingCache) -> Result:
    similarities = _similarities(task.first, task.second, task.role, query, document, memo)
    figures = {
        "average_precision": metrics.average_precision(similarities, task.positive),
        "best_accuracy": metrics.best_accuracy(similarities, task.positive)[0],
        "best_f1": metrics.best_f1(similarities, task.positive)[0],
    }
    return figures, (), similarities, task.positive


def _score_classification(
    task: ClassificationTask, query: Embedder, document: Embedder, memo: EmbeddingCache
) -> Result:
    classifier = memo.classifier(document, task)
    test = memo.vectors(query, task.test_texts, task.role)
    _same_width(classifier.n_features_in_, test.shape[1], query, document)
    predicted, gold = classifier.predict(test), np.asarray(task.test_labels)
    reached = int(np.max(classifier.n_iter_))
    notes = (
        (f"the classifier stopped after {reached} iterations before it converged",)
        if reached >= classifier.max_iter
        else ()
    )
    figures = {"accuracy": metrics.accuracy(predicted, gold), "macro_f1": metrics.macro_f1(predicted, gold)}
    labels = np.asarray(classifier.classes_)
    return figures, notes, np.searchsorted(labels, predicted), np.searchsorted(labels, gold)


def _score_retrieval(
    task: RetrievalTask, query: Embedder, document: Embedder, memo: EmbeddingCache, search: Search
) -> Result:
    """Search, scored query by query. Note: a document without text is not embedded; it stands last in every ranking."""
    queries, documents, filled = retrieval_vectors(task, query, document, memo)
    found, _ = search(queries, documents, 100, ~filled)
    gains = metrics.found_gains(found, len(documents), task.judged, task.gains)
    ideal = _ideal_gains(task)
    figures = {  # one value a query
        "ndcg@10": metrics.ndcg(gains, ideal, 10),
        "recall@100": metrics.recall(gains, ideal, 100),
        "mrr@10": metrics.reciprocal_rank(gains, 10),
    }
    empty = int(np.sum(~filled))
    notes = (f"{empty} of {len(filled)} documents are empty and rank last",) if empty else ()
    means = {name: float(np.mean(values)) for name, values in figures.items()}
    return means, (*task.warnings, *notes), figures["ndcg@10"], np.ones(len(queries))


def retrieval_vectors(
    task: RetrievalTask, query: Embedder, document: Embedder, memo: EmbeddingCache
) -> tuple[Array, Array, Array]:
    """Vectors of queries and of documents, and which documents have text; one without stands for zero and is not embedded.

    Errors: DistilvecError for two widths.
    """
    filled = np.array([bool(text.strip()) for text in task.documents])
    known = memo.vectors(
        document, [text for text, kept in zip(task.documents, filled, strict=True) if kept], "document"
    )
    documents = np.zeros((len(filled), known.shape[1]), dtype=np.float32)
    documents[filled] = known
    queries = memo.vectors(query, task.queries, "query")
    _same_width(documents.shape[1], queries.shape[1], query, document)
    return queries, documents, filled


def _ideal_gains(task: RetrievalTask) -> Array:
    """Every query's gains, padded with 0, float64 [queries, most judged]."""
    rows = task.judged[:, 0]
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=len(task.queries))
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    ideal = np.zeros((len(task.queries), int(counts.max())))
    ideal[rows[order], places] = task.gains[order]
    return ideal


def _similarities(
    first: list[str], second: list[str], role: Role, query: Embedder, document: Embedder, memo: EmbeddingCache
) -> Array:
    if len(first) < 3:
        raise DistilvecError(f"[suite] the task has {len(first)} pairs. At least three are needed to score anything.")
    left, right = memo.vectors(query, first, role), memo.vectors(document, second, role)
    _same_width(right.shape[1], left.shape[1], query, document)
    return metrics.cosine_pairs(left, right)


def _same_width(documents: int, queries: int, query: Embedder, document: Embedder) -> None:
    if documents != queries:
        raise DistilvecError(
            f"[model] '{query.name}' gives vectors of width {queries}, '{document.name}' of width {documents}; an asymmetric evaluation "
            "needs two models of one space. Evaluate each alone, or train the student with a Dense layer to the teacher's width."
        )
