"""What every tokenizer is asked: a bare copy of a fast one, and a hash of all that turns text into ids."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase


def plain_copy(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """A copy of the fast tokenizer without padding and truncation; None for a slow one or one with Python parts."""
    backend = getattr(tokenizer, "backend_tokenizer", None) if tokenizer.is_fast else None
    if not isinstance(backend, Tokenizer):
        return None
    try:
        copy = Tokenizer.from_str(backend.to_str())
    except Exception:  # the library raises bare Exception where a part is written in Python
        return None
    copy.no_padding()
    copy.no_truncation()
    return copy


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of everything that turns text into ids, the same after saving and loading; limits and padding of a call do not count."""
    copy = plain_copy(tokenizer)
    content: Any = (
        copy.to_str()
        if copy
        else json.dumps([type(tokenizer).__name__, tokenizer.get_vocab(), repr(tokenizer)], sort_keys=True)
    )
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
