"""Fast tokenizers with a part of their vocabulary, or with other ids; all their other settings stay."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from distilvec.vocabulary.pieces import Pieces, State, components

LONGEST_WORD = 200  # letters that WordPiece reads as one word: its time grows with the third power of them
_SETTINGS = (  # that a new tokenizer takes over
    "padding_side",
    "truncation_side",
    "model_max_length",
    "model_input_names",
    "clean_up_tokenization_spaces",
    "chat_template",
)


def restrict(
    pieces: Pieces, keep: Iterable[int], letters: Iterable[int] | None = None
) -> tuple[PreTrainedTokenizerFast, npt.NDArray[np.int64]]:
    """Return the tokenizer with the tokens `needed` for `keep`, and the old id of each new one, in the old order.

    Texts whose tokens are all kept are split as before.
    """
    order = sorted(needed(pieces, keep, letters))
    state = _renumbered(pieces.state, {old: number for number, old in enumerate(order)})
    return fast_tokenizer(state, pieces.tokenizer), np.array(order, dtype=np.int64)


def joined(pieces: Pieces, keep: Iterable[int], other: Pieces, more: Iterable[str]) -> PreTrainedTokenizerFast:
    """Return the tokenizer with its tokens `keep`, in the old order, then the tokens `more` of another one of its kind.

    BPE merges the other's pairs first. Unigram: tokens of both get the mean of both probabilities, all others half.
    """
    order = sorted(keep)
    state = _with_added(_renumbered(pieces.state, {old: number for number, old in enumerate(order)}))
    old_tokens = {pieces.tokens[number] for number in order}
    new_tokens = [token for token in more if token not in old_tokens]
    model = state["model"]
    other_model = other.state["model"]
    if model["type"] == "Unigram":
        other_scores = dict(other_model["vocab"])
        half = math.log(0.5)
        reserved = {pieces.tokens[number] for number in pieces.special | pieces.added}
        scores: dict[str, float] = {}
        for token, score in model["vocab"]:
            if token in other_scores and token not in reserved:
                score = float(np.logaddexp(score, other_scores[token]))
            scores[token] = score
        for token in new_tokens:
            scores[token] = other_scores[token]
        model["vocab"] = [[token, score + half] for token, score in scores.items()]
    else:
        model["vocab"] |= {token: len(order) + rank for rank, token in enumerate(new_tokens)}
    if model["type"] == "BPE":
        merges = [*other_model["merges"], *pieces.state["model"]["merges"]]
        model["merges"] = _possible(merges, model, pieces.prefix)
    return fast_tokenizer(with_long_words(state), pieces.tokenizer)


def with_long_words(state: State) -> State:
    """Return tokenizer.json that reads words of any length; of a WordPiece model alone it is another one.

    WordPiece makes one unknown token of a word of more than 100 letters, as Thai, Khmer, addresses and base64 have.
    """
    if state["model"]["type"] != "WordPiece":
        return state
    cut = {"type": "Split", "pattern": {"Regex": f".{{{LONGEST_WORD}}}"}, "behavior": "Isolated", "invert": False}
    splitter = {"type": "Sequence", "pretokenizers": [*components(state["pre_tokenizer"]), cut]}
    model = {**state["model"], "max_input_chars_per_word": LONGEST_WORD}
    return {**state, "pre_tokenizer": splitter, "model": model}


def needed(pieces: Pieces, keep: Iterable[int], letters: Iterable[int] | None = None) -> set[int]:
    """Return `keep`, special and added tokens, `letters` (default: the whole alphabet), and what BPE merges to them."""
    if letters is None:
        letters = alphabet(pieces)
    always = (pieces.special | pieces.added | set(letters)) & set(pieces.vocabulary.values())
    parts = merge_parts(pieces)
    numbers: set[int] = set()
    for number in always.union(keep):
        numbers.update(parts(number))
    return numbers


def alphabet(pieces: Pieces) -> dict[int, str]:
    """Map tokens of one character, with or without prefix or suffix, to that character; byte tokens to themselves."""
    letters = {}
    for number, token in enumerate(pieces.tokens):
        if token is None:
            continue
        bare = token.removeprefix(pieces.prefix).removesuffix(pieces.suffix)
        is_byte = len(token) == 6 and token.startswith("<0x") and token.endswith(">")
        if len(bare) <= 1 or is_byte:
            letters[number] = bare
    return letters


def merge_parts(pieces: Pieces) -> Callable[[int], list[int]]:
    """Return a function of an id: the ids that BPE merges on the way to it, and the id; for other kinds only the id."""
    model = pieces.state["model"]
    if model["type"] != "BPE":
        return lambda number: [number]
    ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}

    def parts(number: int) -> list[int]:
        token = str(pieces.tokens[number])
        steps = derivation(token, ranks, pieces) if token in model["vocab"] else []
        return [*(model["vocab"][step] for step in steps if step in model["vocab"]), number]

    return parts


def derivation(token: str, ranks: Mapping[tuple[str, str], int], pieces: Pieces) -> list[str]:
    """Return a token's characters, and all that BPE merges from them up to the token."""
    bare = token.removesuffix(pieces.suffix)
    prefix = pieces.prefix
    symbols = list(bare)
    if prefix:
        symbols = [*bare[:1], *(prefix + letter for letter in bare[1:].replace(prefix, ""))]
    if token != bare and symbols:
        symbols[-1] += pieces.suffix
    steps = list(symbols)
    while len(symbols) > 1:
        pairs = list(pairwise(symbols))
        first = min(range(len(pairs)), key=lambda rank: ranks.get(pairs[rank], len(ranks)))
        if pairs[first] not in ranks:
            break
        symbols[first : first + 2] = [symbols[first] + symbols[first + 1].removeprefix(prefix)]
        steps.append(symbols[first])
    return steps


