"""The files of a corpus: writing texts and columns, finding duplicates and drawing rows with little memory."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from distilvec.core.artifacts import Column, open_column

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
Keys = npt.NDArray[np.void]
Progress = Callable[[str, int], None]
Item = TypeVar("Item")

CHUNK = 65_536  # rows processed at once
KEY_BYTES = 16
_ROWS = 8192  # written at once
_BUFFER = 1 << 20  # characters of text in memory before they are written
_MOST_BITS = 6  # equal values are found in at most 2^6 parts
_SENTENCE_END = re.compile(r"[.!?…؟।۔][\"'”’»)\]]*(?=\s)|[。！？][”’」』]*")  # noqa: RUF001
_WORD_END = re.compile(r"(?<=\S)(?=\s)")
_WORD = re.compile(r"\S")


class TextWriter:
    """Writes texts, their offsets, their keys and further columns, many rows at a time."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, **kinds: npt.DTypeLike) -> None:
        self._texts = stack.enter_context((folder / "texts.bin").open("wb"))
        self._columns = open_columns(folder, stack, offsets=np.int64, keys=f"V{KEY_BYTES}", **kinds)
        self._columns["offsets"].append(np.zeros(1))
        self._end = 0

    def append(self, texts: Iterable[Any], sizes: Sequence[int] | Rows, **columns: npt.NDArray[Any]) -> None:
        """Add texts (bytes, in pieces of any size), the number of bytes of each row, and the other columns' values."""
        self._texts.writelines(texts)
        ends = self._end + np.cumsum(sizes, dtype=np.int64)
        if len(ends):
            self._end = int(ends[-1])
        self._columns["offsets"].append(ends)
        for name, values in columns.items():
            self._columns[name].append(values)


def open_columns(folder: Path, stack: contextlib.ExitStack, **kinds: npt.DTypeLike) -> dict[str, Column]:
    """Columns to write, closed by the stack."""
    return {name: stack.enter_context(Column(folder / f"{name}.npy", kind)) for name, kind in kinds.items()}


def write_columns(folder: Path, **columns: npt.NDArray[Any]) -> None:
    """Write whole columns."""
    for name, values in columns.items():
        with Column(folder / f"{name}.npy", values.dtype) as column:
            column.append(values)


def write_rows(folder: Path, **masks: Mask) -> None:
    """Write columns with the numbers of the True rows of masks, many rows at a time."""
    for name, mask in masks.items():
        with Column(folder / f"{name}.npy", np.int64) as column:
            for start in range(0, len(mask), CHUNK):
                column.append(start + np.flatnonzero(mask[start : start + CHUNK]))


def copy_rows(raw: Path, folder: Path, keep: Mask, source_ends: Sequence[int], progress: Progress) -> None:
    """Copy the rows of `raw` that stay to `folder`, one stretch after the other.

    `source_ends` are the raw rows at which sources end.
    """
    offsets = open_column(raw / "offsets.npy")
    keys = open_column(raw / "keys.npy")
    texts = np.memmap(raw / "texts.bin", dtype=np.uint8, mode="r").data
    with contextlib.ExitStack() as stack:
        out = TextWriter(folder, stack, sources=np.uint16)
        for start in range(0, len(keep), CHUNK):
            rows = np.flatnonzero(keep[start : start + CHUNK]) + start
            # Rows that follow each other are copied at once.
            firsts = rows[np.diff(rows, prepend=-2) != 1]
            lasts = rows[np.diff(rows, append=-2) != 1]
            runs = zip(offsets[firsts].tolist(), offsets[lasts + 1].tolist(), strict=True)
            sizes = offsets[rows + 1] - offsets[rows]
            sources = np.searchsorted(source_ends, rows, side="right")
            out.append((texts[begin:end] for begin, end in runs), sizes, keys=keys[rows], sources=sources)
            progress("writing", start + len(rows))


