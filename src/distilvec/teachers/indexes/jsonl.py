"""JSON lines with texts and vectors: dumps of Elasticsearch, OpenSearch, Weaviate, Pinecone, and files of one's own.

Such a file may as well hold texts alone. It is an index where a field holds lists of numbers; another one is refused,
with the way in which its product exports vectors.

A vector in a list of objects, such as the chunks of a document, is a row of its own: its text lies beside it, and its
document is the object around the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.core.errors import DistilvecError
from distilvec.data.readers import count_json_lines, field_of, read_json_lines
from distilvec.data.task_rows import document_name, row_id, shown_value, some_of
from distilvec.teachers.cache.columns import USUAL_NAMES, Part, find_columns
from distilvec.teachers.indexes.conditions import check_names, is_allowed
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, read_text

_FIRST_LINES = 1000  # whose fields are known before any is chosen; more are read where vectors or texts are missing
_LONG_LIST = 32  # numbers; shorter lists may be coordinates or counts
_FIRST_CHUNKS = 10  # of a list of objects, whose fields are known
# The field of a dump by which its product is known, and how that product gives vectors
_EXPORTS = {
    "_source": (
        "Elasticsearch 9.2 leaves vectors out of _source unless it is asked for them: elasticdump --searchBody="
        """'{"query": {"match_all": {}}, "_source": {"exclude_vectors": false}}'."""
    ),
    "properties": "Weaviate gives vectors by collection.iterator(include_vector=True).",
    "metadata": "Pinecone gives vectors by index.fetch(ids=[...]): write the values of each beside its metadata.",
}


@dataclass(frozen=True)
class Field:
    """A field by its dotted name. `chunks`: the name of the list of objects that it lies in; empty for none.

    `width`: the numbers of the longest list of numbers there.
    """

    name: str
    chunks: str
    width: int

    @property
    def holds_vectors(self) -> bool:
        """Whether some line has a list of numbers there."""
        return self.width > 1

    def of(self, document: Mapping[str, Any], chunk: Mapping[str, Any]) -> Any:
        """The value in a document or in one of its chunks; None where there is none."""
        if self.chunks:
            return field_of(chunk, self.name[len(self.chunks) + 1 :])
        return field_of(document, self.name)


class JsonLines(Reader):
    """The rows of a file, an object a line; the cursor counts lines. A .gz or .zst is unpacked while it is read."""

    takes_where = True
    opens_at_once = True

    def open(self) -> None:
        """Find the fields."""
        fields = self._find_fields()
        if not any(field.holds_vectors for field in fields.values()):
            raise self._no_vectors(fields)
        choices = dict(self.choices)
        parts: tuple[Part, ...] = ("embedding", "text", "id", "role", "origin")
        for part in parts:
            # Of equal names the one beside the vectors: a text must be that of its vector
            vectors = fields.get(choices.get("embedding", ""))
            usual_name = _usual_name(part, fields, "" if vectors is None else vectors.chunks)
            if usual_name is not None:
                choices.setdefault(part, usual_name)
        self.columns = find_columns(list(fields), choices, str(self.path))
        self.fields = {part: fields[name] for part, name in self.columns.items()}
        self.chunks = self.fields["embedding"].chunks
        self._check_fields(fields)
        check_names(self.where, list(fields), str(self.path))
        self.conditions = {name: fields[name] for name in self.where}

    def count(self) -> int:
        """Lines of the file; where vectors lie in chunks, all chunks."""
        if not self.chunks and not self.where:
            return count_json_lines(self.path)
        return sum(len(self._chosen_chunks(document, where)) for where, document in read_json_lines(self.path))

    def values(self, name: str) -> Iterator[Any]:
        """Values of a field, of lines or of their chunks."""
        for where, document in read_json_lines(self.path):
            for chunk in self._chunks_of(document, where):
                yield self.conditions[name].of(document, chunk)

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows behind line `after`."""
        start = int(after or 0)
        line = 0
        rows: list[dict[str, Any]] = []
        for line, (where, document) in enumerate(read_json_lines(self.path), 1):
            if line > start:
                rows += self._rows_of(document, line - 1, where)
            if len(rows) >= self.rows_at_once:
                yield self._batch(rows, line)
                rows = []
        if rows:
            yield self._batch(rows, line)

    def _batch(self, rows: list[dict[str, Any]], line: int) -> Batch:
        columns = {part: [row[part] for row in rows] for part in rows[0]}
        roles = columns["role"] if "role" in self.fields else None
        origins = columns["origin"] if "origin" in self.fields or self.chunks else None
        return Batch(columns["id"], columns["text"], columns["embedding"], line, roles, origins)

    def _rows_of(self, document: Mapping[str, Any], number: int, where: str) -> Iterator[dict[str, Any]]:
        """The rows of a line by their parts: the line itself, or each of its chunks, whose document it is."""
        document_id = row_id(self._value("id", document, {}), number)
        for position, chunk in self._chosen_chunks(document, where):
            chunk_id = f"{document_id}:{position}" if self.chunks else document_id
            row: dict[str, Any] = {"id": chunk_id, "role": self._value("role", document, chunk)}
            if "id" in self.fields and self.fields["id"].chunks:
                row["id"] = row_id(self._value("id", document, chunk), position)
            row["text"] = read_text(self._value("text", document, chunk), row["id"], where)
            row["embedding"] = self._vector(self._value("embedding", document, chunk), where)
            origin = self._value("origin", document, chunk)
            row["origin"] = document_id if self.chunks and "origin" not in self.fields else document_name(origin)
            yield row

    def _value(self, part: Part, document: Mapping[str, Any], chunk: Mapping[str, Any]) -> Any:
        """The value of a part's field; None where there is none."""
        field = self.fields.get(part)
        return None if field is None else field.of(document, chunk)

    def _chosen_chunks(self, document: Mapping[str, Any], where: str) -> list[tuple[int, Mapping[str, Any]]]:
        """The chunks of a line that meet the reader's `where`, each with its position."""
        chosen = []
        for position, chunk in enumerate(self._chunks_of(document, where)):
            conditions = self.conditions.items()
            if all(is_allowed(field.of(document, chunk), self.where[name]) for name, field in conditions):
                chosen.append((position, chunk))
        return chosen

    def _chunks_of(self, document: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
        """The chunks of a line; the line itself where vectors lie in no list."""
        if not self.chunks:
            return [document]
        chunks = field_of(document, self.chunks)
        if chunks is None:
            return []
        if isinstance(chunks, Mapping):  # Elasticsearch takes an object for a list of one
            chunks = [chunks]
        if not isinstance(chunks, list) or not all(isinstance(chunk, Mapping) for chunk in chunks):
            problem = f"{where}: '{self.chunks}' holds {shown_value(chunks)}; expected a list of objects."
            raise DistilvecError(problem, "Correct it, or name another column of vectors.")
        return chunks

    def _vector(self, value: Any, where: str) -> npt.NDArray[np.float32] | None:
        """A list of numbers as float32; null among them is NaN."""
        if value is None:
            return None
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if number is not None and type(number) not in (float, int):
                problem = f"{where}: '{self.columns['embedding']}' holds {shown_value(value)}; expected numbers."
                raise DistilvecError(problem, "Give one list of numbers a row, or name another column.")
        with np.errstate(over="ignore"):  # doubles beyond float32 become infinite, and are left out
            return np.array(numbers, dtype=np.float32)

    def _find_fields(self) -> dict[str, Field]:
        """The fields of the file's first lines, and of further ones until all that are needed are among them."""
        fields: dict[str, Field] = {}
        required: tuple[Part, ...] = ("text", "embedding")
        for number, (_, document) in enumerate(read_json_lines(self.path), 1):
            _add_fields(fields, document, "", "")
            needed = [self.choices.get(part) or _usual_name(part, fields, "") for part in required]
            is_enough = all(name in fields for name in (*needed, *self.where))
            if number >= _FIRST_LINES and is_enough:
                break
        return fields

    def _no_vectors(self, fields: Mapping[str, Field]) -> DistilvecError:
        problem = f"{self.path} holds no vectors: no field has a list of numbers ({some_of(fields) or 'no fields'})."
        exports = [fix for name, fix in _EXPORTS.items() if name in fields]
        fix = exports[0] if exports else "Export the vectors as well."
        return DistilvecError(problem, f"{fix} As texts alone, name the file after a model: TEACHER {self.path.name}.")

    def _check_fields(self, fields: Mapping[str, Field]) -> None:
        """Refuse fields of which a row would not be one text with one vector."""
        vectors = self.fields["embedding"]
        if not vectors.holds_vectors:
            lists = some_of(field.name for field in fields.values() if field.holds_vectors)
            problem = f"{self.path} has no list of numbers in '{vectors.name}'; it has lists of numbers in {lists}."
            raise DistilvecError(problem, "Name one, as in embedding=NAME.", key="teacher.columns")
        outer_list = fields[self.chunks].chunks if self.chunks else ""
        if outer_list:
            problem = f"{self.path}: '{vectors.name}' is in the list '{self.chunks}' inside of the list '{outer_list}'."
            raise DistilvecError(problem, "Write a line for each vector with its text.", key="teacher.columns")
        for part, field in self.fields.items():
            is_beside = field.chunks == self.chunks
            is_of_document = not field.chunks and part != "text"
            if not is_beside and not is_of_document:
                problem = (
                    f"{self.path}: '{vectors.name}' and '{field.name}' are not of one object: "
                    f"a vector is {_place(vectors)}, a value of '{field.name}' {_place(field)}."
                )
                fix = f"Name fields of one object, as in {part}=NAME, or write a line for each vector with its text."
                raise DistilvecError(problem, fix, key="teacher.columns")


def _place(field: Field) -> str:
    return f"in the list '{field.chunks}'" if field.chunks else "in no list"


def _add_fields(fields: dict[str, Field], value: Mapping[str, Any], prefix: str, chunks: str) -> None:
    """Add the fields of an object, and of the objects in it, to those of the lines before."""
    for key, content in value.items():
        name = f"{prefix}{key}"
        before = fields.get(name)
        width = 0 if before is None else before.width
        if isinstance(content, list) and all(type(number) in (float, int) for number in content):
            width = max(width, len(content))
        fields[name] = Field(name, chunks, width)
        if isinstance(content, Mapping):
            _add_fields(fields, content, f"{name}.", chunks)
        elif isinstance(content, list):
            for item in content[:_FIRST_CHUNKS]:
                if isinstance(item, Mapping):
                    _add_fields(fields, item, f"{name}.", name)


def _usual_name(part: Part, fields: Mapping[str, Field], chunks: str) -> str | None:
    """The field with a usual name that lies least deep, one in the list `chunks` first; None if there is none.

    Of an object with a usual name the fields count: content.body.
    Vectors may have names of their own below it, as those of Weaviate: vector.default. Pinecone calls them values.
    Elasticsearch names none: there the only field with long lists of numbers has the vectors.
    """
    candidates = []
    for field in fields.values():
        *above, last = field.name.split(".")
        usual_names: tuple[str, ...] = USUAL_NAMES[part]
        if part == "embedding":
            usual_names = (*usual_names, "values")
            if not field.holds_vectors:
                continue
            if last not in usual_names and above:
                last = above[-1]
        elif any(name.startswith(f"{field.name}.") for name in fields):
            continue
        if last in usual_names:
            candidates.append((field.chunks != chunks, len(above), usual_names.index(last), field.name))
    long_lists = [field.name for field in fields.values() if field.width >= _LONG_LIST]
    if part == "embedding" and not candidates and len(long_lists) == 1:
        return long_lists[0]
    return min(candidates)[-1] if candidates else None
