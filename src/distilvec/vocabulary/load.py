"""Tokenizers that exist, from what they are kept in: a model's folder or id, a bare tokenizer.json, a SentencePiece model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError, first_line
from distilvec.models.load import load_tokenizer
from distilvec.vocabulary.edit import fast_tokenizer
from distilvec.vocabulary.pieces import OPTION, Pieces
from distilvec.vocabulary.sentencepiece import from_sentencepiece

NAMES = {  # the usual ones by role, the likeliest first
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "[EOS]"),
}
_STAND_INS = {"cls": "bos", "bos": "cls", "sep": "eos", "eos": "sep"}


def read_tokenizer(name: str, like: Pieces) -> PreTrainedTokenizerBase:
    """The tokenizer `name`: a model's folder or id as it is; a `.json` or `.model` file with the special tokens' places of `like`.

    `like` is the tokenizer of the model that it is for. Files do not say which special token has which role: they have them by
    their usual names, and around a text stand those with the roles that `like` puts there. A padding token that `like` has and the
    file has not is added at the end. Settings are those of `like`.
    Errors: DistilvecError for what is not there or cannot be read, ids with holes, a token around texts that the file has none for.
    """
    path, kind = Path(name), Path(name).suffix.lower()
    if kind not in (".json", ".model") or path.is_dir():
        return load_tokenizer(name, OPTION)
    if not path.is_file():
        raise DistilvecError(
            f"[{OPTION}] no file {name}. Expected a tokenizer.json, a SentencePiece .model, or a model's folder or id."
        )
    return _framed(_from_json(path) if kind == ".json" else from_sentencepiece(path), path, like)


def _from_json(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(Tokenizer.from_file(str(path)).to_str())
    except Exception as error:  # tokenizers raises nothing narrower
        raise DistilvecError(
            f"[{OPTION}] {path} is no tokenizer.json: {first_line(error)}. Expected what Tokenizer.save writes."
        ) from error
    return state


def _framed(state: dict[str, Any], path: Path, like: Pieces) -> PreTrainedTokenizerFast:
    """The tokenizer with roles by name, and around a text the tokens with the roles that `like` has there."""
    own, theirs = state["post_processor"], like.state["post_processor"]
    state = {**state, "post_processor": None, "truncation": None, "padding": None}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)))
    known = Pieces(tokenizer, str(path)).dense().vocabulary
    bare = fast_tokenizer(state, like.tokenizer, _roles(known, like))
    if bare.pad_token is None and like.tokenizer.pad_token is not None:
        bare.add_special_tokens({"pad_token": NAMES["pad"][0]})
    pieces = Pieces(bare, str(path))
    number_of: dict[str, int] = {}
    for name, number in _around(theirs).items():
        found = like.counterpart(number, pieces)
        if found is None:
            usual = dict.fromkeys(
                name for role, own in like.roles.items() if own == number for name in _names(role, like)
            )
            raise DistilvecError(
                f"[{OPTION}] the model reads texts with {like.tokens[number]}, and {path} has no token for it. Expected one of "
                f"{', '.join(usual) or like.tokens[number]}. "
                "Add it to the file, or give a tokenizer's folder with roles of its own."
            )
        number_of[name] = found
    parts = [
        part for part in _processors(own) if part["type"] == "ByteLevel"
    ]  # it corrects places in the text and adds nothing
    parts += [_renamed(part, number_of, pieces) for part in _processors(theirs) if part["type"] != "ByteLevel"]
    return fast_tokenizer(
        {**pieces.state, "post_processor": {"type": "Sequence", "processors": parts} if parts else None}, bare
    )


def _roles(known: Iterable[str], like: Pieces) -> dict[str, str]:
    """Special tokens by role, where there is one of a name that the role goes with."""
    known = set(known)
    found = {role: next((name for name in _names(role, like) if name in known), None) for role in NAMES}
    return {f"{role}_token": name for role, name in found.items() if name is not None}


def _names(role: str, like: Pieces) -> list[str]:
    """What a token of this role may be called: as in `like`, as usual, and where `like` has the role as one that does the same."""
    if role not in like.roles:
        return list(NAMES[role])
    return list(
        dict.fromkeys([str(like.tokens[like.roles[role]]), *NAMES[role], *NAMES.get(_STAND_INS.get(role, ""), ())])
    )


def _processors(processor: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A post-processor's parts."""
    if processor is None:
        return []
    return (
        [found for part in processor["processors"] for found in _processors(part)]
        if "processors" in processor
        else [processor]
    )


def _around(processor: dict[str, Any] | None) -> dict[str, int]:
    """The special tokens that a post-processor puts around texts, by the name it has for them."""
    parts = _processors(processor)
    templates = {name: entry["ids"][0] for part in parts for name, entry in part.get("special_tokens", {}).items()}
    return templates | {part[side][0]: part[side][1] for part in parts for side in ("cls", "sep") if side in part}


def _renamed(part: dict[str, Any], number_of: Mapping[str, int], pieces: Pieces) -> dict[str, Any]:
    """A post-processor's part with other tokens: `number_of` says which of `pieces` stands for a name of its own."""

    def name(old: str) -> str:
        return str(pieces.tokens[number_of[old]])

    changed = dict(part)
    for side in ("sep", "cls"):
        if side in part:
            changed[side] = [name(part[side][0]), number_of[part[side][0]]]
    for side in ("single", "pair"):
        if side in part:
            changed[side] = [
                {"SpecialToken": {**entry["SpecialToken"], "id": name(entry["SpecialToken"]["id"])}}
                if "SpecialToken" in entry
                else entry
                for entry in part[side]
            ]
    if "special_tokens" in part:
        changed["special_tokens"] = {
            name(old): {"id": name(old), "ids": [number_of[old]], "tokens": [name(old)]}
            for old in part["special_tokens"]
        }
    return changed
