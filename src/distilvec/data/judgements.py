"""A search task in files: texts by id and judgements, in BEIR's form or in that of TREC, without a header."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from distilvec.core.errors import DistilvecError
from distilvec.data.readers import MAPPING, TABLES, Row, extension, read_lines, read_rows
from distilvec.data.task_rows import find_table, id_text, need_columns, number_of, shown_value, some_of, text_of

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


def judgements_file(folder: Path, split: str, qrels: str | None) -> Path:
    """The file of a folder's judgements: the one that is named, else the table `qrels`, else that of the split."""
    if qrels is not None:
        if (folder / qrels).is_file():
            return folder / qrels
        raise DistilvecError(f"{folder} has no judgements. Expected {os.path.relpath(folder / qrels, folder)}.")
    for place, stem in ((folder, "qrels"), (folder / "qrels", split)):
        file = find_table(place, stem) or place / f"{stem}.txt"
        if file.is_file():
            return file
    splits = sorted(path.name for path in (folder / "qrels").glob("*"))
    hint = f"; found {some_of(f'qrels/{name}' for name in splits)}" if splits else ""
    raise DistilvecError(
        f"{folder} has no judgements: expected qrels.tsv or qrels/{split}.tsv{hint}.",
        "Name the split, or the file with qrels.",
    )


def texts_by_id(folder: Path, stem: str) -> dict[str, tuple[str, str]]:
    """Title and text of every row of a corpus or queries file, by id."""
    file = find_table(folder, stem)
    if file is None:
        raise DistilvecError(f"{folder} has no {stem} file. Expected {stem} with an ending of {', '.join(TABLES)}.")
    texts: dict[str, tuple[str, str]] = {}
    for line, row in read_rows(file):
        key, title = row.get("id") if row.get("id") is not None else row.get("_id"), row.get("title")
        if not isinstance(key, (str, int, float)) or "text" not in row:
            raise DistilvecError(f"{line} needs columns id (or _id) and text; found {some_of(row)}.", "Add them.")
        if isinstance(title, (dict, list)):
            raise DistilvecError(f"{line} has {shown_value(title)} in column title. Expected a text.")
        key = id_text(key)
        if key in texts:
            raise DistilvecError(f"{line} repeats the id '{key}'. Ids must be distinct.")
        title, text = text_of(str(title or ""), line, "title"), text_of(row["text"], line, "text")
        texts[text_of(key, line, "id")] = (title, text)
    if not texts:
        raise DistilvecError(f"{file} holds no rows. Expected one a line.")
    return texts


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    if extension(path).removesuffix(".gz").removesuffix(".zst") in _TABLES:
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
