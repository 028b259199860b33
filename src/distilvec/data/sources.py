"""The texts of a corpus source: files of any readable format, folders, Hugging Face datasets, built-in texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from distilvec.config.schema import SourceSection
from distilvec.core.errors import DistilvecError, about, each_about, nearest
from distilvec.core.files import table_files
from distilvec.core.hashing import combine, hash_files
from distilvec.core.log import log
from distilvec.core.model_name import ModelName
from distilvec.core.storage import Remote
from distilvec.data import readers
from distilvec.data.origins import COLUMNS as DOCUMENT_COLUMNS
from distilvec.data.readers import MARKDOWN, READABLE, VECTOR_COLUMNS, extension, names_of
from distilvec.data.task_rows import shown_value, some_of

COLUMNS = (  # the first group of which every column exists, in small or capital letters, gives the texts
    ["text"],
    ["sentence"],
    ["query"],
    ["document"],
    ["question"],
    ["anchor", "positive"],
    ["sentence1", "sentence2"],
    ["content"],
    ["page_content"],
    ["body"],
    ["passage"],
    ["chunk"],
)

# Further columns that hold texts in public data sets, such as those of FlagEmbedding
OTHER_TEXTS = frozenset(("pos", "neg", "positive", "negative", "answer", "response", "passage", "content", "context"))

_SHOWN_VALUES = 10  # of a column, in a message
SHOWN_NAME = 30  # characters of a column's name, in a message
HEADER_WORDS = 5  # of a column's name; with more it is a text


class SourceText(NamedTuple):
    """A text of a source, and the name of the document that it is a part of, as the column `named_by` states it."""

    text: str
    document: object = None
    named_by: str = ""


class Conditions:
    """What `where` asks of a source's rows, and which of its values some row had."""

    def __init__(self, where: Mapping[str, str | int | list[str | int | None]]) -> None:
        self.allowed: dict[str, list[str | int]] = {}  # the values that a row may have, by column
        self.may_lack: set[str] = set()  # columns without which a row is taken as well: null is among their values
        self.missing: dict[str, set[str]] = {}  # allowed values that no row has had yet
        self.others: dict[str, set[str]] = {}  # a few of the values that are not allowed, for a message
        for name, condition in where.items():
            values = condition if isinstance(condition, list) else [condition]
            self.allowed[name] = [value for value in values if value is not None]
            if None in values:
                self.may_lack.add(name)
            self.missing[name] = {str(value) for value in self.allowed[name]}
            self.others[name] = set()

    def hold(self, row: readers.Row) -> bool:
        """Whether a row has one of the values, or may lack one, in each column; 1 and "1" are the same value."""
        return all(self._holds(row, name) for name in self.allowed)

    def _holds(self, row: readers.Row, name: str) -> bool:
        if row.get(name) is None and name in self.may_lack:
            return True
        if name not in row:
            return False
        value, allowed, others = row[name], self.allowed[name], self.others[name]
        if value not in allowed and str(value) not in map(str, allowed):
            if len(others) < _SHOWN_VALUES:
                others.add(shown_value(value))
            return False
        if self.missing[name]:
            self.missing[name] -= {str(item) for item in allowed if item == value or str(item) == str(value)}
        return True

    def unmet(self) -> Iterator[str]:
        """A line for each column of which no row had some of the values: most often they are misspelled."""
        for name, values in self.missing.items():
            if values:
                missing_values = some_of(map(repr, sorted(values)))
                other_values = some_of(sorted(self.others[name])) or "no other value"
                yield f"no row has {missing_values} as '{name}'; found: {other_values}"


def read_source(source: SourceSection, position: int) -> Iterator[str]:
    """The raw texts of one source, as `read_texts` gives them."""
    for text, _, _ in read_texts(source, position):
        yield text


def read_texts(source: SourceSection, position: int) -> Iterator[SourceText]:
    """The raw texts of one source, whole, in order, streaming, with their documents; a missing value is an empty text.

    `position` is the source's index in corpus.sources, for error messages.
    Errors: DistilvecError for files that are missing, damaged or not of the format that their names give.
    """
    key = f"corpus.sources.{position}"
    conditions = Conditions(source.where)
    if source.builtin is not None:
        from distilvec.data import docstrings

        for name, passage in docstrings.passages_by_name():
            yield SourceText(passage, name, "docstring")
    elif source.tokenizer is not None:
        for token in each_about(_tokens(source.tokenizer, source.revision), f"{key}.tokenizer", source.tokenizer):
            yield SourceText(token)
    elif source.dataset is not None:
        place = f"dataset {source.dataset}"
        texts = _texts(partial(readers.read_dataset, source), source, conditions, place)
        yield from each_about(texts, f"{key}.dataset", place)
    else:
        option = "url" if source.url else "path"
        for path in source_files(source, position):
            texts = _texts(partial(readers.read_rows, path), source, conditions, str(path))
            yield from each_about(texts, f"{key}.{option}", path)
    for line in conditions.unmet():
        log(f"{source.label}: {line} ({key}.where)")


