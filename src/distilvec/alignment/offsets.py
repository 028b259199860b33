"""Where the tokens of a text lie: character spans of many texts' tokens at once, roles of special tokens, pieces in plain text."""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError
from distilvec.models.tokenizers import plain_copy

Numbers = npt.NDArray[np.int64]
ORDINARY, LEADING, BETWEEN, TRAILING, FURTHER = range(
    5
)  # roles: of the text; first special token before, inside, after it; other special
_SPACE, _MARK = 1, 2
_BEYOND = 0x20000, 0xE0000, 0xE0200  # no white space and no marks from the first to the second and after the third
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Joined:
    """The characters of many texts end to end, a line feed after each; a text that is a pair has two parts.

    `begins` [parts] is where a part begins, `first_parts` [texts] a text's first part. `blank` and `mark` [characters] say
    which characters are white space, or combining marks and characters without width. `next_solid` and `last_solid`: the
    nearest character that is no white space, from there on and up to there.
    """

    texts: Sequence[Text]
    begins: Numbers
    first_parts: Numbers
    blank: npt.NDArray[np.bool_]
    mark: npt.NDArray[np.bool_]
    next_solid: Numbers
    last_solid: Numbers


@dataclass(frozen=True)
class Placed:
    """The tokens of many texts end to end. `lengths` [texts] counts them, special ones included; all else is [tokens].

    `starts` and `ends` are characters of `Joined`, trimmed of white space unless there is nothing else; equal where a token
    stands for no character. `parts` says which part of `Joined` a token belongs to, `roles` what it is there for.
    """

    lengths: Numbers
    ids: npt.NDArray[np.int32]
    starts: Numbers
    ends: Numbers
    parts: Numbers
    roles: npt.NDArray[np.int8]

    @property
    def firsts(self) -> Numbers:
        """[texts] the number of each text's first token."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def texts(self) -> Numbers:
        """[tokens] the number of each token's text."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


