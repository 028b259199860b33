"""The labelled examples of a task: its distinct texts as a corpus, and the rows and label of each example.

Caches, tokens and alignments go by corpus row, as for unlabelled texts. Pairs that are one input (`encode: joint`) are
one row of a paired corpus, pairs encoded apart two rows. The test split is read when it is scored (`read_split`): its
texts are in no corpus and in no cache.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import Role, TaskSection
from distilvec.core.artifacts import META, open_column, open_or_build
from distilvec.core.batch import NO_LABEL, Text, is_missing
from distilvec.core.errors import DistilvecError, about
from distilvec.core.hashing import hash_files
from distilvec.core.log import log
from distilvec.core.task_head import PAIRS, TaskInfo
from distilvec.data.corpus import LONGEST_TEXT, SEPARATOR, Corpus, describe_corpus, text_key
from distilvec.data.corpus_files import Rows, TextWriter, as_keys, clean_text, write_columns
from distilvec.data.labelled_rows import load_labelled
from distilvec.data.origins import draw_origins, origin_numbers
from distilvec.data.readers import check_readable, saved_files
from distilvec.data.task_rows import TableOptions, shown_value, some_of, split_file

FORMAT = 2
VALIDATION = 10  # one training row in ten is for validation if the task has no validation split
Labels = npt.NDArray[Any]
Scale = tuple[float, float] | None  # the least and the greatest score; None for classes
Targets = list[Any]  # of rows as they are read: a class, a tuple of classes, or a score


class Examples:
    """Examples numbered from 0; made by `build_examples`, or opened from its folder.

    `rows` [examples, texts per example] are corpus rows; `labels` [examples] int64 numbers of `classes` (by name), or
    float32 scores from 0 to 1: `scale` is the least and greatest score of the training split (of STS-B 0 and 5), others
    are clipped. Where a text has several classes they are float32 zeros and ones [examples, classes]. `train` and
    `holdout` are sorted example numbers. A training example whose label is not used (`task.labels`) has the label -100,
    or NaN for a score and for zeros and ones.
    Errors: OSError, ValueError or KeyError for a folder that is missing, incomplete or damaged.
    """

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.folder = folder
        self.corpus = Corpus(folder / "corpus")
        self.name: str = meta["name"]
        self.classes: list[str] = meta["classes"]
        self.scale: Scale = meta["scale"] and tuple(meta["scale"])
        self.labels: Labels = open_column(folder / "labels.npy")
        if meta["kind"] == "multilabel":
            self.labels = self.labels.reshape(-1, len(self.classes))
        self.rows: Rows = open_column(folder / "rows.npy").reshape(len(self.labels), -1)
        self.train: Rows = open_column(folder / "train.npy")
        self.holdout: Rows = open_column(folder / "holdout.npy")
        self.info = TaskInfo(meta["kind"], max(1, len(self.classes)), self.rows.shape[1])
        if len(self.train) + len(self.holdout) != len(self):
            raise ValueError(f"{folder}: columns of different lengths")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labeled(self) -> Rows:
        """Numbers of the training examples whose label is used."""
        return self.train[~is_missing(torch.from_numpy(self.labels[self.train])).numpy()]

    @property
    def score_range(self) -> float:
        """The greatest less the least score; 1 for classes."""
        return float(self.scale[1] - self.scale[0]) if self.scale else 1.0

    @property
    def line(self) -> str:
        """A line for the log."""
        targets = f"{len(self.classes)} classes" if self.classes else "scores"
        examples = f"{len(self.train):,} examples"
        if len(self.labeled) < len(self.train):
            examples += f" ({len(self.labeled):,} with a label)"
        validation = f"{len(self.holdout):,} for validation"
        return f"task {self.name}: {examples}, {validation}, {len(self.corpus):,} distinct texts, {targets}"


@dataclass(frozen=True)
class Labelled:
    """The rows of a split: the inputs of each example (two if a pair is encoded apart), and labels as in `Examples`."""

    inputs: list[tuple[Text, ...]]
    labels: Labels


def read_split(section: TaskSection, split: str, prompt: str, classes: list[str], scale: Scale) -> Labelled:
    """The examples of a split, each text cleaned as in training, with its prompt. DistilvecError for unknown labels."""
    texts, targets = _read(section, split)
    inputs: list[tuple[Text, ...]] = []
    for parts in texts:
        row: list[Text] = []
        for text in _corpus_rows(section, parts):
            first, separator, second = (prompt + text).partition(SEPARATOR)
            row.append((first, second) if separator else first)
        inputs.append(tuple(row))
    return Labelled(inputs, _numbers(section, split, targets, classes, scale))


def examples_fingerprint(section: TaskSection, prompts: Mapping[Role, str]) -> str:
    """Changes with a file that the task reads (name, content), an option or a prompt."""
    with about("task.path"):
        content = hash_files(_files(section))
    unset = {key for key in ("labels", "columns") if not getattr(section, key)}  # a recipe without them is as before
    return fingerprint(FORMAT, section.model_dump(mode="json", exclude=unset), content, prompts)


def build_examples(section: TaskSection, prompts: Mapping[Role, str], folder: Path) -> Examples:
    """Read the task's training and validation rows into `folder`, or reopen it if its fingerprint is the same.

    Errors: DistilvecError for rows that cannot be read, a single class, scores that do not differ, a label that the
    training split lacks, training and test rows that are the same.
    """
    name = examples_fingerprint(section, prompts)
    needed = 2 * sum(path.stat().st_size for path in _files(section))

    def build(new: Path) -> dict[str, Any]:
        content = _write(section, prompts, name, new)
        check_same_files(section, prompts, name)
        return content

    return open_or_build(folder, name, "task", needed, build, Examples)


def check_same_files(section: TaskSection, prompts: Mapping[Role, str], name: str) -> None:
    """DistilvecError if the files of a task are others than those of the examples with this fingerprint."""
    if examples_fingerprint(section, prompts) != name:
        raise DistilvecError(f"{section.path} changed while it was read.", "Run the command again.", key="task.path")


def _write(section: TaskSection, prompts: Mapping[Role, str], name: str, folder: Path) -> dict[str, Any]:
    """Read and check the task's rows and write them to `folder`; the content of its meta.json."""
    texts, targets = _read(section, section.train_split)
    classes = _classes(section, targets)
    scale = (min(targets), max(targets)) if section.type == "sts" else None
    _check(section, texts, targets, classes, scale)
    labels = _numbers(section, section.train_split, targets, classes, scale)

    train, validation = _draw(section, texts)
    if section.labels is not None:
        labels[train[section.labels :]] = NO_LABEL if labels.dtype == np.int64 else math.nan
    if section.validation_split is not None:
        validation_texts, validation_targets = _read(section, section.validation_split)
        validation_labels = _numbers(section, section.validation_split, validation_targets, classes, scale)
        validation = np.arange(len(texts), len(texts) + len(validation_texts))
        texts = texts + validation_texts
        labels = np.concatenate([labels, validation_labels])

    chosen = np.sort(np.concatenate([train, validation]))
    is_validation = np.isin(chosen, validation)
    row_of_text: dict[str, int] = {}
    rows_of_examples = []
    for number in chosen.tolist():
        corpus_texts = _corpus_rows(section, texts[number])
        rows_of_examples.append([row_of_text.setdefault(text, len(row_of_text)) for text in corpus_texts])
    rows = np.array(rows_of_examples, dtype=np.int64)
    write_columns(
        folder,
        rows=rows.ravel(),
        labels=labels[chosen].ravel(),
        train=np.flatnonzero(~is_validation),
        holdout=np.flatnonzero(is_validation),
    )

    count = len(row_of_text)
    report = {
        "read": len(chosen),
        "kept": count,
        "train": len(train),
        "holdout": len(validation),
        "sources": [{"name": section.label, "kept": count}],
    }
    meta = {"fingerprint": name, **describe_corpus(report, prompts, [section]), "paired": _is_joint(section)}
    is_trained = np.isin(np.arange(count), rows[~is_validation])
    write_corpus(folder / "corpus", list(row_of_text), prompts.get(section.role, ""), is_trained, meta)
    return {"name": section.label, "kind": section.type, "classes": classes, "scale": scale}


