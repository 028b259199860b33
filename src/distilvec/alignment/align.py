"""Which of the student's tokens go with which of the teacher's, for many texts at once.

Kinds: "offsets", one-to-one pairs that cover the same characters (methods.md, 1.3); "overlap", many-to-many, by shared
characters; "mined" and "strict", by edit distance (alignment/edit_distance.py). In all of them special tokens are matched by role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from distilvec.alignment.edit_distance import warped_pairs
from distilvec.alignment.offsets import FURTHER, ORDINARY, Numbers, Placed, SpanReader, join
from distilvec.core.batch import Text
from distilvec.core.outputs import AlignmentKind

Pairs = tuple[Numbers, Numbers, npt.NDArray[np.float32] | None]  # student's tokens, teacher's tokens, shares
_ROLES = 8  # more than there are


@dataclass(frozen=True)
class Aligned:
    """The pairs of many texts end to end.

    `counts` [texts] of pairs; `pairs` [all pairs, 2] positions in the text's tokens (student's, teacher's), special ones
    counted, in order of the student's; `shares` [all pairs] for "overlap" only. `student_lengths` and `teacher_lengths`
    [texts] are tokens. `report` counts: tokens and special tokens of each side, pairs, pairs of special tokens, and each
    side's `mapped` tokens, which are in a pair, without special ones.
    """

    counts: Numbers
    pairs: Numbers
    shares: npt.NDArray[np.float32] | None
    student_lengths: Numbers
    teacher_lengths: Numbers
    report: dict[str, int]


class Aligner:
    """Two tokenizers and a kind of pairs. Texts may be pairs of texts, which both tokenizers put into one input
    (say so with `paired`, so that limits are checked for such).

    Longer texts lose what is beyond `max_length` (special tokens counted): their end for the student, as in data/tokens.py;
    for the teacher what its tokenizer cuts. Errors: DistilvecError for slow tokenizers, limits that leave no room.
    """

    def __init__(
        self,
        student: PreTrainedTokenizerBase,
        student_max_length: int,
        teacher: PreTrainedTokenizerBase,
        teacher_max_length: int,
        kind: AlignmentKind = "offsets",
        paired: bool = False,
    ) -> None:
        self.kind = kind
        self.student = SpanReader(student, student_max_length, "right", "student", paired)
        side = getattr(teacher, "truncation_side", "right")
        self.teacher = SpanReader(teacher, teacher_max_length, side, "teacher", paired)

    def encode(self, texts: Sequence[Text]) -> tuple[list[Encoding], list[Encoding]]:
        """The student's and the teacher's encodings; other threads of Python run meanwhile."""
        return self.student.encode(texts), self.teacher.encode(texts)

    def align(self, texts: Sequence[Text], encoded: tuple[list[Encoding], list[Encoding]] | None = None) -> Aligned:
        """The pairs of these texts; `encoded` is what `encode` gave for them, where that was called before."""
        of_student, of_teacher = encoded or self.encode(texts)
        joined = join(texts)
        return self.align_placed(self.student.place(of_student, joined), self.teacher.place(of_teacher, joined))

    def align_placed(self, student: Placed, teacher: Placed) -> Aligned:
        """The pairs of tokens whose places are known."""
        if self.kind == "offsets":
            found = pairs_by_offsets(student, teacher)
        elif self.kind == "overlap":
            found = pairs_by_overlap(student, teacher)
        else:
            found = (
                *warped_pairs(student, teacher, self.student.pieces, self.teacher.pieces, strict=self.kind == "strict"),
                None,
            )
        special = pairs_by_role(student, teacher)
        return _gather(student, teacher, found, special)


def pairs_by_offsets(student: Placed, teacher: Placed) -> Pairs:
    """Ordinary tokens that cover the same characters and share none with another token of their side.

    Such tokens have distinct places in the text's order, so pairs never cross and never share a token.
    """
    ours, theirs = _apart(student), _apart(teacher)
    if len(ours) == 0 or len(theirs) == 0:
        return ours[:0], theirs[:0], None
    width = 1 + max(int(student.ends[ours[-1]]), int(teacher.ends[theirs[-1]]))
    keys, other = (
        side.starts[which] * width + side.ends[which] for side, which in ((student, ours), (teacher, theirs))
    )
    places = np.minimum(np.searchsorted(other, keys), len(other) - 1)
    same = other[places] == keys
    return ours[same], theirs[places[same]], None


def _apart(side: Placed) -> Numbers:
    """Numbers of the tokens that cover characters which no other token covers; these are in the text's order."""
    solid = np.flatnonzero(side.ends > side.starts)
    starts, ends = side.starts[solid], side.ends[solid]
    before = np.maximum.accumulate(np.concatenate([np.zeros(1, dtype=np.int64), ends]))[:-1]
    after = np.minimum.accumulate(np.concatenate([starts, np.full(1, np.iinfo(np.int64).max)])[::-1])[::-1][1:]
    return solid[(starts >= before) & (ends <= after)]


