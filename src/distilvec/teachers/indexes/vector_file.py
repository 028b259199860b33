"""Files of vectors alone, such as .npy and FAISS, with their texts in another file: one for each row, or by id."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.core.arrow import Vectors
from distilvec.core.errors import DistilvecError, about
from distilvec.core.log import log
from distilvec.data.readers import field_of, names_of, read_rows
from distilvec.data.task_rows import document_name, row_id
from distilvec.teachers.cache.columns import Part, find_columns
from distilvec.teachers.indexes.conditions import check_names, meets
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, read_text

Ids = npt.NDArray[np.int64] | npt.NDArray[np.uint64]

_TEXTS = "teacher.texts"


def langchain_export(path: Path) -> str:
    """Return the two lines of Python that write the texts of LangChain's index of FAISS, in the order of its rows."""
    store = f"FAISS.load_local({str(path.parent)!r}, None, {path.stem!r}, allow_dangerous_deserialization=True)"
    document = "store.docstore.search(name)"
    row = f"{{'id': name, 'text': {document}.page_content, 'metadata': {document}.metadata}}"
    rows = "for _, name in sorted(store.index_to_docstore_id.items())"
    return (
        f"import json; from langchain_community.vectorstores import FAISS; store = {store}\n"
        f"open('texts.jsonl', 'w').writelines(json.dumps({row}) + '\\n' {rows})"
    )


@dataclass(frozen=True)
class _Lines:
    """The lines of a file of texts: whether each meets `where`, and its id and role; the document of each text.

    None for what the file does not have.
    """

    texts: list[str | None]
    is_chosen: list[bool]
    ids: list[str] | None
    roles: list[str | bytes | None] | None
    origins: dict[str, str | None] | None