def _classes(section: TaskSection, targets: Targets) -> list[str]:
    """The sorted classes of the training rows; none for scores."""
    if section.type == "sts":
        return []
    if section.type == "multilabel":
        return sorted(set(chain.from_iterable(targets)))
    return sorted(set(targets))


def write_corpus(
    folder: Path, texts: list[str], prompt: str, is_trained: npt.NDArray[np.bool_], meta: dict[str, Any]
) -> None:
    """Write the texts as a corpus of one source."""
    folder.mkdir()
    encoded = [text.encode() for text in texts]
    keys = as_keys(text_key(prompt, text) for text in texts)
    with ExitStack() as stack:
        writer = TextWriter(folder, stack, sources=np.uint16)
        writer.append(encoded, [len(text) for text in encoded], keys=keys, sources=np.zeros(len(texts)))
    write_columns(
        folder,
        origins=origin_numbers(texts),
        train_rows=np.flatnonzero(is_trained),
        holdout_rows=np.flatnonzero(~is_trained),
    )
    (folder / META).write_text(json.dumps(meta, ensure_ascii=False, indent=1), encoding="utf-8")


def _check(
    section: TaskSection, texts: list[tuple[str, ...]], targets: Targets, classes: list[str], scale: Scale
) -> None:
    """DistilvecError for a task on which nothing can be learnt or measured."""
    key = "task.path"
    split = f"{section.path}: split '{section.train_split}'"
    if len(texts) < 2:
        raise DistilvecError(f"{split} has {len(texts)} row.", "Give at least 2.", key=key)
    if len(set(targets)) == 1:
        what = "score" if scale is not None else "label"
        raise DistilvecError(
            f"{split}: every row has the same {what}, {shown_value(targets[0])}.", "Give others.", key=key
        )
    test, test_targets = _read(section, section.test_split)
    _numbers(section, section.test_split, test_targets, classes, scale)
    if section.test_split == section.train_split or test == texts:
        problem = f"{section.path}: training and test rows are the same"
        fix = "Add a column split (train, test), or name a folder with the files train and test, such as train.csv."
        raise DistilvecError(f"{problem}.", fix, key="task.test_split")
    origins = origin_numbers("\n".join(parts) for parts in [*texts, *test])
    shared = int(np.isin(origins[len(texts) :], origins[: len(texts)]).sum())
    if shared:
        log(
            f"task {section.label}: {shared:,} of {len(test):,} test rows have a text of the training split, or much "
            "of one. They do not show how the student does on new texts."
        )