def join(texts: Sequence[Text]) -> Joined:
    """Texts end to end."""
    pieces = [part for text in texts for part in ((text,) if isinstance(text, str) else text)]
    members = np.fromiter((1 if isinstance(text, str) else 2 for text in texts), dtype=np.int64, count=len(texts))
    sizes = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces)) + 1
    codes = np.frombuffer(("\n".join(pieces) + "\n").encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    classes = _classes()[codes]
    blank, places = classes == _SPACE, np.arange(len(codes))
    next_solid = np.minimum.accumulate(np.where(blank, len(codes), places)[::-1])[::-1]
    last_solid = np.maximum.accumulate(np.where(blank, -1, places))
    return Joined(
        texts, np.cumsum(sizes) - sizes, np.cumsum(members) - members, blank, classes == _MARK, next_solid, last_solid
    )


@functools.lru_cache(maxsize=1)
def _classes() -> npt.NDArray[np.uint8]:
    """[all characters] _SPACE, _MARK (combining, or format characters such as the zero-width joiner), or 0."""
    table = np.zeros(0x110000, dtype=np.uint8)
    for code in chain(range(_BEYOND[0]), range(*_BEYOND[1:])):
        character = chr(code)
        if character.isspace():
            table[code] = _SPACE
        elif unicodedata.category(character) in ("Mn", "Me", "Mc", "Cf"):
            table[code] = _MARK
    return table


class SpanReader:
    """A fast tokenizer that tells where its tokens lie; the tokenizer itself is not changed.

    `max_length` counts special tokens (those of a pair of texts with `paired`); what is beyond is cut on `side`.
    `pieces` [vocabulary]: every token's plain text, without the marks of spaces and of word parts.
    Errors: DistilvecError, naming the recipe's section `key`, for a slow tokenizer, or a limit without room.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        side: str = "right",
        key: str = "student",
        paired: bool = False,
    ) -> None:
        copy = plain_copy(tokenizer)
        if copy is None:
            raise DistilvecError(
                f"[{key}.model] token alignment needs a fast tokenizer, which knows where its tokens lie in the text; found "
                f"{type(tokenizer).__name__}, a slow one. Save the model with a fast tokenizer (tokenizer.json), or take another."
            )
        special = copy.num_special_tokens_to_add(paired)
        if max_length <= special:
            raise DistilvecError(
                f"[{key}.max_length] {max_length} leaves no room for text: the tokenizer adds {special} special tokens. "
                f"Give at least {special + 1}."
            )
        self._around = special_around(copy)
        self.pieces = plain_pieces(copy)
        self._marks_only = np.array([piece == "" for piece in self.pieces], dtype=np.bool_)
        copy.enable_truncation(max_length, direction=side, strategy="longest_first")
        self._tokenizer = copy

    def encode(self, texts: Sequence[Text]) -> list[Encoding]:
        """The library's encodings, by all of its threads and without the interpreter's lock."""
        return self._tokenizer.encode_batch(list(texts))

    def place(self, encodings: Sequence[Encoding], joined: Joined) -> Placed:
        """Where the tokens lie that `encode` gave for these texts."""
        lengths = np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))
        total = int(lengths.sum())
        ids = _flat((encoding.ids for encoding in encodings), total, np.int32)
        spans = _flat((chain.from_iterable(encoding.offsets) for encoding in encodings), 2 * total, np.int64).reshape(
            -1, 2
        )
        roles, parts = self._roles(encodings, lengths, joined)
        begins = joined.begins[parts]
        ordinary = roles == ORDINARY
        starts, ends = (np.where(ordinary, begins + spans[:, side], begins) for side in (0, 1))
        starts, ends = _trimmed(starts, ends, self._marks_only[ids], joined)
        return Placed(lengths, ids, starts, ends, parts, roles)

    def read(self, texts: Sequence[Text]) -> Placed:
        """Both steps at once."""
        return self.place(self.encode(texts), join(texts))

    def _roles(
        self, encodings: Sequence[Encoding], lengths: Numbers, joined: Joined
    ) -> tuple[npt.NDArray[np.int8], Numbers]:
        """Roles and parts of all tokens. Only pairs need to be asked where the first text ends."""
        positions = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        parts = np.repeat(joined.first_parts, lengths)
        leading, trailing = self._around
        ends = np.repeat(lengths, lengths) - trailing
        roles = np.zeros(len(positions), dtype=np.int8)
        roles[(positions < leading) | (positions >= ends)] = FURTHER
        if len(joined.begins) > len(joined.texts):
            members = _flat((_members(encoding) for encoding in encodings), len(positions), np.int8)
            parts = parts + np.maximum(members, 0)
            inside = np.flatnonzero((members < 0) & (roles == ORDINARY))
            roles[inside] = FURTHER
            roles[inside[np.diff(parts[inside - positions[inside]], prepend=-1) > 0]] = (
                BETWEEN  # the first of each text
            )
        roles[(positions == 0) & (leading > 0)] = LEADING
        roles[(positions == ends) & (trailing > 0)] = TRAILING
        return roles, parts


def _members(encoding: Encoding) -> list[int]:
    """0 or 1 for the tokens of a pair's first and second text, -1 for special ones."""
    return [-1 if member is None else member for member in encoding.sequence_ids]


def _flat(lists: Iterable[Iterable[int]], count: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.fromiter(chain.from_iterable(lists), dtype=kind, count=count)


def _trimmed(
    starts: Numbers, ends: Numbers, marks_only: npt.NDArray[np.bool_], joined: Joined
) -> tuple[Numbers, Numbers]:
    """Spans without white space at their ends, with the marks that the tokenizer dropped behind them.

    A piece that is a space's mark alone, but was put before the first word of a text, where there is no space, is said by
    the library to cover the first character: it covers none. Tokenizers that strip accents, compose them or drop characters
    without width leave them out of all spans: they go with the token before them, as they do in tokenizers that keep them.
    """
    full = ends > starts
    inner_starts = joined.next_solid[starts]
    inner_ends = joined.last_solid[np.maximum(ends - 1, 0)] + 1
    solid = full & (inner_ends > inner_starts)
    starts, ends = np.where(solid, inner_starts, starts), np.where(solid, inner_ends, ends)
    ends = np.where(solid & marks_only, starts, ends)
    if joined.mark.any():
        size = len(joined.mark) + 1
        change = np.bincount(starts, minlength=size) - np.bincount(ends, minlength=size)
        left_out = joined.mark & (np.cumsum(change)[:-1] == 0)
        stops = np.minimum.accumulate(np.where(left_out, size, np.arange(size - 1))[::-1])[::-1]
        ends = np.where(ends > starts, stops[np.minimum(ends, size - 2)], ends)
    return starts, ends


def special_around(tokenizer: Tokenizer) -> tuple[int, int]:
    """How many special tokens the tokenizer puts before and after a text, seen on a text that gives a token."""
    for probe in chain(("a",), islice(tokenizer.get_vocab(with_added_tokens=False), 1000)):
        mask = tokenizer.encode(probe).special_tokens_mask
        if 0 in mask:
            return mask.index(0), mask[::-1].index(0)
    raise DistilvecError(
        "[student.tokenizer] a tokenizer gives no token for any text. Take a model whose tokenizer works."
    )


# -- pieces ----------------------------------------------------------------------------------------------------------


def plain_pieces(tokenizer: Tokenizer) -> npt.NDArray[np.object_]:
    """[vocabulary] the text of every token without the marks of spaces and word parts; "" for a space's mark alone.

    WordPiece's ## is stripped, metaspace and bytes' letters are decoded; bytes that are no whole character become single
    surrogates. Tokens that were added beside the model's vocabulary, special ones among them, stay as they are.
    """
    whole = tokenizer.get_vocab(with_added_tokens=True)
    pieces = np.full(max(whole.values(), default=-1) + 1, "", dtype=object)
    settings = json.loads(tokenizer.to_str())
    added = {token["content"] for token in settings["added_tokens"]}
    model = settings["model"]
    prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    letters = _byte_letters() if _has_byte_letters(settings) else None
    for piece, number in whole.items():
        pieces[number] = piece if piece in added else _plain(piece, prefix, suffix, letters)
    return pieces


def _plain(piece: str, prefix: str, suffix: str, letters: dict[str, int] | None) -> str:
    if prefix and piece != prefix:
        piece = piece.removeprefix(prefix)
    if suffix:
        piece = piece.removesuffix(suffix)
    byte = _BYTE_PIECE.fullmatch(piece)
    if byte:
        return bytes([int(byte[1], 16)]).decode("utf-8", "surrogateescape")
    if letters is not None and all(letter in letters for letter in piece):
        return bytes(letters[letter] for letter in piece).decode("utf-8", "surrogateescape").replace(" ", "")
    return piece.replace("▁", "").replace(" ", "")


def _has_byte_letters(settings: dict[str, Any]) -> bool:
    """Whether a ByteLevel step is anywhere in the tokenizer."""
    steps = [settings.get("pre_tokenizer"), settings.get("decoder"), settings.get("normalizer")]
    return any('"ByteLevel"' in json.dumps(step) for step in steps)


@functools.lru_cache(maxsize=1)
def _byte_letters() -> dict[str, int]:
    """The byte that each letter of byte-level BPE stands for (GPT-2's table)."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in kept]
    letters = {chr(byte): byte for byte in kept} | {chr(256 + place): byte for place, byte in enumerate(rest)}
    assert set(letters) == set(pre_tokenizers.ByteLevel.alphabet())
    return letters
