"""Pairs of a student's and a teacher's tokens for many texts at once.

Kinds: "offsets", one-to-one pairs that cover the same characters (methods.md, 1.3); "overlap", many-to-many, by shared
characters; "mined", "mined_types" and "strict", by edit distance (edit_distance.py). Special tokens are always paired
by role.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from distilvec.alignment.edit_distance import type_pairs, warped_pairs
from distilvec.alignment.offsets import FURTHER, ORDINARY, Numbers, Placed, SpanReader, join_texts
from distilvec.config.schema import SourceSection
from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError, about
from distilvec.core.outputs import AlignmentKind

Shares = npt.NDArray[np.float32]
_ROLES = 8  # above every role
CHUNK = 512  # texts aligned at once


@dataclass(frozen=True)
class Pairs:
    """Pairs of ordinary tokens, numbered as in `Placed`; `shares` of the student's tokens for "overlap" only."""

    student: Numbers
    teacher: Numbers
    shares: Shares | None


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
    its tokenizer's side.
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
        with about("student"):
            self.student = SpanReader(student, student_max_length, "the student's tokenizer", paired=paired)
        side = getattr(teacher, "truncation_side", "right")
        with about("teacher"):
            self.teacher = SpanReader(teacher, teacher_max_length, "the teacher's tokenizer", side, paired)

    def encode(self, texts: Sequence[Text]) -> tuple[list[Encoding], list[Encoding]]:
        """Return the student's and the teacher's encodings; other Python threads run meanwhile."""
        return self.student.encode(texts), self.teacher.encode(texts)

    def align(self, texts: Sequence[Text], encoded: tuple[list[Encoding], list[Encoding]] | None = None) -> Aligned:
        """Return the pairs of these texts; `encoded` is the result of `encode` for them, if known."""
        student_encodings, teacher_encodings = encoded or self.encode(texts)
        joined = join_texts(texts)
        student = self.student.place(student_encodings, joined)
        teacher = self.teacher.place(teacher_encodings, joined)
        shares = None
        if self.kind == "offsets":
            student_tokens, teacher_tokens = pairs_by_offsets(student, teacher)
        elif self.kind == "overlap":
            student_tokens, teacher_tokens, shares = pairs_by_overlap(student, teacher)
        elif self.kind == "mined_types":
            student_tokens, teacher_tokens = type_pairs(student, teacher, self.student.spelled, self.teacher.spelled)
        else:
            student_tokens, teacher_tokens = warped_pairs(
                student, teacher, self.student.pieces, self.teacher.pieces, strict=self.kind == "strict"
            )
        pairs = Pairs(student_tokens, teacher_tokens, shares)
        return _gather(student, teacher, pairs, *pairs_by_role(student, teacher))


def pairs_by_offsets(student: Placed, teacher: Placed) -> tuple[Numbers, Numbers]:
    """Pair ordinary tokens that cover the same characters.

    Tokens that share characters with others of their model (bytes of an emoji, letters of a Hangul syllable) are a
    group. Groups with the same spans in the same order are paired token by token; of all others, such as two groups of
    unequal size, no token is. Pairs never cross and never share a token.
    """
    student_groups = _groups(student)
    teacher_groups = _groups(teacher)
    if len(student_groups.first) == 0 or len(teacher_groups.first) == 0:
        return student_groups.tokens[:0], teacher_groups.tokens[:0]
    # Groups are disjoint and in the text's order, so their first characters increase
    nearest = np.minimum(np.searchsorted(teacher_groups.start, student_groups.start), len(teacher_groups.start) - 1)
    is_alike = student_groups.whole & teacher_groups.whole[nearest]
    for student_values, teacher_values in (
        (student_groups.start, teacher_groups.start),
        (student_groups.size, teacher_groups.size),
    ):
        is_alike &= student_values == teacher_values[nearest]
    alike = np.flatnonzero(is_alike)
    sizes = student_groups.size[alike]
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    student_tokens = student_groups.tokens[np.repeat(student_groups.first[alike], sizes) + within]
    teacher_tokens = teacher_groups.tokens[np.repeat(teacher_groups.first[nearest[alike]], sizes) + within]
    differs = student.starts[student_tokens] != teacher.starts[teacher_tokens]
    differs |= student.ends[student_tokens] != teacher.ends[teacher_tokens]
    numbers = np.repeat(np.arange(len(alike)), sizes)
    is_same = np.bincount(numbers, weights=differs, minlength=len(alike))[numbers] == 0
    return student_tokens[is_same], teacher_tokens[is_same]


@dataclass(frozen=True)
class _Groups:
    """Ordinary tokens with characters, in the text's order, as runs that share no character with each other.

    `tokens` are numbers of `Placed`. [groups]: `first` token of a group in `tokens`, `size`, `start` (its first
    character), `whole` (no token of the group was truncated).
    """

    tokens: Numbers
    first: Numbers
    size: Numbers
    start: Numbers
    whole: npt.NDArray[np.bool_]


def _groups(side: Placed) -> _Groups:
    tokens = np.flatnonzero(side.ends > side.starts)
    starts = side.starts[tokens]
    zero = np.zeros(1, dtype=np.int64)
    last_end_before = np.maximum.accumulate(np.concatenate([zero, side.ends[tokens]]))[:-1]
    first_start_from = np.minimum.accumulate(starts[::-1])[::-1]
    first = np.flatnonzero(first_start_from >= last_end_before)
    size = np.diff(np.append(first, len(tokens)))
    cuts = np.concatenate([zero, np.cumsum(side.cut[tokens])])
    whole = cuts[first + size] == cuts[first]
    return _Groups(tokens, first, size, first_start_from[first], whole)


