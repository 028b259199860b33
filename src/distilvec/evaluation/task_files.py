"""Readers of local tasks. Texts are kept as the files have them.

Every reader raises DistilvecError with the file, the line, the expected and the found value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError, about
from distilvec.data.judgements import judgements_file, read_judgements, texts_by_id
from distilvec.data.readers import ClassName
from distilvec.data.row_splits import draw_training_rows
from distilvec.data.task_rows import (
    TableOptions,
    column_texts,
    label_of,
    number_of,
    some_of,
    table_rows,
)
from distilvec.evaluation.tasks import (
    ClassificationTask,
    OwnDocuments,
    PairTask,
    RetrievalTask,
    StsTask,
    Task,
    Titles,
    make_retrieval,
)

KEY = "suite"
TEST_SPLIT = TableOptions()


def load_sts(name: str, path: Path, options: TableOptions = TEST_SPLIT, role: Role = "document") -> StsTask:
    """STS task from columns sentence1, sentence2 and score (finite numbers that differ)."""
    rows = table_rows(path, options, ("sentence1", "sentence2", "score"))
    first, second = column_texts(rows, "sentence1"), column_texts(rows, "sentence2")
    gold = np.array([number_of(row["score"], line, "score") for line, row in rows])
    if np.ptp(gold) == 0:
        raise DistilvecError(
            f"{path}: all {len(rows)} scores are {gold[0]:g}. A correlation needs scores that differ.", key=KEY
        )
    return StsTask(name, first, second, gold, role)


def load_pairs(
    name: str,
    path: Path,
    options: TableOptions = TEST_SPLIT,
    role: Role = "document",
    positive_label: str | int = 1,
) -> PairTask:
    """Pair task from columns sentence1, sentence2 and label; rows with the label `positive_label` are the matches."""
    rows = table_rows(path, options, ("sentence1", "sentence2", "label"))
    labels = [label_of(row["label"], line) for line, row in rows]
    for number, (_, row) in enumerate(rows):
        label = row["label"]
        if isinstance(label, ClassName) and str(label.number) == str(positive_label):  # 1 means a number by default
            labels[number] = str(positive_label)
    positive = np.array([label == str(positive_label) for label in labels])
    if positive.all() or not positive.any():
        raise DistilvecError(
            f"{path}: {int(positive.sum())} of {len(labels)} rows have the positive label '{positive_label}'; need "
            f"both kinds. Labels found: {some_of(sorted(set(labels)))}.",
            "Set positive_label in the suite.",
            key=KEY,
        )
    return PairTask(name, column_texts(rows, "sentence1"), column_texts(rows, "sentence2"), positive, role)


def load_classification(
    name: str,
    path: Path,
    options: TableOptions = TEST_SPLIT,
    role: Role = "document",
    train_split: str = "train",
    train_limit: int | None = None,
    seed: int = 0,
) -> ClassificationTask:
    """Classification task from columns text and label, in a training and a test split of one file or folder.

    `train_limit` keeps that many training rows, drawn by `seed`, with at least one row of every label.
    """
    test = table_rows(path, options, ("text", "label"))
    train = table_rows(path, replace(options, split=train_split), ("text", "label"))
    if train[0] == test[0]:
        problem = f"{path}: the training rows (split '{train_split}') are the test rows."
        raise DistilvecError(problem, "Name two splits of a column split, or of one file each.", key=KEY)
    train_labels, test_labels = ([label_of(row["label"], line) for line, row in rows] for rows in (train, test))
    train_classes = set(train_labels)
    if unseen := Counter(label for label in test_labels if label not in train_classes):
        listed = some_of([f"'{label}' ({count} rows)" for label, count in sorted(unseen.items())])
        raise DistilvecError(
            f"{path}: split '{options.split}' has labels that split '{train_split}' lacks: {listed}.",
            "Add training rows.",
            key=KEY,
        )
    if len(train_classes) < 2:
        raise DistilvecError(
            f"{path}: split '{train_split}' has one label only, '{train_labels[0][:80]}'.", "Add another.", key=KEY
        )
    keep = _training_rows(train_labels, train_limit, seed, path)
    texts = column_texts(train, "text")
    return ClassificationTask(
        name, [texts[i] for i in keep], [train_labels[i] for i in keep], column_texts(test, "text"), test_labels, role
    )


def load_retrieval(
    name: str,
    path: Path,
    split: str = "test",
    qrels: str | None = None,
    titles: Titles = "always",
    own_documents: OwnDocuments = "same_text",
) -> RetrievalTask:
    """Retrieval task from a folder: corpus, queries (id or _id, text, title), judgements (`read_judgements`).

    `titles`: see `join_title`. Judgements come from the file `qrels`, else from the table `qrels`, else from
    `qrels/<split>` (BEIR). `own_documents`: whether a query that is a document itself (ArguAna, Quora) is searched for
    that document: not if id and text are equal ("same_text"), not if the id is ("leave_out", as in BEIR and MTEB), or
    always ("keep"). A document that is judged relevant to the query of its id is never left out: files that number
    queries and documents alike have other queries than documents.
    """
    with about(KEY, path):
        if not path.is_dir():
            from distilvec.data.public_table import how_to_get

            fix = how_to_get(path) or "Expected a folder with corpus, queries and qrels.tsv."
            raise DistilvecError(f"folder not found: {path}.", fix, key=KEY)
        corpus, queries = texts_by_id(path, "corpus"), texts_by_id(path, "queries")
        file = judgements_file(path, split, qrels)
        judgements: dict[tuple[str, str], float] = {}
        differing = set()
        for pair, score in read_judgements(file):
            if judgements.setdefault(pair, score) != score:
                differing.add(pair)
            judgements[pair] = max(judgements[pair], score)
        documents = {key: join_title(title, text, titles) for key, (title, text) in corpus.items()}
        untitled = [text for key, (_, text) in corpus.items() if text != documents[key]]
        texts = {key: text for key, (_, text) in queries.items()}
        own_queries = set()
        for key in texts.keys() & corpus.keys():
            same_text = texts[key].strip() in (corpus[key][1].strip(), documents[key].strip())
            is_answer = judgements.get((key, key), 0) > 0
            if not is_answer and (own_documents == "leave_out" or (own_documents == "same_text" and same_text)):
                own_queries.add(key)
        task = make_retrieval(name, documents, texts, judgements, untitled, str(file), own_queries)
    if differing:
        note = f"{len(differing)} of {len(judgements)} judgements repeat with different scores; the highest counts"
        task = replace(task, warnings=(*task.warnings, note))
    return task


def join_title(title: str, text: str, titles: Titles = "always") -> str:
    """Text that is embedded for a document.

    "always": `title + " " + text`, as BEIR and MTEB do, even if the text repeats the title; "unless_repeated": the text
    alone if it begins with the title; "never": the text alone. Cranfield's texts begin with their titles.
    """
    if not title or titles == "never" or (titles == "unless_repeated" and text.startswith(title)):
        return text
    return f"{title} {text}".strip()


def _training_rows(labels: list[str], limit: int | None, seed: int, path: Path) -> list[int]:
    """Rows drawn by seed, the first of every label included."""
    count = len(set(labels))
    if limit is None or limit >= len(labels):
        return list(range(len(labels)))
    if limit < count:
        raise DistilvecError(
            f"{path}: train_limit is {limit}, but there are {count} labels.", "Keep at least one row of each.", key=KEY
        )
    return draw_training_rows(labels, limit, seed)


READERS: dict[str, Callable[..., Task]] = {
    "sts": load_sts,
    "classification": load_classification,
    "pair": load_pairs,
    "retrieval": load_retrieval,
}
