"""Reads the texts of one corpus source, row by row, from whatever users already have.

Files (.txt, .jsonl, .csv, .tsv, each also as .gz, and .parquet), folders of those, Hugging Face data sets and built-in
corpora. Nothing is read whole: lines stream, Parquet comes by record batch.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from distilvec.config.schema import SourceSection
from distilvec.core.errors import DistilvecError, first_line, nearest
from distilvec.core.extras import require_extra
from distilvec.data import docstrings

Row = Mapping[str, Any]

LINE_FORMATS = (".txt", ".jsonl", ".csv", ".tsv")
READABLE = (*LINE_FORMATS, *(f"{name}.gz" for name in LINE_FORMATS), ".parquet")
# The first group of which every column is there gives the texts.
COLUMNS = (
    ["text"],
    ["sentence"],
    ["query"],
    ["document"],
    ["question"],
    ["anchor", "positive"],
    ["sentence1", "sentence2"],
)
_PARQUET_ROWS = 1024
_LONGEST_FIELD = 1 << 30  # characters; the csv module's own limit of 131072 is below what a document may have


def read_source(source: SourceSection, position: int) -> Iterator[str]:
    """The raw texts of one source, in order, streaming.

    `position` is the source's index in corpus.sources, for error messages. Empty texts are handed on; a missing value
    counts as empty. Errors: DistilvecError for files that are missing, damaged or not what their name says.
    """
    if source.builtin is not None:
        yield from docstrings.passages()
    elif source.dataset is not None:
        yield from _dataset_texts(source, position)
    else:
        key = f"corpus.sources.{position}.path"
        for path in source_files(source, position):
            unit = "row" if path.suffix == ".parquet" else "line"
            yield from _texts(_file_rows(path, source, position, key), source, position, str(path), unit)


def source_files(source: SourceSection, position: int) -> list[Path]:
    """The files behind a source: the file itself, or a folder's readable files, sorted, at any depth; [] if not local.

    Hidden files and files of other kinds in a folder are passed over. Errors: DistilvecError if there is none.
    """
    if source.dataset is not None:
        folder = Path(source.dataset)
        return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    if source.path is None:
        return []
    path, key = source.path, f"corpus.sources.{position}.path"
    if path.is_file():
        if _extension(path) not in READABLE:
            raise DistilvecError(
                f"[{key}] {path} has an unknown extension '{path.suffix}'. Readable: {', '.join(READABLE)}."
            )
        return [path]
    if not path.is_dir():
        raise DistilvecError(
            f"[{key}] not found: {path}. Give a file or folder; relative paths start at the recipe's folder."
        )
    found = (file for file in path.rglob("*") if file.is_file() and _extension(file) in READABLE)
    files = sorted(file for file in found if not any(part.startswith(".") for part in file.relative_to(path).parts))
    if not files:
        hint = " It is a data set written by save_to_disk: name it with 'dataset'." if _saved_dataset(path) else ""
        raise DistilvecError(f"[{key}] no readable file in the folder {path}; expected {', '.join(READABLE)}.{hint}")
    return files


def text_columns(names: Iterable[str], source: SourceSection, position: int, place: str) -> list[str]:
    """The columns that hold texts: the recipe's, else the first known group. DistilvecError if there are none.

    Where a table has both `query` and `document`, the one that is the source's role is taken.
    """
    names = list(names)
    for wanted in source.where:
        if wanted not in names:
            raise DistilvecError(
                f"[corpus.sources.{position}.where] {place} has no column '{wanted}'; {_found(wanted, names)}"
            )
    if source.column is not None:
        columns = [source.column] if isinstance(source.column, str) else source.column
        for column in columns:
            if column not in names:
                raise DistilvecError(
                    f"[corpus.sources.{position}.column] {place} has no column '{column}'; {_found(column, names)}"
                )
        return columns
    group = next((group for group in COLUMNS if all(column in names for column in group)), None)
    if group is None:
        known = ", ".join("+".join(group) for group in COLUMNS)
        guess = next((hint for name in ("text", "sentence") if (hint := nearest(name, names))), ".")
        raise DistilvecError(
            f"[corpus.sources.{position}.column] {place} has no column of texts that is known by name ({known}); "
            f"found: {', '.join(names) or 'none'}. Name the right one with 'column'{guess}"
        )
    return [source.role] if group == ["query"] and source.role in names else group


def json_rows(path: Path, key: str) -> Iterator[tuple[int, Row]]:
    """The objects of a JSONL file (also .gz), each with its line's number; errors name `key`, as in `read_source`."""
    return _json_rows(_lines(path, key), path, key)


