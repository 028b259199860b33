"""Training, validation and test rows: drawn by seed, label by label."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_file
from distilvec.core.run_folder import RunFolder
from distilvec.data.task_rows import some_of
from distilvec.pipeline.claim import has_trained
from distilvec.verbs.classify.rows import LabelledText, LabelledTexts, Source, read_labelled

VALIDATION_SHARE = 0.1  # of the training rows; on them the best student is chosen
LEAST_FOR_VALIDATION = 4  # training rows of a label before one of them is taken away
TRAIN, VALIDATION, TEST = "train", "validation", "test"


@dataclass(frozen=True)
class Split:
    """The rows by use, and sentences about what a reader would not expect. `validation` may be empty."""

    train: list[LabelledText]
    validation: list[LabelledText]
    test: list[LabelledText]
    notes: list[str] = field(default_factory=list)

    @property
    def classes(self) -> list[str]:
        """The labels of the training rows, sorted."""
        return sorted({label for row in self.train for label in row.labels})

    @property
    def fewest(self) -> int:
        """Training rows of the rarest label."""
        return min(Counter(label for row in self.train for label in row.labels).values())


def read_and_split(
    file: Source, text: Sequence[str], label: str | None, test: Source | None, test_size: float, seed: int
) -> tuple[LabelledTexts, Split]:
    """Read the rows and split them. Errors: DistilvecError with file, text, label, test or test_size as key."""
    if not 0 < test_size < 1:
        raise DistilvecError("test_size", f"found {test_size:g}.", "Give a share between 0 and 1, such as 0.2.")
    data = read_labelled(file, text, label)
    test_data = None
    if test is not None:
        test_data = read_labelled(test, data.columns.texts, data.columns.label, data.several, key="test")
    return data, split_rows(data, test_data, test_size, seed)


def split_rows(data: LabelledTexts, test: LabelledTexts | None, test_size: float, seed: int) -> Split:
    """Split the rows: a test file, else the file's column `split`, else a share of every label, drawn by seed.

    A row that is there twice counts once, so that no test row was trained on. A label with a single row is trained on
    and not tested. Errors: DistilvecError for a single label, and for labels of test rows that no training row has.
    """
    rows, repeated = _distinct(data.rows)
    notes = [f"{repeated:,} rows repeat another one and are left out"] if repeated else []
    validation: list[LabelledText] = []
    stated = {row.split for row in rows}
    if test is not None:
        train = rows
        test_rows, key = _distinct(test.rows)[0], "test"
        both = len(set(map(_content, train)) & set(map(_content, test_rows)))
        if both:
            notes.append(f"{both:,} test rows are training rows too: the accuracy will be too high")
    elif {TRAIN, TEST} <= stated:
        train = [row for row in rows if row.split == TRAIN]
        validation = [row for row in rows if row.split == VALIDATION]
        test_rows = [row for row in rows if row.split == TEST]
        key = "file"
        left_out = len(rows) - len(train) - len(validation) - len(test_rows)
        notes.append("training and test rows are those of the column split")
        if left_out:
            notes.append(f"{left_out:,} rows of other splits than train, validation and test are left out")
    else:
        train, test_rows = _draw(rows, test_size, seed, 2)
        key = "file"
        single = _labels_of_one_row(rows)
        if single:
            notes.append(f"trained on and not tested, with one row each: {some_of(single)}")
    if not test_rows:
        raise DistilvecError(key, "no rows are left for the test.", "Give at least two rows of every label.")
    if not validation:
        train, validation = _draw(train, VALIDATION_SHARE, seed, LEAST_FOR_VALIDATION)
    split = Split(train, validation, test_rows, notes)
    _check(split, data.several, key)
    return split


def split_files(split: Split, several: bool) -> dict[str, str]:
    """Return train.jsonl, validation.jsonl and test.jsonl by name, with the columns of a recipe's task."""
    files = {}
    for name, rows in {TRAIN: split.train, VALIDATION: split.validation, TEST: split.test}.items():
        lines = []
        for row in rows:
            columns = ("text",) if len(row.texts) == 1 else ("sentence1", "sentence2")
            label = list(row.labels) if several else row.labels[0]
            content = {**dict(zip(columns, row.texts, strict=True)), "label": label}
            lines.append(json.dumps(content, ensure_ascii=False) + "\n")
        if lines:
            files[f"{name}.jsonl"] = "".join(lines)
    return files


def write_split(files: Mapping[str, str], run: RunFolder) -> None:
    """Write the files of a split into a run folder.

    Errors: DistilvecError if the run, or its teacher, has learned from other rows: those are kept.
    """
    folder = run.labels
    folder.mkdir(parents=True, exist_ok=True)
    earlier = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.jsonl")}
    if earlier not in ({}, files) and (has_trained(run) or has_trained(run.teacher)):
        raise DistilvecError(
            "--out",
            f"{run.path} holds a run on other rows; it is not trained further.",
            "Choose another folder, or start over with --restart, which moves that run aside.",
        )
    for name in earlier.keys() - files.keys():
        (folder / name).unlink()
    for name, content in files.items():
        write_file(folder / name, content, "out")


def _draw(
    rows: Sequence[LabelledText], share: float, seed: int, fewest: int
) -> tuple[list[LabelledText], list[LabelledText]]:
    """Draw a share of every label's rows, at least one where there are `fewest`; the others first.

    A row with several labels counts for its rarest one.
    """
    counts = Counter(label for row in rows for label in row.labels)
    by_label: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        rarest = min(row.labels, key=lambda label: (counts[label], label), default="")
        by_label.setdefault(rarest, []).append(number)
    generator = random.Random(seed)
    drawn: set[int] = set()
    for label in sorted(by_label):
        numbers = by_label[label]
        generator.shuffle(numbers)
        if len(numbers) >= fewest:
            drawn.update(numbers[: min(len(numbers) - 1, max(1, round(share * len(numbers))))])
    remaining = {label for number, row in enumerate(rows) if number not in drawn for label in row.labels}
    drawn = {number for number in drawn if remaining.issuperset(rows[number].labels)}
    kept = [row for number, row in enumerate(rows) if number not in drawn]
    return kept, [row for number, row in enumerate(rows) if number in drawn]


def _check(split: Split, several: bool, key: str) -> None:
    """DistilvecError for a single label, and for labels that are to be tested and were not trained on."""
    classes = split.classes
    if len(classes) < (1 if several else 2):
        found = f"one label only, '{classes[0]}'" if classes else "no label on any row"
        raise DistilvecError("label", f"the training rows have {found}.", "Give rows of two labels.")
    for name, rows in {"validation": split.validation, "test": split.test}.items():
        unknown = sorted({label for row in rows for label in row.labels} - set(classes))
        if unknown:
            problem = f"{name} rows have labels that no training row has: {some_of(unknown)}."
            raise DistilvecError(key, problem, "Add training rows of them, or correct the labels.")


def _distinct(rows: Sequence[LabelledText]) -> tuple[list[LabelledText], int]:
    """The rows without repetitions, and how many were repetitions. A row of another split is another row."""
    distinct = list(dict.fromkeys(rows))
    return distinct, len(rows) - len(distinct)


def _content(row: LabelledText) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return row.texts, row.labels


def _labels_of_one_row(rows: Sequence[LabelledText]) -> list[str]:
    counts = Counter(label for row in rows for label in row.labels)
    return sorted(label for label, count in counts.items() if count == 1)
