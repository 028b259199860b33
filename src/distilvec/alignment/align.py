"""Pairs of a student's and a teacher's tokens for many texts at once.

Kinds: "offsets", one-to-one pairs that cover the same characters (methods.md, 1.3); "overlap", many-to-many, by shared
characters; "mined", "mined_types" and "strict", by edit distance (edit_distance.py). Special tokens are always paired
by role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from distilvec.alignment.edit_distance import type_pairs, warped_pairs
from distilvec.alignment.offsets import FURTHER, ORDINARY, Numbers, Placed, SpanReader, join
from distilvec.core.batch import Text
from distilvec.core.outputs import AlignmentKind

Pairs = tuple[Numbers, Numbers, npt.NDArray[np.float32] | None]  # student's tokens, teacher's tokens, shares
_ROLES = 8  # above every role


@dataclass(frozen=True)
class Aligned:
    """Pairs of many texts end to end.

    `counts` [texts] of pairs; `pairs` [all pairs, 2] positions in the text's tokens (student's, teacher's) with special
    tokens, in order of the student's; `shares` [all pairs] for "overlap" only. `student_lengths` and `teacher_lengths`
    [texts] in tokens. `report` counts pairs, pairs of special tokens, and of each model tokens, special tokens and
    `mapped` ordinary tokens, which are in a pair.
    """

    counts: Numbers
    pairs: Numbers
    shares: npt.NDArray[np.float32] | None
    student_lengths: Numbers
    teacher_lengths: Numbers
    report: dict[str, int]


class Aligner:
    """Two tokenizers and a kind of pairs; `paired` if texts are pairs of texts in one input.

    Texts above `max_length` tokens, special ones included, are truncated: the student's at the end, the teacher's on
    its tokenizer's side. Errors: DistilvecError for slow tokenizers and limits without room.
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
        """Return the student's and the teacher's encodings; other Python threads run meanwhile."""
        return self.student.encode(texts), self.teacher.encode(texts)

    def align(self, texts: Sequence[Text], encoded: tuple[list[Encoding], list[Encoding]] | None = None) -> Aligned:
        """Return the pairs of these texts; `encoded` is the result of `encode` for them, if known."""
        encodings, joined = encoded or self.encode(texts), join(texts)
        student, teacher = self.student.place(encodings[0], joined), self.teacher.place(encodings[1], joined)
        if self.kind == "offsets":
            found = pairs_by_offsets(student, teacher)
        elif self.kind == "overlap":
            found = pairs_by_overlap(student, teacher)
        elif self.kind == "mined_types":
            found = (*type_pairs(student, teacher, self.student.spelled, self.teacher.spelled), None)
        else:
            strict = self.kind == "strict"
            found = (*warped_pairs(student, teacher, self.student.pieces, self.teacher.pieces, strict), None)
        return _gather(student, teacher, found, pairs_by_role(student, teacher))


def pairs_by_offsets(student: Placed, teacher: Placed) -> Pairs:
    """Pair ordinary tokens that cover the same characters and share none with another token of their model.

    Such tokens are in the text's order, so pairs never cross and never share a token.
    """
    ours, theirs = _apart(student), _apart(teacher)
    if len(ours) == 0 or len(theirs) == 0:
        return ours[:0], theirs[:0], None
    above = 1 + max(int(student.ends[ours[-1]]), int(teacher.ends[theirs[-1]]))
    keys, other = (side.starts[own] * above + side.ends[own] for side, own in ((student, ours), (teacher, theirs)))
    nearest = np.minimum(np.searchsorted(other, keys), len(other) - 1)
    same = other[nearest] == keys
    return ours[same], theirs[nearest[same]], None


def _apart(side: Placed) -> Numbers:
    """Return the numbers of the tokens that share no character with another token, in the text's order."""
    solid = np.flatnonzero(side.ends > side.starts)
    starts, ends = side.starts[solid], side.ends[solid]
    before = np.maximum.accumulate(np.concatenate([np.zeros(1, dtype=np.int64), ends]))[:-1]
    after = np.minimum.accumulate(np.concatenate([starts, np.full(1, np.iinfo(np.int64).max)])[::-1])[::-1][1:]
    return solid[(starts >= before) & (ends <= after)]


def pairs_by_overlap(student: Placed, teacher: Placed) -> Pairs:
    """Pair ordinary tokens with common characters; shares of a student's token are by their count and sum to 1."""
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
    """Pair special tokens with the same role in the same text: the first before it, after it, and inside a pair."""
    ours, theirs = (np.flatnonzero((side.roles != ORDINARY) & (side.roles != FURTHER)) for side in (student, teacher))
    keys, other = (side.texts[own] * _ROLES + side.roles[own] for side, own in ((student, ours), (teacher, theirs)))
    _, one, two = np.intersect1d(keys, other, assume_unique=True, return_indices=True)
    return ours[one], theirs[two]


def _gather(student: Placed, teacher: Placed, found: Pairs, special: tuple[Numbers, Numbers]) -> Aligned:
    """Join both kinds of pairs in order, as positions in their texts."""
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
    pairs = np.stack([ours - student.firsts[texts], theirs - teacher.firsts[texts]], axis=1)
    counts = np.bincount(texts, minlength=len(student.lengths))
    return Aligned(counts, pairs, shares, student.lengths, teacher.lengths, report)


def mapping_rates(report: dict[str, int]) -> dict[str, float]:
    """Return the percentage of each model's tokens in a pair (EMO, table 6): of all, and of ordinary tokens."""
    rates = {}
    for side in ("teacher", "student"):
        tokens, special, mapped = (report[f"{side}_{name}"] for name in ("tokens", "special", "mapped"))
        rates[f"{side}_rate"] = 100 * (mapped + report["special_pairs"]) / max(1, tokens)
        rates[f"{side}_rate_ordinary"] = 100 * mapped / max(1, tokens - special)
    return rates
