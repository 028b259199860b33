"""Reads evaluation files as rows: .jsonl, .csv and .tsv (each also .gz) and .parquet, with their splits."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from distilvec.errors import DistilvecError

Row = dict[str, Any]

ENDINGS = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
_LONGEST_FIELD = 1 << 30  # characters; the csv module's own limit of 131072 is below what a document may have


def find_table(folder: Path, stem: str) -> Path | None:
    """The file `stem` + one of ENDINGS in a folder, None if there is none; DistilvecError if there are several."""
    found = [folder / (stem + ending) for ending in ENDINGS if (folder / (stem + ending)).is_file()]
    if len(found) > 1:
        raise DistilvecError(f"{folder} holds several files for '{stem}': {', '.join(p.name for p in found)}. Keep one of them.")
    return found[0] if found else None


def read_split(path: Path, split: str) -> list[tuple[str, Row]]:
    """The rows of one split, each with its place in the file for messages.

    `path` is a file whose rows may have a column `split` (without one every row belongs to the split asked for), or a
    folder with one file a split (`test.jsonl`, `train.csv`, ...) or with a single data file. Errors: DistilvecError if
    nothing is there, or the split is missing or empty; it lists the splits that exist.
    """
    file = _split_file(path, split) if path.is_dir() else path
    rows = list(read_rows(file))
    if not rows:
        raise DistilvecError(f"{file} holds no rows; expected the rows of split '{split}'.")
    if all("split" not in row for _, row in rows):
        return rows
    chosen = [(place, row) for place, row in rows if row.get("split") == split]
    if not chosen:
        present = sorted({str(row.get("split")) for _, row in rows})
        raise DistilvecError(f"{file} has no split '{split}'. Its splits: {', '.join(present)}. Name one of them in the suite.")
    return chosen


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Rows of a file as mappings, each with its place ("file.csv, line 7"); the ending of the name decides the format.

    Errors: DistilvecError naming file and line if it is missing, not UTF-8, damaged, or not what its name says.
    """
    if not path.is_file():
        raise DistilvecError(f"file not found: {path}. Expected a {', '.join(ENDINGS)} file.")
    reader = _reader(path)
    try:
        yield from reader(path)
    except UnicodeDecodeError as error:
        raise DistilvecError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}). Convert it to UTF-8.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DistilvecError(f"{path} is not a whole gzip file ({error}). Fetch it again or rename it.") from None


def _reader(path: Path) -> Callable[[Path], Iterator[tuple[str, Row]]]:
    name = path.name.removesuffix(".gz")
    readers = {".jsonl": _read_jsonl, ".csv": _read_delimited, ".tsv": _read_delimited, ".parquet": _read_parquet}
    for ending, reader in readers.items():
        if name.endswith(ending):
            return reader
    raise DistilvecError(f"{path}: the ending is not one of {', '.join(ENDINGS)}.")


def _open_text(path: Path) -> io.TextIOWrapper:
    if path.name.endswith(".gz"):
        return io.TextIOWrapper(gzip.GzipFile(path, "rb"), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _read_jsonl(path: Path) -> Iterator[tuple[str, Row]]:
    with _open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = f"{path.name}, line {number}"
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DistilvecError(f"{path}, line {number} is not JSON ({error.msg}); every line must hold one object.") from None
            if not isinstance(row, dict):
                raise DistilvecError(f"{path}, line {number} holds a JSON {type(row).__name__}; every line must hold one object.")
            yield place, row


def _read_delimited(path: Path) -> Iterator[tuple[str, Row]]:
    tabs = path.name.removesuffix(".gz").endswith(".tsv")
    with _open_text(path) as lines:
        csv.field_size_limit(_LONGEST_FIELD)
        # Loose quotes in .tsv files are text, as in published STS files: the csv module would join lines at them.
        reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines, strict=True)
        try:
            header = next(reader, [])
            for values in reader:
                if not values:
                    continue
                if len(values) != len(header):
                    raise DistilvecError(
                        f"{path}, line {reader.line_num} has {len(values)} fields, the header {len(header)} ({', '.join(header)})."
                    )
                fields = [_unquote(value) for value in values] if tabs else values
                yield f"{path.name}, line {reader.line_num}", dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise DistilvecError(f"{path}, line {reader.line_num} cannot be read: {error}.") from None


def _unquote(field: str) -> str:
    """A well-quoted field without its quotes, any other field as it is."""
    inner = field[1:-1]
    whole = len(field) > 1 and field[0] == field[-1] == '"' and inner.count('"') == 2 * inner.count('""')
    return inner.replace('""', '"') if whole else field


def _read_parquet(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=4096):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path.name}, row {number}", row
    except (arrow.ArrowInvalid, OSError) as error:
        raise DistilvecError(f"{path} is not a Parquet file ({str(error).splitlines()[0]}).") from None


def _split_file(folder: Path, split: str) -> Path:
    found = find_table(folder, split)
    if found is not None:
        return found
    files = sorted(file for file in folder.iterdir() if file.name.endswith(ENDINGS))
    if len(files) == 1:
        return files[0]
    names = ", ".join(file.name for file in files) or "no data file"
    raise DistilvecError(f"{folder} holds {names}; expected {split}{ENDINGS[0]} (or another of {', '.join(ENDINGS)}), or a single file.")
