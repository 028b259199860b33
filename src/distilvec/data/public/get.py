"""Get a public data set into the data folder: download, convert, check, note the licence."""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import json
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from distilvec.config.schema import SourceSection
from distilvec.core.errors import DistilvecError, explained, first_line
from distilvec.core.files import locked, read_json, remove, scratch, write_json
from distilvec.core.log import log
from distilvec.data.public.convert import Unusable, rows_of
from distilvec.data.public.download import download
from distilvec.data.public.table import DataSet, OutFile, Part, data_set
from distilvec.data.readers import read_dataset

RAW = "https://raw.githubusercontent.com"
ARCHIVES = "https://codeload.github.com"
KEPT = ".downloads"  # below the data folder: files as published, until their set is complete
NOTES = "LICENCES.json"  # below the data folder: licence and sources of every set
MOST_UNPACKED = 4_000_000_000  # bytes of the chosen files of an archive


def get(name: str, folder: Path, again: bool = False) -> list[Path]:
    """Get the files of a data set that `folder` lacks, with `again` all of them; return their paths.

    A file appears whole and checked, or not at all. What was downloaded when a host failed is kept for the next call.
    Errors: DistilvecError for an unknown name, a host that fails, and content that is not the expected one.
    """
    entry = data_set(name)
    if entry.manual:
        raise DistilvecError("data", f"{name} cannot be fetched.", entry.manual)
    wanted = {folder / path: file for path, file in entry.files.items() if again or not (folder / path).exists()}
    if wanted:
        log(f"{name}: {entry.about}. Licence: {entry.licence}. About {entry.size:g} MB to download.")
        with explained("--out", folder):
            (folder / KEPT).mkdir(parents=True, exist_ok=True)
        with locked(folder / KEPT / f"{name}.lock", "--out", f"{name} in {folder}", wait=True):
            _fetch(name, entry, wanted, folder)
    return [folder / path for path in entry.files]


def _fetch(name: str, entry: DataSet, wanted: Mapping[Path, OutFile], folder: Path) -> None:
    """Make the missing files, then note the licence."""
    kept = folder / KEPT / name
    kept.mkdir(exist_ok=True)
    try:
        with explained("--out", folder):
            for path, file in wanted.items():
                _make(name, entry, file, path, kept)
    except Unusable:
        remove(kept)
        raise
    except DistilvecError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno is not None:
            raise
        fix = f"{error.fix} {_by_hand(entry, folder)}".lstrip()
        raise DistilvecError(error.key, error.problem, fix) from error
    remove(kept)
    note = {"licence": entry.licence, "sources": list(entry.sources()), "files": list(entry.files)}
    with locked(folder / KEPT / "notes.lock", "--out", str(folder / NOTES), wait=True):
        notes = read_json(folder / NOTES, "Remove it.", sealed=False) if (folder / NOTES).exists() else {}
        write_json(folder / NOTES, {**notes, name: note}, key="--out")


def _by_hand(entry: DataSet, folder: Path) -> str:
    """Instructions for a person whose machine reaches no host."""
    fetched = "Run the same command again: it goes on where it ended."
    where = " and ".join(str(folder / path) for path in entry.files)
    return f"{fetched} Without a network, fetch the set on another machine and copy {where}."


def _make(name: str, entry: DataSet, file: OutFile, path: Path, kept: Path) -> None:
    """Write one file of a set, whole, or not at all."""
    rows = (row for part in file.parts for row in _rows(entry, part, kept))
    path.parent.mkdir(parents=True, exist_ok=True)
    new = scratch(path)
    try:
        count, digest = _write(rows, new, path.name)
        for what, found, expected in (("rows", count, file.rows), ("checksum", digest, file.sha256)):
            if expected is not None and found != expected:
                problem = f"{path.name} has {what} {found}; expected {expected}"
                raise Unusable(
                    "data", f"{name}: {problem}. The source differs from its pinned version; nothing is kept."
                )
        new.replace(path)
    finally:
        remove(new)
    log(f"{path}: {count:,} rows")


