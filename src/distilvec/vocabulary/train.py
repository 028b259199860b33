"""A new tokenizer trained on texts, which reads letters as another one does and has the same special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal

from tokenizers import Tokenizer, models, trainers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError
from distilvec.vocabulary.edit import fast_tokenizer, renumber_processor
from distilvec.vocabulary.pieces import SPACE, Pieces

NewKind = Literal["bpe", "unigram", "wordpiece"]
BYTE_SCORE = -100.0  # of a byte token in a Unigram model: below all that can be made of pieces
PREFIX = "##"
_BYTES = 256
_BATCH = 1000
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}  # the space that goes before every text
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
_TO_SPACE = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
_SPLITTERS: dict[NewKind, Any] = {
    "bpe": _BYTE_LEVEL,
    "unigram": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True},
    "wordpiece": {"type": "BertPreTokenizer"},
}
_DECODERS: dict[NewKind, Any] = {
    "bpe": {"type": "Sequence", "decoders": [_BYTE_LEVEL, _STRIP]},
    "unigram": {"type": "Sequence", "decoders": [_TO_SPACE, {"type": "ByteFallback"}, {"type": "Fuse"}, _STRIP]},
    "wordpiece": {"type": "WordPiece", "prefix": PREFIX, "cleanup": True},
}


def train_tokenizer(texts: Iterable[str], kind: NewKind, size: int, like: Pieces) -> PreTrainedTokenizerFast:
    """A tokenizer of `size` tokens: byte-level BPE, Unigram with byte tokens, or WordPiece.

    Letters are normalised as in `like`, its special tokens and their places are kept. A space goes before every text that has
    none there, so that its first word is written like any other. Text of every script comes back without that space, but for WordPiece,
    which has an unknown token.
    Errors: DistilvecError for a size below what is always there (special tokens, bytes, the alphabet) or above what the texts give.
    """
    added = sorted((entry for entry in like.state["added_tokens"] if entry["special"]), key=lambda entry: entry["id"])
    special = [entry["content"] for entry in added]
    if not special:
        raise DistilvecError(
            f"[student.vocabulary.kind] {like.name} has no special tokens for a new one to take over. Use kind trim."
        )
    unknown = str(like.tokenizer.unk_token or special[0])
    fixed = len(special) + (0 if kind == "wordpiece" else _BYTES)
    if size <= fixed:
        raise DistilvecError(
            f"[student.vocabulary.size] a vocabulary of {size} is too small: special tokens and bytes alone take {fixed}. Ask for more."
        )
    frame = {
        **json.loads(Tokenizer(_empty(kind, unknown)).to_str()),
        "normalizer": _letters(like.state["normalizer"]),
        "pre_tokenizer": _SPLITTERS[kind],
        "decoder": _DECODERS[kind],
    }
    tokenizer = Tokenizer.from_str(json.dumps(frame))
    tokenizer.train_from_iterator(_batches(texts), trainer=_trainer(kind, size, special, unknown))
    state = json.loads(tokenizer.to_str())
    if kind == "unigram":
        state["model"]["vocab"] += [[f"<0x{value:02X}>", BYTE_SCORE] for value in range(_BYTES)]
        state["model"]["byte_fallback"] = True
    found = len(state["model"]["vocab"])
    if found != size:
        reason = (
            f"the texts' alphabet makes it {found}. Ask for that at least"
            if found > size
            else f"the texts give {found}. Ask for that"
        )
        raise DistilvecError(
            f"[student.vocabulary.size] a vocabulary of {size} cannot be had: {reason}, or change the texts."
        )
    numbers = {entry["id"]: place for place, entry in enumerate(added)}
    state["added_tokens"] = [{**entry, "id": numbers[entry["id"]]} for entry in added]
    state["post_processor"] = renumber_processor(like.state["post_processor"], numbers.__getitem__)
    return fast_tokenizer(state, like.tokenizer)


def _empty(kind: NewKind, unknown: str) -> models.Model:
    if kind == "bpe":
        return models.BPE()
    return models.Unigram() if kind == "unigram" else models.WordPiece(unk_token=unknown)


def _trainer(kind: NewKind, size: int, special: list[str], unknown: str) -> trainers.Trainer:
    shared: dict[str, Any] = {"special_tokens": special, "show_progress": False}
    if kind == "bpe":
        return trainers.BpeTrainer(vocab_size=size, initial_alphabet=ByteLevel.alphabet(), **shared)
    if kind == "unigram":
        return trainers.UnigramTrainer(vocab_size=size - _BYTES, unk_token=unknown, **shared)
    return trainers.WordPieceTrainer(vocab_size=size, continuing_subword_prefix=PREFIX, **shared)


def _letters(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a normaliser does to letters, without the mark that it puts in the place of a space."""
    if normalizer is None or normalizer["type"] == "Prepend" or normalizer.get("content") == SPACE:
        return None
    if "normalizers" in normalizer:
        kept = [part for entry in normalizer["normalizers"] if (part := _letters(entry)) is not None]
        return {**normalizer, "normalizers": kept} if kept else None
    return normalizer


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    texts = iter(texts)
    while batch := list(islice(texts, _BATCH)):
        yield batch
