"""Indexes of FAISS: vectors, with the ids that the index has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distilvec.core.arrow import Vectors
from distilvec.core.errors import DistilvecError, first_line
from distilvec.teachers.indexes.vector_file import Ids, VectorFile

ReadRows = Callable[[int, int], Vectors]


class FaissFile(VectorFile):
    """An index that gives its vectors back."""

    numbers_are_ids = True

    def open_vectors(self) -> None:
        """Open the index, and read its first vector: some kinds give none back."""
        import faiss

        try:
            self.index = faiss.read_index(str(self.path))  # its inner indexes are freed with it
            self.vector_ids, self.in_order_of_adding, self.read_rows = _rows_of(self.index)
            self.rows = int(self.index.ntotal) if self.vector_ids is None else len(self.vector_ids)
            if self.rows:
                self.read_rows(0, 1)
        except (RuntimeError, MemoryError, AttributeError) as error:  # of damaged files and of kinds that cannot
            reason = first_line(error).rpartition(": ")[2]  # without the signature of a function of C++
            problem = f"{self.path} cannot be read by FAISS, or gives no vectors back ({reason})."
            raise DistilvecError(problem, "Give an index with vectors.") from None

    @property
    def metric(self) -> str:
        """The metric of the index."""
        import faiss

        names = {faiss.METRIC_INNER_PRODUCT: "inner product", faiss.METRIC_L2: "L2"}
        return names.get(self.index.metric_type, f"FAISS's metric {self.index.metric_type}")

    @property
    def is_quantized(self) -> bool:
        """Whether the index gives vectors back that are near the ones that were added."""
        return _is_quantized(self.index)

    def read(self, start: int, end: int) -> Vectors:
        """Rows of the index."""
        return self.read_rows(start, end)


def _is_quantized(index: Any) -> bool:
    """Whether an index gives other vectors back than were added: all but those that FAISS calls flat."""
    import faiss

    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexIDMap):
        return _is_quantized(index.index)
    if isinstance(index, faiss.IndexRefine):
        return _is_quantized(index.refine_index)
    return "Flat" not in type(index).__name__


def _rows_of(index: Any) -> tuple[Ids | None, bool, ReadRows]:
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


def _ivf_rows(index: Any) -> tuple[Ids, bool, ReadRows]:
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
