"""Queries with the stored documents that answer them: clicks, labelled rows, judgements; and their split by query."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.core.artifacts import META, open_column
from distilvec.core.errors import DistilvecError
from distilvec.core.log import log_once
from distilvec.data.corpus import LONGEST_TEXT, Corpus
from distilvec.data.corpus_files import Rows, clean_text
from distilvec.data.judgements import judgements_file, read_judgements, texts_by_id
from distilvec.data.labelled_rows import chosen_rows
from distilvec.data.row_splits import TRAIN, grouped
from distilvec.data.task_rows import find_table, id_text, loose_text, number_of, some_of, text_of

# The first name that a file has is taken, in any case of letters
NAMES = {
    "query": ("query", "anchor", "question", "search"),
    "id": ("id", "doc_id", "document_id", "doc-id", "document-id", "docid", "corpus-id", "corpus_id"),
    "document": ("positive", "document"),
    "negative": ("negative",),
    "count": ("count", "clicks"),
    "position": ("position", "rank"),
    "time": ("time", "timestamp", "date"),
}
VALIDATION_SHARE = 5  # one query in five
MOST_VALIDATED = 1000  # queries: each searches the whole index twice


@dataclass(frozen=True)
class PairRow:
    """A query and a document, by its id or its text: clicked `count` times at `position`, or judged to be no answer.

    `stored` is the document's row of the index, once it is known.
    """

    where: str
    query: str
    document: str
    is_answer: bool = True
    count: float = 1.0
    position: float | None = None
    time: float | None = None
    stored: int = -1


@dataclass(frozen=True)
class PairRows:
    """The rows of a file or a folder.

    `by_id`: their documents are ids of stored rows, else the stored texts. `are_clicks`: they are no judgements.
    """

    rows: list[PairRow]
    by_id: bool
    are_clicks: bool


@dataclass
class AnsweredQuery:
    """A query with the stored rows that answer it, and the rows that the file names as no answers of it.

    `clicks` sums the counts of each answer, each count over the chance that its position is looked at, where that is
    known.
    """

    text: str
    clicks: dict[int, float] = field(default_factory=dict)
    rejected: list[int] = field(default_factory=list)

    @property
    def negatives(self) -> list[int]:
        """What somebody clicked answers the query, also where another row says that it does not."""
        return [row for row in dict.fromkeys(self.rejected) if row not in self.clicks]


@dataclass(frozen=True)
class PairTable:
    """The pairs of some queries as columns.

    `queries` int64 [pairs] number the queries, `documents` int64 [pairs] are rows of the index, `clicks` float64
    [pairs].
    """

    queries: Rows
    documents: Rows
    clicks: npt.NDArray[np.float64]

    @classmethod
    def of(cls, queries: Sequence[AnsweredQuery]) -> PairTable:
        """The pairs of each query in its order."""
        sizes = [len(query.clicks) for query in queries]
        documents = [document for query in queries for document in query.clicks]
        clicks = [count for query in queries for count in query.clicks.values()]
        return cls(
            np.repeat(np.arange(len(queries)), sizes),
            np.array(documents, dtype=np.int64),
            np.array(clicks, dtype=np.float64),
        )

    def chosen(self, is_chosen: npt.NDArray[np.bool_]) -> PairTable:
        """Some of the pairs."""
        return PairTable(self.queries[is_chosen], self.documents[is_chosen], self.clicks[is_chosen])

    def __len__(self) -> int:
        return len(self.queries)


# -- rows ------------------------------------------------------------------------------------------------------------


def read_pairs(path: Path, columns: Mapping[Any, str]) -> PairRows:
    """Read clicks or labelled pairs.

    A file has a query and the id of a stored row; or a query and a stored text (query and document, or anchor,
    positive and perhaps negative). A folder has queries and qrels in BEIR's form; a judgement of 0 is no answer.
    `columns` are the file's names of its columns.

    Errors: DistilvecError for a file without these columns, and for a cell that is no text, number or time.
    """
    if path.is_dir() and find_table(path, "queries") is not None:
        return PairRows(list(_judged_rows(path)), by_id=True, are_clicks=False)

    chosen: dict[str, str] = {}

    def choose(names: list[str]) -> Sequence[str]:
        chosen.update(_choose_columns(names, columns, path))
        return list(chosen.values())

    rows: list[PairRow] = []
    for where, row in chosen_rows(path, choose):
        rows += _pair_rows(where, {part: row.get(name) for part, name in chosen.items()}, chosen)
    by_id = "id" in chosen
    return PairRows(rows, by_id, are_clicks=by_id or not {"count", "position"}.isdisjoint(chosen))


def _choose_columns(names: Sequence[str], stated: Mapping[Any, str], path: Path) -> dict[str, str]:
    """The file's columns by what they are: those that are stated, else those with a usual name."""
    names_by_lower = {name.lower(): name for name in names}
    chosen = dict(stated)
    for part, usual_names in NAMES.items():
        for usual_name in usual_names:
            if part not in chosen and usual_name in names_by_lower:
                chosen[part] = names_by_lower[usual_name]

    ids = [names_by_lower[name] for name in NAMES["id"] if name in names_by_lower]
    if "id" in chosen and "id" not in stated and len(ids) > 1:
        log_once(f"{path}: '{chosen['id']}' is read as the id of the stored row, and {some_of(ids[1:])} is not")
    if "document" in chosen and "id" in chosen:
        # The id in a log is exact; beside a positive text an id is that of the file's row
        is_of_row = "document" in stated or chosen["document"].lower() == "positive"
        del chosen["id" if is_of_row and "id" not in stated else "document"]
    absent = [name for name in stated.values() if name not in names]
    if absent or "query" not in chosen or not {"id", "document"} & chosen.keys():
        expected = some_of(absent) or "query and id (of a stored row), query and document, or anchor and positive"
        raise DistilvecError(
            f"{path} has the columns {some_of(names)}.",
            f"Expected {expected}; name others with pairs.columns={{query: NAME, id: NAME}}.",
        )
    return chosen


