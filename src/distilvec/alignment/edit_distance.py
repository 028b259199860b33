"""Token pairs by edit distance: time warping (MinED, CDM's strict pairs; methods.md 6.2, 6.5), nearest types (EMO)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from distilvec.alignment.offsets import ORDINARY, Numbers, Placed

_CELLS = 1 << 20  # of tables in memory at once, unless one text needs more
_FAR = 1 << 29  # above every cost
_Part = tuple[int, int, int, int]  # first and end of the student's tokens, of the teacher's


def warped_pairs(
    student: Placed,
    teacher: Placed,
    student_pieces: npt.NDArray[np.object_],
    teacher_pieces: npt.NDArray[np.object_],
    strict: bool,
) -> tuple[Numbers, Numbers]:
    """Return the one-to-one pairs of ordinary tokens on every text's cheapest path.

    `strict` keeps pairs of equal pieces (CDM). The two texts of a pair are warped separately.
    Note: pieces are compared as they are; if one tokenizer lower-cases, capitals cost an edit each.
    """
    ours, theirs = (_by_part(side) for side in (student, teacher))
    parts = [(*own, *theirs[number]) for number, own in ours.items() if number in theirs]
    parts.sort(key=lambda part: (part[1] - part[0], part[3] - part[2]))
    own, other = student_pieces[student.ids], teacher_pieces[teacher.ids]
    found: list[tuple[Numbers, Numbers]] = [(np.zeros(0, dtype=np.int64),) * 2]
    for group in _groups(parts):
        shape = np.array([[end - start, stop - begin] for start, end, begin, stop in group])
        distances = np.zeros((*shape.max(axis=0), len(group)), dtype=np.int32)
        for number, (start, end, begin, stop) in enumerate(group):
            table = edit_distances(own[start:end].tolist(), other[begin:stop].tolist())
            distances[: end - start, : stop - begin, number] = table
        path, _ = cheapest_paths(distances, shape[:, 0], shape[:, 1])
        step, which = np.nonzero(one_to_one(path))
        firsts = np.array([(start, begin) for start, _, begin, _ in group])[which]
        found.append((path[step, which, 0] + firsts[:, 0], path[step, which, 1] + firsts[:, 1]))
    one, two = (np.concatenate(numbers) for numbers in zip(*found, strict=True))
    same = own[one] == other[two] if strict else slice(None)
    return one[same], two[same]


def type_pairs(
    student: Placed, teacher: Placed, student_pieces: npt.NDArray[np.object_], teacher_pieces: npt.NDArray[np.object_]
) -> tuple[Numbers, Numbers]:
    """Return pairs of token types that are each other's nearest in a text, at the first token of both (EMO's code).

    Ordinary tokens alone. The pieces are as the vocabularies spell them, with ## and ▁. Ties: the type that comes first
    in the text; the code leaves these to the order of a set.
    Note: that code sorts the rows of either model by position, which pairs some with others; these stay pairs.
    """
    sides = ((student, student_pieces), (teacher, teacher_pieces))
    ours, theirs = (_types(side, pieces[side.ids]) for side, pieces in sides)
    found: list[tuple[int, int]] = []
    for text, own in ours.items():
        if other := theirs.get(text):
            distances = edit_distances(list(own), list(other))
            nearest, back = distances.argmin(1), distances.argmin(0)
            firsts, others = list(own.values()), list(other.values())
            found += [(firsts[n], others[m]) for n, m in enumerate(nearest) if back[m] == n]
    one, two = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return one, two


def _types(side: Placed, spelled: npt.NDArray[np.object_]) -> dict[int, dict[str, int]]:
    """Return the number of the first ordinary token of every type, by text."""
    found: dict[int, dict[str, int]] = {}
    ordinary = np.flatnonzero(side.roles == ORDINARY)
    for number, text in zip(ordinary.tolist(), side.texts[ordinary].tolist(), strict=True):
        found.setdefault(text, {}).setdefault(spelled[number], number)
    return found


def edit_distances(own: Sequence[str], other: Sequence[str]) -> npt.NDArray[np.int32]:
    """Return the Levenshtein distances [own, other]."""
    return cdist(own, other, scorer=Levenshtein.distance, dtype=np.int32)


def cheapest_paths(
    distances: npt.NDArray[np.int32], own_counts: Numbers, other_counts: Numbers
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return the paths [steps, batch, 2] of dynamic time warping and their costs [batch].

    `distances` [own, other, batch] is padded; the counts [batch] are the true lengths. Paths run from the END of both
    sequences to their start, then -1. A step goes back in both sequences, the own or the other one. Ties: the step
    in both first, then the one in the own sequence. Vectorized over anti-diagonals and the batch.
    """
    rows, columns, batch = distances.shape
    total = np.full((rows + 1, columns + 1, batch), _FAR, dtype=np.int32)
    total[0, 0] = 0
    for diagonal in range(rows + columns - 1):
        i = np.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
        j = diagonal - i
        total[i + 1, j + 1] = distances[i, j] + np.minimum(np.minimum(total[i, j], total[i, j + 1]), total[i + 1, j])
    i, j, each = own_counts - 1, other_counts - 1, np.arange(batch)
    costs = total[i + 1, j + 1, each]
    steps = []
    while True:
        steps.append(np.stack([i, j], axis=1))
        going = (i > 0) | (j > 0)
        if not going.any():
            break
        a, b = np.maximum(i, 0), np.maximum(j, 0)
        both, in_own, in_other = total[a, b, each], total[a, b + 1, each], total[a + 1, b, each]
        diagonal_step = both <= np.minimum(in_own, in_other)
        own_step = diagonal_step | (in_own <= in_other)
        other_step = diagonal_step | ~own_step
        i, j = np.where(going, i - own_step, -1), np.where(going, j - other_step, -1)
    return np.stack(steps), costs


def one_to_one(path: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return [steps, batch]: True for steps of a path whose two tokens are in no other step."""
    alone = path[:, :, 0] >= 0
    changed = (path[1:] != path[:-1]).all(axis=2)
    alone[1:] &= changed
    alone[:-1] &= changed
    return alone


def _by_part(side: Placed) -> dict[int, tuple[int, int]]:
    """Return the first and the end of the ordinary tokens of every part with any."""
    ordinary = np.flatnonzero(side.roles == ORDINARY)
    numbers, first, counts = np.unique(side.parts[ordinary], return_index=True, return_counts=True)
    begins = ordinary[first]
    return dict(zip(numbers.tolist(), zip(begins.tolist(), (begins + counts).tolist(), strict=True), strict=True))


def _groups(parts: Sequence[_Part]) -> Iterator[Sequence[_Part]]:
    """Yield runs of parts, sorted by length, whose tables fit into _CELLS."""
    start = 0
    while start < len(parts):
        stop, rows, columns = start, 0, 0
        while stop < len(parts):
            rows, columns = max(rows, parts[stop][1] - parts[stop][0]), max(columns, parts[stop][3] - parts[stop][2])
            if stop > start and rows * columns * (stop + 1 - start) > _CELLS:
                break
            stop += 1
        yield parts[start:stop]
        start = stop