def pairs_by_overlap(student: Placed, teacher: Placed) -> tuple[Numbers, Numbers, Shares]:
    """Pair ordinary tokens with common characters; shares of a student's token are by their count and sum to 1."""
    student_tokens = np.flatnonzero(student.ends > student.starts)
    teacher_tokens = np.flatnonzero(teacher.ends > teacher.starts)
    teacher_tokens = teacher_tokens[np.lexsort((teacher.ends[teacher_tokens], teacher.starts[teacher_tokens]))]
    starts = student.starts[student_tokens]
    ends = student.ends[student_tokens]

    # The teacher's tokens, sorted by their start, that may overlap with a student's token are a run of `counts` tokens
    # from `first` on
    first = np.searchsorted(np.maximum.accumulate(teacher.ends[teacher_tokens]), starts, side="right")
    counts = np.maximum(np.searchsorted(teacher.starts[teacher_tokens], ends, side="left") - first, 0)
    rows = np.repeat(np.arange(len(student_tokens)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    partners = teacher_tokens[first[rows] + within]

    common = np.minimum(ends[rows], teacher.ends[partners]) - np.maximum(starts[rows], teacher.starts[partners])
    overlaps = common > 0
    rows, partners, common = rows[overlaps], partners[overlaps], common[overlaps]
    sums = np.bincount(rows, weights=common, minlength=len(student_tokens))
    return student_tokens[rows], partners, (common / sums[rows]).astype(np.float32)


def pairs_by_role(student: Placed, teacher: Placed) -> tuple[Numbers, Numbers]:
    """Pair special tokens with the same role in the same text: the first before it, after it, and inside a pair."""
    student_tokens, student_keys = _with_roles(student)
    teacher_tokens, teacher_keys = _with_roles(teacher)
    _, in_student, in_teacher = np.intersect1d(student_keys, teacher_keys, assume_unique=True, return_indices=True)
    return student_tokens[in_student], teacher_tokens[in_teacher]


def _with_roles(side: Placed) -> tuple[Numbers, Numbers]:
    """Return the special tokens that have a role, and a key of text and role for each, which no other token has."""
    tokens = np.flatnonzero((side.roles != ORDINARY) & (side.roles != FURTHER))
    return tokens, side.texts[tokens] * _ROLES + side.roles[tokens]


def _gather(
    student: Placed, teacher: Placed, pairs: Pairs, student_special: Numbers, teacher_special: Numbers
) -> Aligned:
    """Join pairs of ordinary and of special tokens in order, as positions in their texts."""
    student_tokens = np.concatenate([pairs.student, student_special])
    teacher_tokens = np.concatenate([pairs.teacher, teacher_special])
    order = np.lexsort((teacher_tokens, student_tokens))
    student_tokens = student_tokens[order]
    teacher_tokens = teacher_tokens[order]
    shares = None
    if pairs.shares is not None:
        shares = np.concatenate([pairs.shares, np.ones(len(student_special), dtype=np.float32)])[order]

    texts = student.texts[student_tokens]
    report = {"pairs": len(student_tokens), "special_pairs": len(student_special)}
    for name, side, mapped in (("student", student, pairs.student), ("teacher", teacher, pairs.teacher)):
        report[f"{name}_tokens"] = len(side.ids)
        report[f"{name}_special"] = int(np.count_nonzero(side.roles != ORDINARY))
        report[f"{name}_mapped"] = len(mapped) if pairs.shares is None else len(np.unique(mapped))
    positions = [student_tokens - student.firsts[texts], teacher_tokens - teacher.firsts[texts]]
    counts = np.bincount(texts, minlength=len(student.lengths))
    return Aligned(counts, np.stack(positions, axis=1), shares, student.lengths, teacher.lengths, report)


def mapping_rates(report: dict[str, int]) -> dict[str, float]:
    """Return the percentage of each model's tokens in a pair (EMO, table 6): of all, and of ordinary tokens."""
    rates = {}
    for side in ("teacher", "student"):
        tokens, special, mapped = (report[f"{side}_{name}"] for name in ("tokens", "special", "mapped"))
        rates[f"{side}_rate"] = 100 * (mapped + report["special_pairs"]) / max(1, tokens)
        rates[f"{side}_rate_ordinary"] = 100 * mapped / max(1, tokens - special)
    return rates


def measure_mapping(
    aligner: Aligner, texts: Iterable[Text], advance: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Return the counts of `Aligned.report` over all texts, the rates, `texts` and `texts_per_second`."""
    report: Counter[str] = Counter()
    count = 0
    seconds = 0.0
    remaining = iter(texts)
    while chunk := list(islice(remaining, CHUNK)):
        began = time.monotonic()
        report.update(aligner.align(chunk).report)
        seconds += time.monotonic() - began
        count += len(chunk)
        advance(count)
    if count == 0:
        raise DistilvecError("there is no text to align.", "Look at --texts and --column.", key="--texts")
    return {"texts": count, "texts_per_second": count / seconds, **mapping_rates(report), **report}


def unicode_texts(texts: Iterable[str], source: SourceSection) -> Iterator[str]:
    """Yield the same texts; refuse half of a surrogate pair, as tokenizers do."""
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DistilvecError(
                f"{source.label}, text {number}: character {error.start + 1} is half of a surrogate pair "
                f"(\\u{ord(text[error.start]):04x}), which is not valid Unicode.",
                "Remove it or convert the file.",
                key="--texts",
            ) from None
        yield text
