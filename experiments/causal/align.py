"""Tokens of two language models that mean the same: in their vocabularies, and in each response (MinED)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from distilvec.alignment.edit_distance import warped_pairs
from distilvec.alignment.offsets import Numbers, Placed, plain_pieces
from distilvec.core.batch import Alignment
from distilvec.core.errors import about
from distilvec.vocabulary.pieces import Pieces
from experiments.causal.data import Tokens


def common_tokens(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Ids of the tokens with the same text in both vocabularies, however they write a space, and of the text's end.

    A token of the teacher that two of the student's would fit is paired with the first.
    """
    with about("student.model"):
        student_ids = _by_surface(Pieces(student), student.eos_token_id)
    with about("teacher.model"):
        teacher_ids = _by_surface(Pieces(teacher), teacher.eos_token_id)
    both = [surface for surface in student_ids if surface in teacher_ids]
    return [student_ids[surface] for surface in both], [teacher_ids[surface] for surface in both]


def _by_surface(pieces: Pieces, end: int | None) -> dict[object, int]:
    found: dict[object, int] = {} if end is None else {"end": end}
    for number in range(len(pieces.tokens)):
        if number not in pieces.special and (surface := pieces.surface(number)) is not None:
            found.setdefault(surface, number)
    return found


@dataclass(frozen=True)
class ResponsePairs:
    """Pairs of positions (student's, teacher's) in the response of every row, end to end."""

    pairs: Numbers
    offsets: Numbers

    def batch(self, rows: npt.NDArray[np.int64]) -> Alignment:
        """The rows' pairs, filled up with -1."""
        counts = np.diff(self.offsets)[rows]
        columns = np.arange(counts.max(initial=0))
        real = columns < counts[:, None]
        found = np.full((*real.shape, 2), -1, dtype=np.int64)
        found[real] = self.pairs[(self.offsets[rows][:, None] + columns)[real]]
        return Alignment(torch.from_numpy(found))


def align_responses(
    student: Tokens, teacher: Tokens, tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]
) -> ResponsePairs:
    """Positions whose last token read is the same in both models, one to one on the path of least edit distance.

    A position is that of the response's token which is predicted there, as in `NextTokens`.
    """
    own, other = (plain_pieces(Pieces(tokenizer)) for tokenizer in tokenizers)
    ours, theirs = _read(student), _read(teacher)
    one, two = warped_pairs(ours, theirs, own, other, strict=True)
    order = np.argsort(one, kind="stable")
    rows = ours.parts[one[order]]
    pairs = np.stack([one[order] - ours.firsts[rows], two[order] - theirs.firsts[theirs.parts[two[order]]]], axis=1)
    offsets = np.cumsum([0, *np.bincount(rows, minlength=len(ours.lengths))], dtype=np.int64)
    return ResponsePairs(pairs, offsets)


def _read(tokens: Tokens) -> Placed:
    """The tokens from which each response's tokens are predicted: the prompt's last one to the last but one."""
    starts = tokens.offsets[:-1] + np.maximum(tokens.prompts, 1) - 1
    lengths = np.maximum(tokens.offsets[1:] - 1 - starts, 0)
    parts = np.repeat(np.arange(len(lengths)), lengths)
    ids = tokens.ids[np.arange(len(parts)) - (np.cumsum(lengths) - lengths)[parts] + starts[parts]]
    nothing = np.zeros(len(ids), dtype=np.int64)
    roles, cut = nothing.astype(np.int8), nothing.astype(np.bool_)
    return Placed(lengths, ids.astype(np.int32), nothing, nothing, parts, roles, cut)