def _read(section: TaskSection, split: str) -> tuple[list[tuple[str, ...]], Targets]:
    with about("task.path"):
        return load_labelled(section.path, section.type, split, section.columns, section.train_split)


def _draw(section: TaskSection, texts: Sequence[tuple[str, ...]]) -> tuple[Rows, Rows]:
    """Numbers of the training rows and, without a validation split, of the validation rows, in the order drawn.

    Rows of one origin are on one side: equal texts, pieces, texts that overlap.
    """
    order = np.random.Generator(np.random.PCG64(section.seed)).permutation(len(texts))[: section.limit]
    if section.validation_split is not None:
        return order, order[:0]
    origins = origin_numbers("\n".join(texts[row]) for row in order)
    in_order = origins[np.sort(np.unique(origins, return_index=True)[1])]
    is_drawn = draw_origins(in_order, np.bincount(origins), max(1, len(order) // VALIDATION), 1, len(order) // 2)
    is_validation = is_drawn[origins]
    if not is_validation.any():
        log(f"task {section.label}: all training rows have one text, or much of it: validation is drawn row by row")
        is_validation = np.arange(len(order)) < max(1, len(order) // VALIDATION)
    if is_validation.all():
        raise DistilvecError("1 example is too few: one is for validation.", "Give at least 2.", key="task.limit")
    return order[~is_validation], order[is_validation]


def _numbers(section: TaskSection, split: str, targets: Targets, classes: list[str], scale: Scale) -> Labels:
    """Labels as numbers of their classes, or scores on the training rows' scale, from 0 to 1.

    Scores of other rows may lie beyond: cut off, they would all be equal, and a correlation with them wrong.
    """
    if scale is not None:
        return ((np.array(targets) - scale[0]) / (scale[1] - scale[0])).astype(np.float32)
    unknown = sorted(set(_classes(section, targets)) - set(classes))
    if unknown:
        problem = f"split '{split}' has labels that split '{section.train_split}' lacks: {some_of(unknown)}"
        raise DistilvecError(f"{section.path}: {problem}.", "Add training rows for them.", key="task.path")
    numbers = {name: number for number, name in enumerate(classes)}
    if section.type == "multilabel":
        labels = np.zeros((len(targets), len(classes)), dtype=np.float32)
        for row, names in enumerate(targets):
            labels[row, [numbers[name] for name in names]] = 1
        return labels
    return np.array([numbers[label] for label in targets], dtype=np.int64)


def _is_joint(section: TaskSection) -> bool:
    return section.type in PAIRS and section.encode == "joint"


def _corpus_rows(section: TaskSection, parts: tuple[str, ...]) -> tuple[str, ...]:
    """An example's texts as corpus rows: cleaned, and joined to one if a pair is one input."""
    texts = []
    for part in parts:
        text = clean_text(part, LONGEST_TEXT // 2)
        texts.append(text.replace(SEPARATOR, "\N{REPLACEMENT CHARACTER}"))
    return (SEPARATOR.join(texts),) if _is_joint(section) else tuple(texts)


def _files(section: TaskSection) -> list[Path]:
    """The files that the splits are read from, sorted.

    Others in the folder are not among them: a note or a .DS_Store that appears there must not end a run's resuming.
    """
    if not section.path.is_dir():
        with about("task.path"):
            check_readable(section.path)
        return [section.path]
    splits = [section.train_split, section.test_split]
    if section.validation_split is not None:
        splits.append(section.validation_split)
    files: set[Path] = set()
    for split in splits:
        with about("task.path"):
            file = split_file(section.path, TableOptions(split))
        if file.is_dir():
            files |= {saved for _, saved in saved_files(file)}
        else:
            files |= {file}
    return sorted(files)
