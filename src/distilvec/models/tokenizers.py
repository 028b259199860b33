"""Bare copies of fast tokenizers, a hash of a tokenizer, its padding, its mark between the texts of a pair, and the
alphabet of byte-level tokenizers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.processors import Sequence as Processors
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError

PROBES = 2000  # tokens of a vocabulary that are read in two ways


def plain_copy(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """Copy a fast tokenizer without padding and truncation; None for a slow one or one with Python parts."""
    backend = getattr(tokenizer, "backend_tokenizer", None) if tokenizer.is_fast else None
    if not isinstance(backend, Tokenizer):
        return None
    try:
        copy = Tokenizer.from_str(backend.to_str())
    except Exception:  # the library raises bare Exception for parts in Python
        return None
    copy.no_padding()
    copy.no_truncation()
    return copy


def blank_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that stands for an empty text where a tokenizer adds no special tokens: the unknown one, if it has any.

    Without a token there is nothing to compute a vector from.
    """
    if tokenizer.unk_token_id is not None:
        return int(tokenizer.unk_token_id)
    return int(tokenizer.pad_token_id or 0)


def fill_empty_texts(features: MutableMapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> None:
    """Give texts without a token the blank one, in place.

    `features` are input_ids and attention_mask [texts, tokens], and what else a tokenizer returns of that shape.
    """
    if not features["input_ids"].shape[1]:  # no text has a token; without values all are float32
        for name, values in features.items():
            if isinstance(values, Tensor) and values.ndim == 2:
                features[name] = torch.zeros(len(values), 1, dtype=torch.int64)
    ids, mask = features["input_ids"], features["attention_mask"]
    is_empty = mask.sum(dim=1) == 0
    place = -1 if tokenizer.padding_side == "left" else 0
    ids[is_empty, place] = blank_token(tokenizer)
    mask[is_empty, place] = 1


def give_padding(tokenizer: Any) -> None:
    """Let a tokenizer that has no padding token, as of many decoders, pad with its end or unknown token, in place.

    Any token serves, since the mask hides it. A tokenizer without either keeps none, and so does one that is not of
    transformers, as of a table of word vectors.
    """
    if isinstance(tokenizer, PreTrainedTokenizerBase) and tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token


def separate_pairs(tokenizer: Any) -> None:
    """Let a tokenizer put its end-of-text token between the texts of a pair if it puts nothing there, in place.

    Without a mark ("the cat", "sat") and ("the", " catsat") are the same tokens. Single texts stay as they are, and the
    mark is saved with the tokenizer. A tokenizer without an end-of-text or separator token, and one that is written in
    Python, stays as it is: `expect_boundary` refuses it for pairs.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerBase) or has_boundary(tokenizer):
        return
    backend = getattr(tokenizer, "backend_tokenizer", None)
    token = tokenizer.eos_token or tokenizer.sep_token
    if backend is None or token is None:
        return
    number = tokenizer.convert_tokens_to_ids(token)
    before = backend.post_processor
    state = {} if before is None else json.loads(before.__getstate__())
    templates = [part for part in state.get("processors", [state]) if part.get("type") == "TemplateProcessing"]
    if not templates:
        pairs = TemplateProcessing(single="$A:0", pair=["$A:0", token, "$B:1"], special_tokens=[(token, number)])
        backend.post_processor = pairs if before is None else Processors([before, pairs])
        return
    pieces = templates[-1]["pair"]
    first = next(place for place, piece in enumerate(pieces) if "Sequence" in piece)
    pieces.insert(first + 1, {"SpecialToken": {"id": token, "type_id": 0}})
    templates[-1]["special_tokens"][token] = {"id": token, "ids": [number], "tokens": [token]}
    before.__setstate__(json.dumps(state).encode())
    backend.post_processor = before


def has_boundary(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer puts a token between the two texts of a pair."""
    if not tokenizer.is_fast:
        return tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add(pair=False)
    parts = tokenizer("a", "a").sequence_ids()  # 0 and 1 for tokens of the texts, None for special ones
    if 0 not in parts or 1 not in parts:
        return None in parts
    return parts.index(1) > len(parts) - parts[::-1].index(0)


def expect_boundary(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise DistilvecError for a tokenizer that leaves no mark between the texts of a pair."""
    if not has_boundary(tokenizer):
        raise DistilvecError(
            "the tokenizer puts nothing between the two texts of a pair, and no token at the end of a text: the model "
            "cannot see where the first text ends.",
            "Set task.encode=separate, or take another model.",
            key="task.encode",
        )


def check_room(max_length: int, special: int, name: str, key: str) -> None:
    """Raise DistilvecError, with this key, for a maximum length of which `special` tokens leave nothing to a text."""
    if max_length <= special:
        problem = f"found {max_length}; {name} adds {special} special tokens, so that nothing of a text is left."
        raise DistilvecError(problem, f"Give at least {special + 1}.", key=key)


def lower_case(tokenizer: PreTrainedTokenizerBase) -> None:
    """Make a tokenizer lower-case its texts first, as sentence-transformers does for `do_lower_case`, in place."""
    backend = getattr(tokenizer, "backend_tokenizer", None) if tokenizer.is_fast else None
    if backend is None:
        tokenizer.do_lower_case = True
        return
    normalizer = backend.normalizer
    parts = [] if normalizer is None else [normalizer]
    if isinstance(normalizer, Normalizers):
        parts = list(cast(Any, normalizer))
    if not any(isinstance(part, Lowercase) for part in parts):
        backend.normalizer = Normalizers([Lowercase(), *parts])


def notes_on_file(module: Any, file: Path) -> tuple[str, ...]:
    """Say in words if a module's tokenizer reads words otherwise than the tokenizer.json that it was loaded from."""
    if has_all_parts(module.tokenizer, file):
        return ()
    read, stated = plain_copy(module.tokenizer), Tokenizer.from_file(str(file))
    if read is None:
        return ()
    words = _words(stated)
    if getattr(module, "do_lower_case", False):  # in a part that sentence-transformers adds
        words = [word.lower() for word in words]
    stated.no_padding()
    stated.no_truncation()
    others = [word for word in words if read.encode(word).ids != stated.encode(word).ids]
    if not others:
        return ()
    example = min(others, key=lambda word: (not word.isalpha(), len(word)))
    return (
        f"transformers {transformers.__version__} makes a {type(module.tokenizer).__name__} of its vocabulary alone. "
        f"The whole tokenizer.json gives other tokens for {len(others):,} of {len(words):,} words, such as "
        f'{example!r}. To read it, write "tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json',
    )


def has_all_parts(tokenizer: PreTrainedTokenizerBase, file: Path) -> bool:
    """Whether a tokenizer has parts of the kinds that its tokenizer.json has, and the settings of its model.

    transformers builds a class of its own name, such as BertTokenizer, from the file's vocabulary alone since version
    5. Normalizers and pre-tokenizers of other kinds than the class's are left out, and nothing says so. Settings of
    parts of the same kinds may come from tokenizer_config.json. A slow tokenizer reads other files.
    """
    if type(tokenizer) is PreTrainedTokenizerFast or not tokenizer.is_fast:
        return True
    state, backend = json.loads(file.read_text(encoding="utf-8")), tokenizer.backend_tokenizer
    for name in ("normalizer", "pre_tokenizer", "post_processor"):
        part = getattr(backend, name)
        try:
            read = _kinds([json.loads(part.__getstate__())] if part else [])
        except Exception:  # the library raises bare Exception for parts in Python, which no file can state
            return True
        stated = _kinds([state.get(name)])
        if read not in (stated, ["Lowercase", *stated]):  # do_lower_case of sentence-transformers
            return False
    settings = {name: setting for name, setting in state["model"].items() if name not in ("vocab", "merges")}
    return all(getattr(backend.model, name, setting) == setting for name, setting in settings.items())


def _kinds(parts: list[Any]) -> list[str]:
    """List the kinds of parts of a tokenizer in their order, without their settings."""
    kinds = []
    while parts:
        part, *parts = parts
        if part is None:
            continue
        if part["type"] == "Sequence":
            inside = part.get("normalizers") or part.get("pretokenizers") or part.get("processors") or []
            parts = [*inside, *parts]
        else:
            kinds.append(part["type"])
    return kinds


def _words(tokenizer: Tokenizer) -> list[str]:
    """Return words of a vocabulary, each also in capitals and beside digits and a hyphen."""
    size = tokenizer.get_vocab_size()
    tokens = (tokenizer.decode([number]).strip().casefold() for number in range(0, size, max(1, size // PROBES)))
    return [form for token in tokens if token for form in (token, f"{token.upper()}-{token} 2026")]


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash everything that turns text into ids, without limits and padding; equal before saving and after loading."""
    copy = plain_copy(tokenizer)
    slow: list[Any] = [] if copy else [type(tokenizer).__name__, tokenizer.get_vocab(), repr(tokenizer)]
    content = copy.to_str() if copy else json.dumps(slow, sort_keys=True)
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@lru_cache(maxsize=1)
def byte_letters() -> dict[str, int]:
    """Map each letter of byte-level tokenizers (GPT-2) to its byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + rank): byte for rank, byte in enumerate(others)}
