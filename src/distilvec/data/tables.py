"""Reads evaluation files as rows: .jsonl, .csv and .tsv (each also .gz) and .parquet, with their splits."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError, explain, first_line
from distilvec.data.data_error import DataError

Row = dict[str, Any]

ENDINGS = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
_LONGEST_FIELD = 1 << 30  # characters; the csv module's own limit of 131072 is below what a document may have


def find_table(folder: Path, stem: str) -> Path | None:
    """The file `stem` + one of ENDINGS in a folder, None if there is none; DataError if there are several."""
    found = [folder / (stem + ending) for ending in ENDINGS if (folder / (stem + ending)).is_file()]
    if len(found) > 1:
        raise DataError(
            f"{folder} holds several files for '{stem}': {', '.join(p.name for p in found)}. Keep one of them."
        )
    return found[0] if found else None


def read_split(path: Path, split: str) -> list[tuple[str, Row]]:
    """The rows of one split, each with its place for messages.

    `path` is a file whose rows may have a column `split` (without one every row belongs to the split asked for), or a
    folder with one file a split (`test.jsonl`, `train.csv`, ...) or with a single data file. Errors: DataError if nothing is
    there, the split is missing or empty (it lists the splits that exist), or a row among others with a split states none.
    """
    with data_errors(path):
        file = _split_file(path, split) if path.is_dir() else path
    rows = list(read_rows(file))
    if not rows:
        raise DataError(f"{file} holds no rows. Expected the rows of split '{split}'.")
    if all("split" not in row for _, row in rows):
        return rows
    for place, row in rows:
        if row.get("split") in (None, ""):
            raise DataError(f"{place}: no split, though other rows have one. Name the split of every row.")
    chosen = [(place, row) for place, row in rows if row["split"] == split]
    if not chosen:
        present = sorted({str(row["split"]) for _, row in rows})
        raise DataError(
            f"{file} has no split '{split}'. Its splits: {', '.join(present[:20])}. Name one of them in the suite."
        )
    return chosen


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Rows of a file as mappings, each with its place ("/data/file.csv, line 7"); the ending of the name decides the format.

    Errors: DataError naming file and line if it is missing, not UTF-8, damaged, or not what its name says.
    """
    with data_errors(path):
        if path.is_dir():
            raise DataError(f"{path} is a folder. Expected a {', '.join(ENDINGS)} file.")
        if not path.is_file():
            raise DataError(f"file not found: {path}. Expected a {', '.join(ENDINGS)} file.")
        yield from _reader(path)(path)


@contextmanager
def data_errors(path: Path) -> Iterator[None]:
    """What the system and the readers of formats raise, as DataError."""
    try:
        yield
    except DistilvecError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}). Convert it to UTF-8."
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}). Fetch it again or rename it.") from None
    except (OSError, MemoryError) as error:
        message = explain(error, "suite", path)
        raise DataError(
            (message or f"{path} cannot be read: {first_line(error)}. Check it.").removeprefix("[suite] ")
        ) from None


def _reader(path: Path) -> Callable[[Path], Iterator[tuple[str, Row]]]:
    name = path.name.removesuffix(".gz")
    readers = {".jsonl": _read_jsonl, ".csv": _read_delimited, ".tsv": _read_delimited, ".parquet": _read_parquet}
    for ending, reader in readers.items():
        if name.endswith(ending):
            return reader
    raise DataError(f"{path}: the ending is not one of {', '.join(ENDINGS)}. Convert the file or rename it.")


def _open_text(path: Path) -> io.TextIOWrapper:
    if path.name.endswith(".gz"):
        return io.TextIOWrapper(gzip.GzipFile(path, "rb"), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _read_jsonl(path: Path) -> Iterator[tuple[str, Row]]:
    with _open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{place} is not JSON ({getattr(error, 'msg', None) or first_line(error)}). Every line must hold one object."
                ) from None
            if not isinstance(row, dict):
                raise DataError(f"{place} holds a JSON {type(row).__name__}. Every line must hold one object.")
            yield place, row


def _read_delimited(path: Path) -> Iterator[tuple[str, Row]]:
    tabs = path.name.removesuffix(".gz").endswith(".tsv")
    with _open_text(path) as lines:
        csv.field_size_limit(_LONGEST_FIELD)
        # Loose quotes in .tsv files are text, as in published STS files: the csv module would join lines at them.
        reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines, strict=True)
        try:
            header = next(reader, [])
            if twice := [name for name, count in Counter(header).items() if count > 1]:
                raise DataError(
                    f"{path}, line 1: column {', '.join(map(repr, twice))} stands twice. Rename or remove one."
                )
            for values in reader:
                if not values:
                    continue
                if len(values) != len(header):
                    raise DataError(
                        f"{path}, line {reader.line_num} has {len(values)} fields, the header {len(header)} ({columns_of(header)}). "
                        "Quote fields that hold the separator."
                    )
                fields = [_unquote(value) for value in values] if tabs else values
                yield f"{path}, line {reader.line_num}", dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num} cannot be read: {error}. Mend the line.") from None


def columns_of(names: Iterable[str]) -> str:
    """Names of columns for a message, shortened."""
    found = [name if len(name) <= 40 else f"{name[:40]}…" for name in map(str, names)]
    return ", ".join(found[:12]) + (f" and {len(found) - 12} more" if len(found) > 12 else "")


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
                    yield f"{path}, row {number}", row
    except (arrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, not of the file
            raise
        raise DataError(
            f"{path} is not a Parquet file, or a damaged one ({first_line(error)}). Fetch it again."
        ) from None


def _split_file(folder: Path, split: str) -> Path:
    found = find_table(folder, split)
    if found is not None:
        return found
    files = sorted(file for file in folder.iterdir() if file.name.endswith(ENDINGS))
    if len(files) == 1:
        return files[0]
    names = ", ".join(file.name for file in files) or "no data file"
    raise DataError(
        f"{folder} holds {names}; expected {split}{ENDINGS[0]} (or another of {', '.join(ENDINGS)}), or a single file."
    )
