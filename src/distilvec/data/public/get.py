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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from distilvec.config.schema import SourceSection
from distilvec.core.errors import DistilvecError, about, creating, first_line
from distilvec.core.files import locked, read_json, remove, scratch, sync, write_json
from distilvec.core.log import log
from distilvec.data.public.convert import Row, Unusable, rows_of_dataset, rows_of_files
from distilvec.data.public.download import download
from distilvec.data.public.table import DataSet, OutFile, Part, data_set
from distilvec.data.readers import read_dataset

RAW = "https://raw.githubusercontent.com"
ARCHIVES = "https://codeload.github.com"
DOWNLOADS = ".downloads"  # below the data folder: files as published, until their set is complete
NOTES = "LICENCES.json"  # below the data folder: licence and sources of every set
MAX_UNPACKED = 4_000_000_000  # bytes of the chosen files of an archive


def get(name: str, folder: Path, again: bool = False) -> list[Path]:
    """Get the files of a data set that `folder` lacks, with `again` all of them; return their paths.

    A file appears whole and checked, or not at all. What was downloaded when a host failed is kept for the next call.
    Errors: DistilvecError for an unknown name, a host that fails, and content that is not the expected one.
    """
    entry = data_set(name)
    if entry.manual:
        raise DistilvecError(f"{name} cannot be fetched.", entry.manual, key="data")
    if again or _missing(entry, folder):
        with creating("--out", folder):
            (folder / DOWNLOADS).mkdir(parents=True, exist_ok=True)
        with locked(folder / DOWNLOADS / f"{name}.lock", "--out", f"{name} in {folder}", wait=True):
            # looked for again: another process may have got them while this one waited for the lock
            files = {folder / path: file for path, file in entry.files.items()} if again else _missing(entry, folder)
            if files:
                log(f"{name}: {entry.about}. Licence: {entry.licence}. About {entry.size:g} MB to download.")
                _fetch(name, entry, files, folder)
    return [folder / path for path in entry.files]


def _missing(entry: DataSet, folder: Path) -> dict[Path, OutFile]:
    """The files of a set that the folder lacks."""
    return {folder / path: file for path, file in entry.files.items() if not (folder / path).exists()}


def _fetch(name: str, entry: DataSet, missing: Mapping[Path, OutFile], folder: Path) -> None:
    """Make the missing files, then note the licence."""
    downloads = folder / DOWNLOADS / name
    downloads.mkdir(exist_ok=True)
    try:
        with about("--out", folder):
            for path, file in missing.items():
                _make(name, entry, file, path, downloads)
    except Unusable:  # downloaded again, the files may be the expected ones
        remove(downloads)
        raise
    except DistilvecError as error:
        is_of_the_disk = isinstance(error.__cause__, OSError) and error.__cause__.errno is not None
        if is_of_the_disk:
            raise
        fix = f"{error.fix} {_by_hand(entry, folder)}".lstrip()
        raise DistilvecError(error.problem, fix, key=error.key) from error
    remove(downloads)
    note = {"licence": entry.licence, "sources": list(entry.sources()), "files": list(entry.files)}
    with locked(folder / DOWNLOADS / "notes.lock", "--out", str(folder / NOTES), wait=True):
        notes = read_json(folder / NOTES, "Remove it.", sealed=False) if (folder / NOTES).exists() else {}
        write_json(folder / NOTES, {**notes, name: note})


def _by_hand(entry: DataSet, folder: Path) -> str:
    """Instructions for a person whose machine reaches no host."""
    files = " and ".join(str(folder / path) for path in entry.files)
    return (
        "Run the same command again: it goes on where it ended. "
        f"Without a network, fetch the set on another machine and copy {files}."
    )