def source_files(source: SourceSection, position: int) -> list[Path]:
    """The local files of a source: the file itself, or a folder's readable files, sorted, at any depth.

    Markdown files of a folder are texts where it has no others; beside others they describe these.

    Of an address they are local copies, which are fetched here if they are missing or other than the remote files. A
    tokenizer has none: see `source_content`.

    Files of other kinds in a folder, and those that lie aside (core/files.py), are passed over. Errors: DistilvecError
    if there is none, and for a table whose own log says which files hold rows.
    """
    if source.dataset is not None:
        folder = Path(source.dataset)
        with about(f"corpus.sources.{position}.dataset"):
            return table_files(folder, Path.is_file) if folder.is_dir() else []
    if source.url is not None:
        with about(f"corpus.sources.{position}.url"):
            return Remote(source.url).download(lambda path: extension(path) in READABLE)
    if source.path is None:
        return []

    path = source.path
    key = f"corpus.sources.{position}.path"
    with about(key):
        files = table_files(path, lambda file: extension(file) in READABLE)
        files = files or table_files(path, lambda file: extension(file) == MARKDOWN)
        for file in files:
            readers.check_readable(file)  # links to nothing and pipes are no texts
    if not files:
        fix = f"Readable: {', '.join((*READABLE, MARKDOWN))}."
        if readers.is_saved_dataset(path):
            fix = "Name what save_to_disk wrote with 'dataset'."
        raise DistilvecError(f"{path}: no readable file in the folder.", fix, key=key)
    return files


def source_content(source: SourceSection, position: int, files: Sequence[Path]) -> str:
    """A hash of what a source's texts are read from: the names and contents of its files, or a tokenizer.

    Docstrings and a data set of the hub have no files: they count by what the section says.
    """
    key = f"corpus.sources.{position}"
    if source.tokenizer is None:
        with about(f"{key}.path"):
            return hash_files(files)
    from distilvec.models.load import load_tokenizer  # with torch: a wrong path or column is refused without it
    from distilvec.models.tokenizers import tokenizer_hash

    with about(f"{key}.tokenizer", source.tokenizer):
        tokenizer = load_tokenizer(ModelName(source.tokenizer, source.revision))
    return combine([("tokenizer", tokenizer_hash(tokenizer)), ("special", " ".join(tokenizer.all_special_tokens))])


def _tokens(name: str, revision: str | None) -> Iterator[str]:
    """The texts of a tokenizer's tokens but its special ones, by number."""
    from distilvec.models.load import load_tokenizer

    tokenizer = load_tokenizer(ModelName(name, revision))
    special = set(tokenizer.all_special_tokens)
    for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        if token not in special:
            yield tokenizer.convert_tokens_to_string([token])


def text_columns(names: list[str], source: SourceSection, place: str) -> list[str]:
    """The columns of a table that hold texts: the recipe's, else the first usual group.

    If a table has both `query` and `document`, the column of the source's role is taken. Errors: DistilvecError if
    there is none.
    """
    for name in source.where:
        if name not in names:
            raise DistilvecError(f"{place} has no column '{name}'; {_names_line(name, names)}", key="..where")
    if source.origin is not None and _top_column(source.origin, names) is None:
        problem = f"{place} has no column '{source.origin}'; {_names_line(source.origin, names)}"
        raise DistilvecError(problem, key="..origin")
    if source.column:
        chosen = [source.column] if isinstance(source.column, str) else source.column
        for name in chosen:
            if _top_column(name, names) is None:
                raise DistilvecError(f"{place} has no column '{name}'; {_names_line(name, names)}", key="..column")
        return chosen
    by_usual_name = {name.lower(): name for name in reversed(names)}  # of Text and TEXT the first
    by_usual_name |= {name: name for name in names}
    for group in COLUMNS:
        if all(name in by_usual_name for name in group):
            chosen_group = [source.role] if group == ["query"] and source.role in by_usual_name else group
            return [by_usual_name[name] for name in chosen_group]

    hints = [nearest(name, names) for name in ("text", "sentence")]
    hint = next((hint for hint in hints if hint), ".")
    tried = ", ".join(" and ".join(group) for group in COLUMNS)
    problem = f"no column with a usual name of texts ({tried}); found: {_listed(names)}"
    fix = f"Name the right one, or call it 'text'{hint}"
    if any(len(name.split()) > HEADER_WORDS for name in names):
        fix = "Its first row looks like a text: has the file no header? Add a first line with names, such as text."
    raise DistilvecError(f"{place} has {problem}.", fix, key="..column")


