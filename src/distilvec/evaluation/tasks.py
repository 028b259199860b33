"""Four kinds of local task as plain data. task_files.py reads them from files; they can be made in memory as well."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError

Array = np.ndarray[Any, Any]
Titles = Literal["always", "unless_repeated", "never"]  # where they are put before the texts of documents
OwnDocuments = Literal["same_text", "leave_out", "keep"]  # of a query that is a document itself
NEIGHBORS, KNOWN_ITEM = "index-neighbors", "index-known-item"  # tasks of stored texts (evaluation/stored.py)
OF_AN_INDEX = (NEIGHBORS, KNOWN_ITEM)  # made of an index itself, so that they count in no average


@dataclass(frozen=True)
class TaskFailure:
    """Problem of a task that could not be scored, or only in part. `column` is the model, if it concerns one."""

    task: str
    message: str
    column: str | None = None

    @property
    def text(self) -> str:
        """Message without the keys in brackets that it begins with."""
        return re.sub(r"^(\[[^\]\n]+\] )+", "", self.message)


@dataclass(frozen=True)
class StsTask:
    """Sentence pairs with a graded similarity. `gold` is float64 [rows], on any scale."""

    type: ClassVar[str] = "sts"
    name: str
    first: list[str]
    second: list[str]
    gold: Array
    role: Role = "document"
    domain: str | None = None


@dataclass(frozen=True)
class ClassificationTask:
    """Labelled texts: a classifier is fitted to the vectors of the training rows and scored on the test rows."""

    type: ClassVar[str] = "classification"
    name: str
    train_texts: list[str]
    train_labels: list[str]
    test_texts: list[str]
    test_labels: list[str]
    role: Role = "document"
    domain: str | None = None


@dataclass(frozen=True)
class PairTask:
    """Sentence pairs that match or do not. `positive` is bool [rows]."""

    type: ClassVar[str] = "pair"
    name: str
    first: list[str]
    second: list[str]
    positive: Array
    role: Role = "document"
    domain: str | None = None


@dataclass(frozen=True)
class RetrievalTask:
    """Queries, documents and judgements. Make it with `make_retrieval`, which checks and orders the parts.

    Documents are in descending order of their ids, trec_eval's order of equal scores. `judged` is int64 [pairs, 2],
    distinct (query row, document row); `gains` float64 [pairs], above 0 = relevant. `untitled` has the texts of
    documents that are embedded with their title. `own` has for each query the row of the document that is the query
    itself, which is not among its results; -1 for a query without one, nothing if no query has one.
    `warnings` are gaps in the judgements, `notes` what else a reader of the score should know.
    """

    type: ClassVar[str] = "retrieval"
    query_role: ClassVar[Role] = "query"
    name: str
    document_ids: list[str]
    documents: list[str]
    query_ids: list[str]
    queries: list[str]
    judged: Array
    gains: Array
    untitled: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    own: tuple[int, ...] = ()
    domain: str | None = None


@dataclass(frozen=True)
class StoredTask(RetrievalTask):
    """Retrieval with stored documents as queries, which have the role of documents (evaluation/stored.py)."""

    query_role: ClassVar[Role] = "document"


Task = StsTask | ClassificationTask | PairTask | RetrievalTask


def task_texts(task: Task) -> Iterator[str]:
    """Texts a task is scored on: test rows, queries, documents with and without title; no training rows."""
    if isinstance(task, ClassificationTask):
        yield from task.test_texts
    elif isinstance(task, RetrievalTask):
        yield from (*task.queries, *task.documents, *task.untitled)
    else:
        yield from (*task.first, *task.second)


def embedded_texts(task: Task) -> tuple[tuple[Role, list[str]], tuple[Role, list[str]]]:
    """Roles and texts of the query embedder and of the document embedder; empty documents are never embedded."""
    if isinstance(task, RetrievalTask):
        return (task.query_role, task.queries), ("document", [text for text in task.documents if text.strip()])
    if isinstance(task, ClassificationTask):
        return (task.role, task.test_texts), (task.role, task.train_texts)
    return (task.role, task.first), (task.role, task.second)


def make_retrieval(
    name: str,
    documents: Mapping[str, str],
    queries: Mapping[str, str],
    judgements: Mapping[tuple[str, str], float],
    untitled: Sequence[str] = (),
    origin: str = "",
    own: Collection[str] = (),
) -> RetrievalTask:
    """Retrieval task from texts by id and gains by (query id, document id).

    Queries without a relevant document (gain above 0) are left out: they have no nDCG. Those that are judged at all are
    counted in the task's `warnings`; the others belong to another split, whose queries are in the same file (BEIR).
    Judgements of unknown ids are left out and counted. `own`: ids of queries that are documents themselves.
    """
    known_pairs = dict[tuple[str, str], float]()
    answered = set[str]()  # queries with a relevant document
    for (query, document), gain in judgements.items():
        if query in queries and document in documents:
            known_pairs[query, document] = gain
            if gain > 0:
                answered.add(query)
    if not answered:
        if known_pairs:
            reason = "no pair has a score above 0"
        elif judgements:
            reason = f"none of {len(judgements)} pairs names known ids"
        else:
            reason = "there are no judgements"
        example = f" (first pair: {next(iter(judgements))})" if judgements else ""
        raise DistilvecError(
            f"{origin or name}: no query has a relevant document: {reason}{example}.",
            "Check that the ids match.",
            key="suite",
        )
    if not any(text.strip() for text in documents.values()):
        raise DistilvecError(
            f"{origin or name}: all {len(documents)} documents are empty. Expected texts in column text.", key="suite"
        )

    document_ids = sorted(documents, reverse=True)
    document_rows = {document: row for row, document in enumerate(document_ids)}
    query_ids = [query for query in queries if query in answered]
    query_rows = {query: row for row, query in enumerate(query_ids)}
    judged = []
    gains = []
    for (query, document), gain in known_pairs.items():
        if query in answered:
            judged.append((query_rows[query], document_rows[document]))
            gains.append(gain)

    warnings = []
    unknown = len(judgements) - len(known_pairs)
    if unknown:
        warnings.append(
            f"{unknown} of {len(judgements)} judgements name ids that are not in corpus or queries; left out"
        )
    judged_queries = {query for query, _ in judgements if query in queries}
    idle = len(judged_queries - answered)
    if idle:
        warnings.append(f"{idle} of {len(judged_queries)} judged queries have no relevant document; left out")

    notes = []
    own_rows = [document_rows[query] if query in own else -1 for query in query_ids]
    own_count = sum(row >= 0 for row in own_rows)
    if own_count:
        notes.append(
            f"{own_count} of {len(query_ids)} queries are documents themselves, which are not among their results"
        )
    return RetrievalTask(
        name,
        document_ids,
        [documents[document] for document in document_ids],
        query_ids,
        [queries[query] for query in query_ids],
        judged=np.array(judged, dtype=np.int64),
        gains=np.array(gains, dtype=np.float64),
        untitled=tuple(untitled),
        warnings=tuple(warnings),
        notes=tuple(notes),
        own=tuple(own_rows) if own_count else (),
    )
