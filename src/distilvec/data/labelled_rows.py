"""Labelled texts: of files whose columns are found by their usual names, of rows in memory, of a task's splits."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from distilvec.core.errors import DistilvecError, about, nearest
from distilvec.data.readers import class_names, read_rows, with_class_names
from distilvec.data.row_splits import SPLIT, TRAIN
from distilvec.data.task_rows import (
    LocatedRow,
    TableOptions,
    classes_of_marks,
    label_of,
    labels_of,
    marked_classes,
    number_of,
    only_columns,
    shown_value,
    some_of,
    table_rows,
    text_of,
)

Source: TypeAlias = str | Path | Iterable[Mapping[str, Any]]

# The first name that a file has is taken, in any case of letters.
TEXT_NAMES = ("text", "sentence", "utterance", "query", "question", "content", "message", "review", "document")
LABEL_NAMES = ("label", "labels", "intent", "category", "class", "sentiment", "topic", "target")
PAIR_NAMES = (("sentence1", "sentence2"), ("text1", "text2"), ("premise", "hypothesis"), ("question1", "question2"))
_ARRAY = re.compile(r"\[[\d.\s]*\]")  # [0 1 0]


@dataclass(frozen=True)
class LabelColumns:
    """The columns that are read: one of texts, or two of pairs, and one of labels, or one of 0 and 1 for each label."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def label(self) -> str:
        """The columns of labels in words."""
        return some_of(self.labels)


