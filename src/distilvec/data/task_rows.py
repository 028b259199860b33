"""Rows of tables, with the columns that a task needs, and their cells as texts, labels and scores.

Every row comes with its place, "FILE, line N", which begins each error message.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from distilvec.core.errors import DistilvecError
from distilvec.data.readers import MAPPING, TABLES, Row, extension, is_saved_dataset, read_rows

LocatedRow: TypeAlias = tuple[str, Row]
# How 0 and 1 are written for a class that a text has not, or has, by formats and by pandas
_MARKS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


@dataclass(frozen=True)
class TableOptions:
    """The part of a table that is a task.

    `split`; `subset`, the values of column `subset` to keep (None = all); `columns` of other names than the task's, as
    {task's name: file's name}.
    """

    split: str = "test"
    subset: tuple[str, ...] | None = None
    columns: Mapping[str, str] | None = None


def find_table(folder: Path, stem: str) -> Path | None:
    """The table `stem` in a folder, None if there is none; DistilvecError if there are several."""
    paths = [folder / (stem + ending) for ending in (*TABLES, MAPPING)]
    tables = [path for path in paths if path.is_file()]
    if len(tables) > 1:
        names = some_of(path.name for path in tables)
        raise DistilvecError(f"{folder}: several files for '{stem}': {names}.", "Keep one of them.")
    return tables[0] if tables else None


def table_rows(path: Path, options: TableOptions, needed: Sequence[str]) -> list[LocatedRow]:
    """The rows of a split and its subsets with their places, columns renamed, of every needed column and no other.

    `path` is a file whose rows may have a column `split` (without the column every row belongs to the split), or a
    folder with one file a split (`test.jsonl`, `train.csv`, ...) or a single table.
    Errors: DistilvecError if the split or a subset is missing (it lists those that exist), or a row has no split.
    """
    names = ", ".join(f"{name}: ITS_NAME" for name in needed)
    fix = f"Name yours with columns: {{{names}}}."
    file_names = {name: name for name in needed} | dict(options.columns or {})
    needed_of_file = list(file_names.values())
    about_rows = ["split"] if options.subset is None else ["split", "subset"]
    file = split_file(path, options)

    def choose(names: list[str]) -> Collection[str]:
        need_columns(dict.fromkeys(names), needed_of_file, str(file), fix)
        return {name for name in (*needed_of_file, *about_rows) if name in names}

    rows = []
    for where, row in read_rows(file, choose):
        rows.append((where, only_columns(row, needed_of_file, about_rows)))
    if not rows:
        raise DistilvecError(f"{path}: no rows. Expected the rows of split '{options.split}'.")
    table = str(path)
    if any("split" in row for _, row in rows):
        for where, row in rows:
            if row.get("split") in (None, ""):
                problem = f"{where}: no split, though other rows have one."
                raise DistilvecError(problem, "Name the split of every row.")
        rows = _select(rows, "split", (options.split,), table)
    if options.subset is not None:
        rows = _select(rows, "subset", options.subset, table)

    for number, (where, row) in enumerate(rows):
        need_columns(row, needed_of_file, where, fix)
        rows[number] = (where, {name: row[file_name] for name, file_name in file_names.items()})
    return rows


def split_file(path: Path, options: TableOptions) -> Path:
    """The file with the rows of a split: `path` itself, or the split's file or the only table of a folder.

    A folder of save_to_disk counts as a file.

    Errors: DistilvecError if a folder has no such file.
    """
    if is_saved_dataset(path / options.split):
        return path / options.split
    return _split_file(path, options) if path.is_dir() and not is_saved_dataset(path) else path


def need_columns(row: Row, needed: Sequence[str], where: str, fix: str = "Rename the file's columns.") -> None:
    """DistilvecError with the missing columns and how to fix it."""
    missing = [name for name in needed if name not in row]
    if missing:
        problem = f"no column {some_of(missing)}; expected {', '.join(needed)}, found {some_of(row)}."
        raise DistilvecError(f"{where} has {problem}", fix)


def only_columns(row: Row, needed: Sequence[str], optional: Sequence[str] = ()) -> Row:
    """The row with these columns alone: others, such as vectors, would fill the memory.

    A row that lacks a needed column stays whole, since messages list the columns that it has.
    """
    if any(name not in row for name in needed):
        return row
    return {name: row[name] for name in (*needed, *optional) if name in row}


def column_texts(rows: Sequence[LocatedRow], column: str) -> list[str]:
    """The texts of a column."""
    return [text_of(row[column], where, column) for where, row in rows]


def text_of(value: Any, where: str, column: str) -> str:
    """A cell as text; DistilvecError for anything else, and for text that is not Unicode."""
    if not isinstance(value, str):
        raise _unexpected(value, where, column, "a text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            problem = f"the text in column {column} is not Unicode ({error.reason} at {error.start})"
            raise DistilvecError(f"{where}: {problem}.", "Fix the text.") from None
    return value


def loose_text(text: str) -> str:
    """What two texts share if they differ in case and white space alone; `loose_key` (data/corpus.py) is its hash.

    It is here because that module imports torch, which takes seconds.
    """
    return " ".join(text.casefold().split())


def id_text(value: object) -> str:
    """An id as text: 3, 3.0, "3" and b"3" are the same id, as the file formats write them differently."""
    value = _python_value(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        content = bytes(value)
        try:
            value = content.decode("utf-8")
        except UnicodeDecodeError:
            return content.hex()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def row_id(value: object, number: int) -> str:
    """The id of a stored row as text; a row without an id has its number."""
    return str(number) if value is None else id_text(value)


def document_name(value: object) -> str | None:
    """The name of the document that a stored row is a part of, as text; None for a row that names none."""
    return None if value is None or value == "" else id_text(value)


def number_of(value: Any, where: str, column: str) -> float:
    """A cell as a finite number; DistilvecError for anything else."""
    value = _python_value(value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool):
        raise _unexpected(value, where, column, "a finite number")
    return number


def label_of(value: Any, where: str) -> str:
    """A label as text: 1, 1.0, True and "1" are the same label, as the file formats write them differently."""
    value = _python_value(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        value = value.strip()
    if value is None or value == "" or not isinstance(value, (str, int)):
        raise _unexpected(value, where, "label", "a text or a whole number")
    if isinstance(value, bool):
        return str(int(value))
    return text_of(str(value), where, "label")


def labels_of(value: Any, where: str, classes: Sequence[str] | None = None) -> tuple[str, ...]:
    """The classes of a text, sorted: a list, or a text that is a JSON list, as in CSV; it may be empty.

    `classes`: those of lists that have 0 or 1 for each of them; see `classes_of_marks`.
    """
    labels = _label_list(value, where)
    if classes is not None:
        return marked_classes(labels, where, classes)
    return tuple(sorted({label_of(label, where) for label in labels}))


def classes_of_marks(cells: Iterable[tuple[str, Any]]) -> list[str] | None:
    """The classes "0" to "n-1" where every row has a list of n zeros and ones; None for lists of labels.

    Numbers of classes are such lists as well where all of them are 0 and 1. They are told apart by what a list of
    labels cannot be: [0, 1, 0] would repeat a label, and [0, 1] on every row would be one class.
    Errors: DistilvecError for lists that could be both.
    """
    lengths = set()
    is_repeated = False
    is_boolean = False
    where = None
    for where, cell in cells:
        labels = _label_list(cell, where)
        if any(not isinstance(label, (bool, int, float)) or label not in (0, 1) for label in labels):
            return None
        lengths.add(len(labels))
        is_repeated = is_repeated or len({*labels}) < len(labels)
        is_boolean = is_boolean or any(isinstance(label, (bool, float)) for label in labels)
    if where is None or lengths == {0}:
        return None
    may_be_marks = len(lengths) == 1 and (is_boolean or lengths != {1})
    if may_be_marks:
        return [str(number) for number in range(lengths.pop())]
    if is_repeated or is_boolean or lengths == {1}:
        problem = f"{where}: are the lists of 0 and 1 numbers of classes, or has each class its place?"
        raise DistilvecError(problem, 'Write the names of the classes, such as ["billing", "refund"].')
    return None


def marked_classes(marks: Sequence[Any], where: str, classes: Sequence[str]) -> tuple[str, ...]:
    """The classes whose mark is 1 or true, sorted. Errors: DistilvecError for other marks than 0, 1, false and true."""
    values = [_MARKS.get(str(mark).strip().lower()) for mark in marks]
    if len(values) != len(classes) or None in values:
        raise _unexpected(marks, where, "label", f"0 or 1 for each of {len(classes)} classes")
    return tuple(sorted(name for name, value in zip(classes, values, strict=True) if value))


def _label_list(value: Any, where: str) -> list[Any]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            raise _unexpected(value, where, "label", "a JSON list of labels") from None
    value = _python_value(value)
    if not isinstance(value, list):
        raise _unexpected(value, where, "label", "a list of labels")
    return [_python_value(label) for label in value]


def shown_value(value: Any) -> str:
    """A cell's value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def some_of(names: Iterable[str], *, most: int = 10) -> str:
    """Names for a message: the first `most`, each shortened."""
    shortened = []
    for name in map(str, names):
        shortened.append(name if len(name) <= 48 else f"{name[:48]}…")  # a UUID with a word before it stays whole
    text = ", ".join(shortened[:most])
    more = len(shortened) - most
    return f"{text} and {more} more" if more > 0 else text


