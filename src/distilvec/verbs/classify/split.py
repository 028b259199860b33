"""Training, validation and test rows: drawn by seed, label by label."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import write_file
from distilvec.core.run_folder import RunFolder
from distilvec.data.labelled_rows import LabelledText, LabelledTexts, Source, read_labelled
from distilvec.data.origins import origin_numbers
from distilvec.data.row_splits import SPLIT, SPLIT_USES, TEST, TRAIN, VALIDATION, draw_share, grouped, split_use
from distilvec.data.task_rows import loose_text, shown_value, some_of
from distilvec.pipeline.claim import has_trained

VALIDATION_SHARE = 0.1  # of the training rows; on them the best student is chosen
LEAST_FOR_VALIDATION = 4  # training rows of a label before one of them is taken away
_Origins: TypeAlias = dict[tuple[str, ...], int]  # number of the origin by texts
TEST_SIZE = 0.2  # share of every label's rows, where nothing else is stated


@dataclass(frozen=True)
class SplitRows:
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
    file: Source, text: Sequence[str], label: Sequence[str], test: Source | None, test_size: float | None, seed: int
) -> tuple[LabelledTexts, SplitRows]:
    """Read the rows and split them."""
    if test is not None and test_size is not None:
        raise DistilvecError("--test already names the test rows.", "Give the file or a share.", key="test_size")
    if test_size is not None and not 0 < test_size < 1:
        raise DistilvecError(f"found {test_size:g}.", "Give a share between 0 and 1, such as 0.2.", key="test_size")
    with about("file"):
        data = read_labelled(file, text, label)
    if test is None:
        with about("file"):
            return data, split_rows(data, None, test_size, seed)
    with about("test"):
        test_data = read_labelled(test, data.columns.texts, data.columns.labels, data)
        return data, split_rows(data, test_data, test_size, seed)


def split_rows(data: LabelledTexts, test: LabelledTexts | None, test_size: float | None, seed: int) -> SplitRows:
    """Split the rows: a test file, else the file's column `split`, else a share of every label, drawn by seed.

    No text of a test row, nor a part of it, is trained on or chosen on, whatever its labels: stated training rows of
    such an origin (data/origins.py) are left out, and rows of one origin are drawn together. A row that is there twice
    counts once. A label with a single text is trained on and not tested.
    """
    column = _rows_by_use(data)
    notes: list[str] = []
    validation: list[LabelledText] = []
    if test is not None:
        train, validation = _rows_beside_a_test(column, notes)
        test_rows = _rows_of_test_file(_rows_by_use(test), notes)
    elif column.train and (column.test or column.validation):
        if test_size is not None:
            problem = f"the test rows are those of the column {SPLIT}."
            raise DistilvecError(problem, "Leave it out, or remove the column.", key="test_size")
        train, validation, test_rows = _stated_rows(column, notes)
    else:
        train = column.every
        test_rows = []
        if column.names:
            problem = f"the column {SPLIT} has {some_of(column.names)}, and not both training and test rows"
            notes.append(f"{problem}: the test rows are drawn from all rows")

    rows_read = len(train) + len(validation) + len(test_rows)
    train, validation, test_rows = (list(dict.fromkeys(rows)) for rows in (train, validation, test_rows))
    repeated = rows_read - len(train) - len(validation) - len(test_rows)
    if repeated:
        notes.append(f"{repeated:,} rows repeat another one and are left out")
    contradictory = _contradictory_texts([*train, *validation, *test_rows])
    if contradictory:
        example = shown_value(contradictory[0])
        notes.append(f"texts with different labels on different rows: {len(contradictory):,}, such as {example}")

    texts = list(dict.fromkeys(row.texts for row in [*train, *validation, *test_rows]))
    numbers = origin_numbers("\n".join(parts) for parts in texts)
    origins = dict(zip(texts, numbers.tolist(), strict=True))
    left_out: list[LabelledText] = []
    if test_rows:
        train, validation, left_out = _without_test_texts(train, validation, test_rows, origins, notes)
    else:
        single = _labels_of_one_text(train, origins)
        train, test_rows = _draw_split(train, origins, TEST_SIZE if test_size is None else test_size, seed, 2)
        if single:
            notes.append(f"trained on and not tested, with one text each: {some_of(single)}")
    if not test_rows:
        raise DistilvecError("no rows are left for the test.", "Give at least two rows of every label.")
    if not train:
        problem = "no rows are left for the training: all of their texts are in the test or validation rows."
        raise DistilvecError(problem, "Give training rows with other texts.")
    if not validation:
        train, validation = _draw_split(train, origins, VALIDATION_SHARE, seed, LEAST_FOR_VALIDATION)
    split = SplitRows(train, validation, test_rows, notes)
    _check_split(split, left_out)
    return split


def split_files(split: SplitRows, several: bool) -> dict[str, str]:
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
    """Write the files of a split into a run folder."""
    folder = run.labels
    folder.mkdir(parents=True, exist_ok=True)
    earlier = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.jsonl")}
    if earlier not in ({}, files) and (has_trained(run) or has_trained(run.teacher)):
        raise DistilvecError(
            f"{run.path} holds a run on other rows; it is not trained further.",
            "Choose another folder, or start over with --restart, which moves that run aside.",
            key="--out",
        )
    for name in earlier.keys() - files.keys():
        (folder / name).unlink()
    for name, content in files.items():
        write_file(folder / name, content)


def refuse_learned_rows(teacher: Path, split: SplitRows) -> None:
    """Raise DistilvecError if this teacher is of a run that has trained it, or chosen it, on rows of the test."""
    run = RunFolder.of_student(teacher.resolve())
    if run is None:
        return
    classify_run = RunFolder(run.path.parent.parent)
    folder = classify_run.labels if classify_run.teacher.path == run.path else run.labels
    learned: set[tuple[str, ...]] = set()
    for name in (TRAIN, VALIDATION):
        path = folder / f"{name}.jsonl"
        if path.is_file():
            with about("teacher"):
                rows = read_labelled(path, (), ["label"]).rows
            learned.update(_key_of_texts(row) for row in rows)
    tested = sum(_key_of_texts(row) in learned for row in split.test)
    if tested:
        raise DistilvecError(
            f"{teacher} has learned {tested:,} of the {len(split.test):,} test rows, so that they test nothing.",
            f"Test on rows that it has not read: the same --seed and --test-size as its run, or --test "
            f"{folder / TEST}.jsonl. Or take the model that it began as.",
            key="teacher",
        )


@dataclass(frozen=True)
class _RowsByUse:
    """The rows by what the column `split` says of them; all of them are in `every`, without their split.

    `names` are the names of splits as the file has them, sorted; none if it has no such column.
    """

    every: list[LabelledText]
    names: list[str]
    train: list[LabelledText]
    validation: list[LabelledText]
    test: list[LabelledText]


def _rows_by_use(data: LabelledTexts) -> _RowsByUse:
    """Sort the rows by their split, which has its usual names in any case of letters."""
    every = [replace(row, split=None) for row in data.rows]
    by_use: dict[str, list[LabelledText]] = {use: [] for use in SPLIT_USES.values()}
    names: set[str] = set()
    is_other_column = SPLIT in (*data.columns.labels, *data.columns.texts)
    for source_row, row in zip(data.rows, every, strict=True):
        if source_row.split is None or is_other_column:
            continue
        names.add(source_row.split)
        use = split_use(source_row.split)
        if use is not None:
            by_use[use].append(row)
    return _RowsByUse(every, sorted(names), by_use[TRAIN], by_use[VALIDATION], by_use[TEST])


def _stated_rows(
    column: _RowsByUse, notes: list[str]
) -> tuple[list[LabelledText], list[LabelledText], list[LabelledText]]:
    """The training, validation and test rows of the column `split`; its validation rows are the test if it has none."""
    left_out = len(column.every) - len(column.train) - len(column.validation) - len(column.test)
    if column.test:
        notes.append(f"training and test rows are those of the column {SPLIT}")
        parts = column.train, column.validation, column.test
    else:
        problem = f"the column {SPLIT} has no test rows, it has {some_of(column.names)}"
        notes.append(f"{problem}: its validation rows are the test, and others are drawn from the training rows")
        parts = column.train, [], column.validation
    if left_out:
        notes.append(f"{left_out:,} rows of other splits than train, validation and test are left out")
    return parts


def _rows_beside_a_test(column: _RowsByUse, notes: list[str]) -> tuple[list[LabelledText], list[LabelledText]]:
    """The training and validation rows of a file where the test is another one."""
    if not column.train:
        if column.names:
            notes.append(
                f"the column {SPLIT} has {some_of(column.names)}, and no training rows: all rows are for the training"
            )
        return column.every, []
    if column.validation:
        notes.append(f"training and validation rows are those of the column {SPLIT}")
    left_out = len(column.every) - len(column.train) - len(column.validation)
    if left_out:
        notes.append(
            f"{left_out:,} rows of other splits than train and validation are left out: another file is the test"
        )
    return column.train, column.validation


def _rows_of_test_file(column: _RowsByUse, notes: list[str]) -> list[LabelledText]:
    """The rows of a test file that are tested: its test rows if it has other ones too, else its validation rows."""
    tested = column.test
    if not tested and column.train:
        tested = column.validation
    if not tested:
        if len(column.names) > 1:
            notes.append(f"the test file's column {SPLIT} has {some_of(column.names)}: all of its rows are the test")
        return column.every
    left_out = len(column.every) - len(tested)
    if left_out:
        use = TEST if column.test else VALIDATION
        notes.append(f"{left_out:,} rows of the test file are of other splits than {use} and are left out")
    return tested


def _without_test_texts(
    train: list[LabelledText],
    validation: list[LabelledText],
    test: list[LabelledText],
    origins: _Origins,
    notes: list[str],
) -> tuple[list[LabelledText], list[LabelledText], list[LabelledText]]:
    """The training and validation rows without origins of the test, the training rows without those of validation too.

    Third come the rows that were left out. A student that is chosen on a test text has seen the test as well.
    """
    kept_validation, in_test = _without_texts(validation, test, origins)
    kept_train, trained_in_test = _without_texts(train, test, origins)
    kept_train, in_validation = _without_texts(kept_train, kept_validation, origins)
    in_test += trained_in_test
    if in_test:
        note = f"rows left out of the training because their text is in the test: {len(in_test):,}"
        tested = {(origins[row.texts], row.labels) for row in test}
        differing = sum((origins[row.texts], row.labels) not in tested for row in in_test)
        if differing:
            note += f", of them with other labels than there: {differing:,}"
        notes.append(note)
    if in_validation:
        notes.append(f"training rows left out because their text is in the validation rows: {len(in_validation):,}")
    return kept_train, kept_validation, in_test + in_validation


def _without_texts(
    rows: list[LabelledText], others: list[LabelledText], origins: _Origins
) -> tuple[list[LabelledText], list[LabelledText]]:
    """The rows whose origin is not among those of other rows, and the rest."""
    of_others = {origins[row.texts] for row in others}
    kept, left_out = [], []
    for row in rows:
        if origins[row.texts] in of_others:
            left_out.append(row)
        else:
            kept.append(row)
    return kept, left_out


def _draw_split(
    rows: Sequence[LabelledText], origins: _Origins, share: float, seed: int, fewest: int
) -> tuple[list[LabelledText], list[LabelledText]]:
    """Draw a share of every label's origins, at least one where there are `fewest`; the other rows come first."""
    labels = [row.labels for row in rows]
    others, drawn = draw_share(labels, [origins[row.texts] for row in rows], share, seed, fewest)
    return [rows[number] for number in others], [rows[number] for number in drawn]


