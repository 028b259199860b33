"""Character spans of many texts' tokens at once, the roles of special tokens, and tokens as plain text."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError, about
from distilvec.models.tokenizers import check_room
from distilvec.vocabulary.pieces import Pieces

Numbers = npt.NDArray[np.int64]
# Roles: of the text; first special token before, inside and after the text; other special tokens.
ORDINARY, LEADING, BETWEEN, TRAILING, FURTHER = range(5)
_SPACE, _COMBINING = 1, 2
_BEYOND = 0x20000, 0xE0000, 0xE0200  # no such characters from the first to the second, and after the third


@dataclass(frozen=True)
class Joined:
    """Characters of many texts end to end, a line feed after each; a text that is a pair has two parts.

    `begins` [parts]: the first character of a part. `first_parts` [texts]: a text's first part. [characters]:
    `combining` ones and those without width; `next_solid` and `last_solid`, the nearest character that is no white
    space from there on and up to there.
    """

    texts: Sequence[Text]
    begins: Numbers
    first_parts: Numbers
    combining: npt.NDArray[np.bool_]
    next_solid: Numbers
    last_solid: Numbers


@dataclass(frozen=True)
class Placed:
    """Tokens of many texts end to end. `lengths` [texts] counts them with special tokens; all else is [tokens].

    `starts` and `ends` are characters of `Joined` without white space around (unless there is nothing else), equal for
    tokens without characters. `parts` are those of `Joined`, `roles` the constants of this file. `cut` tokens share
    characters with tokens that truncation has removed, such as the first bytes of an emoji.
    """

    lengths: Numbers
    ids: npt.NDArray[np.int32]
    starts: Numbers
    ends: Numbers
    parts: Numbers
    roles: npt.NDArray[np.int8]
    cut: npt.NDArray[np.bool_]

    @property
    def firsts(self) -> Numbers:
        """Return the number of each text's first token [texts]."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def texts(self) -> Numbers:
        """Return the number of each token's text [tokens]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


def join_texts(texts: Sequence[Text]) -> Joined:
    """Put texts end to end."""
    pieces: list[str] = []
    counts = np.ones(len(texts), dtype=np.int64)
    for number, text in enumerate(texts):
        if isinstance(text, str):
            pieces.append(text)
        else:
            pieces.extend(text)
            counts[number] = 2
    sizes = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces)) + 1
    codes = np.frombuffer(("\n".join(pieces) + "\n").encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    classes = _classes()[codes]
    is_space = classes == _SPACE
    numbers = np.arange(len(codes))
    next_solid = np.minimum.accumulate(np.where(is_space, len(codes), numbers)[::-1])[::-1]
    last_solid = np.maximum.accumulate(np.where(is_space, -1, numbers))
    begins = np.cumsum(sizes) - sizes
    first_parts = np.cumsum(counts) - counts
    return Joined(texts, begins, first_parts, classes == _COMBINING, next_solid, last_solid)


@functools.lru_cache(maxsize=1)
def _classes() -> npt.NDArray[np.uint8]:
    """Return [all characters] _SPACE, _COMBINING (or without width, such as the zero-width joiner), or 0."""
    table = np.zeros(0x110000, dtype=np.uint8)
    for code in chain(range(_BEYOND[0]), range(*_BEYOND[1:])):
        character = chr(code)
        if character.isspace():
            table[code] = _SPACE
        elif unicodedata.category(character) in ("Mn", "Me", "Mc", "Cf"):
            table[code] = _COMBINING
    return table


class SpanReader:
    """Fast tokenizer with the character spans of its tokens. The tokenizer itself does not change.

    `max_length` counts special tokens (those of a pair of texts with `paired`); longer texts are truncated on `side`.
    `pieces` [vocabulary]: the plain text of every token; `spelled`: as the vocabulary spells it (##ing, ▁the).
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        name: str,
        side: str = "right",
        paired: bool = False,
    ) -> None:
        with about(".model"):
            pieces = Pieces(tokenizer, name)
        self._tokenizer = pieces.plain
        special = self._tokenizer.num_special_tokens_to_add(paired)
        check_room(max_length, special, name, ".max_length")
        self._around = special_around(self._tokenizer)
        self.pieces = plain_pieces(pieces)
        self.spelled = np.array(pieces.tokens, dtype=object)
        self._spaces = np.array([piece == "" for piece in self.pieces], dtype=np.bool_)
        self._side = side
        self._tokenizer.enable_truncation(max_length, direction=side, strategy="longest_first")

    def encode(self, texts: Sequence[Text]) -> list[Encoding]:
        """Return the library's encodings, computed by all of its threads without the interpreter's lock."""
        return self._tokenizer.encode_batch(list(texts))

    def place(self, encodings: Sequence[Encoding], joined: Joined) -> Placed:
        """Return the spans of the tokens that `encode` returned for these texts."""
        lengths = np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))
        total = int(lengths.sum())
        ids = _flat((encoding.ids for encoding in encodings), total, np.int32)
        offsets = (chain.from_iterable(encoding.offsets) for encoding in encodings)
        spans = _flat(offsets, 2 * total, np.int64).reshape(-1, 2)
        roles, parts = self._roles(encodings, lengths, joined)
        begins = joined.begins[parts]
        is_ordinary = roles == ORDINARY
        starts = np.where(is_ordinary, begins + spans[:, 0], begins)
        ends = np.where(is_ordinary, begins + spans[:, 1], begins)
        starts, ends = _trimmed(starts, ends, self._spaces[ids], joined)
        cut = self._cut(encodings, lengths, spans, parts - np.repeat(joined.first_parts, lengths))
        return Placed(lengths, ids, starts, ends, parts, roles, cut)

    def _cut(
        self, encodings: Sequence[Encoding], lengths: Numbers, spans: Numbers, sequences: Numbers
    ) -> npt.NDArray[np.bool_]:
        """Return which tokens share characters with removed ones; `spans` [tokens, 2] within parts of a text."""
        cut = np.zeros(len(spans), dtype=np.bool_)
        for first, length, encoding in zip(np.cumsum(lengths) - lengths, lengths, encodings, strict=True):
            removed = encoding.overflowing
            # The first window is beside what was kept. Those of a pair of texts are all combinations of both texts'.
            for window in removed if encoding.n_sequences > 1 else removed[:1]:
                window_spans = np.array(window.offsets).reshape(-1, 2)
                window_sequences = np.array([-1 if number is None else number for number in window.sequence_ids])
                for number in range(encoding.n_sequences):
                    mine = first + np.flatnonzero(sequences[first : first + length] == number)
                    mine = mine[spans[mine, 1] > spans[mine, 0]]
                    gone = window_spans[window_sequences == number]
                    gone = gone[gone[:, 1] > gone[:, 0]]
                    if len(gone) == 0 or np.array_equal(gone, spans[mine]):  # the kept part itself
                        continue
                    if self._side == "right":
                        cut[mine] |= spans[mine, 1] > gone[:, 0].min()
                    else:
                        cut[mine] |= spans[mine, 0] < gone[:, 1].max()
        return cut

    def _roles(
        self, encodings: Sequence[Encoding], lengths: Numbers, joined: Joined
    ) -> tuple[npt.NDArray[np.int8], Numbers]:
        """Return roles and parts of all tokens."""
        positions = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        parts = np.repeat(joined.first_parts, lengths)
        leading, trailing = self._around
        ends = np.repeat(lengths, lengths) - trailing
        roles = np.zeros(len(positions), dtype=np.int8)
        roles[(positions < leading) | (positions >= ends)] = FURTHER
        if len(joined.begins) > len(joined.texts):  # pairs: 0 or 1 by text, -1 for special tokens
            sequences = ((-1 if part is None else part for part in encoding.sequence_ids) for encoding in encodings)
            sides = _flat(sequences, len(positions), np.int8)
            parts = parts + np.maximum(sides, 0)
            inside = np.flatnonzero((sides < 0) & (roles == ORDINARY))
            roles[inside] = FURTHER
            first = np.diff(parts[inside - positions[inside]], prepend=-1) > 0
            roles[inside[first]] = BETWEEN
        roles[(positions == 0) & (leading > 0)] = LEADING
        roles[(positions == ends) & (trailing > 0)] = TRAILING
        return roles, parts


