"""Reads files and Hugging Face datasets row by row, each row with its place for messages: "FILE, line 3".

Formats: .txt, .jsonl, .csv and .tsv (each also as .gz or .zst), .parquet, and folders of `save_to_disk` of datasets.
Nothing is read whole: lines stream, Parquet and Arrow are read by record batch. A .json that is named, not found in a
folder, is an array of rows, or maps words to lists of texts; it is read whole.
Where datasets has written the names of classes beside their numbers (ClassLabel), the rows have the names.
Every problem is a DistilvecError with the line, and without a key: who reads a key's file notes it (`about`).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from distilvec.config.schema import SourceSection
from distilvec.core.errors import DistilvecError, about, each_about, first_line
from distilvec.core.extras import require_extra

if TYPE_CHECKING:
    import pyarrow as pa


class ClassName(str):
    """The name of a class by which a row has its number, in data that states both."""

    __slots__ = ("number",)
    number: int


Row = Mapping[str, Any]
Rows = Iterator[tuple[str, Row]]  # each with its place
Choose = Callable[[list[str]], Collection[str]]  # of the columns, those to read

PACKED = (".gz", ".zst")
TABLES = (*(f"{kind}{packed}" for kind in (".jsonl", ".csv", ".tsv") for packed in ("", *PACKED)), ".parquet")
# Columns that hold stored vectors
VECTOR_COLUMNS = ("embedding", "vector", "embeddings", "vectors")
READABLE = (".txt", ".txt.gz", ".txt.zst", *TABLES)
MAPPING = ".json"
MARKDOWN = ".md"  # a document, which is one text
_POINTER = b"version https://git-lfs.github.com/spec/"
_PARQUET_ROWS = 1024
_LONGEST_FIELD = 1 << 30  # characters; the csv module's own limit of 131072 is below the length of some documents
_UTF16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks
_DAMAGE: dict[type[Exception], tuple[str, str]] = {  # problem and fix; the first that fits
    UnicodeDecodeError: ("not UTF-8", "Convert it, for example with iconv -f latin1 -t utf-8."),
    gzip.BadGzipFile: ("not gzip data", "Rename or compress it."),
    EOFError: ("truncated", "Download it again."),
    zlib.error: ("damaged", "Download it again."),
    csv.Error: ("not valid CSV", "Check the quotes."),
    RecursionError: ("not JSON", "Expected one object a line; name an array of objects .json."),
    ValueError: ("not JSON", "Expected one object a line; name an array of objects .json."),
}


def read_rows(path: Path, choose: Choose | None = None) -> Rows:
    """The rows of a file as mappings, in order; lines of .txt files have the column `text`, with their line ends.

    `choose` gives the columns to read, for formats that can leave columns out.
    """
    if is_saved_dataset(path):
        return _saved_rows(path, choose)
    check_readable(path)
    ending = extension(path)
    if ending == MAPPING:
        return _json_file_rows(path)
    if ending == ".parquet":
        return _parquet_rows(path, choose)
    return _line_rows(path, ending.split(".")[1])


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a text file, whatever its name is, with their places and line ends; .gz and .zst are unpacked."""
    for where, row in _line_rows(path, "txt"):
        yield where, row["text"]


def read_json_lines(path: Path) -> Rows:
    """The rows of a file of JSON, an object a line, whatever its name is; .gz and .zst are unpacked.

    A file .json may as well hold an array of objects, which is read as a whole.
    """
    return _json_file_rows(path) if _is_array(path) else _line_rows(path, "jsonl")


def count_json_lines(path: Path) -> int:
    """The number of rows of such a file; lines are not parsed."""
    if _is_array(path):
        return sum(1 for _ in _json_file_rows(path))
    return sum(1 for _, line in read_lines(path) if line.strip())


def _is_array(path: Path) -> bool:
    return path.suffix == ".json" and next((line for _, line in read_lines(path) if line.strip()), "").startswith("[")


