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
    Errors: DistilvecError for a `max_length` without room for text.
    """
    special = pieces.plain.num_special_tokens_to_add(False)
    if max_length is not None and max_length <= special:
        raise DistilvecError(
            "max_length",
            f"{max_length} leaves no room for text: {pieces.name} adds {special} special tokens.",
            f"Give at least {special + 1}.",
        )
    counts, lengths = _tokenized(pieces, texts)
    tokens, characters = int(counts.sum()), sum(map(len, texts))
    unspaced = sum(len(_UNSPACED.findall(text)) for text in texts)
    spaced = 2 * unspaced <= sum(len(_LETTER.findall(text)) for text in texts)
    words = sum(len(text.split()) for text in texts) if spaced else None
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
    transformer), `other` (of further modules) and `total`. Errors: DistilvecError for a model without a transformer.
    """
    backbone = getattr(model[0], "auto_model", None)
    if backbone is None:
        raise DistilvecError(
            "model", f"the first module is a {type(model[0]).__name__}; expected a Transformer.", "Give such a model."
        )
    table = backbone.get_input_embeddings()
    embedding, inside, total = (
        sum(weight.numel() for weight in part.parameters()) for part in (table, backbone, model)
    )
    own = {"vocabulary": len(table.weight), "embedding": embedding, "backbone": inside - embedding}
    return {**own, "other": total - inside, "total": total}


def compare_tokenizers(
    before: PreTrainedTokenizerFast, after: PreTrainedTokenizerFast, texts: Texts, max_length: int | None = None
) -> dict[str, Any]:
    """Compare two tokenizers on the same texts, as JSON: "before", "after", "languages", "max_length" and "notes".

    "before" and "after" hold the sizes of the "vocabulary". "languages" holds for each one the statistics of `analyse`,
    "before" and "after", and "saved" in percent: "tokens" of whole texts, "length" of sequences and "attention" cost.
    """
    both = {"before": Pieces(before, "the tokenizer before"), "after": Pieces(after, "the tokenizer after")}
    saved = {"tokens": "tokens", "length": "mean_length", "attention": "attention_cost"}
    languages: dict[str, Any] = {}
    for language, read in texts.items():
        own = {name: text_statistics(pieces, read, max_length) for name, pieces in both.items()}
        pairs = {name: (own["before"][key], own["after"][key]) for name, key in saved.items()}
        percent = {name: 100 * (1 - new / old) if old else None for name, (old, new) in pairs.items()}
        languages[language] = {**own, "saved": percent}
    unspaced = ", ".join(language for language, own in languages.items() if own["before"]["words"] is None)
    note = f"Tokens per word are not defined for {unspaced}: most letters are of a script without spaces between words."
    sizes = {
        name: {"vocabulary": {"size": len(own.vocabulary), "special": len(own.special), "added": len(own.added)}}
        for name, own in both.items()
    }
    return {**sizes, "languages": languages, "max_length": max_length, "notes": [note] if unspaced else []}


def _tokenized(pieces: Pieces, texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the count of every id [vocabulary] and the length of every text [texts], without special tokens."""
    counts, lengths, waiting = np.zeros(len(pieces.tokens), dtype=np.int64), list[int](), iter(texts)
    while chunk := list(islice(waiting, _CHUNK)):
        ids = [encoding.ids for encoding in pieces.plain.encode_batch_fast(chunk, add_special_tokens=False)]
        lengths += map(len, ids)
        counts += np.bincount(np.fromiter(chain.from_iterable(ids), dtype=np.int64), minlength=len(counts))
    return counts, np.array(lengths, dtype=np.int64)


def _ratio(part: Any, whole: int | None) -> float | None:
    return float(part) / whole if whole else None
