"""Indexes of vectors alone, .npy and FAISS, with their texts in a file: one for each row, or by id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from distilvec.core.errors import DistilvecError
from distilvec.core.log import log
from distilvec.data.readers import field_of, names_of, read_rows
from distilvec.teachers.cache.columns import Part, find_columns
from distilvec.teachers.indexes.reader import ROWS, Batch, Cursor, Reader, read_id, read_origin, read_text
from distilvec.teachers.indexes.vector_files import open_faiss, open_npy

_TEXTS = "teacher.texts"


class ArrayIndex(Reader):
    """Vectors by row, and the texts of another file."""

    def __init__(self, path: Path, texts: Path | None, columns: Mapping[Part, str] | None, key: str) -> None:
        self.path = path
        self.key = key
        if not path.is_file():
            raise DistilvecError(f"no file at {path}.", "Check the path.", key=key)
        self.array = open_npy(path, key) if path.suffix.lower() == ".npy" else open_faiss(path, key)
        if texts is None:
            raise DistilvecError(
                f"{path} holds {self.array.rows:,} vectors and no texts.",
                "Give the file of their texts: one for each row, or with an id that the index has.",
                key=_TEXTS,
            )
        ids, lines, self.origins = _read_texts(texts, columns)
        self.ids, self.texts = self._pair(texts, ids, lines)

    @property
    def metric(self) -> str | None:
        """The metric of a FAISS index; a .npy file states none."""
        return self.array.metric

    @property
    def is_quantized(self) -> bool:
        """Whether a FAISS index gives vectors back that are near the ones that were added."""
        return self.array.is_quantized

    def count(self) -> int:
        """Number of vectors."""
        return self.array.rows

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on."""
        for start in range(int(after or 0), self.array.rows, ROWS):
            end = min(start + ROWS, self.array.rows)
            texts = self.texts[start:end]
            origins = None if self.origins is None else [self.origins.get(text or "") for text in texts]
            yield Batch(self.ids[start:end], texts, self.array.read(start, end), end, origins=origins)

    def _pair(self, path: Path, ids: list[str] | None, texts: list[str | None]) -> tuple[list[str], list[str | None]]:
        """Ids and texts of all rows of the index, in its order. `ids` are those of the texts, None without any.

        An index with ids of its own has the text of the same id: that of the column of ids, else of the line with this
        number, as search gives it back. None is the text of an id that the file lacks.
        """
        rows = self.array.rows
        if self.array.ids is None:
            if len(texts) != rows:
                problem = f"{path} has {len(texts):,} texts, {self.path} {rows:,} vectors"
                raise DistilvecError(f"{problem}.", "Give one text for each row, in the same order.", key=_TEXTS)
            return ids or [str(number) for number in range(rows)], texts

        own_ids = [str(number) for number in self.array.ids.tolist()]
        was_numbered = not self.array.in_order_of_adding and own_ids == [str(number) for number in range(rows)]
        if ids is not None and was_numbered and len(texts) == rows and not set(own_ids) <= set(ids):
            # FAISS has numbered the vectors itself: the ids of the texts are of something else
            log(f"index: the ids of {path} are not those of {self.path}: texts are taken line by line")
            return ids, texts
        if ids is None:
            lowest, highest = (int(self.array.ids.min()), int(self.array.ids.max())) if rows else (0, 0)
            first = 1 if lowest >= 1 and highest == len(texts) else 0  # databases count rows from 1
            are_lines = lowest >= first and highest < len(texts) + first
            if not are_lines and self.array.in_order_of_adding and len(texts) == rows:
                log(
                    f"index: the ids of {self.path} are no line numbers of {path}: texts are taken in the order in "
                    "which vectors were added"
                )
                return own_ids, texts
            if not are_lines:
                problem = f"{self.path} has ids such as {own_ids[0]}, and {path} {len(texts):,} texts without ids"
                raise DistilvecError(f"{problem}.", "Add a column id.", key=_TEXTS)
            if not was_numbered:
                log(f"index: the ids of {self.path} are line numbers of {path}, counted from {first}")
            ids = [str(first + number) for number in range(len(texts))]

        text_by_id: dict[str, str | None] = {}
        for name, text in zip(ids, texts, strict=True):
            if text_by_id.setdefault(name, text) != text:
                raise DistilvecError(f"{path} has two texts with the id {name}.", "Keep one of them.", key=_TEXTS)
        if rows and not any(name in text_by_id for name in own_ids):
            examples = f"{self.path} has ids such as {own_ids[0]}, {path} such as {next(iter(text_by_id), 'none')}"
            raise DistilvecError(f"no text has an id of the index: {examples}.", "Give the index's ids.", key=_TEXTS)
        return own_ids, [text_by_id.get(name) for name in own_ids]


def _read_texts(
    path: Path, columns: Mapping[Part, str] | None
) -> tuple[list[str] | None, list[str | None], dict[str, str | None] | None]:
    """The ids of a file's texts, the texts, and the document of each text; None for what the file does not have."""
    ids: list[str] = []
    texts: list[str | None] = []
    choices: dict[Part, str] = {part: name for part, name in (columns or {}).items() if part != "embedding"}
    names: dict[Part, str] = {}
    origins: dict[str, str | None] = {}
    for number, (where, row) in enumerate(read_rows(path)):
        names = names or find_columns(names_of(row), choices, str(path), _TEXTS, ("text",))
        text = read_text(field_of(row, names["text"]), str(number), where, _TEXTS)
        texts.append(None if text is None else text.rstrip("\n"))
        value = field_of(row, names["id"]) if "id" in names else None
        if value is None and "id" in names:
            raise DistilvecError(f"{where}: no id.", "Give each text the id of its vector.", key=_TEXTS)
        ids.append(read_id(value, number))
        if "origin" in names:
            origins.setdefault(texts[-1] or "", read_origin(field_of(row, names["origin"])))
    return (ids if "id" in names else None), texts, (origins if "origin" in names else None)
