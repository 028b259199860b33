"""How long a training is: passes over the texts, steps within some minutes, and an early end where nothing improves."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from distilvec.core.files import read_json, write_json
from distilvec.core.run_folder import TrainingFolder

TEXTS_SEEN = 100_000  # by `train.epochs: auto`, in whole passes
MOST_PASSES = 30
# Of a labelled task: its examples are few, and a classifier still learns from them after the vectors have settled.
EXAMPLES_SEEN = 50_000
FEWEST_LABELLED_PASSES = 3

# The share by which the watched metric has to become better to count as an improvement. It was set for the distance.
FLAT = 0.005
FLAT_VALIDATIONS = 3  # in a row without an improvement, after which the decay begins
# Validations closer together than this share of all steps cannot show an improvement of FLAT in a training that is fine
CLOSEST_JUDGED = 0.05
DECAY_SHARE = 0.1  # of the steps so far
FEWEST_DECAY_STEPS = 20


@dataclass(frozen=True)
class Passes:
    """The passes that `train.epochs: auto` stands for. Printed as "3 passes of 28,500 texts"."""

    count: int
    rows: int
    labelled: bool = False

    def __str__(self) -> str:
        passes = "1 pass" if self.count == 1 else f"{self.count} passes"
        return f"{passes} of {self.rows:,} {'examples' if self.labelled else 'texts'}"


def automatic_passes(rows: int, labelled: bool) -> Passes:
    """Return the whole passes over `rows` texts or labelled examples that fit into TEXTS_SEEN or EXAMPLES_SEEN."""
    if labelled:
        count = max(FEWEST_LABELLED_PASSES, EXAMPLES_SEEN // max(rows, 1))
    else:
        count = max(1, TEXTS_SEEN // max(rows, 1))
    return Passes(min(count, MOST_PASSES), rows, labelled)


# -- minutes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pace:
    """What a training takes on this machine."""

    step_seconds: float
    validation_seconds: float
    texts_a_step: int
    steps_an_epoch: int


def steps_within(seconds: float, pace: Pace, validations_between: Callable[[int], int]) -> int:
    """Return the largest number of steps, at least 1, that fits into the seconds together with all validations.

    `validations_between` is the number of validations between epochs in a training of so many steps. Others follow
    every epoch, and one comes before the first step.
    """

    def seconds_of(steps: int) -> float:
        validations = 1 + math.ceil(steps / pace.steps_an_epoch) + validations_between(steps)
        return steps * pace.step_seconds + validations * pace.validation_seconds

    most = int(seconds / pace.step_seconds)  # without any validation
    return max(1, bisect_right(range(1, most + 1), seconds, key=seconds_of))


def write_steps(folder: TrainingFolder, steps: int, fingerprint: str) -> None:
    """Keep the number of steps, so that a resumed training has the same schedule."""
    folder.length.parent.mkdir(parents=True, exist_ok=True)
    write_json(folder.length, {"steps": steps, "fingerprint": fingerprint}, sealed=True)


def read_steps(folder: TrainingFolder, fingerprint: str | None = None) -> int | None:
    """Read the number of steps; None if there is no file, or that of a training with another fingerprint."""
    if not folder.length.exists():
        return None
    content = read_json(folder.length, "Put back a copy of it, or start over (--restart).")
    if fingerprint is not None and content["fingerprint"] != fingerprint:
        return None
    return int(content["steps"])


# -- an early end ------------------------------------------------------------------------------------------------------


def decay_steps(step: int) -> int:
    """Return the steps over which the rate falls to the final one, where the decay begins after `step` steps."""
    return max(FEWEST_DECAY_STEPS, round(DECAY_SHARE * step))
