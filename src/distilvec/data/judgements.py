"""Judgements of a search task: BEIR's tables, and the files of TREC, which have no header."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distilvec.core.errors import DistilvecError
from distilvec.data.readers import MAPPING, Row, extension, read_lines, read_rows
from distilvec.data.task_rows import id_text, need_columns, number_of

NAMES = ("query-id", "corpus-id", "score")
_OTHER_NAMES = {
    "query_id": "query-id", "qid": "query-id",
    "corpus_id": "corpus-id", "doc_id": "corpus-id", "doc-id": "corpus-id", "docid": "corpus-id",
    "relevance": "score", "rel": "score",
}  # fmt: skip
_FIX = "Give it these columns, or the four of TREC without a header."
_TABLES = (".jsonl", ".csv", ".parquet", MAPPING)  # columns by name, always with a header
_TREC = ("query-id", "iteration", "corpus-id", "score")


def read_judgements(path: Path) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield query id and document id, and the score, of every judgement.

    A table has the columns query-id, corpus-id and score. Other files have a judgement a line, with tabs or spaces
    between the fields: below a header, or without one those of BEIR's columns, or of TREC (query, iteration, document,
    score). Errors: DistilvecError with the line.
    """
    for where, row in _rows(path):
        need_columns(row, NAMES, where, _FIX)
        yield (id_text(row["query-id"]), id_text(row["corpus-id"])), number_of(row["score"], where, "score")


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    if extension(path).removesuffix(".gz") in _TABLES:
        for where, row in read_rows(path):
            yield where, {_OTHER_NAMES.get(name, name): value for name, value in row.items()}
        return
    names: tuple[str, ...] = ()
    for where, line in read_lines(path):
        if not line.strip():
            continue
        fields = line.strip("\r\n").split("\t") if "\t" in line else line.split()
        if not names:
            if not _is_number(fields[-1]):
                names = tuple(_OTHER_NAMES.get(name.strip(), name.strip()) for name in fields)
                need_columns(dict.fromkeys(names), NAMES, where, _FIX)
                continue
            names = _TREC if len(fields) == len(_TREC) else NAMES
        if len(fields) != len(names):
            problem = f"{where}: {len(fields)} fields; expected {', '.join(names)}."
            raise DistilvecError(problem, "Separate them by tabs or spaces.")
        yield where, dict(zip(names, fields, strict=True))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
