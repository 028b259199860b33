"""The labelled examples of a task: its distinct texts as a corpus, and which of them, with which label, make an example.

Caches, tokens and alignments go by corpus row, as they do for unlabelled texts. Pairs that are one input (`encode: joint`)
are one row of a paired corpus, pairs encoded apart two rows. The test split is read when it is scored (`read_split`): its
texts are in no corpus, so nothing of it is cached.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import Role, TaskSection
from distilvec.core.artifacts import META, Column, open_column, open_or_build
from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError
from distilvec.core.hashing import hash_files
from distilvec.core.task_head import TaskInfo
from distilvec.data.corpus import LONGEST_TEXT, SEPARATOR, Corpus, Rows, text_key
from distilvec.data.task_rows import load_labelled

FORMAT = 1
HELD_OUT = 10  # one training row in so many is held out where the task has no validation split
Labels = npt.NDArray[Any]


class Examples:
    """Examples numbered from 0; made by `build_examples`, or opened from its folder.

    `rows` [examples, members] are corpus rows; `labels` [examples] int64 numbers of `classes` (sorted by name), or float32
    scores: 0 is the lower end of `scale`, 1 the upper one, the least and greatest score of the training split (of STS-B 0
    and 5), others are cut to them. `train` and `holdout` are sorted example numbers.
    Errors: OSError, ValueError or KeyError for a folder that is missing, incomplete or damaged.
    """

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.folder = folder
        self.corpus = Corpus(folder / "corpus")
        self.name: str = meta["name"]
        self.classes: list[str] = meta["classes"]
        self.scale: tuple[float, float] | None = meta["scale"] and tuple(meta["scale"])
        self.labels: Labels = open_column(folder / "labels.npy")
        self.rows: Rows = open_column(folder / "rows.npy").reshape(len(self.labels), -1)
        self.train: Rows = open_column(folder / "train.npy")
        self.holdout: Rows = open_column(folder / "holdout.npy")
        self.info = TaskInfo(meta["kind"], max(1, len(self.classes)), self.rows.shape[1])
        if len(self.train) + len(self.holdout) != len(self):
            raise ValueError(f"{folder}: columns of different lengths")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def line(self) -> str:
        """What there is, in a sentence."""
        kinds = f"{len(self.classes)} classes" if self.classes else "scores"
        counts = f"{len(self.train):,} examples, {len(self.holdout):,} held out, {len(self.corpus):,} distinct texts"
        return f"task {self.name}: {counts}, {kinds}"


@dataclass(frozen=True)
class Labelled:
    """The rows of a split: for each example its inputs (two where a pair is encoded apart), and labels as in `Examples`."""

    inputs: list[tuple[Text, ...]]
    labels: Labels


def read_split(
    section: TaskSection, split: str, prompt: str, classes: list[str], scale: tuple[float, float] | None
) -> Labelled:
    """The examples of a split, each text cleaned as in training and behind its prompt. DistilvecError for an unknown label."""
    texts, labels, scores = load_labelled(section.path, section.type, split)
    joined = [_join(section, parts) for parts in texts]
    split_up = [tuple(_text(prompt + text) for text in parts) for parts in joined]
    return Labelled(split_up, _numbers(section, split, labels, scores, classes, scale))


def examples_fingerprint(section: TaskSection, prompts: Mapping[Role, str]) -> str:
    """Changes when a file of the task (name, content), an option or a prompt does."""
    place = section.path
    files = [place] if place.is_file() else sorted(path for path in place.glob("*") if path.is_file())
    return fingerprint(FORMAT, section.model_dump(mode="json"), hash_files(files, key="task.path"), prompts)


def build_examples(section: TaskSection, prompts: Mapping[Role, str], folder: Path) -> Examples:
    """Read the task's training and validation rows into `folder`, or reopen it if it is complete and made of the same things.

    Errors: DistilvecError for rows that cannot be read, a single class, scores that do not differ, a label that the training
    split lacks, training and test rows that are the same.
    """
    mark = examples_fingerprint(section, prompts)
    files = [section.path] if section.path.is_file() else [path for path in section.path.glob("*") if path.is_file()]
    needed = 2 * sum(path.stat().st_size for path in files)
    return open_or_build(folder, mark, "task", needed, partial(_write, section, prompts, mark), Examples)


def _write(section: TaskSection, prompts: Mapping[Role, str], mark: str, place: Path) -> dict[str, Any]:
    """Read and check the task's rows and write them to `place`; the content of its meta.json."""
    texts, labels, scores = load_labelled(section.path, section.type, section.train_split)
    classes, scale = sorted(set(labels)), (min(scores), max(scores)) if scores else None
    _check(section, texts, classes, scale)
    numbers = _numbers(section, section.train_split, labels, scores, classes, scale)
    train, holdout = _draw(section, len(texts))
    if section.validation_split is not None:
        more, labels, scores = load_labelled(section.path, section.type, section.validation_split)
        numbers = np.concatenate([numbers, _numbers(section, section.validation_split, labels, scores, classes, scale)])
        holdout, texts = np.arange(len(texts), len(texts) + len(more)), texts + more
    chosen = np.sort(np.concatenate([train, holdout]))
    held_out = np.isin(chosen, holdout)
    joined = [_join(section, texts[number]) for number in chosen.tolist()]
    order = {text: row for row, text in enumerate(dict.fromkeys(text for parts in joined for text in parts))}
    rows = np.array([[order[text] for text in parts] for parts in joined], dtype=np.int64)
    columns = {
        "rows": rows.ravel(),
        "labels": numbers[chosen],
        "train": np.flatnonzero(~held_out),
        "holdout": np.flatnonzero(held_out),
    }
    for name, values in columns.items():
        with Column(place / f"{name}.npy", values.dtype) as column:
            column.append(values)
    (place / "corpus").mkdir()
    trained = np.isin(np.arange(len(order)), rows[~held_out])
    _write_corpus(
        place / "corpus", section, prompts, list(order), trained, mark, {"train": len(train), "holdout": len(holdout)}
    )
    return {"name": section.label, "kind": section.type, "classes": classes, "scale": scale}


