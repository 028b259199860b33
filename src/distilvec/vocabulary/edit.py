"""A fast tokenizer with a part of its vocabulary, or with other ids: everything else of it stays."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError
from distilvec.vocabulary.pieces import Pieces

Ids = npt.NDArray[np.int64]
_KEPT = (
    "padding_side",
    "truncation_side",
    "model_max_length",
    "model_input_names",
    "clean_up_tokenization_spaces",
    "chat_template",
)


def restrict(
    pieces: Pieces, keep: Iterable[int], letters: Iterable[int] | None = None
) -> tuple[PreTrainedTokenizerFast, Ids]:
    """The tokenizer with these tokens and all that they need; and, for each new id, the old one. Ids are dense, in the old order.

    Kept in any case: special and added tokens, byte tokens, `letters` (by default the whole alphabet: single characters, and those
    that go on a word), and for BPE what a token is merged from. Text whose tokens are all kept is cut as before.
    """
    order = np.array(sorted(needed(pieces, keep, letters)), dtype=np.int64)
    new = {int(old): number for number, old in enumerate(order)}
    return fast_tokenizer(_renumbered(pieces.state, new), pieces.tokenizer), order


def joined(pieces: Pieces, keep: Iterable[int], other: Pieces, more: Iterable[str]) -> PreTrainedTokenizerFast:
    """The tokenizer with the tokens `keep` of its own, in the old order, and behind them those of another one of its kind.

    BPE makes the other's tokens first. In a Unigram model a token of both has the mean of both probabilities, any other half its own.
    """
    order = sorted(keep)
    state = _with_added(_renumbered(pieces.state, {int(old): number for number, old in enumerate(order)}))
    there = {pieces.tokens[number] for number in order}
    fresh = [token for token in more if token not in there]
    model, theirs = state["model"], other.state["model"]
    if model["type"] == "Unigram":
        scores = dict(theirs["vocab"])
        half = math.log(0.5)
        apart = pieces.special | pieces.added
        ordinary = {token for number, token in enumerate(pieces.tokens) if number not in apart}
        model["vocab"] = [
            [
                token,
                float(np.logaddexp(score, scores[token])) + half
                if token in scores and token in ordinary
                else score + half,
            ]
            for token, score in model["vocab"]
        ]
        model["vocab"] += [[token, scores[token] + half] for token in fresh]
    else:
        model["vocab"] |= {token: len(order) + place for place, token in enumerate(fresh)}
    if model["type"] == "BPE":
        prefix, known = model.get("continuing_subword_prefix") or "", model["vocab"]
        pairs = dict.fromkeys([*pairs_of(theirs), *pairs_of(pieces.state["model"])])
        model["merges"] = [
            [a, b] for a, b in pairs if a in known and b in known and a + b.removeprefix(prefix) in known
        ]
    return fast_tokenizer(state, pieces.tokenizer)


def needed(pieces: Pieces, keep: Iterable[int], letters: Iterable[int] | None = None) -> set[int]:
    """These tokens and those without which the tokenizer cannot do, or cannot make them."""
    known = {number for number, token in enumerate(pieces.tokens) if token is not None}
    kept = {int(number) for number in keep}
    if unknown := kept - known:
        raise DistilvecError(
            f"[student.vocabulary] {pieces.name} has no token {min(unknown)}: its ids end at {max(known)}. Keep tokens that it has."
        )
    kept |= (pieces.special | pieces.added | set(alphabet(pieces) if letters is None else letters)) & known
    parts = parts_of(pieces)
    return {part for number in kept for part in parts(number)}


def alphabet(pieces: Pieces) -> dict[int, str]:
    """The tokens of a single character, with that character, whether they begin a word or go on one; byte tokens; a space's mark."""
    prefix, suffix = pieces.marks[1], pieces.marks[2]
    found = {}
    for number, token in enumerate(pieces.tokens):
        if token is None:
            continue
        bare = token.removeprefix(prefix) if prefix else token
        bare = bare.removesuffix(suffix) if suffix else bare
        if len(bare) <= 1 or (len(token) == 6 and token.startswith("<0x") and token.endswith(">")):
            found[number] = bare
    return found


def parts_of(pieces: Pieces) -> Callable[[int], list[int]]:
    """A function of an id: all ids that BPE goes through from characters to that token, itself included; itself alone elsewhere."""
    model = pieces.state["model"]
    if model["type"] != "BPE":
        return lambda number: [number]
    vocabulary: dict[str, int] = model["vocab"]
    ranks = {pair: rank for rank, pair in enumerate(pairs_of(model))}
    tokens = {number: token for token, number in vocabulary.items()}

    def parts(number: int) -> list[int]:
        found = [vocabulary[part] for part in derivation(tokens.get(number, ""), ranks, model) if part in vocabulary]
        return [*found, number]

    return parts