def first_occurrences(keys: Keys, progress: Progress = lambda stage, rows: None) -> Mask:
    """[rows] True where a 16-byte key occurs for the first time."""
    keep = np.ones(len(keys), dtype=np.bool_)
    halves = keys.view(np.uint64).reshape(-1, 2)
    for rows, share in parts_of(halves[:, 0]):
        low, high = halves[rows].T
        order = np.lexsort((rows, high, low))
        equals_previous = (np.diff(low[order]) == 0) & (np.diff(high[order]) == 0)
        keep[rows[order][1:][equals_previous]] = False
        progress("removing duplicates", int(share * len(keys)))
    return keep


def parts_of(values: npt.NDArray[np.uint64]) -> Iterator[tuple[Rows, float]]:
    """Rows of equal values together, part by part, so that only a part is in memory; and the share that is done.

    Values are hashes: their low bits are as good as random.
    """
    parts = 1 << min(_MOST_BITS, (len(values) // CHUNK).bit_length())
    for part in range(parts):
        rows_of_chunks = [np.empty(0, dtype=np.int64)]
        for start in range(0, len(values), CHUNK):
            low_bits = values[start : start + CHUNK] & np.uint64(parts - 1)
            rows_of_chunks.append(start + np.flatnonzero(low_bits == part))
        yield np.concatenate(rows_of_chunks), (part + 1) / parts


def thin(mask: Mask, count: int, generator: np.random.Generator) -> None:
    """Leave `count` of the True entries True, in place, each choice equally likely, in one pass by chunks."""
    remaining = int(np.count_nonzero(mask))  # True entries from this chunk on, of which `count` stay
    assert count <= remaining, (count, remaining)
    for start in range(0, len(mask), CHUNK):
        chunk = mask[start : start + CHUNK]  # a view
        rows = np.flatnonzero(chunk)
        if len(rows):
            count_here = int(generator.hypergeometric(len(rows), remaining - len(rows), count))
            chunk[rows] = False
            chunk[rows[generator.choice(len(rows), count_here, replace=False, shuffle=False)]] = True
            remaining -= len(rows)
            count -= count_here


def as_keys(keys: Iterable[bytes]) -> Keys:
    """Keys as an array, V16 [n]."""
    return np.frombuffer(b"".join(keys), dtype=f"V{KEY_BYTES}")


def clean_text(text: str, longest: int) -> str:
    """Stripped, cut to `longest` characters; halves of surrogate pairs, which UTF-8 cannot write, become U+FFFD."""
    text = text.strip()[:longest].rstrip()
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def chunks(items: Iterator[Item], length: Callable[[Item], int]) -> Iterator[list[Item]]:
    """The items in lists of at most _ROWS items and about _BUFFER characters; `length` is that of an item."""
    chunk: list[Item] = []
    characters = 0
    for item in items:
        chunk.append(item)
        characters += length(item)
        if characters > _BUFFER or len(chunk) == _ROWS:
            yield chunk
            chunk = []
            characters = 0
    yield chunk


def pieces(text: str, longest: int) -> Iterator[str]:
    """Yield the parts of a text, of at most `longest` characters and about one length; a short text as it is.

    The length of the rest over the least number of parts is a share. A cut is made where a sentence ends, nearest to a
    share and not before half of one; where none ends, behind a word; without white space, after `longest` characters.
    Nothing but white space at the cuts and around the text is lost.
    """
    text, start = text.strip(), 0
    while (left := len(text) - start) > longest:
        share = left / -(-left // longest)
        for end_of in (_SENTENCE_END, _WORD_END):  # one character more: a word ends before white space
            matches = end_of.finditer(text, start + int(share / 2), start + longest + 1)
            ends = [match.end() for match in matches if match.end() <= start + longest]
            if ends:
                break
        cut = min(ends, key=lambda end: abs(end - start - share), default=start + longest)
        yield text[start:cut].rstrip()
        next_word = _WORD.search(text, cut)
        start = next_word.start() if next_word else len(text)
    yield text[start:]