def _make(name: str, entry: DataSet, file: OutFile, path: Path, downloads: Path) -> None:
    """Write one file of a set, whole, or not at all."""
    rows = chain.from_iterable(_rows(entry, part, downloads) for part in file.parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = scratch(path)
    try:
        count, checksum = _write(rows, new, is_table=path.suffix == ".tsv")
        if file.rows is not None and count != file.rows:
            raise _differs(name, f"{path.name} has rows {count}; expected {file.rows}")
        if file.sha256 is not None and checksum != file.sha256:
            raise _differs(name, f"{path.name} has checksum {checksum}; expected {file.sha256}")
        if not count:
            raise _differs(name, f"{path.name} has no rows")
        sync(new)
        new.replace(path)
    finally:
        remove(new)
    log(f"{path}: {count:,} rows")


def _differs(name: str, problem: str) -> Unusable:
    return Unusable(f"{name}: {problem}. The source differs from its pinned version; nothing is kept.", key="data")


def _write(rows: Iterable[Row], path: Path, is_table: bool) -> tuple[int, str]:
    """Write rows as compressed JSON Lines, or as TSV; their number, and the SHA-256 before compression."""
    count = 0
    digest = hashlib.sha256()
    with ExitStack() as stack:
        file: Any = stack.enter_context(path.open("wb"))
        if not is_table:  # without a name and a time, so that the same rows give the same file
            file = stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
        for row in rows:
            if not is_table:
                text = json.dumps(row, ensure_ascii=False) + "\n"
            else:
                text = "\t".join(map(str, row.values())) + "\n"
                if count == 0:
                    text = "\t".join(row) + "\n" + text
            data = text.encode("utf-8", "surrogatepass")
            file.write(data)
            digest.update(data)
            count += 1
    return count, digest.hexdigest()


# -- sources -----------------------------------------------------------------------------------------------------------


def _rows(entry: DataSet, part: Part, downloads: Path) -> Iterator[Row]:
    """The rows of a part, its sources downloaded first."""
    if part.dataset is not None:
        source = SourceSection(dataset=part.dataset, config=part.config, split=part.split)
        rows = (row for _, row in read_dataset(source, lambda names: names))
        return rows_of_dataset(part, rows)
    return rows_of_files(part, _files(part, part.repository or entry.repository or "", downloads))


def _files(part: Part, repository: str, downloads: Path) -> dict[str, Path]:
    """The published files of a part by name, in order."""
    owner, _, commit = repository.partition("@")
    stem = repository.replace("/", "+")
    if part.archive == "repository":
        archive = downloads / f"{stem}.tar.gz"
        _download_once(f"{ARCHIVES}/{owner}/tar.gz/{commit}", archive)
        return _unpack(archive, part, downloads / f"{stem}.members")
    if part.archive is not None:
        archive = downloads / f"{stem}+{Path(part.archive).name}"
        _download_once(f"{RAW}/{owner}/{commit}/{quote(part.archive)}", archive)
        return _unpack(archive, part, archive.with_name(f"{archive.name}.members"))
    files = {}
    for name in part.file_names():
        path = downloads / f"{stem}+{name.replace('/', '+')}"
        _download_once(f"{RAW}/{owner}/{commit}/{quote(name)}", path)
        files[name] = path
    return files


def _download_once(url: str, path: Path) -> None:
    if not path.exists():
        download(url, path)


def _unpack(archive: Path, part: Part, folder: Path) -> dict[str, Path]:
    """Unpack the files of a .zip or .tar.gz that the part names; in the order of its patterns, then by name.

    Files are stored under numbers: no name of an archive becomes a path. Links and devices are passed over.
    """
    remove(folder)
    folder.mkdir()
    files: dict[str, Path] = {}
    total = 0
    try:
        for name, size, read in _listing(archive):
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in part.files):
                total += size
                if total > MAX_UNPACKED:
                    raise Unusable(f"{archive.name} unpacks to more than {MAX_UNPACKED:,} bytes.", key="data")
                files[name] = folder / str(len(files))
                files[name].write_bytes(read())
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise Unusable(f"{archive.name} is damaged ({first_line(error)}).", key="data") from error
    if not files:
        raise Unusable(f"{archive.name} has no file like {part.files[0]}.", key="data")
    ordered = {}
    for pattern in part.files:
        for name in sorted(fnmatch.filter(files, pattern), key=_natural if part.natural else str):
            ordered[name] = files[name]
    return ordered


def _listing(archive: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Name, size and reader of every regular file; of a repository's archive the names below its one folder."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                yield member.filename, member.file_size, partial(opened.read, member)
        return
    with tarfile.open(archive, "r:*") as tar:
        for entry in tar:
            file = tar.extractfile(entry) if entry.isfile() else None
            if file is not None:
                yield entry.name.partition("/")[2], entry.size, file.read


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """A sort key: 2.txt before 10.txt."""
    parts = []
    for text in re.split(r"(\d+)", name):
        is_number = text.isdecimal()
        parts.append((is_number, int(text) if is_number else 0, text))
    return parts
