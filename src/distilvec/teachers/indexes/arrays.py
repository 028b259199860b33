"""Indexes of vectors alone, .npy and FAISS, with their texts in a file: one for each row, or by id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.core.errors import UNREADABLE, DistilvecError, first_line
from distilvec.core.extras import require_extra
from distilvec.data.readers import read_rows
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.reader import ROWS, Batch, Reader, Vectors

_TEXTS = "teacher.texts"


class ArrayIndex(Reader):
    """Vectors by row; `ids` are those of a FAISS index with a map of ids, None for row numbers."""

    def __init__(self, path: Path, texts: Path | None, columns: Mapping[Any, str] | None, key: str) -> None:
        self.path, self.key = path, key
        if not path.is_file():
            raise DistilvecError(key, f"no file at {path}.", "Check the path.")
        self.ids: Any = None
        self._metric: str | None = None
        self.rows, self._read = self._open_faiss() if path.suffix != ".npy" else self._open_npy()
        if texts is None:
            raise DistilvecError(
                _TEXTS,
                f"{path} holds {self.rows:,} vectors and no texts.",
                "Name the file with their texts: texts=FILE, one text for each row, or with an id that the index has.",
            )
        self.names, self.texts = self._texts(texts, columns)

    @property
    def metric(self) -> str | None:
        """The metric of a FAISS index; a .npy file states none."""
        return self._metric

    def count(self) -> int:
        """Number of vectors."""
        return self.rows

    def batches(self, after: Any) -> Iterator[Batch]:
        """Rows from number `after` on."""
        for start in range(int(after or 0), self.rows, ROWS):
            end = min(start + ROWS, self.rows)
            yield Batch(self.names[start:end], self.texts[start:end], self._read(start, end), end)

    def _open_npy(self) -> tuple[int, Any]:
        try:
            vectors = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except UNREADABLE as error:
            raise DistilvecError(self.key, f"{self.path} is no .npy array: {first_line(error)}.") from None
        if vectors.ndim != 2 or vectors.dtype.kind != "f":
            found = f"{vectors.dtype} {list(vectors.shape)}"
            raise DistilvecError(self.key, f"{self.path} holds {found}; expected floats [rows, dim].", "Convert it.")
        return len(vectors), lambda start, end: np.asarray(vectors[start:end], dtype=np.float32)

    def _open_faiss(self) -> tuple[int, Any]:
        require_extra("faiss", self.key)
        import faiss

        try:
            self.index = faiss.read_index(str(self.path))  # owns the indexes inside
            names = {faiss.METRIC_INNER_PRODUCT: "inner product", faiss.METRIC_L2: "L2"}
            self._metric = names.get(self.index.metric_type, f"FAISS's metric {self.index.metric_type}")
            inner = faiss.downcast_index(self.index)
            if isinstance(inner, (faiss.IndexIDMap, faiss.IndexIDMap2)):
                self.ids = faiss.vector_to_array(inner.id_map)
                inner = faiss.downcast_index(inner.index)
            if isinstance(inner, faiss.IndexIVF):
                inner.make_direct_map()
            if inner.ntotal:
                inner.reconstruct_n(0, 1)
        except RuntimeError as error:
            problem = f"cannot be read by FAISS, or gives no vectors back ({first_line(error)})"
            raise DistilvecError(self.key, f"{self.path} {problem}.", "Give an index with vectors.") from None

        def read(start: int, end: int) -> Vectors:
            return np.asarray(inner.reconstruct_n(start, end - start), dtype=np.float32)

        return int(inner.ntotal), read

    def _texts(self, path: Path, columns: Mapping[Any, str] | None) -> tuple[list[str], list[str | None]]:
        """Ids and texts of all rows, in the index's order."""
        names: list[str] = []
        texts: list[str | None] = []
        found: dict[str, str] = {}
        for number, (_, row) in enumerate(read_rows(path, _TEXTS)):
            found = found or find_columns(list(row), columns and _of_texts(columns), str(path), _TEXTS, ("text",))
            text = row.get(found["text"])
            texts.append(None if text is None else str(text).rstrip("\n"))
            names.append(str(row.get(found["id"])) if "id" in found else str(number))
        if self.ids is not None and "id" in found:
            by_id, ids = dict(zip(names, texts, strict=True)), [str(one) for one in self.ids.tolist()]
            if lacking := [one for one in ids if one not in by_id]:
                problem = f"has no text for {len(lacking):,} of {len(ids):,} ids, such as {lacking[0]}"
                raise DistilvecError(_TEXTS, f"{path} {problem}.", "Add them.")
            return ids, [by_id[one] for one in ids]
        if len(texts) != self.rows:
            problem = f"{path} has {len(texts):,} texts, {self.path} {self.rows:,} vectors"
            raise DistilvecError(_TEXTS, f"{problem}.", "Give one text for each row, in the same order.")
        return names, texts


def _of_texts(columns: Mapping[str, str]) -> dict[str, str]:
    return {part: name for part, name in columns.items() if part in ("text", "id")}
