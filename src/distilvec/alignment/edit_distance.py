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

    Returns two int64 [pairs]: numbers of tokens of the student and of the teacher, counted over all texts. The pieces
    are those of the whole vocabulary, [ids]. `strict` keeps pairs of equal pieces (CDM). The two texts of a pair are
    warped separately.
    Note: pieces are compared as they are; if one tokenizer lower-cases, capitals cost an edit each.
    """
    teacher_parts = _by_part(teacher)
    parts = [(*part, *teacher_parts[number]) for number, part in _by_part(student).items() if number in teacher_parts]
    parts.sort(key=lambda part: (part[1] - part[0], part[3] - part[2]))  # like sizes together: less padding
    student_texts = student_pieces[student.ids]
    teacher_texts = teacher_pieces[teacher.ids]
    student_tokens = [np.zeros(0, dtype=np.int64)]
    teacher_tokens = [np.zeros(0, dtype=np.int64)]
    for group in _groups(parts):
        shape = np.array([[end - start, stop - begin] for start, end, begin, stop in group])
        distances = np.zeros((*shape.max(axis=0), len(group)), dtype=np.int32)
        for number, (start, end, begin, stop) in enumerate(group):
            table = edit_distances(student_texts[start:end].tolist(), teacher_texts[begin:stop].tolist())
            distances[: end - start, : stop - begin, number] = table
        path, _ = cheapest_paths(distances, shape[:, 0], shape[:, 1])
        step, which = np.nonzero(one_to_one(path))
        firsts = np.array([(start, begin) for start, _, begin, _ in group])[which]
        student_tokens.append(path[step, which, 0] + firsts[:, 0])
        teacher_tokens.append(path[step, which, 1] + firsts[:, 1])
    first, second = np.concatenate(student_tokens), np.concatenate(teacher_tokens)
    if strict:
        is_equal = student_texts[first] == teacher_texts[second]
        return first[is_equal], second[is_equal]
    return first, second


def type_pairs(
    student: Placed, teacher: Placed, student_pieces: npt.NDArray[np.object_], teacher_pieces: npt.NDArray[np.object_]
) -> tuple[Numbers, Numbers]:
    """Return pairs of token types that are each other's nearest in a text, at the first token of both (EMO's code).

    Returns two int64 [pairs]: numbers of tokens of the student and of the teacher, counted over all texts. Ordinary
    tokens alone. The pieces are those of the whole vocabulary, [ids], as it spells them, with ## and ▁. Ties: the type
    that comes first in the text; the code leaves these to the order of a set.
    Note: that code sorts the rows of either model by position, which pairs some with others; these stay pairs.
    """
    teacher_types_by_text = _types(teacher, teacher_pieces[teacher.ids])
    pairs: list[tuple[int, int]] = []
    for text, student_types in _types(student, student_pieces[student.ids]).items():
        teacher_types = teacher_types_by_text.get(text)
        if not teacher_types:
            continue
        distances = edit_distances(list(student_types), list(teacher_types))
        nearest_teacher = distances.argmin(1)
        nearest_student = distances.argmin(0)
        student_tokens = list(student_types.values())
        teacher_tokens = list(teacher_types.values())
        for number, nearest in enumerate(nearest_teacher):
            if nearest_student[nearest] == number:
                pairs.append((student_tokens[number], teacher_tokens[nearest]))
    first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return first, second


def _types(side: Placed, spelled: npt.NDArray[np.object_]) -> dict[int, dict[str, int]]:
    """Return the number of the first ordinary token of every type, by text."""
    types: dict[int, dict[str, int]] = {}
    ordinary = np.flatnonzero(side.roles == ORDINARY)
    for number, text in zip(ordinary.tolist(), side.texts[ordinary].tolist(), strict=True):
        types.setdefault(text, {}).setdefault(spelled[number], number)
    return types


def edit_distances(first: Sequence[str], second: Sequence[str]) -> npt.NDArray[np.int32]:
    """Return the Levenshtein distances [first, second]."""
    return cdist(first, second, scorer=Levenshtein.distance, dtype=np.int32)


def cheapest_paths(
    distances: npt.NDArray[np.int32], first_counts: Numbers, second_counts: Numbers
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return the paths [steps, batch, 2] of dynamic time warping and their costs [batch].

    `distances` [first, second, batch] is padded; the counts [batch] are the true lengths. Paths run from the END of
    both sequences to their start, then -1. A step goes back in both sequences, or in one of them. Ties: the step in
    both first, then the one in the first sequence. Vectorized over anti-diagonals and the batch.
    """
    rows, columns, batch = distances.shape
    total = np.full((rows + 1, columns + 1, batch), _FAR, dtype=np.int32)
    total[0, 0] = 0
    for diagonal in range(rows + columns - 1):
        i = np.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
        j = diagonal - i
        total[i + 1, j + 1] = distances[i, j] + np.minimum(np.minimum(total[i, j], total[i, j + 1]), total[i + 1, j])
    i = first_counts - 1
    j = second_counts - 1
    numbers = np.arange(batch)
    costs = total[i + 1, j + 1, numbers]
    steps = []
    while True:
        steps.append(np.stack([i, j], axis=1))
        going = (i > 0) | (j > 0)
        if not going.any():
            break
        # `total` has a row and a column more than `distances`: [a, b] there is the step back in both sequences
        a = np.maximum(i, 0)
        b = np.maximum(j, 0)
        back_in_both = total[a, b, numbers]
        back_in_first = total[a, b + 1, numbers]
        back_in_second = total[a + 1, b, numbers]
        is_diagonal = back_in_both <= np.minimum(back_in_first, back_in_second)
        moves_first = is_diagonal | (back_in_first <= back_in_second)
        moves_second = is_diagonal | ~moves_first
        i = np.where(going, i - moves_first, -1)
        j = np.where(going, j - moves_second, -1)
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
        stop = start
        rows = columns = 0
        while stop < len(parts):
            rows = max(rows, parts[stop][1] - parts[stop][0])
            columns = max(columns, parts[stop][3] - parts[stop][2])
            if stop > start and rows * columns * (stop + 1 - start) > _CELLS:
                break
            stop += 1
        yield parts[start:stop]
        start = stop
