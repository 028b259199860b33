"""Files of vectors without texts: .npy arrays and FAISS indexes, with the ids that the index has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.extras import require_extra
from distilvec.teachers.indexes.reader import UNSIGNED, Vectors

Ids = npt.NDArray[np.int64]
Read = Callable[[int, int], Vectors]


@dataclass(frozen=True)
class VectorFile:
    """The vectors of a file: `read(start, end)` gives those of some rows, float32.

    `ids` are those that a FAISS index has for its rows, None where row numbers are the ids. `in_order_of_adding`: rows
    are in the order in which vectors were added; else they are in the order of their ids. `is_quantized`: vectors are
    near those that were added, and have other lengths.
    """

    rows: int
    read: Read
    ids: Ids | None = None
    in_order_of_adding: bool = True
    metric: str | None = None
    is_quantized: bool = False


def open_npy(path: Path, key: str) -> VectorFile:
    """Open an array of floats or signed integers [rows, dim]. Errors: DistilvecError for anything else."""
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # damaged headers raise any kind
        if "Python objects" in str(error):  # numpy names the cause in its message alone
            problem = f"{path} holds Python objects; expected floats [rows, dim]."
            fix = "Save an array of floats: np.save(FILE, np.stack(list(VECTORS)).astype(np.float32))."
            raise DistilvecError(problem, fix, key=key) from None
        raise DistilvecError(f"{path} is not a .npy array: {first_line(error)}.", key=key) from None
    if not isinstance(vectors, np.ndarray):  # a file of several arrays with the name of one
        vectors.close()
        raise DistilvecError(f"{path} is not a .npy array.", "Save one array [rows, dim].", key=key)
    if vectors.ndim != 2 or vectors.dtype.kind not in "fi":
        content = f"{vectors.dtype} {list(vectors.shape)}"
        fix = UNSIGNED if vectors.dtype.kind == "u" else "Convert it."
        raise DistilvecError(f"{path} holds {content}; expected floats [rows, dim].", fix, key=key)

    def read(start: int, end: int) -> Vectors:
        with np.errstate(over="ignore"):  # doubles beyond float32 become infinite, and are left out
            return np.asarray(vectors[start:end], dtype=np.float32)

    return VectorFile(len(vectors), read)


def open_faiss(path: Path, key: str) -> VectorFile:
    """Open an index with the ids and vectors of its rows. Errors: DistilvecError for one that gives no vectors back."""
    require_extra("faiss", key)
    import faiss

    try:
        index = faiss.read_index(str(path))
        ids, in_order_of_adding, read_inner = _rows_of(index)
        rows = int(index.ntotal) if ids is None else len(ids)
        if rows:
            read_inner(0, 1)
    except (RuntimeError, MemoryError, AttributeError) as error:
        problem = f"cannot be read by FAISS, or gives no vectors back ({first_line(error)})"
        raise DistilvecError(f"{path} {problem}.", "Give an index with vectors.", key=key) from None

    def read(start: int, end: int, owner: Any = index) -> Vectors:
        """Rows of the inner index, which FAISS frees with its `owner`: this function keeps a reference to both."""
        try:
            return read_inner(start, end)
        except RuntimeError as error:
            raise DistilvecError(f"{path} cannot be read by FAISS: {first_line(error)}.", key=key) from None

    names = {faiss.METRIC_INNER_PRODUCT: "inner product", faiss.METRIC_L2: "L2"}
    metric = names.get(index.metric_type, f"FAISS's metric {index.metric_type}")
    return VectorFile(rows, read, ids, in_order_of_adding, metric, _is_quantized(index))


def _is_quantized(index: Any) -> bool:
    """Whether an index gives other vectors back than were added: all but those that FAISS calls flat."""
    import faiss

    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexIDMap):
        return _is_quantized(index.index)
    if isinstance(index, faiss.IndexRefine):
        return _is_quantized(index.refine_index)
    return "Flat" not in type(index).__name__


def _rows_of(index: Any) -> tuple[Ids | None, bool, Read]:
    """Ids of an index's rows or None, whether they are in the order of adding, and a function that reads vectors."""
    import faiss

    index = faiss.downcast_index(index)
    any_index: Any = index  # FAISS's types are those of its methods for arrays
    if isinstance(index, faiss.IndexIDMap):  # IndexIDMap2 is one
        own_ids = faiss.vector_to_array(index.id_map).astype(np.int64)
        inner_ids, _, read = _rows_of(index.index)
        # The inner index numbers its rows as they were added; an IVF has them in the order of these numbers
        return (own_ids if inner_ids is None else own_ids[inner_ids]), True, read
    if isinstance(index, faiss.IndexPreTransform):
        inner_ids, in_order, read_transformed = _rows_of(index.index)

        def read_original(start: int, end: int) -> Vectors:
            transformed = np.ascontiguousarray(read_transformed(start, end))
            original = np.empty((end - start, index.d), dtype=np.float32)
            any_index.reverse_chain(end - start, faiss.swig_ptr(transformed), faiss.swig_ptr(original))
            return original

        return inner_ids, in_order, read_original
    if isinstance(index, faiss.IndexRefine):  # its second index has the better vectors, in the order of adding
        return _rows_of(index.refine_index)
    if isinstance(index, faiss.IndexIVFFastScan):  # FAISS would read beyond its memory
        raise RuntimeError("it has packed lists for fast scans")
    if isinstance(index, faiss.IndexIVF):
        return _ivf_rows(index)

    def read_rows(start: int, end: int) -> Vectors:
        return np.asarray(index.reconstruct_n(start, end - start), dtype=np.float32)

    return None, True, read_rows


def _ivf_rows(index: Any) -> tuple[Ids, bool, Read]:
    """The rows of inverted lists, by their ids: any ids that vectors were added with, some removed meanwhile."""
    import faiss

    lists = index.invlists
    ids = []
    places = []  # list and position in it, of each row
    for number in range(index.nlist):
        size = lists.list_size(number)
        if size:
            ids.append(faiss.rev_swig_ptr(lists.get_ids(number), size).astype(np.int64))
            places.append(np.stack([np.full(size, number), np.arange(size)], axis=1))
    all_ids = np.concatenate([np.empty(0, dtype=np.int64), *ids])
    all_places = np.concatenate([np.empty((0, 2), dtype=np.int64), *places])
    order = np.argsort(all_ids, kind="stable")
    all_places = all_places[order]

    def read(start: int, end: int) -> Vectors:
        vectors = np.empty((end - start, index.d), dtype=np.float32)
        for row, (number, position) in enumerate(all_places[start:end].tolist()):
            index.reconstruct_from_offset(number, position, faiss.swig_ptr(vectors[row]))
        return vectors

    return all_ids[order], False, read
