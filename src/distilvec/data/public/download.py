"""Download of files over HTTP: streamed, resumed where it broke off, retried, limited in size.

Not huggingface_hub's http_get, which the package has as well: it keeps up to 10 MB in memory before it writes them, so
a broken connection loses most files whole, and it has no limit on the size.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from distilvec.core.errors import DistilvecError, about, first_line
from distilvec.core.log import progress

TRIES = 5  # in a row without a new byte
PAUSE = 1.0  # seconds before the second try; doubled before each further one
TIMEOUT = 30.0  # seconds without a byte
MAX_BYTES = 4_000_000_000
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


class _RefusedDownload(Exception):
    """An answer that another try would not change."""


class _TransientFailure(Exception):
    """A failure that may be gone a moment later."""


def download(url: str, path: Path, max_bytes: int = MAX_BYTES) -> None:
    """Write what `url` holds to `path`.

    Bytes arrive in `path` with `.part` at the end, which a later call continues if the host says that it still has the
    same file: by the ETag of the first bytes. Broken connections, missing bytes and busy hosts are tried again, with
    growing pauses.
    Errors: DistilvecError for a host that cannot be reached, an answer such as 404, and more than `max_bytes` bytes.
    """
    part = path.with_name(f"{path.name}.part")
    failures = 0  # since the last new byte
    while True:
        size_before = _size(part)
        try:
            with about("data", part):
                _fetch(url, part, max_bytes)
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


def _fetch(url: str, part: Path, max_bytes: int) -> None:
    """Append the missing bytes of `url` to `part`. Errors: _RefusedDownload, _TransientFailure."""
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
            _append(answer.iter_raw(), url, part, done, total, max_bytes)
    except httpx2.HTTPError as error:
        raise _TransientFailure(f"{type(error).__name__}: {first_line(error)}") from error


def _append(chunks: Iterator[bytes], url: str, part: Path, done: int, total: int | None, max_bytes: int) -> None:
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
