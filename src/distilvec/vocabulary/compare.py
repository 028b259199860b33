"""Two tokenizers on the same texts by language: length, fertility, unknown tokens, and the models' parameters.

Paper: 003, "... Turkish via Cross-Lingual Tokenizer Surgery and Offline Distillation", sections 1 and 6.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError
from distilvec.models.parts import is_static, token_table
from distilvec.models.tokenizers import check_room
from distilvec.vocabulary.pieces import Pieces

Texts = Mapping[str, Sequence[str]]
_LETTER = re.compile(r"[^\W\d_]")
_UNSPACED = re.compile(  # Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Bopomofo, Chinese
    "[\u0e00-\u0fff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3100-\u312f"
    "\u31a0-\u31ff\uff66-\uff9f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_CHUNK = 256  # texts tokenized at once


def text_statistics(pieces: Pieces, texts: Sequence[str], max_length: int | None = None) -> dict[str, Any]:
    """Return a tokenizer's statistics of texts; shares are between 0 and 1, undefined values None.

    Whole texts without special tokens: `texts`, `words`, `characters`, `tokens`, `fertility` (tokens per word),
    `characters_per_token`, and the shares `unknown` and `byte_tokens` (bytes, parts of a character). `words` is None if
    most letters are of a script without spaces between words. Sequences with special tokens, at most `max_length` long:
    `mean_length`, `attention_cost` (mean square of the length) and `cut` (share of longer texts).
    """
    special = pieces.plain.num_special_tokens_to_add(False)
    if max_length is not None:
        check_room(max_length, special, pieces.name, "max_length")
    counts, lengths = _tokenized(pieces, texts)
    tokens = int(counts.sum())
    characters = sum(map(len, texts))
    letters = sum(len(_LETTER.findall(text)) for text in texts)
    unspaced_letters = sum(len(_UNSPACED.findall(text)) for text in texts)
    words = None
    if 2 * unspaced_letters <= letters:
        words = sum(len(text.split()) for text in texts)
    whole = lengths + special
    read = whole if max_length is None else np.minimum(whole, max_length)
    partial = [number for number in np.flatnonzero(counts).tolist() if pieces.is_byte(number)]
    return {
        "texts": len(texts),
        "words": words,
        "characters": characters,
        "tokens": tokens,
        "fertility": _ratio(tokens, words),
        "characters_per_token": _ratio(characters, tokens),
        "unknown": _ratio(0 if pieces.unknown is None else counts[pieces.unknown], tokens),
        "byte_tokens": _ratio(counts[partial].sum(), tokens),
        "mean_length": _ratio(read.sum(), len(texts)),
        "attention_cost": _ratio((read**2).sum(), len(texts)),
        "cut": None if max_length is None else _ratio((whole > max_length).sum(), len(texts)),
    }


def parameter_counts(model: SentenceTransformer) -> dict[str, int]:
    """Return a model's parameters, each counted once (paper, table 4).

    Keys: `vocabulary` (rows of the token embeddings), `embedding` (their parameters), `backbone` (all others of the
    transformer), `other` (of further modules) and `total`.
    """
    total = sum(weight.numel() for weight in model.parameters())
    if is_static(model):
        table = token_table(model)
        embedding = table.weight.numel()
        rows = table.num_embeddings
        return {"vocabulary": rows, "embedding": embedding, "backbone": 0, "other": total - embedding, "total": total}
    backbone = getattr(model[0], "auto_model", None)
    if backbone is None:
        raise DistilvecError(
            f"the first module is a {type(model[0]).__name__}; expected a Transformer.",
            "Give such a model.",
            key="model",
        )
    table = backbone.get_input_embeddings()
    embedding = sum(weight.numel() for weight in table.parameters())
    transformer = sum(weight.numel() for weight in backbone.parameters())
    return {
        "vocabulary": len(table.weight),
        "embedding": embedding,
        "backbone": transformer - embedding,
        "other": total - transformer,
        "total": total,
    }


def compare_tokenizers(
    before: PreTrainedTokenizerFast, after: PreTrainedTokenizerFast, texts: Texts, max_length: int | None = None
) -> dict[str, Any]:
    """Compare two tokenizers on the same texts, as JSON: "before", "after", "languages", "max_length" and "notes".

    "before" and "after" hold the sizes of the "vocabulary". "languages" holds for each one the statistics of `analyse`,
    "before" and "after", and "saved" in percent: "tokens" of whole texts, "length" of sequences and "attention" cost.
    """
    pieces_before = Pieces(before, "the tokenizer before")
    pieces_after = Pieces(after, "the tokenizer after")
    languages: dict[str, Any] = {}
    unspaced = []
    for language, language_texts in texts.items():
        old = text_statistics(pieces_before, language_texts, max_length)
        new = text_statistics(pieces_after, language_texts, max_length)
        if old["words"] is None:
            unspaced.append(language)
        saved = {
            "tokens": _saved_percent(old["tokens"], new["tokens"]),
            "length": _saved_percent(old["mean_length"], new["mean_length"]),
            "attention": _saved_percent(old["attention_cost"], new["attention_cost"]),
        }
        languages[language] = {"before": old, "after": new, "saved": saved}
    notes = []
    if unspaced:
        notes.append(
            f"Tokens per word are not defined for {', '.join(unspaced)}: most letters are of a script without spaces "
            "between words."
        )
    return {
        "before": _sizes(pieces_before),
        "after": _sizes(pieces_after),
        "languages": languages,
        "max_length": max_length,
        "notes": notes,
    }


def _saved_percent(old: float | None, new: float | None) -> float | None:
    if not old or new is None:
        return None
    return 100 * (1 - new / old)


def _sizes(pieces: Pieces) -> dict[str, Any]:
    sizes = {"size": len(pieces.vocabulary), "special": len(pieces.special), "added": len(pieces.added)}
    return {"vocabulary": sizes}


def _tokenized(pieces: Pieces, texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the count of every id [vocabulary] and the length of every text [texts], without special tokens."""
    counts = np.zeros(len(pieces.tokens), dtype=np.int64)
    lengths: list[int] = []
    remaining = iter(texts)
    while chunk := list(islice(remaining, _CHUNK)):
        ids = [encoding.ids for encoding in pieces.plain.encode_batch_fast(chunk, add_special_tokens=False)]
        lengths += map(len, ids)
        counts += np.bincount(np.fromiter(chain.from_iterable(ids), dtype=np.int64), minlength=len(counts))
    return counts, np.array(lengths, dtype=np.int64)


def _ratio(part: Any, whole: int | None) -> float | None:
    return float(part) / whole if whole else None