class VectorFile(Reader):
    """Vectors by row, and the texts of another file. A subclass opens the vectors, and reads them by row."""

    has_texts = False
    takes_where = True  # by columns of the texts

    vector_ids: Ids | None = None  # that the index has for its rows; None where row numbers are the ids
    numbers_are_ids = False  # a search gives a row's number as its id, where the index has no ids of its own
    in_order_of_adding = True  # rows are in the order in which vectors were added; else in the order of their ids
    rows: int

    @abstractmethod
    def open_vectors(self) -> None:
        """Open the file, which exists; set `rows`, and `vector_ids` and `in_order_of_adding` of an index with ids."""

    @abstractmethod
    def read(self, start: int, end: int) -> Vectors:
        """The vectors of some rows, float32 [end - start, dim]."""

    def open(self) -> None:
        """Open the vectors, and find the text of each row."""
        self.open_vectors()
        pickled = self.path.with_suffix(".pkl")
        if self.texts is None and pickled.is_file():
            raise DistilvecError(
                f"{self.path} holds {self.rows:,} vectors; LangChain has their texts in {pickled.name}, a pickle, "
                "which runs code when it is opened: it is not opened here.",
                f"If you trust it, write them as JSON lines, and name that file:\n{langchain_export(self.path)}",
                key=_TEXTS,
            )
        if self.texts is None:
            raise DistilvecError(
                f"{self.path} holds {self.rows:,} vectors and no texts.",
                "Give the file of their texts (one for each row, or with an id that the index has), or a table.",
                key=_TEXTS,
            )
        with about(_TEXTS, self.texts):
            lines = self._read_texts(self.texts)
            self.row_ids, places = self._pair(self.texts, lines.ids, lines.texts)
            self.row_texts = [None if place is None else lines.texts[place] for place in places]
            self.row_roles = None
            if lines.roles is not None:
                self.row_roles = [None if place is None else lines.roles[place] for place in places]
            self.origins = lines.origins
        # Without conditions a vector without a text is read as well, to be counted
        chosen = [not self.where if place is None else lines.is_chosen[place] for place in places]
        self.chosen = np.array(chosen, dtype=bool)

    def count(self) -> int:
        """Number of vectors."""
        return int(self.chosen.sum())

    def values(self, name: str) -> Iterator[Any]:
        """Values of a column of the texts' file."""
        assert self.texts is not None
        for _, row in read_rows(self.texts):
            yield field_of(row, name)

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on."""
        for start in range(int(after or 0), self.rows, self.rows_at_once):
            end = min(start + self.rows_at_once, self.rows)
            rows = start + np.flatnonzero(self.chosen[start:end])
            if len(rows):
                ids = [self.row_ids[row] for row in rows]
                texts = [self.row_texts[row] for row in rows]
                roles = None if self.row_roles is None else [self.row_roles[row] for row in rows]
                origins = None if self.origins is None else [self.origins.get(text or "") for text in texts]
                yield Batch(ids, texts, self.read(start, end)[rows - start], end, roles, origins)

    def _pair(self, path: Path, ids: list[str] | None, texts: list[str | None]) -> tuple[list[str], list[int | None]]:
        """Ids and places among the texts of all rows of the index, in its order. `ids` are those of the texts, or None.

        An index with ids of its own has the text of the same id: that of the column of ids, else of the line with this
        number, as search gives it back. None is the place of an id that the file lacks.
        """
        places: list[int | None] = list(range(len(texts)))
        rows = self.rows
        if self.vector_ids is None and ids is not None:
            ids_by_row = self._ids_that_number_rows(path, ids)
            if ids_by_row is not None:
                numbered_places = dict(zip(ids, places, strict=True))
                return ids_by_row, [numbered_places[name] for name in ids_by_row]
        if self.vector_ids is None:
            if len(texts) != rows:
                problem = f"{path} has {len(texts):,} texts, {self.path} {rows:,} vectors"
                raise DistilvecError(f"{problem}.", "Give one text for each row, in the same order.")
            return ids or [str(number) for number in range(rows)], places

        index_ids = [str(number) for number in self.vector_ids.tolist()]
        was_numbered = not self.in_order_of_adding and index_ids == [str(number) for number in range(rows)]
        if ids is not None and was_numbered and len(texts) == rows and not set(index_ids) <= set(ids):
            # FAISS has numbered the vectors itself: the ids of the texts are of something else
            log(f"index: {path} and {self.path} have different ids: texts are taken line by line")
            return ids, places
        if ids is None:
            lowest, highest = (int(self.vector_ids.min()), int(self.vector_ids.max())) if rows else (0, 0)
            first = 1 if lowest >= 1 and highest == len(texts) else 0  # databases count rows from 1
            are_lines = lowest >= first and highest < len(texts) + first
            if not are_lines and self.in_order_of_adding and len(texts) == rows:
                log(
                    f"index: the ids of {self.path} are no line numbers of {path}: texts are taken in the order in "
                    "which vectors were added"
                )
                return index_ids, places
            if not are_lines:
                problem = f"{self.path} has ids such as {index_ids[0]}, and {path} {len(texts):,} texts without ids"
                raise DistilvecError(f"{problem}.", "Add a column id.")
            if not was_numbered:
                log(f"index: the ids of {self.path} are line numbers of {path}, counted from {first}")
            ids = [str(first + number) for number in range(len(texts))]

        place_by_id: dict[str, int] = {}
        for place, name in enumerate(ids):
            if texts[place_by_id.setdefault(name, place)] != texts[place]:
                raise DistilvecError(f"{path} has two texts with the id {name}.", "Keep one of them.")
        if rows and not any(name in place_by_id for name in index_ids):
            examples = f"{self.path} has ids such as {index_ids[0]}, {path} such as {next(iter(place_by_id), 'none')}"
            raise DistilvecError(f"no text has an id of the index: {examples}.", "Give the index's ids.")
        return index_ids, [place_by_id.get(name) for name in index_ids]

    def _ids_that_number_rows(self, path: Path, ids: list[str]) -> list[str] | None:
        """The ids of the texts by row, if they are the numbers of the rows in another order; None for other ids.

        DistilvecError where a row's number is not its id: whether the texts or the vectors are in order is not known.
        """
        for first in (0, 1):
            numbers = [str(number) for number in range(first, self.rows + first)]
            if ids != numbers and sorted(ids) == sorted(numbers):
                if self.numbers_are_ids:
                    log(f"index: the ids of {path} are row numbers of {self.path}, counted from {first}")
                    return numbers
                problem = f"{path} has the numbers of the rows of {self.path} as ids, in another order"
                fix = "Sort the lines by id if that is the order of the vectors, else rename the column id."
                raise DistilvecError(f"{problem}.", fix)
        return None

    def _read_texts(self, path: Path) -> _Lines:
        """The lines of the file of texts."""
        ids: list[str] = []
        texts: list[str | None] = []
        roles: list[str | bytes | None] = []
        is_chosen: list[bool] = []
        choices: dict[Part, str] = {part: name for part, name in self.choices.items() if part != "embedding"}
        names: dict[Part, str] = {}
        origins: dict[str, str | None] = {}
        missing = set(self.where)
        all_names: dict[str, None] = {}
        for number, (where, row) in enumerate(read_rows(path)):
            if not names:
                names = find_columns(names_of(row), choices, str(path), ("text",))
            if missing:  # a row of JSON may lack a column that others have
                all_names.update(dict.fromkeys(names_of(row)))
                missing -= all_names.keys()
            text = read_text(field_of(row, names["text"]), str(number), where)
            texts.append(None if text is None else text.rstrip("\n"))
            value = field_of(row, names["id"]) if "id" in names else None
            if value is None and "id" in names:
                raise DistilvecError(f"{where}: no id.", "Give each text the id of its vector.")
            ids.append(row_id(value, number))
            if "origin" in names:
                origins.setdefault(texts[-1] or "", document_name(field_of(row, names["origin"])))
            if "role" in names:
                roles.append(field_of(row, names["role"]))
            is_chosen.append(meets(self.where, row))
        if missing:
            check_names(self.where, list(all_names), str(path))
        return _Lines(
            texts,
            is_chosen,
            ids if "id" in names else None,
            roles if "role" in names else None,
            origins if "origin" in names else None,
        )