@dataclass(frozen=True)
class LabelledText:
    """One row: its text, or a pair, its label, or several in alphabetical order, and its split if the file has one."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    split: str | None = None


@dataclass(frozen=True)
class LabelledTexts:
    """All rows of a file. `several`: labels are lists, so that a text may have any number of them.

    `marked`: the classes of lists that have 0 or 1 for each of them; see `classes_of_marks`.
    """

    name: str
    columns: LabelColumns
    several: bool
    rows: list[LabelledText]
    marked: Sequence[str] | None = None


def read_labelled(
    source: Source, text: Sequence[str], label: Sequence[str], like: LabelledTexts | None = None
) -> LabelledTexts:
    """Read every row of a file (CSV, TSV, JSON Lines, Parquet), or rows {column: value} in memory.

    `text` names one column, or two whose texts are pairs; `label` one, or several with 0 or 1 for a label each. Without
    names the usual ones are looked for. Labels are lists, or texts that are JSON lists as in CSV, where the first row's
    is one; with `like` they are read as those of that file were.
    """
    name, place = "rows", "the rows"
    located: Path | Iterable[LocatedRow]
    if isinstance(source, (str, Path)):
        located = Path(source)
        name, place = located.name.split(".")[0] or "rows", str(located)
    else:
        located = _python_rows(source)

    columns: LabelColumns | None = None
    split = SPLIT

    def choose(names: list[str]) -> Sequence[str]:
        nonlocal columns, split
        columns = choose_columns(names, text, label, place)
        split = next((name for name in names if name.lower() == SPLIT), SPLIT)
        chosen = [*columns.texts, *columns.labels]
        return [*chosen, split] if split in names else chosen

    several = None if like is None else like.several
    rows = []
    cells = []
    for where, row in chosen_rows(located, choose):
        assert columns is not None
        if several is None:
            several = len(columns.labels) > 1 or _is_list(row[columns.labels[0]])
        for column_key, names in (("text", columns.texts), ("label", columns.labels)):
            for column in names:
                if column not in row:
                    raise DistilvecError(f"{where} has no column '{column}'; found {some_of(row)}.", key=column_key)
        with about("text"):
            texts = tuple(text_of(row[column], where, column) for column in columns.texts)
        cell = row[columns.labels[0]]
        if len(columns.labels) > 1:
            cell = [row[column] for column in columns.labels]
        elif not several and _looks_like_list(cell):
            fix = 'Write a JSON list in every row, such as ["billing", "refund"], or one label without brackets.'
            raise DistilvecError(
                f"{where}: {shown_value(cell)} looks like a list of labels, in a text.", fix, key="label"
            )
        with about("label"):
            labels = () if several else (label_of(cell, where),)
        rows.append(LabelledText(texts, labels, _split_of(row.get(split))))
        if several:
            cells.append((where, cell))
    if columns is None:
        raise DistilvecError(f"{place}: no rows.", "Give labelled texts, one a row.")
    if several and len(columns.texts) == 2:
        raise DistilvecError(f"{place}: pairs have one label each; found lists.", "Give one label a row.", key="label")
    marked: Sequence[str] | None = None
    if len(columns.labels) > 1:
        marked = columns.labels
    elif several:
        with about("label"):
            marked = classes_of_marks(cells) if like is None else like.marked
    with about("label"):
        for number, (where, cell) in enumerate(cells):
            rows[number] = replace(rows[number], labels=labels_of(cell, where, marked))
    return LabelledTexts(name, columns, bool(several), rows, marked)


def load_labelled(
    path: Path, kind: str, split: str, renamed: Mapping[Any, str | list[str]] | None = None, train_split: str = TRAIN
) -> tuple[list[tuple[str, ...]], list[Any]]:
    """The rows of one split of a recipe's task: texts (one, or two for pair and sts), and labels, or scores for sts.

    The label of a multilabel row is a sorted tuple of classes. The rows of `train_split` decide how lists are read.
    `renamed`: the file's names of the columns, as in `TableOptions.columns`; for `label` it may have several columns,
    each with 0 or 1 for one class.
    """
    names = dict(renamed or {})
    label_columns = names.pop("label", "label")
    text_columns = ("sentence1", "sentence2") if kind in ("pair", "sts") else ("text",)
    target_columns = ["score"] if kind == "sts" else ["label"]
    if isinstance(label_columns, list):
        target_columns = label_columns
    elif kind != "sts":
        names["label"] = label_columns
    options = TableOptions(split, columns=cast(dict[str, str], names))
    rows = table_rows(path, options, (*text_columns, *target_columns))
    texts = [tuple(text_of(row[column], where, column) for column in text_columns) for where, row in rows]
    if kind == "sts":
        return texts, [number_of(row["score"], where, "score") for where, row in rows]
    if kind != "multilabel":
        return texts, [label_of(row["label"], where) for where, row in rows]

    if isinstance(label_columns, list):
        marks = [[row[column] for column in label_columns] for _, row in rows]
        return texts, [marked_classes(cell, where, label_columns) for cell, (where, _) in zip(marks, rows, strict=True)]
    cells = [(where, row["label"]) for where, row in rows]
    trained = cells
    if split != train_split:
        training_rows = table_rows(path, replace(options, split=train_split), ("label",))
        trained = [(where, row["label"]) for where, row in training_rows]
    classes = classes_of_marks(trained)
    return texts, [labels_of(cell, where, classes) for where, cell in cells]


def chosen_rows(
    source: Path | Iterable[LocatedRow],
    choose: Callable[[list[str]], Sequence[str]],
    optional: Sequence[str] = (),
) -> Iterator[LocatedRow]:
    """The rows of a file, or located rows, with some columns alone: others, such as vectors, would fill the memory.

    `choose` names the columns, once a file, by those that it has; it is called before the first row comes. `optional`
    columns are read where a row has them. A row that lacks a chosen column stays whole, since messages list the columns
    that it has.
    """
    columns: Sequence[str] | None = None

    def choose_once(names: list[str]) -> Collection[str]:
        nonlocal columns
        columns = choose(names)
        return {name for name in (*columns, *optional) if name in names}

    rows = read_rows(source, choose_once) if isinstance(source, Path) else source
    for where, row in rows:
        if columns is None:
            choose_once([str(name) for name in row])
        assert columns is not None
        yield where, only_columns(row, columns, optional)


def choose_columns(names: Sequence[str], text: Sequence[str], label: Sequence[str], place: str) -> LabelColumns:
    """The columns of the stated names, or the first usual ones of `names`. DistilvecError if there are none."""
    if len(text) > 2:
        problem = f"found {len(text)} columns of texts; a row is one text, or a pair."
        raise DistilvecError(problem, "Give one or two columns.", key="text")
    for key, column in [*(("text", column) for column in text), *(("label", column) for column in label)]:
        if column not in names:
            hint = nearest(column, names) or "."
            raise DistilvecError(f"{place} has no column '{column}'{hint}", f"Found {some_of(names)}.", key=key)
    by_lower = {name.lower(): name for name in names}
    label = tuple(label) or tuple(by_lower[usual] for usual in LABEL_NAMES if usual in by_lower)[:1]
    if not label:
        fix = f"Name it, or all columns of 0 and 1 that stand for a label each. Found {some_of(names)}."
        raise DistilvecError(f"{place}: which column has the labels?", fix, key="label")
    if text:
        return LabelColumns(tuple(text), label)
    for pair in PAIR_NAMES:
        if all(usual in by_lower for usual in pair):
            return LabelColumns(tuple(by_lower[usual] for usual in pair), label)
    text_column = next((by_lower[usual] for usual in TEXT_NAMES if usual in by_lower), None)
    if text_column is None:
        raise DistilvecError(f"{place}: which column has the texts?", f"Found {some_of(names)}.", key="text")
    return LabelColumns((text_column,), label)


def _python_rows(source: Iterable[Any]) -> Iterator[LocatedRow]:
    """Rows in memory: mappings, a pandas DataFrame, a datasets.Dataset."""
    frame: Any = source
    rows = frame.to_dict("records") if hasattr(frame, "iterrows") else source
    features: Any = getattr(frame, "features", None)  # of a datasets.Dataset
    classes = class_names(features.to_dict() if hasattr(features, "to_dict") else None)
    expected = "expected a file, or rows such as {'text': ..., 'label': ...}"
    if not isinstance(rows, Iterable) or isinstance(rows, Mapping):
        raise DistilvecError(f"{expected}; found a {type(source).__name__}.")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DistilvecError(f"{expected}; row {number} is a {type(row).__name__}.")
        yield f"row {number}", with_class_names(row, classes)


def _split_of(cell: Any) -> str | None:
    """The name of a row's split; None for an empty cell, which pandas has as NaN."""
    is_missing = cell is None or cell == "" or cell != cell  # NaN differs from itself
    return None if is_missing else str(cell)


def _looks_like_list(cell: Any) -> bool:
    """Whether a text is a list of JSON, or of Python or NumPy, as pandas writes it into CSV."""
    if not isinstance(cell, str) or not cell.lstrip().startswith("["):  # hardly any label of millions goes further
        return False
    if _ARRAY.fullmatch(cell.strip()):
        return True
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        return isinstance(ast.literal_eval(cell.strip()), list)
    return _is_list(cell)


def _is_list(cell: Any) -> bool:
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            cell = json.loads(cell)
        except ValueError:
            return False
    return isinstance(cell, (list, np.ndarray))  # pandas has the lists of a Parquet file as arrays
