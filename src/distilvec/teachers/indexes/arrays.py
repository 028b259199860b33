"""Indexes of vectors alone, .npy and FAISS, with their texts in a file: one for each row, or by id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.core.errors import UNREADABLE, DistilvecError, first_line
from distilvec.core.extras import require_extra
from distilvec.data.readers import read_rows
from distilvec.teachers.cache.columns import Part, find_columns
from distilvec.teachers.indexes.reader import ROWS, Batch, Cursor, Reader, Vectors

_TEXTS = "teacher.texts"


@dataclass(frozen=True)
class _Array:
    """The vectors of a file: `read(start, end)` gives those of some rows.

    `ids` are those of a FAISS index with a map of ids, None where row numbers are the ids.
    """

    rows: int
    read: Callable[[int, int], Vectors]
    ids: list[str] | None = None
    metric: str | None = None


class ArrayIndex(Reader):
    """Vectors by row, and the texts of another file."""

    def __init__(self, path: Path, texts: Path | None, columns: Mapping[Part, str] | None, key: str) -> None:
        self.path = path
        self.key = key
        if not path.is_file():
            raise DistilvecError(key, f"no file at {path}.", "Check the path.")
        self.array = _open_npy(path, key) if path.suffix == ".npy" else _open_faiss(path, key)
        if texts is None:
            raise DistilvecError(
                _TEXTS,
                f"{path} holds {self.array.rows:,} vectors and no texts.",
                "Name the file with their texts: texts=FILE, one text for each row, or with an id that the index has.",
            )
        self.ids, self.texts = self._read_texts(texts, columns)

    @property
    def metric(self) -> str | None:
        """The metric of a FAISS index; a .npy file states none."""
        return self.array.metric

    def count(self) -> int:
        """Number of vectors."""
        return self.array.rows

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on."""
        for start in range(int(after or 0), self.array.rows, ROWS):
            end = min(start + ROWS, self.array.rows)
            yield Batch(self.ids[start:end], self.texts[start:end], self.array.read(start, end), end)

    def _read_texts(self, path: Path, columns: Mapping[Part, str] | None) -> tuple[list[str], list[str | None]]:
        """Ids and texts of all rows, in the index's order."""
        ids: list[str] = []
        texts: list[str | None] = []
        choices: dict[Part, str] = {part: name for part, name in (columns or {}).items() if part in ("text", "id")}
        names: dict[Part, str] = {}
        for number, (_, row) in enumerate(read_rows(path, _TEXTS)):
            names = names or find_columns(list(row), choices, str(path), _TEXTS, ("text",))
            text = row.get(names["text"])
            texts.append(None if text is None else str(text).rstrip("\n"))
            ids.append(str(row.get(names["id"])) if "id" in names else str(number))

        if self.array.ids is not None and "id" in names:
            text_by_id: dict[str, str | None] = {}
            for name, text in zip(ids, texts, strict=True):
                if text_by_id.setdefault(name, text) != text:
                    raise DistilvecError(_TEXTS, f"{path} has two texts with the id {name}.", "Keep one of them.")
            missing = [name for name in self.array.ids if name not in text_by_id]
            if missing:
                problem = f"has no text for {len(missing):,} of {len(self.array.ids):,} ids, such as {missing[0]}"
                raise DistilvecError(_TEXTS, f"{path} {problem}.", "Add them.")
            return self.array.ids, [text_by_id[name] for name in self.array.ids]
        if len(texts) != self.array.rows:
            problem = f"{path} has {len(texts):,} texts, {self.path} {self.array.rows:,} vectors"
            raise DistilvecError(_TEXTS, f"{problem}.", "Give one text for each row, in the same order.")
        return ids, texts


def _open_npy(path: Path, key: str) -> _Array:
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except UNREADABLE as error:
        raise DistilvecError(key, f"{path} is not a .npy array: {first_line(error)}.") from None
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        content = f"{vectors.dtype} {list(vectors.shape)}"
        raise DistilvecError(key, f"{path} holds {content}; expected floats [rows, dim].", "Convert it.")

    def read(start: int, end: int) -> Vectors:
        return np.asarray(vectors[start:end], dtype=np.float32)

    return _Array(len(vectors), read)


def _open_faiss(path: Path, key: str) -> _Array:
    require_extra("faiss", key)
    import faiss

    ids: list[str] | None = None
    try:
        index = faiss.read_index(str(path))
        inner = faiss.downcast_index(index)
        if isinstance(inner, (faiss.IndexIDMap, faiss.IndexIDMap2)):
            ids = [str(number) for number in faiss.vector_to_array(inner.id_map).tolist()]
            inner = faiss.downcast_index(inner.index)
        if isinstance(inner, faiss.IndexIVF):
            inner.make_direct_map()  # without it no vector can be read by its number
        if inner.ntotal:
            inner.reconstruct_n(0, 1)
    except RuntimeError as error:
        problem = f"cannot be read by FAISS, or gives no vectors back ({first_line(error)})"
        raise DistilvecError(key, f"{path} {problem}.", "Give an index with vectors.") from None

    def read(start: int, end: int, owner: Any = index) -> Vectors:
        """Rows of the inner index, which FAISS frees with its `owner`: this function keeps a reference to both."""
        return np.asarray(inner.reconstruct_n(start, end - start), dtype=np.float32)

    names = {faiss.METRIC_INNER_PRODUCT: "inner product", faiss.METRIC_L2: "L2"}
    metric = names.get(index.metric_type, f"FAISS's metric {index.metric_type}")
    return _Array(int(inner.ntotal), read, ids, metric)