def _check(
    section: TaskSection, texts: list[tuple[str, ...]], classes: list[str], scale: tuple[float, float] | None
) -> None:
    """Refuse a task on which nothing can be learnt or measured."""
    if len(texts) < 2:
        raise DistilvecError(
            f"[task.path] {section.path}: split '{section.train_split}' has {len(texts)} row; expected at least 2."
        )
    if section.type != "sts" and len(classes) < 2:
        raise DistilvecError(
            f"[task.path] {section.path}: split '{section.train_split}' has one label only, '{classes[0]}'; expected two."
        )
    if scale is not None and scale[0] == scale[1]:
        raise DistilvecError(
            f"[task.path] {section.path}: all scores of split '{section.train_split}' are {scale[0]:g}."
        )
    test, labels, scores = load_labelled(section.path, section.type, section.test_split)
    _numbers(section, section.test_split, labels, scores, classes, scale)
    if section.test_split == section.train_split or test == texts:
        raise DistilvecError(
            f"[task.test_split] {section.path}: training and test rows are the same. Name two splits; a file needs a column split for them."
        )


def _draw(section: TaskSection, count: int) -> tuple[Rows, Rows]:
    """Numbers of the training rows and, where no split is named for them, of the validation rows; by seed."""
    order = np.random.Generator(np.random.PCG64(section.seed)).permutation(count)[: section.limit]
    held_out = 0 if section.validation_split is not None else max(1, len(order) // HELD_OUT)
    if held_out == len(order):
        raise DistilvecError(f"[task.limit] {len(order)} example is too few: one is held out. Give at least 2.")
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def _numbers(
    section: TaskSection,
    split: str,
    labels: list[str],
    scores: list[float],
    classes: list[str],
    scale: tuple[float, float] | None,
) -> Labels:
    """Labels as numbers of their classes, or scores from 0 to 1."""
    if scale is not None:
        low, high = scale
        return np.clip((np.array(scores) - low) / (high - low), 0, 1).astype(np.float32)
    known = {name: number for number, name in enumerate(classes)}
    if unknown := sorted(set(labels) - set(known)):
        raise DistilvecError(
            f"[task.path] {section.path}: split '{split}' has labels that split '{section.train_split}' lacks: {', '.join(unknown[:8])}."
        )
    return np.array([known[label] for label in labels], dtype=np.int64)


def _join(section: TaskSection, parts: tuple[str, ...]) -> tuple[str, ...]:
    """An example's texts as corpus rows: cleaned, and joined to one where a pair is one input."""
    clean = tuple(_clean(part) for part in parts)
    return (SEPARATOR.join(clean),) if len(clean) == 2 and section.encode == "joint" else clean


def _clean(text: str) -> str:
    """Stripped, cut as in a corpus, without the separator and what UTF-8 cannot hold."""
    text = text.strip()[: LONGEST_TEXT // 2].rstrip().replace(SEPARATOR, "\N{REPLACEMENT CHARACTER}")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text(stored: str) -> Text:
    first, separator, second = stored.partition(SEPARATOR)
    return (first, second) if separator else first


def _write_corpus(
    place: Path,
    section: TaskSection,
    prompts: Mapping[Role, str],
    texts: list[str],
    trained: npt.NDArray[np.bool_],
    mark: str,
    counts: dict[str, int],
) -> None:
    """The texts as a corpus of one source; `counts` are examples."""
    encoded, prompt = [text.encode() for text in texts], prompts.get(section.role, "")
    columns = {
        "offsets": np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        "keys": np.frombuffer(b"".join(text_key(prompt, text) for text in texts), dtype="V16"),
        "sources": np.zeros(len(texts), dtype=np.uint16),
        "train_rows": np.flatnonzero(trained),
        "holdout_rows": np.flatnonzero(~trained),
    }
    for name, values in columns.items():
        with Column(place / f"{name}.npy", values.dtype) as column:
            column.append(values)
    (place / "texts.bin").write_bytes(b"".join(encoded))
    report = {
        "read": sum(counts.values()),
        "kept": len(texts),
        **counts,
        "sources": [{"name": section.label, "kept": len(texts)}],
    }
    meta = {
        "fingerprint": mark,
        "report": report,
        "prompts": prompts,
        "source_names": [section.label],
        "languages": [None],
        "roles": [section.role],
        "paired": section.type != "classification" and section.encode == "joint",
    }
    (place / META).write_text(json.dumps(meta, ensure_ascii=False, indent=1), encoding="utf-8")