def _pair_rows(where: str, cells: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[PairRow]:
    """The pair of a row, and the pair that it names as no answer."""
    query = clean_text(text_of(cells["query"], where, names["query"]), LONGEST_TEXT)
    count, position, time = cells.get("count"), cells.get("position"), cells.get("time")
    clicks = 1.0 if count is None else number_of(count, where, names["count"])
    rank = None if position is None else number_of(position, where, names["position"])
    moment = None if time in (None, "") else _time_of(time, where)

    by_id = "id" in names
    for part, is_answer in (("id" if by_id else "document", True), ("negative", False)):
        document = cells.get(part)
        if not is_answer and document in (None, ""):
            continue
        if by_id:
            document = id_text(document)  # an empty cell is no stored row's id: it is counted with those
        else:
            document = clean_text(text_of(document, where, names[part]), LONGEST_TEXT)
        yield PairRow(where, query, document, is_answer, clicks, rank, moment)


def _judged_rows(folder: Path) -> Iterator[PairRow]:
    """The judgements of a folder in BEIR's form, those of the training rows where there are several splits."""
    queries = texts_by_id(folder, "queries")
    file = judgements_file(folder, TRAIN, None)
    for (query, document), score in read_judgements(file):
        _, text = queries.get(query, ("", ""))  # a row without a query is left out, and counted
        text = clean_text(text, LONGEST_TEXT)
        yield PairRow(str(file), text, document, is_answer=score > 0)


def _time_of(value: Any, where: str) -> float:
    """Seconds since 1970 of a number, a date, or a text in the form of ISO 8601; without a zone in UTC.

    Of texts of digits alone only those of 8 are dates: 1723112520743 are milliseconds, and no time in 1723.
    """
    if isinstance(value, str) and not (value.strip().isdigit() and len(value.strip()) != 8):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return number_of(value, where, "time")
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return number_of(value, where, "time")


# -- the split -------------------------------------------------------------------------------------------------------


def split_rows(rows: Sequence[PairRow], seed: int) -> tuple[list[PairRow], list[PairRow]]:
    """Rows to train on and rows to decide by: those of one query in five, equal but for case and white space.

    Where rows have a time, these are the queries that came up last, and what was clicked from the first of them on is
    in neither unless its query decides. Else they are drawn by the seed.
    Errors: DistilvecError if no query is left to train on.
    """
    groups = grouped([loose_text(row.query) for row in rows])
    answered: list[int] = []
    first_times: list[float] = []
    for number, group in enumerate(groups):
        members = [rows[row] for row in group]
        first_times.append(min(member.time or 0.0 for member in members))
        if any(member.is_answer for member in members):  # a query that nothing answers decides nothing
            answered.append(number)
    count = min(max(len(answered) // VALIDATION_SHARE, 1), MOST_VALIDATED)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(answered).tolist()
    order.sort(key=lambda number: first_times[number])  # stable: without times it is as drawn
    validated = set(order[-count:])
    is_timed = any(row.time is not None for row in rows)
    cut = min((first_times[number] for number in validated), default=0.0)

    train: list[PairRow] = []
    validation: list[PairRow] = []
    for number, group in enumerate(groups):
        for row in (rows[index] for index in group):
            if number in validated:
                validation.append(row)
            elif not is_timed or (row.time or 0.0) < cut:
                train.append(row)
    if not any(row.is_answer for row in train):
        raise DistilvecError(
            f"found {len(answered):,} queries with an answer; none is left to train on beside those to decide by.",
            "Give at least 2, better some hundred; with times, at several times.",
        )
    return train, validation


def gather(rows: Sequence[PairRow], propensity: Sequence[float] | None) -> list[AnsweredQuery]:
    """Gather the rows of each query, equal but for case and white space; queries that nothing answers are left out.

    `propensity`: how often positions 1, 2, ... are looked at; the last holds for all further ones.
    Errors: DistilvecError for a row without a position, if the propensity is known.
    """
    queries: dict[str, AnsweredQuery] = {}
    for row in rows:
        query = queries.setdefault(loose_text(row.query), AnsweredQuery(row.query))
        if not row.is_answer:
            query.rejected.append(row.stored)
            continue
        chance = 1.0 if propensity is None else _look_chance(row, propensity)
        query.clicks[row.stored] = query.clicks.get(row.stored, 0.0) + row.count / chance
    return [query for query in queries.values() if query.clicks]


def _look_chance(row: PairRow, propensity: Sequence[float]) -> float:
    """The chance that somebody looks at the row's position."""
    if row.position is None or row.position < 1:
        problem = f"{row.where}: no position, or one before the first (1)."
        raise DistilvecError(problem, "Give the position of each click, or no propensity.", key=".propensity")
    return propensity[min(int(row.position), len(propensity)) - 1]


def capped(documents: Rows, most: int, seed: int) -> npt.NDArray[np.bool_]:
    """Say which pairs are trained on: at most `most` of one document, int64 [pairs], drawn by the seed."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(documents))
    counts: Counter[int] = Counter()
    is_kept = np.zeros(len(documents), dtype=np.bool_)
    for pair, document in zip(order.tolist(), documents[order].tolist(), strict=True):
        is_kept[pair] = counts[document] < most
        counts[document] += 1
    return is_kept


# -- stored ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairCounts:
    """What was read of a file: pairs and queries to train on, queries to decide by, and what was left out.

    `capped`: pairs beyond `most` of one document; `later`: rows that are not before all queries to decide by;
    `left_out`: rows that say nothing of this index, the first of them in `example`. `repeats_search`: they are clicks
    on an old search, which do not count by the chance that their position is looked at.
    """

    pairs: int
    queries: int
    validation_queries: int
    capped: int
    most: int
    later: int
    left_out: int
    example: str
    repeats_search: bool

    @property
    def line(self) -> str:
        """What was read, in words."""
        parts = [f"{self.pairs:,} pairs of {self.queries:,} queries to train on"]
        parts.append(f"{self.validation_queries:,} queries to decide by")
        if self.capped:
            parts.append(f"left out: {self.capped:,} pairs beyond {self.most:,} of one document")
        if self.later:
            parts.append(f"left out: {self.later:,} later clicks on other queries")
        if self.left_out:
            parts.append(f"rows left out: {self.left_out:,}, such as {self.example}")
        return "; ".join(parts)


class StoredPairs:
    """Pairs with the vectors of their documents, made by `load_pairs` (pipeline/pairs.py), or opened from its folder.

    `corpus` has the queries, those that are trained on first. `queries` [pairs] are rows of it and `answers` [pairs]
    rows of `vectors` float16 [candidates, dim]; `weights` float32 [pairs] have the mean 1. `negatives` [pairs, n] are
    candidates that may be negatives of a pair, -1 for none; `is_stated` tells those that the file names.
    `log_frequency` float32 [candidates]: of a document among the trained pairs, 0 at its mean. `codes` are the sorted
    numbers query x candidates + candidate of all answers of trained queries, also of those beyond the most of a
    document, and of what is stored as the same document as an answer (SAME_DOCUMENT).
    `validation` [pairs, 2] are rows of the corpus and numbers of the index's documents; `is_seen` [pairs]: that
    document is trained on.
    Errors: OSError, ValueError, KeyError or TypeError for a folder that is missing, incomplete or damaged.
    """

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.fingerprint: str = meta["fingerprint"]
        self.counts = PairCounts(**meta["counts"])
        self.corpus = Corpus(folder / "corpus")
        columns = {name: open_column(folder / f"{name}.npy") for name in COLUMNS}
        self.queries: Rows = columns["queries"]
        self.answers: Rows = columns["answers"]
        self.weights: npt.NDArray[np.float32] = columns["weights"]
        self.negatives: Rows = columns["negatives"].reshape(len(self.queries), -1)
        self.is_stated: npt.NDArray[np.bool_] = columns["is_stated"].reshape(self.negatives.shape)
        self.log_frequency: npt.NDArray[np.float32] = columns["log_frequency"]
        self.vectors: npt.NDArray[np.float16] = columns["vectors"].reshape(len(self.log_frequency), -1)
        self.codes: Rows = columns["codes"]
        self.validation: Rows = columns["validation"].reshape(-1, 2)
        self.is_seen: npt.NDArray[np.bool_] = columns["is_seen"]

    def __len__(self) -> int:
        return len(self.queries)

    def are_answers(self, queries: Rows, candidates: Rows) -> npt.NDArray[np.bool_]:
        """Say which candidates [candidates] are answers of which queries [queries]: bool [queries, candidates].

        What is stored as the same document as an answer is one, too.
        """
        codes = queries[:, None] * len(self.log_frequency) + candidates
        places = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return np.asarray(self.codes[places] == codes)


COLUMNS = (
    "queries", "answers", "weights", "negatives", "is_stated", "log_frequency", "vectors", "codes", "validation",
    "is_seen",
)  # fmt: skip
