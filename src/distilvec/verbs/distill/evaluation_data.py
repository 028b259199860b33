"""What `--test` names, as a suite: a suite file, a labelled file, or a folder in a known form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.config.base import as_name
from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import absolute_path, write_file
from distilvec.core.log import log
from distilvec.data.labelled_rows import chosen_rows
from distilvec.data.origins import origin_numbers
from distilvec.data.row_splits import SPLIT, SPLIT_USES, TEST, TRAIN, last_fifths, split_use
from distilvec.data.task_rows import (
    LocatedRow,
    find_table,
    label_of,
    need_columns,
    number_of,
    some_of,
    text_of,
)
from distilvec.evaluation.suite import SUITE_ENDINGS, suite_paths

KEY = "test"

# The columns that tell the type of a labelled file, the most specific first
COLUMNS = {
    "sts": ("sentence1", "sentence2", "score"),
    "pair": ("sentence1", "sentence2", "label"),
    "classification": ("text", "label"),
    "search": ("query", "document"),
}
SPLITS = [name for name, use in SPLIT_USES.items() if use != TRAIN]  # that may be scored, the first that is there


def suite_of(path: Path, root: Path) -> Path:
    """Return a suite file for what the user wants the student to be tested on.

    - a .yaml file is a suite
    - a folder with corpus, queries and qrels is a search task (BEIR's form)
    - a file or a folder of splits with the columns of COLUMNS is a task of that type. Rows of `query` and `document`
      become a search task: each query looks for its own document among all of them.
    - of a file with a column `split` the test rows are scored, else the validation rows.

    The suite is written below `root`, under a name that depends on its content.
    """
    with about(KEY, path):
        if not path.exists():
            raise DistilvecError(f"{path} does not exist.", "Check the path.")
        path = absolute_path(path)  # `.` has a name then
        if path.suffix.lower() in SUITE_ENDINGS:
            return path
        if path.is_dir() and find_table(path, "corpus") is not None:
            entry = {"name": as_name(path.name, "test"), "type": "retrieval", "path": str(path)}
        else:
            entry = _labelled_entry(path, root)
        return _stored(entry, root)


def check_test(path: Path) -> None:
    """Refuse a file of rows with the columns of no task; the first row is read."""
    if path.is_file() and path.suffix.lower() not in SUITE_ENDINGS:
        with about(KEY, path):
            next(chosen_rows(path, lambda names: COLUMNS[_kind_of(names, path)], (SPLIT,)), None)


def tested_paths(path: Path) -> list[Path]:
    """Return the files and folders that `suite_of` and the scoring of its suite read."""
    return suite_paths(path) if path.suffix.lower() in SUITE_ENDINGS else [path]


def _labelled_entry(path: Path, root: Path) -> dict[str, Any]:
    """Return the suite's entry for labelled rows."""
    file = _split_file(path) if path.is_dir() else path

    kind = ""

    def choose(names: list[str]) -> Sequence[str]:
        nonlocal kind
        kind = _kind_of(names, file)
        return COLUMNS[kind]

    rows = list(chosen_rows(file, choose, (SPLIT,)))
    if not rows:
        raise DistilvecError(f"{file} has no rows.")
    name = as_name(path.name.lstrip(".").split(".")[0], "test")
    splits = {str(row["split"]).strip() for _, row in rows if row.get("split")}
    split = _scored_split(splits, file) if splits else None
    scored = rows
    if split is not None:
        scored = [(where, row) for where, row in rows if str(row.get("split")).strip() == split]
    _check_cells(rows if kind == "search" else scored, kind)
    if kind == "search":
        return {"name": name, "type": "retrieval", "path": str(_search_folder(rows, scored, root))}

    # A folder has them in a file of their own
    has_training_rows = path.is_dir() or any(split_use(label) == TRAIN for label in splits)
    if kind == "classification" and not has_training_rows:
        return {"name": name, "type": kind, "path": str(_split_by_label(scored, file, root))}

    entry: dict[str, Any] = {"name": name, "type": kind, "path": str(path)}
    if split is not None:
        entry["split"] = split
    elif path.is_dir():
        entry["split"] = file.name.split(".")[0]
    if kind == "pair":
        entry["positive_label"] = _positive_label(scored, file)
    if kind == "classification":
        entry |= _train_split(splits)
    return entry


def _kind_of(names: Collection[str], file: Path) -> str:
    """Return the type of task that a file's columns are for; DistilvecError for columns of none."""
    for kind, columns in COLUMNS.items():
        if all(name in names for name in columns):
            return kind
    column_sets = "; ".join(", ".join(columns) for columns in COLUMNS.values())
    raise DistilvecError(
        f"{file} has the columns {', '.join(names)}.", f"Expected one of these sets of columns: {column_sets}.", key=KEY
    )


def _check_cells(rows: list[LocatedRow], kind: str) -> None:
    """DistilvecError with the row's number if a row lacks a column of its kind, or has no text, label or score there.

    The first row decides on the kind; the rows of JSON Lines may differ from it.
    """
    columns = COLUMNS[kind]
    for where, row in rows:
        need_columns(row, columns, where)
        for column in columns:
            if column == "score":
                number_of(row[column], where, column)
            elif column == "label":
                label_of(row[column], where)
            else:
                text_of(row[column], where, column)


def _scored_split(splits: set[str], file: Path) -> str:
    """Return the split that is scored: of a usual name, else the only one, or the only one beside the training rows."""
    for usual in SPLITS:
        for split in sorted(splits):
            if split.strip().casefold() == usual:
                return split
    candidates = splits
    if len(splits) > 1:
        candidates = {split for split in splits if split_use(split) != TRAIN}
    if len(candidates) == 1:
        return next(iter(candidates))
    problem = f"{file}: which of the splits {some_of(sorted(splits))} is the test?"
    raise DistilvecError(problem, "Name it test in the column split.")


def _train_split(splits: set[str]) -> dict[str, str]:
    """Return the suite's key for the split of the training rows, where it has another name than the usual one."""
    names = sorted(split for split in splits if split_use(split) == TRAIN)
    if not names or TRAIN in names:
        return {}
    return {"train_split": names[0]}


def _split_file(folder: Path) -> Path:
    """Return the file of the split that is scored."""
    for split in SPLITS:
        file = find_table(folder, split)
        if file is not None:
            return file
    raise DistilvecError(
        f"{folder} has neither corpus, queries and qrels nor a file of a split ({', '.join(SPLITS)}).",
        "Name a file, or a folder in one of these forms.",
    )


def _positive_label(rows: list[LocatedRow], file: Path) -> str:
    """Return the label of pairs that match: by its name, or 1, true or yes in a file of two labels.

    Of three numbered labels 1 is none: in data of inference it stands for neutral pairs.
    """
    labels = sorted({label_of(row["label"], where) for where, row in rows})
    usual = ["entailment", "equivalent", "duplicate"]
    if len(labels) <= 2:
        usual += ["1", "true", "yes"]
    for label in labels:
        if label.casefold() in usual:
            return label
    raise DistilvecError(
        f"{file}: which of the labels {', '.join(labels[:6])} means that a pair matches?",
        "Call it 1 and the others 0, or write a suite file with positive_label.",
    )


def _split_by_label(rows: list[LocatedRow], file: Path, root: Path) -> Path:
    """Write rows of one split with two: the last fifth of every label's rows, in the file's order, is the test.

    An origin counts once, whatever its labels: no text, or part of one, is in both splits. Of a label with few texts
    one is tested.
    """
    texts = [text_of(row["text"], where, "text") for where, row in rows]
    distinct = np.sort(np.unique(origin_numbers(texts), return_index=True)[1]).tolist()
    repeated = len(rows) - len(distinct)
    if repeated:
        log(f"note: {file}: {repeated:,} rows repeat another one, or much of its text, and are left out of the test")
    labels = [label_of(rows[number][1]["label"], rows[number][0]) for number in distinct]
    lines = []
    for training, tested in last_fifths(labels):
        for split, numbers in ((TRAIN, training), (TEST, tested)):
            for number in numbers:
                lines.append({"text": texts[distinct[number]], "label": labels[number], "split": split})
    if all(line["split"] == TRAIN for line in lines):
        raise DistilvecError(f"{file}: no label has two texts, one to train on and one to test.", "Add some.")
    return _stored_lines("labelled", {"rows.jsonl": lines}, root) / "rows.jsonl"


def _search_folder(rows: list[LocatedRow], scored: list[LocatedRow], root: Path) -> Path:
    """Write pairs of a query and its document in BEIR's form; equal documents are one, equal queries as well.

    The documents of all rows are searched, for the queries of the scored ones.
    """
    documents: dict[str, str] = {}
    queries: dict[str, str] = {}
    judgements: dict[tuple[str, str], Mapping[str, Any]] = {}
    for _, row in rows:
        documents.setdefault(row["document"], f"d{len(documents)}")
    for _, row in scored:
        document = documents[row["document"]]
        query = queries.setdefault(row["query"], f"q{len(queries)}")
        judgements[query, document] = {"query-id": query, "corpus-id": document, "score": 1}
    return _stored_lines(
        "search",
        {
            "corpus.jsonl": [{"id": number, "text": text} for text, number in documents.items()],
            "queries.jsonl": [{"id": number, "text": text} for text, number in queries.items()],
            "qrels.jsonl": list(judgements.values()),
        },
        root,
    )


def _stored_lines(kind: str, files: Mapping[str, list[Any]], root: Path) -> Path:
    """Write JSON Lines files into a folder below `root` that is named by their content; return the folder."""
    contents = {
        name: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows) for name, rows in files.items()
    }
    digest = hashlib.blake2b("\0".join(contents.values()).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    folder = root / "inputs" / f"{kind}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_file(folder / name, content)
    return folder


def _stored(entry: dict[str, Any], root: Path) -> Path:
    """Write a suite of one task below `root`."""
    if (Path(entry["path"]) / "qrels.jsonl").is_file():
        entry["qrels"] = "qrels.jsonl"
    content = json.dumps([entry], indent=1)  # JSON is YAML
    digest = hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
    path = root / "inputs" / f"suite-{digest}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
    return path
