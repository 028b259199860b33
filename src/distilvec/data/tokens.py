"""The corpus tokenised once: flat token ids with offsets, memory-mapped; a batch is one gather."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from distilvec.data.columns import META, Column, new_folder, open_column, read_meta
from distilvec.data.corpus import Corpus, Rows
from distilvec.errors import DistilvecError
from distilvec.recipe import fingerprint

Progress = Callable[[str, int], None]
Encode = Callable[[list[str]], tuple[list[Sequence[int]], int]]  # texts to (token ids of each, how many were truncated)

FORMAT = 1
_CHUNK_ROWS = 1024
_CHUNK_BYTES = 1 << 18  # of text: an encoding takes some hundred times its tokens' ids while it lives


class TokenStore:
    """Token ids of every corpus row, special tokens included; made by `build_tokens`, or opened from its folder.

    `lengths` [rows] int32, memory-mapped. `report`: rows, tokens, truncated (texts cut to `max_length`), empty (texts
    without any token, kept as one unknown token). Errors: OSError, ValueError, KeyError for a damaged folder.
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
        if len(self.lengths) != len(self._offsets) - 1 or len(self._ids) != self._offsets[-1]:
            raise ValueError(f"{folder}: columns of different lengths")

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: Rows) -> dict[str, torch.Tensor]:
        """`input_ids` [batch, longest] int64, padded on the right; `attention_mask` likewise, only if there is padding."""
        lengths = self.lengths[rows]
        columns = np.arange(lengths.max(initial=0), dtype=np.int64)
        places = self._offsets[rows][:, None] + columns
        if len(lengths) == 0 or lengths.min() == len(columns):
            return {"input_ids": torch.from_numpy(self._ids[places].astype(np.int64))}
        mask = columns < lengths[:, None]
        ids = np.full(mask.shape, self.padding, dtype=np.int64)
        ids[mask] = self._ids[places[mask]]
        return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}


def build_tokens(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, max_length: int, folder: Path, progress: Progress | None = None
) -> TokenStore:
    """Tokenise the prompted texts into `folder`, or reopen it if it is complete and was made of the same things.

    Special tokens are the tokenizer's own and count in `max_length`; longer texts lose their end. The tokenizer is not
    changed. `progress("tokenising", rows)`. Errors: DistilvecError if `max_length` leaves no room for text, or no disk
    space is left.
    """
    special = tokenizer.num_special_tokens_to_add(pair=False)
    if max_length <= special:
        raise DistilvecError(
            f"[student.max_length] {max_length} leaves no room for text: the tokenizer adds {special} special tokens. "
            f"Give at least {special + 1}."
        )
    copy = _plain_copy(tokenizer)
    mark = fingerprint(FORMAT, corpus.fingerprint, len(corpus), max_length, _padding(tokenizer), tokenizer_hash(tokenizer))
    if read_meta(folder, mark) is not None:
        with contextlib.suppress(OSError, ValueError, KeyError):  # damaged: built anew
            return TokenStore(folder)
    encode = _slow_encoder(tokenizer, max_length) if copy is None else _fast_encoder(copy, max_length)
    with new_folder(folder, int(corpus.offsets[-1]) * 2, "token store") as place:
        report = _write(place, corpus, encode, _unknown(tokenizer), progress or (lambda stage, rows: None))
        meta = {"fingerprint": mark, "report": report, "max_length": max_length, "padding": _padding(tokenizer)}
        (place / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
    return TokenStore(folder)


def _write(place: Path, corpus: Corpus, encode: Encode, unknown: int, progress: Progress) -> dict[str, int]:
    """Tokenise chunk by chunk into the columns ids, offsets, lengths; the report."""
    report = {"rows": len(corpus), "tokens": 0, "truncated": 0, "empty": 0}
    with contextlib.ExitStack() as stack:
        kinds: dict[str, Any] = {"ids": np.int32, "offsets": np.int64, "lengths": np.int32}
        out = {name: stack.enter_context(Column(place / f"{name}.npy", kind)) for name, kind in kinds.items()}
        out["offsets"].append(np.zeros(1))
        for rows in _chunks(corpus.offsets):
            encoded, truncated = encode(corpus.prompted(rows))
            report["truncated"] += truncated
            report["empty"] += sum(not ids for ids in encoded)
            encoded = [ids or [unknown] for ids in encoded]
            lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
            out["ids"].append(np.fromiter(chain.from_iterable(encoded), dtype=np.int32, count=int(lengths.sum())))
            out["offsets"].append(report["tokens"] + np.cumsum(lengths))
            out["lengths"].append(lengths)
            report["tokens"] += int(lengths.sum())
            progress("tokenising", rows.stop)
    return report


def _chunks(offsets: Rows) -> Iterator[range]:
    """Runs of rows with at most _CHUNK_ROWS rows and, unless it is one row, _CHUNK_BYTES of text."""
    start, rows = 0, len(offsets) - 1
    while start < rows:
        window = offsets[start + 1 : min(rows, start + _CHUNK_ROWS) + 1]
        count = max(1, int(np.searchsorted(window, offsets[start] + _CHUNK_BYTES, side="right")))
        yield range(start, start + count)
        start += count


def _plain_copy(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
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


def _fast_encoder(copy: Tokenizer, max_length: int) -> Encode:
    copy.enable_truncation(max_length, direction="right")
    encode_batch = getattr(copy, "encode_batch_fast", copy.encode_batch)

    def encode(texts: list[str]) -> tuple[list[Sequence[int]], int]:
        encodings = encode_batch(texts)
        truncated = sum(len(encoding) == max_length and bool(encoding.overflowing) for encoding in encodings)
        return [encoding.ids for encoding in encodings], truncated

    return encode


def _slow_encoder(tokenizer: PreTrainedTokenizerBase, max_length: int) -> Encode:
    def encode(texts: list[str]) -> tuple[list[Sequence[int]], int]:
        side, tokenizer.truncation_side = tokenizer.truncation_side, "right"
        try:
            encoded = tokenizer(texts, truncation=True, max_length=max_length, padding=False)["input_ids"]
        finally:
            tokenizer.truncation_side = side
        full = [text for text, ids in zip(texts, encoded, strict=True) if len(ids) == max_length]
        return encoded, sum(len(tokenizer.tokenize(text)) + special > max_length for text in full)

    special = tokenizer.num_special_tokens_to_add(pair=False)
    return encode


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of everything that turns text into ids, the same after saving and loading; limits and padding of a call do not count."""
    copy = _plain_copy(tokenizer)
    content: Any = copy.to_str() if copy else json.dumps([type(tokenizer).__name__, tokenizer.get_vocab(), repr(tokenizer)], sort_keys=True)
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _padding(tokenizer: PreTrainedTokenizerBase) -> int:
    return int(tokenizer.pad_token_id or 0)


def _unknown(tokenizer: PreTrainedTokenizerBase) -> int:
    unknown = tokenizer.unk_token_id
    return _padding(tokenizer) if unknown is None else int(unknown)