def _write(rows: Iterable[Mapping[str, Any]], path: Path, name: str) -> tuple[int, str]:
    """Write rows as JSON Lines, or as TSV; their number, and the SHA-256 before compression."""
    count, digest = 0, hashlib.sha256()
    table = name.endswith(".tsv")
    with path.open("wb") as raw, raw if table else gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        for row in rows:
            line = "\t".join(map(str, row.values())) if table else json.dumps(row, ensure_ascii=False)
            text = "\t".join(row) + "\n" if table and count == 0 else ""
            data = f"{text}{line}\n".encode("utf-8", "surrogatepass")
            file.write(data)
            digest.update(data)
            count += 1
    return count, digest.hexdigest()


# -- sources -----------------------------------------------------------------------------------------------------------


def _rows(entry: DataSet, part: Part, kept: Path) -> Iterator[dict[str, Any]]:
    """The rows of a part, its sources downloaded first."""
    if part.dataset is not None:
        source = SourceSection(dataset=part.dataset, config=part.config, split=part.split)
        given = (row for _, row in read_dataset(source, "data", lambda names: names))
        yield from rows_of(part, {part.dataset: kept}, given)
    else:
        yield from rows_of(part, _files(part, part.repository or entry.repository or "", kept))


def _files(part: Part, repository: str, kept: Path) -> dict[str, Path]:
    """The published files of a part by name, in order."""
    owner, _, commit = repository.partition("@")
    stem = repository.replace("/", "+")
    if part.archive == "repository":
        archive = _fetched(f"{ARCHIVES}/{owner}/tar.gz/{commit}", kept / f"{stem}.tar.gz")
        return _unpacked(archive, part, kept / f"{stem}.members")
    if part.archive is not None:
        archive = _fetched(f"{RAW}/{owner}/{commit}/{quote(part.archive)}", kept / f"{stem}+{Path(part.archive).name}")
        return _unpacked(archive, part, archive.with_name(f"{archive.name}.members"))
    return {
        name: _fetched(f"{RAW}/{owner}/{commit}/{quote(name)}", kept / f"{stem}+{name.replace('/', '+')}")
        for name in part.files
    }


def _fetched(url: str, path: Path) -> Path:
    return path if path.exists() else download(url, path)


def _unpacked(archive: Path, part: Part, folder: Path) -> dict[str, Path]:
    """Unpack the files of a .zip or .tar.gz that the part names; in the order of its patterns, then by name.

    Files are stored under numbers: no name of an archive becomes a path. Links and devices are passed over.
    """
    remove(folder)
    folder.mkdir()
    found: dict[str, Path] = {}
    room = MOST_UNPACKED
    try:
        for name, size, read in _listing(archive):
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in part.files):
                room -= size
                if room < 0:
                    raise Unusable("data", f"{archive.name} unpacks to more than {MOST_UNPACKED:,} bytes.")
                found[name] = folder / str(len(found))
                found[name].write_bytes(read())
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise Unusable("data", f"{archive.name} is damaged ({first_line(error)}).") from error
    by_pattern = (sorted(fnmatch.filter(found, one), key=_natural if part.natural else str) for one in part.files)
    ordered = dict.fromkeys(chain.from_iterable(by_pattern))
    if not ordered:
        raise Unusable("data", f"{archive.name} has no file like {part.files[0]}.")
    return {name: found[name] for name in ordered}


def _listing(archive: Path) -> Iterator[tuple[str, int, Any]]:
    """Name, size and reader of every regular file; of a repository's archive the names below its one folder."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                yield member.filename, member.file_size, partial(opened.read, member)
        return
    with tarfile.open(archive, "r:*") as tar:
        for one in tar:
            if one.isfile() and (file := tar.extractfile(one)) is not None:
                yield one.name.partition("/")[2], one.size, file.read


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """A sort key: 2.txt before 10.txt."""
    return [(text.isdecimal(), int(text) if text.isdecimal() else 0, text) for text in re.split(r"(\d+)", name)]
