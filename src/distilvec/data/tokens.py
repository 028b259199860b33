"""The corpus tokenised once: flat token ids with offsets, memory-mapped; a batch is one gather."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from distilvec.config.recipe import fingerprint
from distilvec.core.artifacts import META, open_column, open_or_build
from distilvec.core.batch import Text
from distilvec.data.corpus import Corpus
from distilvec.data.corpus_files import Progress, Rows, open_columns
from distilvec.models.tokenizers import blank_token, check_room, plain_copy, tokenizer_hash

FORMAT = 1
_CHUNK_ROWS = 1024
_CHUNK_BYTES = 1 << 18  # of text: encodings in memory take some hundred times the bytes of their token ids


class Encoded(NamedTuple):
    """Token ids and token types of some texts (no types of texts that are not pairs), and how many were truncated."""

    ids: Sequence[Sequence[int]]
    types: Sequence[Sequence[int]]
    truncated: int


Encode = Callable[[list[Text]], Encoded]


class TokenStore:
    """Token ids of every corpus row, special tokens included; made by `build_tokens`, or opened from its folder.

    `lengths` [rows] int32, memory-mapped. `report`: rows, tokens, truncated (texts cut to `max_length`), empty (texts
    without any token, stored as one unknown token). `seconds` [rows] int32 is the token at which the second segment of
    a pair begins, or None without token types. Errors: OSError, ValueError, KeyError for a damaged folder.
    """

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.folder = folder
        self.fingerprint: str = meta["fingerprint"]
        self.report: dict[str, int] = meta["report"]
        self.max_length: int = meta["max_length"]
        self.padding: int = meta["padding"]
        self.lengths: npt.NDArray[np.int32] = open_column(folder / "lengths.npy")
        self.seconds: npt.NDArray[np.int32] | None = None
        if meta.get("token_types"):
            self.seconds = open_column(folder / "seconds.npy")
        self._offsets: Rows = open_column(folder / "offsets.npy")
        self._ids: npt.NDArray[np.int32] = open_column(folder / "ids.npy")
        if len(self.lengths) != len(self._offsets) - 1 or len(self._ids) != self._offsets[-1]:
            raise ValueError(f"{folder}: columns of different lengths")

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: Rows) -> dict[str, torch.Tensor]:
        """`input_ids` [batch, longest] int64, padded on the right; `attention_mask` likewise, only if there is padding.

        `token_type_ids` likewise (0 at padding), only for pairs of a student that has token types.
        """
        lengths = self.lengths[rows]
        columns = np.arange(lengths.max(initial=0), dtype=np.int64)
        positions = self._offsets[rows][:, None] + columns
        mask = columns < lengths[:, None]
        arrays: dict[str, npt.NDArray[Any]] = {}
        if mask.all():
            arrays["input_ids"] = self._ids[positions]
        else:
            arrays["input_ids"] = np.full(mask.shape, self.padding)
            arrays["input_ids"][mask] = self._ids[positions[mask]]
            arrays["attention_mask"] = mask
        if self.seconds is not None:
            arrays["token_type_ids"] = mask & (columns >= self.seconds[rows][:, None])
        return {name: torch.from_numpy(values.astype(np.int64)) for name, values in arrays.items()}


def build_tokens(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    folder: Path,
    progress: Progress = lambda stage, rows: None,
    token_types: bool = True,
    side: str = "right",
) -> TokenStore:
    """Tokenise the prompted texts into `folder`, or reopen it if it is complete and has the same fingerprint.

    Special tokens are the tokenizer's own and count in `max_length`; longer texts lose their end (with `side` "left"
    their beginning), of pairs the longer text first. Pairs get token types if the tokenizer has token types and the
    model takes them (`token_types`). The tokenizer is not changed. `progress("tokenising", rows)`.
    Errors: DistilvecError if `max_length` leaves no room for text, or no disk space is left.
    """
    special = tokenizer.num_special_tokens_to_add(pair=corpus.paired)
    check_room(max_length, special, "the tokenizer", "student.max_length")
    padding = int(tokenizer.pad_token_id or 0)
    unknown = blank_token(tokenizer)
    typed = corpus.paired and token_types and "token_type_ids" in tokenizer.model_input_names
    settings = [corpus.fingerprint, len(corpus), max_length, padding, tokenizer_hash(tokenizer)]
    if typed:
        settings.append("token_types")
    if side == "left":
        settings.append("left")
    name = fingerprint(FORMAT, *settings)

    def build(place: Path) -> dict[str, Any]:
        copy = plain_copy(tokenizer)
        encode = _fast_encoder(copy, max_length, side) if copy else _slow_encoder(tokenizer, max_length, side)
        report = _write(place, corpus, encode, unknown, typed, progress)
        return {"report": report, "max_length": max_length, "padding": padding, "token_types": typed}

    return open_or_build(folder, name, "token store", int(corpus.offsets[-1]) * 2, build, TokenStore)


def _write(
    folder: Path, corpus: Corpus, encode: Encode, unknown: int, typed: bool, progress: Progress
) -> dict[str, int]:
    """Tokenise chunk by chunk into the columns ids, offsets, lengths and, of typed pairs, seconds; the report."""
    report = {"rows": len(corpus), "tokens": 0, "truncated": 0, "empty": 0}
    kinds: dict[str, npt.DTypeLike] = {"ids": np.int32, "offsets": np.int64, "lengths": np.int32}
    if typed:
        kinds["seconds"] = np.int32
    with contextlib.ExitStack() as stack:
        columns = open_columns(folder, stack, **kinds)
        columns["offsets"].append(np.zeros(1))
        for rows in row_chunks(corpus.offsets):
            encoded = encode(corpus.prompted(rows))
            ids_of_rows = [ids or [unknown] for ids in encoded.ids]
            lengths = np.array([len(ids) for ids in ids_of_rows], dtype=np.int64)
            count = int(lengths.sum())
            columns["ids"].append(np.fromiter(chain.from_iterable(ids_of_rows), dtype=np.int32, count=count))
            columns["offsets"].append(report["tokens"] + np.cumsum(lengths))
            columns["lengths"].append(lengths)
            if typed:  # types are 0 before the second segment and 1 from there on
                columns["seconds"].append(np.array([len(types) - sum(types) for types in encoded.types]))
            report["tokens"] += count
            report["truncated"] += encoded.truncated
            report["empty"] += sum(not ids for ids in encoded.ids)
            progress("tokenising", rows.stop)
    return report


def row_chunks(offsets: Rows) -> Iterator[range]:
    """Runs of rows with at most _CHUNK_ROWS rows and, but for a single row, _CHUNK_BYTES of text."""
    start = 0
    rows = len(offsets) - 1
    while start < rows:
        window = offsets[start + 1 : min(rows, start + _CHUNK_ROWS) + 1]
        count = max(1, int(np.searchsorted(window, offsets[start] + _CHUNK_BYTES, side="right")))
        yield range(start, start + count)
        start += count


def _fast_encoder(copy: Tokenizer, max_length: int, side: str) -> Encode:
    copy.enable_truncation(max_length, direction=side, strategy="longest_first")
    encode_batch = getattr(copy, "encode_batch_fast", copy.encode_batch)

    def encode(texts: list[Text]) -> Encoded:
        encodings = encode_batch(texts)
        truncated = 0
        for encoding in encodings:
            # the length first: to ask for `overflowing` makes copies
            if len(encoding) == max_length and encoding.overflowing:
                truncated += 1
        has_pairs = bool(texts) and isinstance(texts[0], tuple)
        types = [encoding.type_ids for encoding in encodings] if has_pairs else []
        return Encoded([encoding.ids for encoding in encodings], types, truncated)

    return encode


def _slow_encoder(tokenizer: PreTrainedTokenizerBase, max_length: int, side: str) -> Encode:
    """For tokenizers in Python; texts of the greatest length are tokenised again, to count those that are longer."""

    def encode(texts: list[Text]) -> Encoded:
        side_before = tokenizer.truncation_side
        tokenizer.truncation_side = side
        try:
            encoded = tokenizer(texts, truncation=True, max_length=max_length, padding=False)
            longest = [text for text, ids in zip(texts, encoded["input_ids"], strict=True) if len(ids) == max_length]
            uncut = tokenizer(longest, padding=False, verbose=False)["input_ids"] if longest else []
        finally:
            tokenizer.truncation_side = side_before
        truncated = sum(len(ids) > max_length for ids in uncut)
        return Encoded(encoded["input_ids"], encoded.get("token_type_ids", []), truncated)

    return encode
