"""Rows of labelled tables, checked: the columns that a task needs, as texts, labels and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilvec.data.data_error import DataError
from distilvec.data.tables import Row, columns_of, read_split


@dataclass(frozen=True)
class TableOptions:
    """How a table's rows become a task's: the split, the subsets kept (column `subset`, None = all), and columns
    that bear another name than the task's, as {task's name: file's name}.
    """

    split: str = "test"
    subset: tuple[str, ...] | None = None
    columns: Mapping[str, str] | None = None


def load_labelled(
    path: Path, kind: str, split: str, key: str = "task.path"
) -> tuple[list[tuple[str, ...]], list[str], list[float]]:
    """The rows of one split of a labelled task: its texts (one, or two for pair and sts), labels as text, or scores for sts.

    Errors: DataError with `key`.
    """
    try:
        return _labelled(path, kind, split)
    except DataError as error:
        raise DataError(error.text, key) from None


def _labelled(path: Path, kind: str, split: str) -> tuple[list[tuple[str, ...]], list[str], list[float]]:
    columns = ("text",) if kind == "classification" else ("sentence1", "sentence2")
    rows = table_rows(path, TableOptions(split), (*columns, "score" if kind == "sts" else "label"))
    texts = list(zip(*(texts_of(rows, column) for column in columns), strict=True))
    if kind == "sts":
        return texts, [], [number_of(row["score"], place, "score") for place, row in rows]
    return texts, [label_of(row["label"], place) for place, row in rows], []


def table_rows(path: Path, options: TableOptions, needed: Sequence[str]) -> list[tuple[str, Row]]:
    """The rows of a split and its subsets, columns renamed, every needed column present."""
    rows = read_split(path, options.split)
    if options.subset is not None:
        present = sorted({str(row.get("subset")) for _, row in rows})
        if missing := [subset for subset in options.subset if subset not in present]:
            raise DataError(f"{path} has no subset {some_of(missing)}. Its subsets: {some_of(present)}.")
        rows = [(place, row) for place, row in rows if str(row.get("subset")) in options.subset]
    if options.columns:
        for place, row in rows:
            need_columns(row, list(options.columns.values()), place)
        rows = [
            (place, {**row, **{ours: row[theirs] for ours, theirs in options.columns.items()}}) for place, row in rows
        ]
    for place, row in rows:
        need_columns(row, needed, place)
    return rows


def need_columns(row: Row, needed: Sequence[str], place: str) -> None:
    """DataError that names the columns which a row lacks."""
    if missing := [name for name in needed if name not in row]:
        raise DataError(
            f"{place} has no column {some_of(missing)}; expected {', '.join(needed)}, found {columns_of(row)}. Name others by columns."
        )


def texts_of(rows: Sequence[tuple[str, Row]], column: str) -> list[str]:
    """The texts of a column."""
    return [text_of(row[column], place, column) for place, row in rows]


def text_of(value: Any, place: str, column: str) -> str:
    """A cell as text; DataError for anything else, and for text that is no Unicode."""
    if not isinstance(value, str):
        raise DataError(f"{place} has {found_value(value)} in column {column}. Expected a text.")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{place}: the text in column {column} is no Unicode ({error.reason} at {error.start}). Mend it."
            ) from None
    return value


def number_of(value: Any, place: str, column: str) -> float:
    """A cell as a finite number; DataError for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool):
        raise DataError(f"{place} has {found_value(value)} in column {column}. Expected a finite number.")
    return number


def label_of(value: Any, place: str) -> str:
    """A label as text: 1, 1.0, True and "1" are the same label, as the file formats write them differently."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or value == "" or not isinstance(value, (str, int)):
        raise DataError(f"{place} has {found_value(value)} in column label. Expected a text or a whole number.")
    return str(int(value)) if isinstance(value, bool) else text_of(str(value), place, "label")


def found_value(value: Any) -> str:
    """A cell's value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def some_of(names: Sequence[str]) -> str:
    """Names for a message, cut after eight."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
