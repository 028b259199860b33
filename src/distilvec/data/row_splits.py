"""Which rows are for training, validation and the test: usual names of splits, and rows drawn label by label.

Rows are drawn by origin (data/origins.py): no text, nor a part of it, is on two sides. One seed always draws the same
rows. No torch is imported here: a wrong file is refused at once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np

TRAIN: Final = "train"
VALIDATION: Final = "validation"
TEST: Final = "test"
SPLIT = "split"  # the column that says which split a row is of
# Usual names of splits and what they are for; of several names for one use the first is preferred
SPLIT_USES = {
    "test": TEST,
    "testing": TEST,
    "validation": VALIDATION,
    "dev": VALIDATION,
    "valid": VALIDATION,
    "val": VALIDATION,
    "development": VALIDATION,
    "train": TRAIN,
    "training": TRAIN,
}


def split_use(name: str) -> str | None:
    """What a split is for by its name, in any case of letters: TRAIN, VALIDATION or TEST; None for other names."""
    return SPLIT_USES.get(name.strip().casefold())


def grouped(keys: Sequence[Hashable]) -> list[list[int]]:
    """Numbers of rows grouped by the rows' keys, in the order of the first row of each."""
    groups: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def draw_share(
    labels: Sequence[Sequence[str]], origins: Sequence[int], share: float, seed: int, fewest: int
) -> tuple[list[int], list[int]]:
    """Draw a share of every label's origins, at least one where there are `fewest`. Numbers of other rows come first.

    All rows of an origin are drawn together. One with several labels counts for its rarest one.
    """
    groups = grouped(origins)
    labels_of_groups = [{label for row in group for label in labels[row]} for group in groups]
    counts = Counter(label for group_labels in labels_of_groups for label in group_labels)
    by_label: dict[str, list[int]] = {}
    for number, group_labels in enumerate(labels_of_groups):
        rarest = min(group_labels, key=lambda label: (counts[label], label), default="")
        by_label.setdefault(rarest, []).append(number)
    generator = random.Random(seed)
    drawn: set[int] = set()
    for label in sorted(by_label):
        numbers = by_label[label]
        generator.shuffle(numbers)
        if len(numbers) >= fewest:
            count = max(1, round(share * len(numbers)))
            drawn.update(numbers[: min(count, len(numbers) - 1)])

    # An origin with several labels is not drawn where one of them would be left without a row to train on
    remaining: set[str] = set()
    for number, group_labels in enumerate(labels_of_groups):
        if number not in drawn:
            remaining |= group_labels
    kept_rows: list[int] = []
    drawn_rows: list[int] = []
    for number, group in enumerate(groups):
        if number in drawn and remaining.issuperset(labels_of_groups[number]):
            drawn_rows += group
        else:
            kept_rows += group
    return kept_rows, drawn_rows


def last_fifths(labels: Sequence[str]) -> list[tuple[list[int], list[int]]]:
    """Numbers of each label's rows: those before its last fifth, and that fifth.

    It is at least one row, and none of a label with a single row.
    """
    parts = []
    for numbers in grouped(labels):
        first = max(1, len(numbers) - max(1, len(numbers) // 5))
        parts.append((numbers[:first], numbers[first:]))
    return parts


def draw_training_rows(labels: Sequence[str], limit: int, seed: int) -> list[int]:
    """Draw `limit` rows by seed, the first of every label included; sorted numbers of rows."""
    order = np.random.default_rng(seed).permutation(len(labels)).tolist()
    first: dict[str, int] = {}
    for row in order:
        first.setdefault(labels[row], row)
    drawn = set(first.values())
    others = [row for row in order if row not in drawn]
    return sorted([*drawn, *others[: limit - len(drawn)]])