def pairs_of(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A BPE model's merges in order (older files write a pair as one string)."""
    return [
        (pair.split(" ", 1)[0], pair.split(" ", 1)[1]) if isinstance(pair, str) else (pair[0], pair[1])
        for pair in model["merges"]
    ]


def derivation(token: str, ranks: Mapping[tuple[str, str], int], model: Mapping[str, Any]) -> list[str]:
    """All that BPE goes through from a token's characters to the token."""
    prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    bare = token.removesuffix(suffix) if suffix else token
    symbols = [*bare] if not prefix else [*bare[:1], *(prefix + letter for letter in bare[1:].replace(prefix, ""))]
    if suffix and token.endswith(suffix) and symbols:
        symbols[-1] += suffix
    found = list(symbols)
    while len(symbols) > 1:
        best = min(
            range(len(symbols) - 1), key=lambda place: ranks.get((symbols[place], symbols[place + 1]), len(ranks))
        )
        if (symbols[best], symbols[best + 1]) not in ranks:
            break
        symbols[best : best + 2] = [symbols[best] + symbols[best + 1].removeprefix(prefix)]
        found.append(symbols[best])
    return found


def swap_ids(tokenizer: PreTrainedTokenizerBase, first: int, second: int) -> PreTrainedTokenizerFast:
    """The tokenizer with two ids exchanged."""
    pieces = Pieces(tokenizer)
    new = {number: number for number, token in enumerate(pieces.tokens) if token is not None}
    new[first], new[second] = second, first
    return fast_tokenizer(_renumbered(_with_added(pieces.state), new), tokenizer)


def fast_tokenizer(
    state: Mapping[str, Any], like: PreTrainedTokenizerBase, roles: Mapping[str, str] | None = None
) -> PreTrainedTokenizerFast:
    """A tokenizer from tokenizer.json's content, with the settings of another one and, if none are given, its special tokens' roles."""
    backend = Tokenizer.from_str(json.dumps(state))
    vocabulary = backend.get_vocab(with_added_tokens=True)
    if roles is None:
        roles = {
            name: str(token)
            for name, token in like.special_tokens_map.items()
            if isinstance(token, str) and str(token) in vocabulary
        }
    settings = {name: value for name in _KEPT if (value := getattr(like, name, None)) is not None}
    made = PreTrainedTokenizerFast(tokenizer_object=backend, **roles, **settings)
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise DistilvecError(
            "[student.vocabulary.tokenizer] the new tokenizer's ids have holes. Save it with dense ids."
        )
    return made


def _renumbered(state: Mapping[str, Any], new: Mapping[int, int]) -> dict[str, Any]:
    """tokenizer.json with the tokens of `new` alone, under their new ids."""
    changed: dict[str, Any] = json.loads(json.dumps(state))
    model = changed["model"]
    changed["added_tokens"] = [
        {**entry, "id": new[entry["id"]]} for entry in changed["added_tokens"] if entry["id"] in new
    ]
    changed["added_tokens"].sort(key=lambda entry: entry["id"])
    if model["type"] == "Unigram":
        order = sorted((number, old) for old, number in new.items() if old < len(model["vocab"]))
        if model.get("unk_id") is not None:
            model["unk_id"] = new[model["unk_id"]]
        model["vocab"] = [model["vocab"][old] for _, old in order]
    else:
        model["vocab"] = {
            token: new[old] for token, old in sorted(model["vocab"].items(), key=lambda item: item[1]) if old in new
        }
    if model["type"] == "BPE":
        prefix = model.get("continuing_subword_prefix") or ""
        kept: Sequence[tuple[str, str]] = pairs_of(model)
        there = model["vocab"]
        model["merges"] = [[a, b] for a, b in kept if a in there and b in there and a + b.removeprefix(prefix) in there]
    changed["post_processor"] = renumber_processor(changed["post_processor"], lambda number: new[number])
    return changed


def _with_added(state: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer.json with dense ids whose model holds the added tokens too: others come behind all that it holds, whatever their ids."""
    changed: dict[str, Any] = json.loads(json.dumps(state))
    vocabulary = changed["model"]["vocab"]
    if changed["model"]["type"] == "Unigram":
        lowest = min(score for _, score in vocabulary)
        added = sorted((entry["id"], entry["content"]) for entry in changed["added_tokens"])
        vocabulary += [[token, lowest] for number, token in added if number >= len(vocabulary)]
    else:
        vocabulary |= {entry["content"]: entry["id"] for entry in changed["added_tokens"]}
    return changed


def renumber_processor(processor: Any, renumber: Callable[[int], int]) -> Any:
    """A post-processor under new ids."""
    if processor is None:
        return None
    processor = dict(processor)
    if "processors" in processor:
        processor["processors"] = [renumber_processor(part, renumber) for part in processor["processors"]]
    if processor["type"] == "TemplateProcessing":
        tokens = processor["special_tokens"].items()
        processor["special_tokens"] = {
            name: {**entry, "ids": [renumber(number) for number in entry["ids"]]} for name, entry in tokens
        }
    for side in ("sep", "cls"):
        if side in processor:
            processor[side] = [processor[side][0], renumber(processor[side][1])]
    return processor