def _texts(
    read: Callable[[readers.Choose], readers.Rows], source: SourceSection, conditions: Conditions, place: str
) -> Iterator[SourceText]:
    """The texts of one file or dataset; keys of errors are those beside the source's `path`.

    An empty `text` is replaced by the `title`, if the table has one.
    """
    columns: list[str] = []
    document_column = ""

    def choose_document(names: Collection[str]) -> str:
        """The column that names documents; one that is read for something else names none."""
        if source.origin is not None:
            return source.origin
        candidates = [name for name in DOCUMENT_COLUMNS if name not in columns and name not in source.where]
        return next((name for name in candidates if name in names), "")

    def choose(names: list[str]) -> Collection[str]:
        """The columns to read, of those that a table has; called before the first row, where a format knows them."""
        nonlocal document_column
        columns[:] = text_columns(names, source, place)
        document_column = choose_document(names)
        _tell_unread(names, columns, source, place)
        needed = {*(_top_column(name, names) or name for name in columns), *source.where}
        if document_column:
            needed.add(_top_column(document_column, names) or document_column)
        if "title" in names:
            needed.add("title")
        return needed

    for where, row in read(choose):
        if not columns:
            choose(list(row))
        if not conditions.hold(row):
            continue
        document_column = document_column or choose_document(row)  # a row of JSON may lack what others have
        document = readers.field_of(row, document_column) if document_column else None
        document = None if document == "" else document
        for column in columns:
            for value in _values_below(row, column, column, where):
                # Of a list the source names the column: others may hold words
                values = value if isinstance(value, list) and source.column is not None else [value]
                for part in values:
                    yield SourceText(_text(row, part, column, source, where), document, document_column)


def _top_column(name: str, names: Collection[str]) -> str | None:
    """The column of a name, which may be that of a field inside of one (doc.text); None if there is none."""
    if name in names:
        return name
    return next((top for top in names if name.startswith(f"{top}.")), None)


def _tell_unread(names: list[str], columns: list[str], source: SourceSection, place: str) -> None:
    """Log the columns that hold texts or vectors by their names, and are not read.

    Those of texts are not logged where the source says which ones are read.
    """
    stored_vectors = [name for name in names if name in VECTOR_COLUMNS]
    if stored_vectors:
        log(f"{place}: read as texts; as TEACHER it is an index, by the vectors in {stored_vectors[0]}")
    usual = {name for group in COLUMNS for name in group} | OTHER_TEXTS
    if set(columns) <= {"query", "document"}:
        usual -= {"query", "document"}  # the role of the source has decided between them
    unread = [name for name in names if name in usual and name not in columns]
    if unread and source.column is None:
        log(
            f"{place}: texts are read from {' and '.join(columns)}; {', '.join(unread)} may also hold texts: name "
            "columns with the source's key column (--column)"
        )


def _values_below(parent: object, name: str, column: str, where: str) -> list[object]:
    """The value of a field of `parent`, or of a field inside of one (doc.text); of a list of objects that of each.

    `name` is what is left of the column's name below `parent`. Errors: DistilvecError for an object without the field,
    and for anything that has no fields; None stands for a missing object.
    """
    if parent is None:
        return [None]
    if isinstance(parent, list):
        values = []
        for item in parent:
            values += _values_below(item, name, column, where)
        return values

    place = column.removesuffix(name)  # "doc." for the field text of doc.text
    if not isinstance(parent, Mapping):
        problem = f"{where}: '{place[:-1]}' holds {shown_value(parent)}, which has no field '{name}'."
        raise DistilvecError(problem, "Name another column.", key="..column")
    top = _top_column(name, parent)
    if top is None:
        columns = [f"{place}{inner}" for inner in names_of(parent)]
        raise DistilvecError(f"{where}: no '{column}'; {_names_line(column, columns)}")
    if top == name:
        return [parent[name]]
    return _values_below(parent[top], name[len(top) + 1 :], column, where)


def _text(row: readers.Row, value: object, column: str, source: SourceSection, where: str) -> str:
    text = value
    is_empty = not str(text or "").strip()
    if is_empty and column == "text" and source.column is None and "title" in row:
        text = row["title"]
    if text is None:
        return ""
    if not isinstance(text, str):
        problem = f"{where}: '{column}' holds {shown_value(text)}."
        raise DistilvecError(problem, "Convert it to text, or name another column.", key="..column")
    if "\0" in text:
        raise DistilvecError(f"{where}: '{column}' holds a NUL character.", "Remove it.")
    return text


def _names_line(name: str, names: list[str]) -> str:
    return f"found: {_listed(names)}{nearest(name, names) or '.'}"


def _listed(names: list[str]) -> str:
    """The names of columns for a message, long ones cut."""
    shown = [name if len(name) <= SHOWN_NAME else f"{name[:SHOWN_NAME]}…" for name in names]
    return ", ".join(shown) or "none"
