"""What a tokenizer makes of texts, language by language, and what another one in its place changes: lengths, cost, parameters.

Paper: "Adapting Multilingual Embedding Models to Turkish via Cross-Lingual Tokenizer Surgery and Offline Distillation", 1 and 6.3.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError
from distilvec.vocabulary.pieces import Pieces

Texts = Mapping[str, Sequence[str]]
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
UNSPACED = (  # first and last code point of the scripts that do not set words apart by spaces
    (0x0E00, 0x0EFF), (0x0F00, 0x0FFF),  # Thai and Lao, Tibetan
    (0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0x1780, 0x17FF),  # Burmese, Khmer
    (0x3005, 0x3007), (0x3040, 0x30FF), (0x3100, 0x312F), (0x31A0, 0x31FF), (0xFF66, 0xFF9F),  # Japanese, Bopomofo
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF),  # Chinese characters
)  # fmt: skip
_CHUNK = 1 << 19  # characters cut at once
_CODE_POINTS = sys.maxunicode + 1


@dataclass(frozen=True)
class TokenFigures:
    """A tokenizer on the texts of one language. Shares lie between 0 and 1; None stands for what is not defined.

    Of whole texts, without special tokens: `tokens`; `fertility`, the tokens a word, where white space sets words apart (None where
    most letters are of a script without spaces: Chinese, Japanese, Thai, Khmer, Lao, Burmese, Tibetan); `characters_per_token`;
    `unknown`, the share of unknown tokens; `byte_tokens`, that of bytes (<0xNN>) and of tokens that are only a part of a character.
    Of sequences as a model reads them, with special tokens and at most `max_length` long: `mean_length`; `attention_cost`, the mean
    over texts of the length squared; `cut`, the share of texts that are longer (None without a limit).
    """

    texts: int
    words: int | None
    characters: int
    tokens: int
    fertility: float | None
    characters_per_token: float | None
    unknown: float | None
    byte_tokens: float | None
    mean_length: float | None
    attention_cost: float | None
    cut: float | None


@dataclass(frozen=True)
class VocabularyFigures:
    """A tokenizer's vocabulary: `size` tokens, of them `special` and `added` (not special) ones.

    Shares of all tokens that are not special: `initial` ones begin at a word boundary, `inner` ones go on a word (as do punctuation and
    Chinese characters in WordPiece); `used` ones stand in the given texts, `whole_words` stand there as a whole word, that is
    between what is no letter, mark or digit. The last two are None without texts.
    """

    size: int
    special: int
    added: int
    initial: float
    inner: float
    used: float | None
    whole_words: float | None


@dataclass(frozen=True)
class ParameterFigures:
    """A model's parameters, each counted once (paper, table 4): `embedding` those of the table of `vocabulary` token embeddings,
    `backbone` all others of the transformer, `other` those of the modules behind it (Dense, Experts), `total` all of them.
    """

    vocabulary: int
    embedding: int
    backbone: int
    other: int
    total: int


def analyse(tokenizer: PreTrainedTokenizerFast, texts: Texts, max_length: int | None = None) -> dict[str, TokenFigures]:
    """The figures of the texts of each language.

    Errors: DistilvecError for a slow tokenizer, or a `max_length` that leaves no room for text.
    """
    reader = _Reader(Pieces(tokenizer))
    return {language: _figures(reader, reader.read(own), *_sizes(own), max_length) for language, own in texts.items()}


def vocabulary_figures(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str] = ()) -> VocabularyFigures:
    """The figures of a vocabulary, and what these texts use of it. Errors: DistilvecError for a slow tokenizer."""
    reader = _Reader(Pieces(tokenizer))
    return _vocabulary(reader, [reader.read(texts)])


def parameter_figures(model: SentenceTransformer) -> ParameterFigures:
    """Where a model's parameters are. Errors: DistilvecError for a model without a transformer."""
    backbone = getattr(model[0], "auto_model", None)
    if backbone is None:
        raise DistilvecError(
            f"[model] the model's first module is a {type(model[0]).__name__}; expected a Transformer. Give such a model."
        )
    table = backbone.get_input_embeddings()
    embedding, inside, total = (
        sum(weight.numel() for weight in part.parameters()) for part in (table, backbone, model)
    )
    return ParameterFigures(int(table.weight.shape[0]), embedding, inside - embedding, total - inside, total)


