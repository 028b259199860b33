"""Reads local tasks from files.

Texts are kept as the files have them. Every reader raises DataError that names the file, the row, the expected
and the found value; no row is skipped without a message.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError, explained
from distilvec.data.readers import TABLES, read_rows
from distilvec.data.task_rows import (
    TableOptions,
    find_table,
    found_value,
    label_of,
    need_columns,
    number_of,
    some_of,
    table_rows,
    text_of,
    texts_of,
)
from distilvec.evaluation.tasks import ClassificationTask, DataError, PairTask, RetrievalTask, StsTask, make_retrieval

Titles = Literal["always", "unless_repeated", "never"]


KEY = "suite"
TEST_SPLIT = TableOptions()


def load_sts(name: str, path: Path, options: TableOptions = TEST_SPLIT, role: Role = "document") -> StsTask:
    """An STS task from columns sentence1, sentence2 and score (a finite number; not the same in every row)."""
    rows = table_rows(path, options, ("sentence1", "sentence2", "score"))
    first, second = texts_of(rows, "sentence1"), texts_of(rows, "sentence2")
    gold = np.array([number_of(row["score"], place, "score") for place, row in rows])
    if np.ptp(gold) == 0:
        raise DataError(f"{path}: all {len(rows)} scores are {gold[0]:g}. A correlation needs scores that differ.")
    return StsTask(name, first, second, gold, role)


def load_pairs(
    name: str,
    path: Path,
    options: TableOptions = TEST_SPLIT,
    role: Role = "document",
    positive_label: str = "1",
) -> PairTask:
    """A pair task from columns sentence1, sentence2 and label; rows whose label is `positive_label` are the matches."""
    rows = table_rows(path, options, ("sentence1", "sentence2", "label"))
    labels = [label_of(row["label"], place) for place, row in rows]
    positive = np.array([label == positive_label for label in labels])
    if positive.all() or not positive.any():
        raise DataError(
            f"{path}: {int(positive.sum())} of {len(labels)} rows have the positive label '{positive_label}'; both kinds are needed. "
            f"Labels found: {some_of(sorted(set(labels)))}. Set positive_label in the suite if another label means a match."
        )
    return PairTask(name, texts_of(rows, "sentence1"), texts_of(rows, "sentence2"), positive, role)


def load_classification(
    name: str,
    path: Path,
    options: TableOptions = TEST_SPLIT,
    role: Role = "document",
    train_split: str = "train",
    train_limit: int | None = None,
    seed: int = 0,
) -> ClassificationTask:
    """A classification task from columns text and label, in a training and a test split of one file or folder.

    `train_limit` keeps a random part of the training rows, drawn by `seed`, with at least one row of every label.
    Errors: DataError also for a label of the test split that the training split lacks.
    """
    if train_split == options.split:
        raise DataError(
            f"{path}: training and test rows both come from split '{options.split}'. Name two different splits."
        )
    test = table_rows(path, options, ("text", "label"))
    train = table_rows(path, TableOptions(train_split, options.subset, options.columns), ("text", "label"))
    if train[0] == test[0]:
        raise DataError(
            f"{path} has no column split, so training and test rows would be the same. Add the column or one file a split."
        )
    train_labels = [label_of(row["label"], place) for place, row in train]
    test_labels = [label_of(row["label"], place) for place, row in test]
    known = set(train_labels)
    if unseen := Counter(label for label in test_labels if label not in known):
        found = some_of([f"'{label}' ({count} rows)" for label, count in sorted(unseen.items())])
        raise DataError(
            f"{path}: split '{options.split}' has labels that split '{train_split}' lacks: {found}. Add training rows for them."
        )
    if len(known) < 2:
        raise DataError(
            f"{path}: split '{train_split}' has one label only, '{train_labels[0][:80]}'. A classifier needs two."
        )
    keep = _training_rows(train_labels, train_limit, seed, path)
    texts = texts_of(train, "text")
    return ClassificationTask(
        name, [texts[i] for i in keep], [train_labels[i] for i in keep], texts_of(test, "text"), test_labels, role
    )


def load_retrieval(
    name: str, path: Path, split: str = "test", qrels: str | None = None, titles: Titles = "always"
) -> RetrievalTask:
    """A retrieval task from a folder with corpus and queries (id or _id, text, title) and qrels.tsv (query-id, corpus-id, score).

    `titles` says what is embedded for a document: see `join_title`. The judgements are read from the file named by
    `qrels`, else from `qrels.tsv`, else from `qrels/<split>.tsv` (BEIR's layout).
    """
    with explained(KEY, path):
        return _retrieval(name, path, split, qrels, titles)


def _retrieval(name: str, path: Path, split: str, qrels: str | None, titles: Titles) -> RetrievalTask:
    if not path.is_dir():
        raise DataError(
            f"folder not found: {path}. A retrieval task is a folder with corpus.jsonl, queries.jsonl and qrels.tsv."
        )
    corpus, queries = (
        _identified(path, "corpus"),
        {key: text for key, (_, text) in _identified(path, "queries").items()},
    )
    documents = {key: join_title(title, text, titles) for key, (title, text) in corpus.items()}
    untitled = [text for key, (_, text) in corpus.items() if text != documents[key]]
    places = [path / qrels] if qrels else [path / "qrels.tsv", path / "qrels" / f"{split}.tsv"]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise DataError(f"{path} has no judgements. Expected {' or '.join(os.path.relpath(p, path) for p in places)}.")
    judgements: dict[tuple[str, str], float] = {}
    differing = set()
    for place, row in read_rows(file, KEY):
        need_columns(row, ("query-id", "corpus-id", "score"), place)
        pair, score = (str(row["query-id"]), str(row["corpus-id"])), number_of(row["score"], place, "score")
        if judgements.setdefault(pair, score) != score:
            differing.add(pair)
        judgements[pair] = max(judgements[pair], score)
    task = make_retrieval(name, documents, queries, judgements, untitled, str(file))
    if differing:
        note = f"{len(differing)} of {len(judgements)} judgements stand twice with different scores; the highest counts"
        task = replace(task, warnings=(*task.warnings, note))
    return task


def join_title(title: str, text: str, titles: Titles = "always") -> str:
    """What is embedded for a document with a title.

    "always": `title + " " + text`, as BEIR and MTEB do, even where the text repeats the title; "unless_repeated": the
    text alone where it begins with the title; "never": the text alone. On Cranfield, whose texts all begin with their
    titles, the first gives all-MiniLM-L6-v2 an nDCG@10 of 51.32, the others 50.90.
    """
    if not title or titles == "never" or (titles == "unless_repeated" and text.startswith(title)):
        return text
    return f"{title} {text}".strip()


# -- checks ----------------------------------------------------------------------------------------------------------


def _training_rows(labels: list[str], limit: int | None, seed: int, path: Path) -> list[int]:
    if limit is None or limit >= len(labels):
        return list(range(len(labels)))
    count = len(set(labels))
    if limit < count:
        raise DataError(f"{path}: train_limit is {limit}, but there are {count} labels. Keep at least one row of each.")
    order = np.random.default_rng(seed).permutation(len(labels)).tolist()
    first: dict[str, int] = {}
    for row in order:
        first.setdefault(labels[row], row)
    kept = set(first.values())
    return sorted([*kept, *[row for row in order if row not in kept][: limit - count]])


def _identified(folder: Path, stem: str) -> dict[str, tuple[str, str]]:
    """Title and text of every row of a corpus or queries file, by id."""
    file = find_table(folder, stem, KEY)
    if file is None:
        raise DataError(f"{folder} has no {stem} file. Expected {stem}{TABLES[0]} (or another of {', '.join(TABLES)}).")
    texts: dict[str, tuple[str, str]] = {}
    for place, row in read_rows(file, KEY):
        key, title = row.get("id", row.get("_id")), row.get("title")
        if not isinstance(key, (str, int, float)) or "text" not in row:
            raise DistilvecError(
                f"{place} needs columns id (or _id) and text; found {some_of(row)}. Add the missing ones."
            )
        if isinstance(title, (dict, list)):
            raise DistilvecError(f"{place} has {found_value(title)} in column title. Expected a text.")
        if str(key) in texts:
            raise DistilvecError(f"{place} repeats the id '{key}'. Ids must be distinct.")
        texts[text_of(str(key), place, "id")] = (
            text_of(str(title or ""), place, "title"),
            text_of(row["text"], place, "text"),
        )
    if not texts:
        raise DataError(f"{file} holds no rows. Expected one a line.")
    return texts