def check_readable(path: Path) -> None:
    """DistilvecError if there is no such file, its extension is unknown, or it stands for a file that is elsewhere."""
    fix = f"Give a file: {', '.join(READABLE)}."
    if not path.exists():
        from distilvec.data.public_table import how_to_get

        raise DistilvecError(f"{path}: not found.", how_to_get(path) or fix)
    if not path.is_file():
        problem = "a folder" if path.is_dir() else "not a file"
        raise DistilvecError(f"{path}: {problem}.", fix)
    if extension(path) not in (*READABLE, MAPPING, MARKDOWN):
        raise DistilvecError(f"{path}: unknown extension '{path.suffix}'.", fix)
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:  # its three lines would be texts
            raise DistilvecError(f"{path} is a pointer of Git LFS, not the file.", "Fetch it: git lfs pull.")


def extension(path: Path) -> str:
    """'.jsonl.gz' of 'a.b.JSONL.gz'; only .gz and .zst count as a second part."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    count = 2 if suffixes and suffixes[-1] in PACKED else 1
    return "".join(suffixes[-count:])


def names_of(row: Mapping[str, Any]) -> list[str]:
    """Names of the fields of a row, and of those inside them: metadata.text."""
    names = []
    for name, value in row.items():
        names.append(name)
        if isinstance(value, Mapping):
            names += [f"{name}.{inner}" for inner in names_of(value)]
    return names


def field_of(row: Mapping[str, Any], name: str) -> Any:
    """A field of a row, or one inside of another field (metadata.text); None where there is none."""
    if name in row:
        return row[name]
    for top, value in row.items():
        if isinstance(value, Mapping) and name.startswith(f"{top}."):
            return field_of(value, name[len(top) + 1 :])
    return None


# -- files of lines --------------------------------------------------------------------------------------------------


class _Lines:
    """The lines of a text file with their line ends; `where` is the place of the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self._before_number = f"{path}, line "

    @property
    def where(self) -> str:
        return f"{self._before_number}{self.number}"

    def error(self, problem: str, fix: str = "") -> DistilvecError:
        """Return the error for a problem in the last line."""
        return DistilvecError(f"{self.where}: {problem}", fix)

    def __iter__(self) -> Iterator[str]:
        with self.path.open("rb") as raw:
            lines: Iterable[bytes] = raw
            if self.path.suffix.lower() == ".gz":
                lines = cast(Iterable[bytes], gzip.GzipFile(fileobj=raw))
            elif self.path.suffix.lower() == ".zst":
                import pyarrow as pa

                lines = io.BufferedReader(pa.CompressedInputStream(raw, "zstd"))
            for block in lines:
                for line in block.splitlines(keepends=True):  # old Macs end lines with \r alone
                    self.number += 1
                    if self.number == 1 and line.startswith(_UTF16):
                        raise self.error("UTF-16, not UTF-8.", "Convert it: iconv -f utf-16 -t utf-8.")
                    if b"\0" in line:
                        raise self.error("NUL bytes: not UTF-8 text.", "Convert it, or name it .gz.")
                    is_first = self.number == 1  # which may begin with a byte order mark
                    yield line.decode("utf-8-sig" if is_first else "utf-8")


def _line_rows(path: Path, kind: str) -> Rows:
    """The rows of a file of lines. An error of decoding or parsing gets its line, which the library does not know."""
    read = {"txt": _text_rows, "md": _document_rows, "jsonl": _json_rows, "csv": _csv_rows, "tsv": _tsv_rows}[kind]
    lines = _Lines(path)
    try:
        for row in read(lines):
            yield lines.where, row
    except tuple(_DAMAGE) as error:
        problem, fix = next(damage for kind_of_error, damage in _DAMAGE.items() if isinstance(error, kind_of_error))
        raise lines.error(f"{problem} ({first_line(error)}).", fix) from None


def _text_rows(lines: _Lines) -> Iterator[Row]:
    for line in lines:
        yield {"text": line}


def _document_rows(lines: _Lines) -> Iterator[Row]:
    yield {"text": "".join(lines)}


def _json_rows(lines: _Lines) -> Iterator[Row]:
    for line in lines:
        if line.strip():
            row = json.loads(line)
            if not isinstance(row, dict):
                fix = "Expected one object a line; name an array of objects .json."
                raise lines.error(f"a JSON {type(row).__name__}.", fix)
            yield row


def _csv_rows(lines: _Lines) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_FIELD)
    not_empty = (fields for fields in csv.reader(lines, strict=True) if fields)
    return _records(not_empty, lines)