def compare_tokenizers(
    before: PreTrainedTokenizerFast, after: PreTrainedTokenizerFast, texts: Texts, max_length: int | None = None
) -> dict[str, Any]:
    """Two tokenizers on the same texts, as JSON: "before" and "after" with their "vocabulary"; "languages", "max_length", "notes".

    "languages" holds for each one "before" and "after" (`TokenFigures`) and "saved", in per cent of before: "tokens" of whole texts,
    "length" of the sequences and "attention" cost. `max_length` holds for both, so that what differs is the tokenizers' doing.
    Errors: DistilvecError as `analyse`.
    """
    readers = {
        "before": _Reader(Pieces(before, "the tokenizer before")),
        "after": _Reader(Pieces(after, "the tokenizer after")),
    }
    readings = {
        side: {language: reader.read(own) for language, own in texts.items()} for side, reader in readers.items()
    }
    languages: dict[str, Any] = {}
    for language, own in texts.items():
        sizes = _sizes(own)
        found = {
            side: _figures(reader, readings[side][language], *sizes, max_length) for side, reader in readers.items()
        }
        saved = {
            "tokens": _saved(found["before"].tokens, found["after"].tokens),
            "length": _saved(found["before"].mean_length, found["after"].mean_length),
            "attention": _saved(found["before"].attention_cost, found["after"].attention_cost),
        }
        languages[language] = {**{side: asdict(figures) for side, figures in found.items()}, "saved": saved}
    unspaced = [language for language, found in languages.items() if found["before"]["words"] is None]
    note = f"Tokens a word are not defined for {', '.join(unspaced)}: most letters are of a script that sets no words apart by spaces."
    return {
        **{
            side: {"vocabulary": asdict(_vocabulary(reader, list(readings[side].values())))}
            for side, reader in readers.items()
        },
        "languages": languages,
        "max_length": max_length,
        "notes": [note] if unspaced else [],
    }


# -- reading texts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reading:
    """What texts became: tokens of each text [texts], how often each token stands in them, whether as a whole word [vocabulary]."""

    lengths: Counts
    counts: Counts
    alone: Mask


class _Reader:
    """A tokenizer, and of each of its tokens [vocabulary] whether it is ordinary, begins a word, is a byte, has a letter, mark or digit."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces, size = pieces, len(pieces.tokens)
        self.around: int = pieces.plain.num_special_tokens_to_add(False)
        self.ordinary, self.initial, self.byte, self.letters = (np.zeros(size, dtype=np.bool_) for _ in range(4))
        for number, token in enumerate(pieces.tokens):
            surface = pieces.surface(number)
            if token is None or surface is None:
                continue
            text = _decoded(surface.text)
            self.ordinary[number], self.initial[number] = True, surface.initial
            self.byte[number] = text is None or (token.startswith("<0x") and len(token) == 6 and len(surface.text) == 1)
            self.letters[number] = text is None or any(unicodedata.category(letter)[0] in "LMN" for letter in text)
        if pieces.unknown is not None:  # it stands for a word, or for a letter
            self.letters[pieces.unknown] = True
            self.initial[pieces.unknown] |= pieces.kind in ("wordpiece", "plain")

    def read(self, texts: Iterable[str]) -> _Reading:
        """Cut whole texts, without special tokens."""
        size, lengths = len(self.ordinary), [np.zeros(0, dtype=np.int64)]
        counts, alone = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.bool_)
        for chunk in _chunks(texts):
            found = [encoding.ids for encoding in self.pieces.plain.encode_batch_fast(chunk, add_special_tokens=False)]
            lengths.append(np.fromiter(map(len, found), dtype=np.int64, count=len(found)))
            ids = np.fromiter(chain.from_iterable(found), dtype=np.int64, count=int(lengths[-1].sum()))
            counts += np.bincount(ids, minlength=size)
            alone[self._whole_words(ids, lengths[-1])] = True
        return _Reading(np.concatenate(lengths), counts, alone)

    def _whole_words(self, ids: Counts, lengths: Counts) -> Counts:
        """Those of the ids of several texts that are whole words where they stand."""
        if not len(ids):
            return ids
        first, letters = np.zeros(len(ids), dtype=np.bool_), self.letters[ids]
        first[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        begins = letters & (self.initial[ids] | first | ~np.r_[False, letters[:-1]])
        goes_on = letters & ~begins
        return ids[begins & ~np.r_[goes_on[1:], False] & self.ordinary[ids]]


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts in lists of half a million characters."""
    held, size = list[str](), 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= _CHUNK:
            yield held
            held, size = [], 0
    if held:
        yield held


