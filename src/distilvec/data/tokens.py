"""The corpus tokenised once: flat token ids with offsets, memory-mapped; a batch is one gather."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from distilvec.config.recipe import fingerprint
from distilvec.core.artifacts import META, Column, open_column, open_or_build
from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError
from distilvec.data.corpus import Corpus, Rows
from distilvec.models.tokenizers import plain_copy, tokenizer_hash

Progress = Callable[[str, int], None]
Encode = Callable[[list[Text]], "Encodings"]

FORMAT = 1
_CHUNK_ROWS = 1024
_CHUNK_BYTES = 1 << 18  # of text: an encoding takes some hundred times its tokens' ids while it lives


@dataclass(frozen=True)
class Encodings:
    """Token ids and token types of some texts (types: [] where the tokenizer gives none), and how many were truncated."""

    ids: list[Sequence[int]]
    types: list[Sequence[int]]
    truncated: int


class TokenStore:
    """Token ids of every corpus row, special tokens included; made by `build_tokens`, or opened from its folder.

    `lengths` [rows] int32, memory-mapped. `report`: rows, tokens, truncated (texts cut to `max_length`), empty (texts
    without any token, kept as one unknown token). Of pairs `seconds` [rows] int32 says at which token the second segment
    begins, where the student knows token types, else it is None. Errors: OSError, ValueError, KeyError for a damaged folder.
    """

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.folder = folder
        self.fingerprint: str = meta["fingerprint"]
        self.report: dict[str, int] = meta["report"]
        self.max_length: int = meta["max_length"]
        self.padding: int = meta["padding"]
        self.lengths: npt.NDArray[np.int32] = open_column(folder / "lengths.npy")
        self._offsets: Rows = open_column(folder / "offsets.npy")
        self._ids: npt.NDArray[np.int32] = open_column(folder / "ids.npy")
        self.seconds: npt.NDArray[np.int32] | None = (
            open_column(folder / "seconds.npy") if meta.get("token_types") else None
        )
        if len(self.lengths) != len(self._offsets) - 1 or len(self._ids) != self._offsets[-1]:
            raise ValueError(f"{folder}: columns of different lengths")

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: Rows) -> dict[str, torch.Tensor]:
        """`input_ids` [batch, longest] int64, padded on the right; `attention_mask` likewise, only if there is padding.

        `token_type_ids` likewise (0 at padding), only for pairs of a student that knows them.
        """
        lengths = self.lengths[rows]
        columns = np.arange(lengths.max(initial=0), dtype=np.int64)
        places = self._offsets[rows][:, None] + columns
        mask = columns < lengths[:, None]
        types = {}
        if self.seconds is not None:
            types["token_type_ids"] = torch.from_numpy(
                (mask & (columns >= self.seconds[rows][:, None])).astype(np.int64)
            )
        if mask.all():
            return {"input_ids": torch.from_numpy(self._ids[places].astype(np.int64)), **types}
        ids = np.full(mask.shape, self.padding, dtype=np.int64)
        ids[mask] = self._ids[places[mask]]
        return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64)), **types}


def build_tokens(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    folder: Path,
    progress: Progress | None = None,
    token_types: bool = True,
    side: str = "right",
) -> TokenStore:
    """Tokenise the prompted texts into `folder`, or reopen it if it is complete and was made of the same things.

    Special tokens are the tokenizer's own and count in `max_length`; longer texts lose their end (with `side` "left" their
    beginning), pairs that of the longer text first. Pairs get token types if the tokenizer has such and the model takes them
    (`token_types`). The tokenizer is not changed. `progress("tokenising", rows)`. Errors: DistilvecError if `max_length`
    leaves no room for text, or no disk space is left.
    """
    special = tokenizer.num_special_tokens_to_add(pair=corpus.paired)
    if max_length <= special:
        raise DistilvecError(
            f"[student.max_length] {max_length} leaves no room for text: the tokenizer adds {special} special tokens. "
            f"Give at least {special + 1}."
        )
    copy = plain_copy(tokenizer)
    typed = corpus.paired and token_types and "token_type_ids" in tokenizer.model_input_names
    info = [corpus.fingerprint, len(corpus), max_length, _padding(tokenizer), tokenizer_hash(tokenizer)]
    mark = fingerprint(FORMAT, *info, *(["token_types"] if typed else []), *(["left"] if side == "left" else []))

    def build(place: Path) -> dict[str, Any]:
        encode = _slow_encoder(tokenizer, max_length, side) if copy is None else _fast_encoder(copy, max_length, side)
        report = _write(place, corpus, encode, _unknown(tokenizer), typed, progress or (lambda stage, rows: None))
        return {"report": report, "max_length": max_length, "padding": _padding(tokenizer), "token_types": typed}

    return open_or_build(folder, mark, "token store", int(corpus.offsets[-1]) * 2, build, TokenStore)


def _write(
    place: Path, corpus: Corpus, encode: Encode, unknown: int, typed: bool, progress: Progress
) -> dict[str, int]:
    """Tokenise chunk by chunk into the columns ids, offsets, lengths and, of typed pairs, seconds; the report."""
    report = {"rows": len(corpus), "tokens": 0, "truncated": 0, "empty": 0}
    with contextlib.ExitStack() as stack:
        kinds: dict[str, Any] = {
            "ids": np.int32,
            "offsets": np.int64,
            "lengths": np.int32,
            **({"seconds": np.int32} if typed else {}),
        }
        out = {name: stack.enter_context(Column(place / f"{name}.npy", kind)) for name, kind in kinds.items()}
        out["offsets"].append(np.zeros(1))
        for rows in row_chunks(corpus.offsets):
            found = encode(corpus.prompted(rows))
            report["truncated"] += found.truncated
            report["empty"] += sum(not ids for ids in found.ids)
            encoded = [ids or [unknown] for ids in found.ids]
            if typed:
                out["seconds"].append(np.array([_second(types) for types in found.types]))
            lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
            out["ids"].append(np.fromiter(chain.from_iterable(encoded), dtype=np.int32, count=int(lengths.sum())))
            out["offsets"].append(report["tokens"] + np.cumsum(lengths))
            out["lengths"].append(lengths)
            report["tokens"] += int(lengths.sum())
            progress("tokenising", rows.stop)
    return report


def row_chunks(offsets: Rows) -> Iterator[range]:
    """Runs of rows with at most _CHUNK_ROWS rows and, unless it is one row, _CHUNK_BYTES of text."""
    start, rows = 0, len(offsets) - 1
    while start < rows:
        window = offsets[start + 1 : min(rows, start + _CHUNK_ROWS) + 1]
        count = max(1, int(np.searchsorted(window, offsets[start] + _CHUNK_BYTES, side="right")))
        yield range(start, start + count)
        start += count


def _fast_encoder(copy: Tokenizer, max_length: int, side: str) -> Encode:
    copy.enable_truncation(max_length, direction=side, strategy="longest_first")
    encode_batch = getattr(copy, "encode_batch_fast", copy.encode_batch)

    def encode(texts: list[Text]) -> Encodings:
        encodings = encode_batch(texts)
        truncated = sum(len(encoding) == max_length and bool(encoding.overflowing) for encoding in encodings)
        paired = bool(texts) and isinstance(texts[0], tuple)
        return Encodings(
            [encoding.ids for encoding in encodings], [e.type_ids for e in encodings] if paired else [], truncated
        )

    return encode


def _slow_encoder(tokenizer: PreTrainedTokenizerBase, max_length: int, side: str) -> Encode:
    def encode(texts: list[Text]) -> Encodings:
        own, tokenizer.truncation_side = tokenizer.truncation_side, side
        try:
            found = tokenizer(texts, truncation=True, max_length=max_length, padding=False)
        finally:
            tokenizer.truncation_side = own
        encoded = found["input_ids"]
        full = [text for text, ids in zip(texts, encoded, strict=True) if len(ids) == max_length]
        return Encodings(encoded, found.get("token_type_ids", []), sum(whole(text) > max_length for text in full))

    def whole(text: Text) -> int:
        parts = text if isinstance(text, tuple) else (text,)
        return sum(len(tokenizer.tokenize(part)) for part in parts) + int(
            tokenizer.num_special_tokens_to_add(pair=len(parts) == 2)
        )

    return encode


def _second(types: Sequence[int]) -> int:
    """At which token the second segment begins: types are 0 before it and 1 from there on."""
    count = sum(types)
    assert list(types[len(types) - count :]) == [1] * count, types
    return len(types) - count


def _padding(tokenizer: PreTrainedTokenizerBase) -> int:
    return int(tokenizer.pad_token_id or 0)


def _unknown(tokenizer: PreTrainedTokenizerBase) -> int:
    unknown = tokenizer.unk_token_id
    return _padding(tokenizer) if unknown is None else int(unknown)