def _flat(lists: Iterable[Iterable[int]], count: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.fromiter(chain.from_iterable(lists), dtype=kind, count=count)


def _trimmed(starts: Numbers, ends: Numbers, spaces: npt.NDArray[np.bool_], joined: Joined) -> tuple[Numbers, Numbers]:
    """Return spans without white space around, and with the accents that the tokenizer strips after them.

    `spaces` are tokens of a space alone. Before a text they cover no character, although the library states the first.
    """
    full = ends > starts
    inner_starts = joined.next_solid[starts]
    inner_ends = joined.last_solid[np.maximum(ends - 1, 0)] + 1
    solid = full & (inner_ends > inner_starts)
    starts, ends = np.where(solid, inner_starts, starts), np.where(solid, inner_ends, ends)
    ends = np.where(solid & spaces, starts, ends)
    if joined.combining.any():
        size = len(joined.combining) + 1
        change = np.bincount(starts, minlength=size) - np.bincount(ends, minlength=size)
        left_out = joined.combining & (np.cumsum(change)[:-1] == 0)
        stops = np.minimum.accumulate(np.where(left_out, size, np.arange(size - 1))[::-1])[::-1]
        ends = np.where(ends > starts, stops[np.minimum(ends, size - 2)], ends)
    return starts, ends


def special_around(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the number of special tokens before and after a text, measured on a text that has a token."""
    for probe in chain(("a",), islice(tokenizer.get_vocab(with_added_tokens=False), 1000)):
        mask = tokenizer.encode(probe).special_tokens_mask
        if 0 in mask:
            return mask.index(0), mask[::-1].index(0)
    raise DistilvecError(
        "a tokenizer gives no token for any text.", "Take a model whose tokenizer works.", key="student.tokenizer"
    )


def plain_pieces(pieces: Pieces) -> npt.NDArray[np.object_]:
    """Return the text of every token without spaces, prefixes and suffixes [vocabulary]; "" for a space alone.

    Bytes that are no whole character become single surrogates. Special and added tokens stay as they are.
    """
    texts = np.full(len(pieces.tokens), "", dtype=object)
    for number, token in enumerate(pieces.tokens):
        surface = None if number in pieces.added else pieces.surface(number)
        if surface is None:
            texts[number] = token or ""
        else:
            texts[number] = surface.text.decode("utf-8", "surrogateescape").replace(" ", "")
    return texts