def _tsv_rows(lines: _Lines) -> Iterator[Row]:
    return _records(_tsv_fields(lines), lines)


def _tsv_fields(lines: _Lines) -> Iterator[list[str]]:
    """The fields of each line, which is a row.

    A quoted text of several lines in a file of one column is refused: it would be several texts. In other files such
    lines have too few fields.
    """
    columns = 0
    opening_line = 0  # whose quote is not closed; 0 for none
    for line in lines:
        line = line.rstrip("\r\n")
        if not line:
            continue
        fields = line.split("\t")
        columns = columns or len(fields)
        if columns == 1:
            single_quotes = line.replace('""', "")  # doubled ones are text
            quotes = single_quotes.count('"')
            if opening_line and quotes == 1 and single_quotes.endswith('"'):
                problem = f"the end of a quoted text that begins in line {opening_line}."
                raise lines.error(problem, "Put every text in one line, or save the file as .csv or .jsonl.")
            if quotes == 1 and single_quotes.startswith('"'):
                opening_line = lines.number
            elif quotes:  # loose ones
                opening_line = 0
        yield [_unquote(field) for field in fields]


def _unquote(field: str) -> str:
    """A well-quoted field of a .tsv file without its quotes; loose quotes are text, as in published STS files."""
    if len(field) < 2 or field[0] != '"' or field[-1] != '"':
        return field
    inner = field[1:-1]
    is_well_quoted = inner.count('"') == 2 * inner.count('""')  # every quote inside is doubled
    return inner.replace('""', '"') if is_well_quoted else field


def _records(table: Iterator[list[str]], lines: _Lines) -> Iterator[Row]:
    """The rows of a table below its header."""
    header = [name.strip() for name in next(table, [])]
    repeated = _repeated(header)
    if repeated is not None:
        raise lines.error(f"column '{repeated}' occurs twice.", "Rename or remove one.")
    separator = next((sign for sign in ";\t|," if len(header) == 1 and sign in header[0]), None)
    if separator is not None:
        problem = f"its columns are separated by {separator!r}."
        raise lines.error(problem, "Separate those of a .csv by commas, and name a file with tabs .tsv.")
    for fields in table:
        if len(fields) != len(header):
            problem = f"{len(fields)} fields, the header has {len(header)} ({', '.join(header)[:200]})"
            raise lines.error(f"{problem}.", "Quote fields that hold the separator.")
        yield dict(zip(header, fields, strict=True))


def _repeated(names: list[str]) -> str | None:
    """The first name of two columns, of which a row could have only one; None if there is none."""
    for number, name in enumerate(names):
        if name and name in names[:number]:
            return name
    return None


def _json_file_rows(path: Path) -> Rows:
    """The objects or texts of an array; or the texts of {word: [text, ...]}, each with its word."""
    expected = 'expected ["text", ...], [{"text": "..."}, ...] or {"word": ["text", ...], ...}'
    with about("", path):
        text = path.read_text(encoding="utf-8-sig")
    fix = "Save it as an array of objects, or as JSON Lines with the ending .jsonl."
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DistilvecError(f"{path}: not JSON ({first_line(error)}); {expected}.", fix) from None
    if isinstance(content, list):
        for number, row in enumerate(content, 1):
            where = f"{path}, row {number}"
            if isinstance(row, str):
                row = {"text": row}
            if not isinstance(row, dict):
                raise DistilvecError(f"{where}: a JSON {type(row).__name__}; {expected}.")
            yield where, row
        return
    if not isinstance(content, dict):
        raise DistilvecError(f"{path}: a JSON {type(content).__name__}; {expected}.", fix)
    for word, texts in content.items():
        where = f"{path}, word {word[:40]!r}"
        if not isinstance(texts, list):
            raise DistilvecError(f"{where}: a JSON {type(texts).__name__}; {expected}.", fix)
        for text in texts:
            yield where, {"word": word, "text": text}


# -- Parquet ---------------------------------------------------------------------------------------------------------


