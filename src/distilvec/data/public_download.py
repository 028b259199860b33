"""Get a public data set into the data folder: download, convert, check, note the licence.

A download is streamed, resumed where it broke off, retried, and limited in size. It is not huggingface_hub's http_get,
which the package has as well: that keeps up to 10 MB in memory before it writes them, so a broken connection loses most
files whole, and it has no limit on the size.
"""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import json
import re
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from distilvec.config.schema import SourceSection
from distilvec.core.errors import DistilvecError, about, each_about, first_line, plain_errors
from distilvec.core.files import acquire_lock, read_json, remove, scratch, sync, write_json
from distilvec.core.log import log, progress
from distilvec.data.public_table import DataSet, OutFile, Part, Row, Unusable, data_set, rows_of_dataset, rows_of_files
from distilvec.data.readers import read_dataset

RAW = "https://raw.githubusercontent.com"
ARCHIVES = "https://codeload.github.com"
DOWNLOADS = ".downloads"  # below the data folder: files as published, until their set is complete
NOTES = "LICENCES.json"  # below the data folder: licence and sources of every set
MAX_UNPACKED = 4_000_000_000  # bytes of the chosen files of an archive
TRIES = 5  # in a row without a new byte
PAUSE = 1.0  # seconds before the second try; doubled before each further one
TIMEOUT = 30.0  # seconds without a byte
MAX_BYTES = 4_000_000_000
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


def get(name: str, folder: Path, again: bool = False) -> list[Path]:
    """Get the files of a data set that `folder` lacks, with `again` all of them; return their paths.

    A file appears whole and checked, or not at all. What was downloaded when a host failed is kept for the next call.
    """
    entry = data_set(name)
    if entry.manual:
        raise DistilvecError(f"{name} cannot be fetched.", entry.manual, key="data")
    if again or _missing(entry, folder):
        with about("--out", folder):
            (folder / DOWNLOADS).mkdir(parents=True, exist_ok=True)
            lock = acquire_lock(folder / DOWNLOADS / f"{name}.lock", f"{name} in {folder}", wait=True)
        with lock:
            # looked for again: another process may have got them while this one waited for the lock
            files = {folder / path: file for path, file in entry.files.items()} if again else _missing(entry, folder)
            if files:
                log(f"{name}: {entry.about}. Licence: {entry.licence}. About {entry.size:g} MB to download.")
                _make_files(name, entry, files, folder)
    return [folder / path for path in entry.files]


def _missing(entry: DataSet, folder: Path) -> dict[Path, OutFile]:
    """The files of a set that the folder lacks."""
    return {folder / path: file for path, file in entry.files.items() if not (folder / path).exists()}


def _make_files(name: str, entry: DataSet, missing: Mapping[Path, OutFile], folder: Path) -> None:
    """Make the missing files, then note the licence."""
    downloads = folder / DOWNLOADS / name
    downloads.mkdir(exist_ok=True)
    try:
        with about("--out", folder):
            for path, file in missing.items():
                _make_file(name, entry, file, path, downloads)
    except Unusable:  # downloaded again, the files may be the expected ones
        remove(downloads)
        raise
    except DistilvecError as error:
        is_of_the_disk = isinstance(error.__cause__, OSError) and error.__cause__.errno is not None
        if is_of_the_disk:
            raise
        files = " and ".join(str(folder / path) for path in entry.files)
        fix = (
            f"{error.fix} Run the same command again: it goes on where it ended. Without a network, fetch the set on "
            f"another machine and copy {files}."
        )
        raise DistilvecError(error.problem, fix.lstrip(), key=error.key) from error
    remove(downloads)
    note = {"licence": entry.licence, "sources": list(entry.sources()), "files": list(entry.files)}
    with about("--out", folder), acquire_lock(folder / DOWNLOADS / "notes.lock", str(folder / NOTES), wait=True):
        notes = read_json(folder / NOTES, "Remove it.", sealed=False) if (folder / NOTES).exists() else {}
        write_json(folder / NOTES, {**notes, name: note})


def _make_file(name: str, entry: DataSet, file: OutFile, path: Path, downloads: Path) -> None:
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
        return rows_of_dataset(part, _dataset_rows(source))
    return rows_of_files(part, _files(part, part.repository or entry.repository or "", downloads))


