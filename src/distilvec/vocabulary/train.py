"""New tokenizers trained on texts, with the normalization and the special tokens of an old one.

The same texts give the same tokenizer.json in every process. The trainers of tokenizers take words in the order of a
hash table, another one each time: it decides which letter inside a word (##a) gets the lower id, and so which of two
equally frequent pairs is merged, and the order of a Unigram model's rare letters. Here these letters are given to the
trainer in order, and the pieces of a Unigram model are ordered after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Literal

from tokenizers import Tokenizer, models, trainers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError
from distilvec.vocabulary.edit import fast_tokenizer, with_long_words, with_renamed_tokens
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
_SCORE_DIGITS = 4  # of Unigram: sums in another order differ in the 15th
_DECODERS: dict[NewKind, State] = {
    "bpe": {"type": "Sequence", "decoders": [_BYTE_LEVEL, _STRIP]},
    "unigram": {"type": "Sequence", "decoders": [_TO_SPACE, {"type": "ByteFallback"}, {"type": "Fuse"}, _STRIP]},
    "wordpiece": {"type": "WordPiece", "prefix": PREFIX, "cleanup": True},
}


def train_tokenizer(texts: Texts, kind: NewKind, size: int, like: Pieces) -> PreTrainedTokenizerFast:
    """Train a tokenizer of `size` tokens: byte-level BPE, Unigram with byte tokens, or WordPiece.

    It has fewer tokens if the texts give no more, and more if special tokens, bytes and letters of the texts are more.
    Normalization and special tokens are those of `like`. A space is put before every text, so that its first word is
    spelled like any other; decoding removes the space. WordPiece reads every word of letters that the texts have, the
    others every script.
    """
    added = sorted((entry for entry in like.state["added_tokens"] if entry["special"]), key=lambda entry: entry["id"])
    special = [entry["content"] for entry in added]
    if not special:
        raise DistilvecError(
            f"{like.name} has no special tokens to take over.", "Use kind trim.", key="student.vocabulary.kind"
        )
    state = _trained(texts, kind, size, special, like)
    numbers = {entry["id"]: rank for rank, entry in enumerate(added)}
    state["added_tokens"] = [{**entry, "id": rank} for rank, entry in enumerate(added)]
    old = like.state["post_processor"]
    state["post_processor"] = with_renamed_tokens(old, lambda token, number: (token, numbers[number]))
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
    tokenizer = Tokenizer.from_str(json.dumps(with_long_words({**empty, **parts})))
    if kind == "bpe":
        trainer: trainers.Trainer = trainers.BpeTrainer(
            vocab_size=size, initial_alphabet=ByteLevel.alphabet(), **shared
        )
    elif kind == "unigram":
        least = len(text_letters(tokenizer, texts) | {SPACE}) + len(special) + 1  # the trainer refuses fewer
        trainer = trainers.UnigramTrainer(vocab_size=max(size - _BYTES, least), unk_token=unknown, **shared)
    else:
        shared["special_tokens"] = special + inner_letters(tokenizer, texts, PREFIX)
        trainer = trainers.WordPieceTrainer(vocab_size=size, continuing_subword_prefix=PREFIX, **shared)
    tokenizer.train_from_iterator(texts(), trainer=trainer)
    state: State = json.loads(tokenizer.to_str())
    if kind == "unigram":
        order_pieces(state, len(special))
        state["model"]["vocab"] += [[f"<0x{value:02X}>", BYTE_SCORE] for value in range(_BYTES)]
        state["model"]["byte_fallback"] = True
    return state


def text_letters(tokenizer: Tokenizer, texts: Texts) -> set[str]:
    """Return the distinct characters of the texts, as the tokenizer writes them."""
    letters: set[str] = set()
    for text in texts():
        letters.update(text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text))
    return letters


def train_like(pieces: Pieces, size: int, texts: Texts) -> PreTrainedTokenizerFast:
    """Train a tokenizer of about `size` tokens on the texts, of the kind of an old one and with its special tokens."""
    backend = pieces.tokenizer.backend_tokenizer
    letters: list[str] = []
    if pieces.state["model"]["type"] == "Unigram":  # its trainer refuses fewer tokens than letters
        size = max(size, len(text_letters(backend, texts) | {SPACE}) + len(pieces.added) + 1)
    elif pieces.prefix or pieces.suffix:
        letters = inner_letters(backend, texts, pieces.prefix, pieces.suffix)
    trained = pieces.tokenizer.train_new_from_iterator(
        texts(), size + len(letters), new_special_tokens=letters, show_progress=False
    )
    state = json.loads(trained.backend_tokenizer.to_str())
    state["added_tokens"] = [entry for entry in state["added_tokens"] if entry["content"] not in letters]
    if state["model"]["type"] == "Unigram":
        order_pieces(state, len(state["added_tokens"]))
    return fast_tokenizer(state, pieces.tokenizer)


def inner_letters(tokenizer: Tokenizer, texts: Texts, prefix: str, suffix: str = "") -> list[str]:
    """Return how the letters of the texts are written inside or at the end of a word, in order: ##a, ##b.

    A letter that the texts have at the beginning of words alone is one of them: new texts may have it inside.
    """
    splitter = tokenizer.pre_tokenizer
    written: list[str] = []
    for letter in sorted(text_letters(tokenizer, texts)):
        word = f"a{letter}a"
        if splitter is None or [part for part, _ in splitter.pre_tokenize_str(word)] == [word]:
            written += dict.fromkeys((f"{prefix}{letter}", f"{prefix}{letter}{suffix}", f"{letter}{suffix}"))
    return [token for token in dict.fromkeys(written) if len(token) > 1]


def order_pieces(state: State, special: int) -> None:
    """Put the pieces behind the first `special` ones of a trained Unigram model in the order of score and text.

    Scores are rounded. The rarest letters, to which the trainer gives scores by chance, get the lowest one.
    """
    vocabulary = state["model"]["vocab"]
    pieces = [(piece, round(score, _SCORE_DIGITS)) for piece, score in vocabulary[special:]]
    lowest = min(score for _, score in pieces)
    letters = sum(len(piece) == 1 for piece, _ in pieces)
    by_chance = lowest + letters * 10**-_SCORE_DIGITS  # the trainer's scores of such letters are this far apart
    scores = {}
    for piece, score in pieces:
        scores[piece] = lowest if len(piece) == 1 and score <= by_chance else score
    ordered = sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))
    state["model"]["vocab"] = vocabulary[:special] + [[piece, score] for piece, score in ordered]
