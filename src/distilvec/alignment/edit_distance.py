"""Token pairs by edit distance with dynamic time warping: MinED (FuseLLM; methods.md 6.2), and CDM's strict pairs (6.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from distilvec.alignment.offsets import ORDINARY, Numbers, Placed

_CELLS = 1 << 20  # of tables held at once, unless one text needs more
_FAR = 1 << 29  # above every cost
_Part = tuple[int, int, int, int]  # first and end of the student's tokens, of the teacher's


def warped_pairs(
    student: Placed,
    teacher: Placed,
    student_pieces: npt.NDArray[np.object_],
    teacher_pieces: npt.NDArray[np.object_],
    strict: bool,
) -> tuple[Numbers, Numbers]:
    """The one-to-one places of every text's cheapest path: ordinary tokens of both sides that stand for no other one.

    `strict` keeps those whose pieces are the same text (CDM). The two texts of a pair are warped apart.
    Note: pieces are compared as they are; where one tokenizer lower-cases, capitals cost an edit each.
    """
    ours, theirs = (_by_part(side) for side in (student, teacher))
    parts = [(*one, *theirs[number]) for number, one in ours.items() if number in theirs]
    parts.sort(key=lambda part: (part[1] - part[0], part[3] - part[2]))
    own, other = student_pieces[student.ids], teacher_pieces[teacher.ids]
    found: list[tuple[Numbers, Numbers]] = [(np.zeros(0, dtype=np.int64),) * 2]
    for group in _groups(parts):
        shape = np.array([[end - start, stop - begin] for start, end, begin, stop in group])
        distances = np.zeros((*shape.max(axis=0), len(group)), dtype=np.int32)
        for number, (start, end, begin, stop) in enumerate(group):
            distances[: end - start, : stop - begin, number] = edit_distances(
                own[start:end].tolist(), other[begin:stop].tolist()
            )
        path, _ = cheapest_paths(distances, shape[:, 0], shape[:, 1])
        step, place = np.nonzero(one_to_one(path))
        firsts = np.array([(start, begin) for start, _, begin, _ in group])[place]
        found.append((path[step, place, 0] + firsts[:, 0], path[step, place, 1] + firsts[:, 1]))
    pairs = np.concatenate([one for one, _ in found]), np.concatenate([two for _, two in found])
    if strict:
        same = np.array([one == two for one, two in zip(own[pairs[0]], other[pairs[1]], strict=True)], dtype=np.bool_)
        return pairs[0][same], pairs[1][same]
    return pairs


def edit_distances(own: Sequence[str], other: Sequence[str]) -> npt.NDArray[np.int32]:
    """[own, other] Levenshtein distances: the fewest insertions, deletions and replacements of a character."""
    return cdist(own, other, scorer=Levenshtein.distance, dtype=np.int32)


def cheapest_paths(
    distances: npt.NDArray[np.int32], own_counts: Numbers, other_counts: Numbers
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Dynamic time warping of many sequences: paths [steps, batch, 2] from the END of both to their start, -1 behind it; costs.

    `distances` [own, other, batch]; the counts [batch] say how much of them is real. A path goes by one step in both
    sequences, in the own or in the other one. Among equally cheap ways back the step in both is taken first, then the one
    in the own sequence. Vectorised over anti-diagonals and the batch.
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
    """[steps, batch] True at places of a path whose two tokens are at no other place of it."""
    alone = path[:, :, 0] >= 0
    changed = (path[1:] != path[:-1]).all(axis=2)
    alone[1:] &= changed
    alone[:-1] &= changed
    return alone


def _by_part(side: Placed) -> dict[int, tuple[int, int]]:
    """The first and the end of the ordinary tokens of every part that has any."""
    ordinary = np.flatnonzero(side.roles == ORDINARY)
    numbers, first, counts = np.unique(side.parts[ordinary], return_index=True, return_counts=True)
    begins = ordinary[first]
    return dict(zip(numbers.tolist(), zip(begins.tolist(), (begins + counts).tolist(), strict=True), strict=True))


def _groups(parts: Sequence[_Part]) -> Iterator[Sequence[_Part]]:
    """Runs of parts, sorted by length, whose tables fit into _CELLS."""
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