def _parquet_rows(path: Path, choose: Choose | None) -> Rows:
    from distilvec.core.arrow import open_parquet  # pyarrow is imported where it is needed

    with about("", path):
        file = open_parquet(path)
    with file:
        names = file.schema_arrow.names
        repeated = _repeated(names)
        if repeated is not None:
            raise DistilvecError(f"{path}: column '{repeated}' occurs twice.", "Rename or remove one.")
        columns = sorted(choose(names)) if choose else None
        yield from _arrow_rows(file.iter_batches(_PARQUET_ROWS, columns=columns), file.schema_arrow, path)


def _arrow_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> Rows:
    classes = class_names(_features(schema))
    number = 0
    # Values that Python does not have, such as years after 9999, are errors of to_pylist
    for rows in each_about((batch.to_pylist() for batch in batches), "", path):
        for row in rows:
            number += 1
            yield f"{path}, row {number}", with_class_names(row, classes) if classes else row


def _features(schema: pa.Schema) -> Any:
    """What datasets has written about the columns into the schema of a file; None in files of others."""
    try:
        return json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


def class_names(features: Any) -> dict[str, list[str]]:
    """The names of classes by column, from a description of columns by datasets: ClassLabel, or lists of it."""
    names: dict[str, list[str]] = {}
    if not isinstance(features, dict):
        return names
    for column, feature in features.items():
        while isinstance(feature, dict) and "feature" in feature:  # a list
            feature = feature["feature"]
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
            names[column] = feature["names"]
    return names


def with_class_names(row: Row, classes: Mapping[str, list[str]]) -> Row:
    """The row with names of classes in the place of their numbers."""
    return {**row, **{column: _named(row[column], names) for column, names in classes.items() if column in row}}


def _named(value: Any, names: list[str]) -> Any:
    """The name of a number, or of each in a list; None for -1, by which datasets marks rows without a label."""
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if not isinstance(value, int) or value >= len(names):
        return value
    if value < 0:
        return None
    name = ClassName(names[value])
    name.number = value
    return name


# -- Hugging Face datasets -------------------------------------------------------------------------------------------


def read_dataset(source: SourceSection, choose: Choose) -> Rows:
    """The rows of one split of a dataset, by its id or the folder that save_to_disk wrote."""
    require_extra("datasets", "")
    place = f"dataset {source.dataset}"
    with about("", place):
        data = _load_dataset(source)
        if data.column_names is not None:  # unknown for some streams
            data = data.select_columns(sorted(choose(data.column_names)))
    for number, row in enumerate(each_about(data, "", place), 1):  # rows of a stream are fetched one by one
        yield f"{place}, row {number}", row


def is_saved_dataset(folder: Path) -> bool:
    """Whether save_to_disk wrote a folder."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def saved_files(folder: Path) -> list[tuple[str | None, Path]]:
    """The Arrow files that save_to_disk wrote, in order, each with its split; None where it saved one split alone."""
    files: list[tuple[str | None, Path]] = []
    if (folder / "state.json").is_file():
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return [(None, folder / file["filename"]) for file in state["_data_files"]]
    for split in json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]:
        files += [(split, file) for _, file in saved_files(folder / split)]
    return files


def _saved_rows(folder: Path, choose: Choose | None) -> Rows:
    """The rows of all splits, which are named in the column `split`."""
    import pyarrow as pa

    with about("", folder):
        files = saved_files(folder)
    for split, path in files:
        with about("", path):
            stream = pa.ipc.open_stream(pa.memory_map(str(path)))
        names = stream.schema.names if split is None else [*stream.schema.names, "split"]
        columns = [name for name in choose(names) if name in stream.schema.names] if choose else None
        batches = (batch if columns is None else batch.select(columns) for batch in stream)
        for where, row in _arrow_rows(batches, stream.schema, path):
            yield where, row if split is None else {"split": split, **row}


def _load_dataset(source: SourceSection) -> Any:
    import datasets

    if not is_saved_dataset(Path(str(source.dataset))):
        options = {"split": source.split, "revision": source.revision, "streaming": source.streaming}
        return datasets.load_dataset(source.dataset, source.config, **options)
    data = datasets.load_from_disk(source.dataset)
    if not isinstance(data, datasets.DatasetDict):
        return data
    if source.split not in data:
        problem = f"dataset {source.dataset}: no split '{source.split}'; found: {', '.join(data)}."
        raise DistilvecError(problem, "Set 'split'.")
    return data[source.split]