def _texts(
    rows: Iterator[tuple[int, Row]], source: SourceSection, position: int, place: str, unit: str
) -> Iterator[str]:
    columns: list[str] = []
    key = f"corpus.sources.{position}.{'dataset' if source.dataset is not None else 'path'}"
    for number, row in rows:
        columns = columns or text_columns(row, source, position, place)
        if not all(name in row and _matches(row[name], wanted) for name, wanted in source.where.items()):
            continue
        for column in columns:
            if column not in row:
                raise DistilvecError(f"[{key}] {place}, {unit} {number}: no '{column}'; {_found(column, list(row))}")
            text = row[column]
            if source.column is None and column == "text" and "title" in row and _blank(text):
                text = row["title"]
            if text is not None and not isinstance(text, str):
                raise DistilvecError(
                    f"[corpus.sources.{position}.column] {place}, {unit} {number}: '{column}' holds {type(text).__name__} "
                    f"({str(text)[:40]}), not text. Convert it, or name another column with 'column'."
                )
            if text and "\0" in text:
                raise DistilvecError(f"[{key}] {place}, {unit} {number}: '{column}' holds a NUL character. Remove it.")
            yield text or ""


def _matches(value: Any, wanted: str | int | list[str | int]) -> bool:
    return any(value == one or str(value) == str(one) for one in (wanted if isinstance(wanted, list) else [wanted]))


def _blank(text: Any) -> bool:
    return text is None or (isinstance(text, str) and not text.strip())


def _found(wanted: str, names: list[str]) -> str:
    return f"found: {', '.join(names) or 'none'}{nearest(wanted, names) or '.'}"