def _decoded(text: bytes) -> str | None:
    """The text, None for bytes that are no whole characters."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


def _sizes(texts: Sequence[str]) -> tuple[int | None, int]:
    """Words, None where they are not defined, and characters."""
    points = np.zeros(_CODE_POINTS, dtype=np.int64)
    for chunk in _chunks(texts):
        points += np.bincount(
            np.frombuffer("".join(chunk).encode("utf-32-le"), dtype=np.uint32), minlength=_CODE_POINTS
        )
    letters = [point for point in np.flatnonzero(points).tolist() if unicodedata.category(chr(point))[0] in "LM"]
    unspaced = [point for point in letters if any(first <= point <= last for first, last in UNSPACED)]
    defined = 2 * points[unspaced].sum() <= points[letters].sum()
    return sum(len(text.split()) for text in texts) if defined else None, int(points.sum())


# -- figures ---------------------------------------------------------------------------------------------------------


def _figures(
    reader: _Reader, reading: _Reading, words: int | None, characters: int, max_length: int | None
) -> TokenFigures:
    if max_length is not None and max_length <= reader.around:
        raise DistilvecError(
            f"[max_length] {max_length} leaves no room for text: {reader.pieces.name} adds {reader.around} special tokens. "
            f"Give at least {reader.around + 1}."
        )
    whole, unknown = reading.lengths + reader.around, reader.pieces.unknown
    lengths = whole if max_length is None else np.minimum(whole, max_length)
    texts, tokens = len(lengths), int(reading.lengths.sum())
    return TokenFigures(
        texts=texts,
        words=words,
        characters=characters,
        tokens=tokens,
        fertility=_ratio(tokens, words),
        characters_per_token=_ratio(characters, tokens),
        unknown=_ratio(0 if unknown is None else reading.counts[unknown], tokens),
        byte_tokens=_ratio(reading.counts[reader.byte].sum(), tokens),
        mean_length=_ratio(lengths.sum(), texts),
        attention_cost=_ratio((lengths**2).sum(), texts),
        cut=None if max_length is None else _ratio((whole > max_length).sum(), texts),
    )


def _vocabulary(reader: _Reader, readings: Sequence[_Reading]) -> VocabularyFigures:
    """The figures of a vocabulary on everything that was read."""
    pieces, ordinary = reader.pieces, int(reader.ordinary.sum())
    read = any(len(reading.lengths) for reading in readings)
    used = sum((reading.counts for reading in readings), np.zeros(len(reader.ordinary), dtype=np.int64)) > 0
    alone = np.any([reading.alone for reading in readings], axis=0) if read else used
    initial = _ratio((reader.initial & reader.ordinary).sum(), ordinary) or 0.0
    return VocabularyFigures(
        size=sum(token is not None for token in pieces.tokens),
        special=len(pieces.special),
        added=len(pieces.added),
        initial=initial,
        inner=1 - initial,
        used=_ratio((used & reader.ordinary).sum(), ordinary) if read else None,
        whole_words=_ratio(alone.sum(), ordinary) if read else None,
    )


def _ratio(part: Any, whole: int | None) -> float | None:
    """part / whole, None where that is not defined."""
    return float(part) / whole if whole else None


def _saved(before: float | None, after: float | None) -> float | None:
    """By how many per cent of `before` `after` is less."""
    return None if not before or after is None else 100 * (1 - after / before)