def _check_split(split: SplitRows, left_out: Sequence[LabelledText]) -> None:
    """DistilvecError for rows of the same labels, and for labels that are to be tested and were not trained on.

    `left_out`: training rows whose texts are in the test, which may have been a label's only ones.
    """
    classes = split.classes
    label_sets = {row.labels for row in split.train}
    if len(label_sets) == 1:
        problem = f"every training row has the same labels: {some_of(*label_sets) or 'none'}."
        raise DistilvecError(problem, "Give rows of other labels.", key="label")
    labels_left_out = {label for row in left_out for label in row.labels}
    for name, rows in {"validation": split.validation, "test": split.test}.items():
        unknown = sorted({label for row in rows for label in row.labels} - set(classes))
        if unknown:
            problem = f"{name} rows have labels that no training row has: {some_of(unknown)}."
            fix = "Add training rows of them, or correct the labels."
            if labels_left_out.intersection(unknown):
                fix = "Add training rows of them with other texts: the texts of those there are also tested."
            raise DistilvecError(problem, fix)


def _key_of_texts(row: LabelledText) -> tuple[str, ...]:
    """What rows of one text, or pair, share; case and white space do not count, as in a corpus."""
    return tuple(loose_text(text) for text in row.texts)


def _contradictory_texts(rows: Sequence[LabelledText]) -> list[str]:
    """The texts whose rows have different labels; of a pair its first text."""
    contradictory = []
    for group in grouped([_key_of_texts(row) for row in rows]):
        if len({rows[number].labels for number in group}) > 1:
            contradictory.append(rows[group[0]].texts[0])
    return contradictory


def _labels_of_one_text(rows: Sequence[LabelledText], origins: _Origins) -> list[str]:
    """The labels that texts of a single origin have, sorted."""
    counts: Counter[str] = Counter()
    for group in grouped([origins[row.texts] for row in rows]):
        counts.update({label for number in group for label in rows[number].labels})
    return sorted(label for label, count in counts.items() if count == 1)