def _extension(path: Path) -> str:
    """'.jsonl.gz' of 'a.b.jsonl.gz'; only .gz counts as a second part."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:]) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


# -- files -----------------------------------------------------------------------------------------------------------


def _file_rows(path: Path, source: SourceSection, position: int, key: str) -> Iterator[tuple[int, Row]]:
    extension = _extension(path).removesuffix(".gz")
    if extension == ".parquet":
        return _parquet_rows(path, source, position, key)
    lines = _lines(path, key)
    if extension == ".txt":
        return ((number, {"text": line}) for number, line in lines)
    if extension == ".jsonl":
        return _json_rows(lines, path, key)
    return _table_rows(_split_tabs(lines) if extension == ".tsv" else _split_commas(lines, path, key), path, key)


def _lines(path: Path, key: str) -> Iterator[tuple[int, str]]:
    """Numbered lines with their line ends, from 1; a byte order mark is dropped."""
    zipped, number = path.suffix.lower() == ".gz", 0
    try:
        with path.open("rb") as raw:
            start = raw.read(4)
            raw.seek(0)
            if not zipped and (start[:2] == b"\x1f\x8b" or start == b"PAR1"):
                held, name = ("Parquet", ".parquet") if start == b"PAR1" else ("gzip", f"{path.suffix}.gz")
                raise DistilvecError(
                    f"[{key}] {path} is named {path.suffix} but holds {held} data. Rename it to {name}."
                )
            file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped else raw
            for line in file:
                number += 1
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if "\0" in text:
                    raise DistilvecError(
                        f"[{key}] {path}, line {number} holds NUL bytes: it is binary or UTF-16. Convert it to UTF-8."
                    )
                yield number, text
    except UnicodeDecodeError as error:
        raise DistilvecError(
            f"[{key}] {path} is not UTF-8: line {number}, byte {error.start + 1} is 0x{error.object[error.start]:02x}. "
            f"Convert it to UTF-8 (for example: iconv -f latin1 -t utf-8)."
        ) from None
    except gzip.BadGzipFile as error:
        raise DistilvecError(
            f"[{key}] {path} is named .gz but is not gzip data ({error}). Rename it or compress it."
        ) from None
    except (EOFError, zlib.error) as error:
        raise DistilvecError(
            f"[{key}] {path} is damaged or cut short after line {number} ({error}). Fetch it again."
        ) from None
    except OSError as error:
        raise DistilvecError(f"[{key}] {path} cannot be read: {error.strerror or first_line(error)}.") from None


def _json_rows(lines: Iterator[tuple[int, str]], path: Path, key: str) -> Iterator[tuple[int, Row]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DistilvecError(
                f"[{key}] {path}, line {number} is not JSON: {error}. Expected one object a line."
            ) from None
        if not isinstance(row, dict):
            raise DistilvecError(
                f'[{key}] {path}, line {number}: expected an object such as {{"text": ...}}; found {type(row).__name__}.'
            )
        yield number, row


def _split_tabs(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """Tab-separated fields. Loose quotes are text, as in text/tab-separated-values; a well-quoted field is unquoted."""
    for number, line in lines:
        fields = line.rstrip("\r\n").split("\t")
        if fields != [""]:
            yield number, [_unquote(field) if field.startswith('"') else field for field in fields]


def _unquote(field: str) -> str:
    inner = field[1:-1]
    return (
        inner.replace('""', '"')
        if len(field) > 1 and field[-1] == '"' and inner.count('"') == 2 * inner.count('""')
        else field
    )


def _split_commas(lines: Iterator[tuple[int, str]], path: Path, key: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader((line for _, line in lines), strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise DistilvecError(
            f"[{key}] {path} is not valid CSV near line {reader.line_num}: {error}. Check the quotes there."
        ) from None


def _table_rows(table: Iterator[tuple[int, list[str]]], path: Path, key: str) -> Iterator[tuple[int, Row]]:
    header: list[str] = []
    for number, fields in table:
        if not header:
            header = [name.strip() for name in fields]
            continue
        if len(fields) != len(header):
            raise DistilvecError(
                f"[{key}] {path}, line {number} has {len(fields)} fields, the header has {len(header)} ({', '.join(header)[:200]}). "
                f"Quote fields that hold the separator."
            )
        yield number, dict(zip(header, fields, strict=True))


def _parquet_rows(path: Path, source: SourceSection, position: int, key: str) -> Iterator[tuple[int, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path, buffer_size=1 << 20) as file:
            names = file.schema_arrow.names
            needed = {*text_columns(names, source, position, str(path)), *source.where, *({"title"} & set(names))}
            for batch in file.iter_batches(_PARQUET_ROWS, columns=sorted(needed)):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DistilvecError(
            f"[{key}] {path} is not a readable Parquet file (after row {number}): {first_line(error)}."
        ) from None


# -- Hugging Face data sets ------------------------------------------------------------------------------------------


def _saved_dataset(folder: Path) -> bool:
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def _dataset_texts(source: SourceSection, position: int) -> Iterator[str]:
    key, place = f"corpus.sources.{position}.dataset", f"data set {source.dataset}"
    require_extra("datasets", key)
    import datasets

    try:
        data = _load_dataset(source, key)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DistilvecError(
            f"[{key}] {place} could not be loaded (split '{source.split}'): {type(error).__name__}: {first_line(error)}"
        ) from None
    if data.column_names is not None:  # unknown for some streams: then found on the first row
        needed = {
            *text_columns(data.column_names, source, position, place),
            *source.where,
            *({"title"} & set(data.column_names)),
        }
        data = data.select_columns(sorted(needed))
    yield from _texts(enumerate(data, 1), source, position, place, "row")


def _load_dataset(source: SourceSection, key: str) -> Any:
    """A data set of one split, from a folder written by save_to_disk or by `load_dataset`."""
    import datasets

    folder = Path(str(source.dataset))
    if not _saved_dataset(folder):
        return datasets.load_dataset(
            source.dataset, source.config, split=source.split, revision=source.revision, streaming=source.streaming
        )
    data = datasets.load_from_disk(str(folder))
    if not isinstance(data, datasets.DatasetDict):
        return data
    if source.split not in data:
        raise DistilvecError(f"[{key}] {folder} has no split '{source.split}'; found: {', '.join(data)}. Set 'split'.")
    return data[source.split]