def _dataset_rows(source: SourceSection) -> Iterator[Row]:
    """The rows of a data set of the hub. A failure to read them says nothing of their content."""
    with plain_errors():
        for _, row in each_about(read_dataset(source, lambda names: names), "data"):
            yield dict(row)


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


# -- download ----------------------------------------------------------------------------------------------------------


class _RefusedDownload(Exception):
    """An answer that another try would not change."""


class _TransientFailure(Exception):
    """A failure that may be gone a moment later."""


def download(url: str, path: Path, max_bytes: int = MAX_BYTES) -> None:
    """Write what `url` holds to `path`.

    Bytes arrive in `path` with `.part` at the end, which a later call continues if the host says that it still has the
    same file: by the ETag of the first bytes. Broken connections, missing bytes and busy hosts are tried again, with
    growing pauses.
    """
    part = path.with_name(f"{path.name}.part")
    failures = 0  # since the last new byte
    while True:
        size_before = _size(part)
        try:
            with about("data", part):
                _fetch_rest(url, part, max_bytes)
            part.replace(path)
            _forget(part)
            return
        except _RefusedDownload as error:
            _forget(part)
            raise DistilvecError(f"{url}: {error}.", key="data") from None
        except _TransientFailure as error:
            failures += 1
            if _size(part) > size_before:
                failures = 1
            if failures >= TRIES:
                problem = f"{url} cannot be downloaded after {TRIES} tries ({first_line(error)})."
                raise DistilvecError(problem, key="data") from error
            time.sleep(PAUSE * 2 ** (failures - 1))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _etag_file(part: Path) -> Path:
    """The file with the ETag of the bytes in `part`."""
    return part.with_name(f"{part.name}.etag")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _etag_file(part).unlink(missing_ok=True)


def _fetch_rest(url: str, part: Path, max_bytes: int) -> None:
    """Append the missing bytes of `url` to `part`."""
    import httpx2

    from distilvec.remote.client import http_client

    etag = _etag_file(part).read_text(encoding="latin-1") if _etag_file(part).exists() else ""
    done = _size(part) if etag else 0
    headers = {"Accept-Encoding": "identity"}  # or the bytes of Content-Length and Range are not those of the file
    if done:
        headers |= {"Range": f"bytes={done}-", "If-Range": etag}
    try:
        with about("data"):
            client = http_client(connections=1, timeout=TIMEOUT, follow_redirects=True)
        with client, client.stream("GET", url, headers=headers) as answer:
            if answer.status_code == 416:  # the file has no byte after `done`: the part is of another file
                _forget(part)
                raise _TransientFailure("the part of an earlier download does not fit")
            if answer.status_code in _TRANSIENT:
                raise _TransientFailure(f"status {answer.status_code}")
            if not answer.is_success:
                raise _RefusedDownload(f"status {answer.status_code} ({answer.reason_phrase})")
            new_etag = answer.headers.get("ETag", "")
            if answer.status_code == 206:
                is_rest = answer.headers.get("Content-Range", "").startswith(f"bytes {done}-")
                if not is_rest or new_etag not in (etag, ""):  # the host ignores If-Range
                    _forget(part)
                    raise _TransientFailure("the host has another file now")
            else:  # the whole file: another one, or the host knows no ranges
                done = 0
                _forget(part)
                if new_etag and not new_etag.startswith("W/"):  # a weak one may stand for other bytes
                    _etag_file(part).write_text(new_etag, encoding="latin-1")
            length = answer.headers.get("Content-Length", "")
            total = done + int(length) if length.isdecimal() else None
            if total is not None and total > max_bytes:
                raise _RefusedDownload(f"{total:,} bytes, more than the {max_bytes:,} allowed")
            _write_chunks(answer.iter_raw(), url, part, done, total, max_bytes)
    except httpx2.HTTPError as error:
        raise _TransientFailure(f"{type(error).__name__}: {first_line(error)}") from error


def _write_chunks(chunks: Iterator[bytes], url: str, part: Path, done: int, total: int | None, max_bytes: int) -> None:
    name = unquote(url.rpartition("/")[2])[:40]
    with (
        part.open("ab" if done else "wb") as file,
        progress(f"downloading {name}", total or 0, "bytes", done) as advance,
    ):
        for chunk in chunks:
            done += len(chunk)
            if done > max_bytes:
                raise _RefusedDownload(f"more than {max_bytes:,} bytes")
            file.write(chunk)
            advance(done)
    if total is not None and done != total:
        raise _TransientFailure(f"{done:,} of {total:,} bytes")