def swap_ids(tokenizer: PreTrainedTokenizerBase, first: int, second: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer with two ids exchanged."""
    pieces = Pieces(tokenizer)
    new = {number: number for number, token in enumerate(pieces.tokens) if token is not None}
    new[first], new[second] = second, first
    return fast_tokenizer(_renumbered(_with_added(pieces.state), new), tokenizer)


def fast_tokenizer(
    state: State, like: PreTrainedTokenizerBase, roles: Mapping[str, str] | None = None
) -> PreTrainedTokenizerFast:
    """Build a tokenizer from tokenizer.json's content with the settings of another one, and by default its roles."""
    backend = Tokenizer.from_str(json.dumps(state))
    if roles is None:
        vocabulary = backend.get_vocab(with_added_tokens=True)
        special = like.special_tokens_map.items()
        roles = {name: str(token) for name, token in special if isinstance(token, str) and token in vocabulary}
    settings = {name: getattr(like, name, None) for name in _SETTINGS}
    settings = {name: value for name, value in settings.items() if value is not None}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles, **settings)


def with_renamed_tokens(processor: State | None, renamed: Callable[[str, int], tuple[str, int]]) -> State | None:
    """Return a post-processor with other special tokens; `renamed` maps a token and its id to another token and id."""
    if processor is None:
        return None
    changed: dict[str, Any] = dict(processor)
    if "processors" in processor:
        changed["processors"] = [with_renamed_tokens(part, renamed) for part in processor["processors"]]
    for side in {"sep", "cls"} & processor.keys():
        changed[side] = list(renamed(*processor[side]))
    if "special_tokens" in processor:
        changed["special_tokens"] = {}
        for name, entry in processor["special_tokens"].items():
            tokens = [renamed(token, number) for token, number in zip(entry["tokens"], entry["ids"], strict=True)]
            changed["special_tokens"][name] = {
                **entry,
                "tokens": [token for token, _ in tokens],
                "ids": [number for _, number in tokens],
            }
    return changed


def _renumbered(state: State, new: Mapping[int, int]) -> State:
    """Return tokenizer.json with the tokens of `new` alone, under their new ids."""
    changed: State = json.loads(json.dumps(state))
    model = changed["model"]
    added = [{**entry, "id": new[entry["id"]]} for entry in changed["added_tokens"] if entry["id"] in new]
    changed["added_tokens"] = sorted(added, key=lambda entry: entry["id"])
    if model["type"] == "Unigram":
        order = sorted((number, old) for old, number in new.items() if old < len(model["vocab"]))
        model["vocab"] = [model["vocab"][old] for _, old in order]
        if model.get("unk_id") is not None:
            model["unk_id"] = new[model["unk_id"]]
    else:
        order = sorted((old, token) for token, old in model["vocab"].items() if old in new)
        model["vocab"] = {token: new[old] for old, token in order}
    if model["type"] == "BPE":
        model["merges"] = _possible(model["merges"], model, model.get("continuing_subword_prefix") or "")
    changed["post_processor"] = with_renamed_tokens(
        changed["post_processor"], lambda token, number: (token, new[number])
    )
    return changed


def _possible(merges: Iterable[list[str]], model: State, prefix: str) -> list[list[str]]:
    """Return the merges, each once, whose parts and result are all in the vocabulary."""
    vocabulary = model["vocab"]
    possible = []
    for left, right in dict.fromkeys((left, right) for left, right in merges):
        if left in vocabulary and right in vocabulary and left + right.removeprefix(prefix) in vocabulary:
            possible.append([left, right])
    return possible


def _with_added(state: State) -> State:
    """Return tokenizer.json with dense ids and a model that holds the added tokens too, behind its own ones."""
    changed: State = json.loads(json.dumps(state))
    vocabulary = changed["model"]["vocab"]
    if changed["model"]["type"] == "Unigram":
        lowest = min(score for _, score in vocabulary)
        added = sorted((entry["id"], entry["content"]) for entry in changed["added_tokens"])
        vocabulary += [[token, lowest] for number, token in added if number >= len(vocabulary)]
    else:
        vocabulary |= {entry["content"]: entry["id"] for entry in changed["added_tokens"]}
    return changed