def _python_value(value: Any) -> Any:
    """A scalar or an array of NumPy, as rows in memory have, as Python's own; any other value as it is."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def _unexpected(value: Any, where: str, column: str, expected: str) -> DistilvecError:
    problem = f"{where} has {shown_value(value)} in column {column}. Expected {expected}."
    return DistilvecError(problem)


def _select(rows: list[LocatedRow], column: str, values: Sequence[str], table: str) -> list[LocatedRow]:
    """The rows with one of the values in a column, each of which must occur in the table."""
    present = sorted({str(row.get(column)).strip() for _, row in rows})
    missing = [value for value in values if value not in present]
    if missing:
        problem = f"{table}: no {column} '{some_of(missing)}'; found {some_of(present)}."
        raise DistilvecError(problem, "Name one of these.")
    return [(where, row) for where, row in rows if str(row.get(column)).strip() in values]


def _split_file(folder: Path, options: TableOptions) -> Path:
    """The file of a split in a folder, or the folder's only table."""
    table = find_table(folder, options.split)
    if table is not None:
        return table
    files = sorted(file for file in folder.iterdir() if extension(file) in TABLES)
    if len(files) == 1:
        return files[0]
    names = some_of(file.name for file in files) or "no table"
    raise DistilvecError(
        f"{folder}: found {names}; expected {options.split}{TABLES[0]} (or another of {', '.join(TABLES)}), or a "
        "single file.",
    )
