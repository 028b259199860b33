"""New tokenizers trained on texts, with the normalization and the special tokens of an old one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Literal

from tokenizers import Tokenizer, models, trainers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError
from distilvec.vocabulary.edit import fast_tokenizer, with_tokens
from distilvec.vocabulary.pieces import SPACE, Pieces, State, components

NewKind = Literal["bpe", "unigram", "wordpiece"]
Texts = Callable[[], Iterable[str]]  # called again for every pass
BYTE_SCORE = -100.0  # of a byte token in a Unigram model: below every sequence of pieces
PREFIX = "##"
_BYTES = 256
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}  # the space that is put before every text
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
_TO_SPACE = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
_SPLITTERS: dict[NewKind, State] = {
    "bpe": _BYTE_LEVEL,
    "unigram": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True},
    "wordpiece": {"type": "BertPreTokenizer"},
}
_DECODERS: dict[NewKind, State] = {
    "bpe": {"type": "Sequence", "decoders": [_BYTE_LEVEL, _STRIP]},
    "unigram": {"type": "Sequence", "decoders": [_TO_SPACE, {"type": "ByteFallback"}, {"type": "Fuse"}, _STRIP]},
    "wordpiece": {"type": "WordPiece", "prefix": PREFIX, "cleanup": True},
}


def train_tokenizer(texts: Texts, kind: NewKind, size: int, like: Pieces) -> PreTrainedTokenizerFast:
    """Train a tokenizer of `size` tokens: byte-level BPE, Unigram with byte tokens, or WordPiece.

    It has fewer tokens if the texts give no more, and more if special tokens, bytes and letters of the texts are more.
    Normalization and special tokens are those of `like`. A space is put before every text, so that its first word is
    spelled like any other; decoding removes the space. WordPiece has an unknown token, the others read every script.
    Errors: DistilvecError for an old tokenizer without special tokens.
    """
    added = sorted((entry for entry in like.state["added_tokens"] if entry["special"]), key=lambda entry: entry["id"])
    special = [entry["content"] for entry in added]
    if not special:
        raise DistilvecError(
            "student.vocabulary.kind", f"{like.name} has no special tokens to take over.", "Use kind trim."
        )
    state = _trained(texts, kind, size, special, like)
    numbers = {entry["id"]: rank for rank, entry in enumerate(added)}
    state["added_tokens"] = [{**entry, "id": rank} for rank, entry in enumerate(added)]
    old = like.state["post_processor"]
    state["post_processor"] = with_tokens(old, lambda token, number: (token, numbers[number]))
    return fast_tokenizer(state, like.tokenizer)


def _trained(texts: Texts, kind: NewKind, size: int, special: list[str], like: Pieces) -> State:
    """Return tokenizer.json of a tokenizer trained on the texts, without the special-token template."""
    unknown = str(like.tokenizer.unk_token or special[0])
    shared: dict[str, Any] = {"special_tokens": special, "show_progress": False}
    if kind == "bpe":
        model: models.Model = models.BPE()
    elif kind == "unigram":
        model = models.Unigram()
    else:
        model = models.WordPiece(unk_token=unknown)
    normalizer = like.state["normalizer"]
    steps = [part for part in components(normalizer) if part["type"] != "Prepend" and part.get("content") != SPACE]
    if steps != components(normalizer):  # the splitter writes spaces, not the normalizer
        normalizer = {"type": "Sequence", "normalizers": steps} if steps else None
    empty = json.loads(Tokenizer(model).to_str())
    parts = {"normalizer": normalizer, "pre_tokenizer": _SPLITTERS[kind], "decoder": _DECODERS[kind]}
    tokenizer = Tokenizer.from_str(json.dumps({**empty, **parts}))
    if kind == "bpe":
        trainer: trainers.Trainer = trainers.BpeTrainer(
            vocab_size=size, initial_alphabet=ByteLevel.alphabet(), **shared
        )
    elif kind == "unigram":
        least = len(text_letters(tokenizer, texts)) + len(special) + 1  # the trainer refuses fewer
        trainer = trainers.UnigramTrainer(vocab_size=max(size - _BYTES, least), unk_token=unknown, **shared)
    else:
        trainer = trainers.WordPieceTrainer(vocab_size=size, continuing_subword_prefix=PREFIX, **shared)
    tokenizer.train_from_iterator(texts(), trainer=trainer)
    state: State = json.loads(tokenizer.to_str())
    if kind == "unigram":
        state["model"]["vocab"] += [[f"<0x{value:02X}>", BYTE_SCORE] for value in range(_BYTES)]
        state["model"]["byte_fallback"] = True
    return state


def text_letters(tokenizer: Tokenizer, texts: Texts) -> set[str]:
    """Return the distinct characters of the texts, as the tokenizer writes them."""
    letters = {SPACE}
    for text in texts():
        letters.update(text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text))
    return letters