def pairs_by_overlap(student: Placed, teacher: Placed) -> Pairs:
    """Ordinary tokens that have characters in common; the shares of a student's token are by their count and sum to 1."""
    ours = np.flatnonzero(student.ends > student.starts)
    theirs = np.flatnonzero(teacher.ends > teacher.starts)
    theirs = theirs[np.lexsort((teacher.ends[theirs], teacher.starts[theirs]))]
    starts, ends = student.starts[ours], student.ends[ours]
    first = np.searchsorted(np.maximum.accumulate(teacher.ends[theirs]), starts, side="right")
    counts = np.maximum(np.searchsorted(teacher.starts[theirs], ends, side="left") - first, 0)
    own = np.repeat(np.arange(len(ours)), counts)
    within = np.arange(len(own)) - np.repeat(np.cumsum(counts) - counts, counts)
    other = theirs[first[own] + within]
    common = np.minimum(ends[own], teacher.ends[other]) - np.maximum(starts[own], teacher.starts[other])
    own, other, common = own[common > 0], other[common > 0], common[common > 0]
    sums = np.bincount(own, weights=common, minlength=len(ours))
    return ours[own], other, (common / sums[own]).astype(np.float32)


def pairs_by_role(student: Placed, teacher: Placed) -> tuple[Numbers, Numbers]:
    """Special tokens with the same role in the same text: the first before it, after it, and between the two of a pair."""
    ours, theirs = (np.flatnonzero((side.roles != ORDINARY) & (side.roles != FURTHER)) for side in (student, teacher))
    keys, other = (
        side.texts[which] * _ROLES + side.roles[which] for side, which in ((student, ours), (teacher, theirs))
    )
    _, one, two = np.intersect1d(keys, other, assume_unique=True, return_indices=True)
    return ours[one], theirs[two]


def _gather(student: Placed, teacher: Placed, found: Pairs, special: tuple[Numbers, Numbers]) -> Aligned:
    """Both kinds of pairs, in order, as positions in their texts."""
    ours, theirs = (np.concatenate([ordinary, role]) for ordinary, role in zip(found[:2], special, strict=True))
    order = np.lexsort((theirs, ours))
    shares = None if found[2] is None else np.concatenate([found[2], np.ones(len(special[0]), dtype=np.float32)])[order]
    ours, theirs = ours[order], theirs[order]
    texts = student.texts[ours]
    report = {"pairs": len(ours), "special_pairs": len(special[0])}
    for name, side, mapped in (("student", student, found[0]), ("teacher", teacher, found[1])):
        report[f"{name}_tokens"] = len(side.ids)
        report[f"{name}_special"] = int(np.count_nonzero(side.roles != ORDINARY))
        report[f"{name}_mapped"] = len(mapped) if found[2] is None else len(np.unique(mapped))
    return Aligned(
        counts=np.bincount(texts, minlength=len(student.lengths)),
        pairs=np.stack([ours - student.firsts[texts], theirs - teacher.firsts[texts]], axis=1),
        shares=shares,
        student_lengths=student.lengths,
        teacher_lengths=teacher.lengths,
        report=report,
    )


def mapping_rates(report: dict[str, int]) -> dict[str, float]:
    """Per cent of each side's tokens that are in a pair (the paper's table 6), of all tokens and of those that are not special."""
    rates = {}
    for side in ("teacher", "student"):
        tokens, special, mapped = (report[f"{side}_{name}"] for name in ("tokens", "special", "mapped"))
        rates[f"{side}_rate"] = 100 * (mapped + report["special_pairs"]) / max(1, tokens)
        rates[f"{side}_rate_ordinary"] = 100 * mapped / max(1, tokens - special)
    return rates
