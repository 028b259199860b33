"""Download of files over HTTP: streamed, resumed where it broke off, retried, limited in size."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import unquote

from distilvec.core.errors import DistilvecError, explained, first_line
from distilvec.core.log import progress

TRIES = 5  # in a row that bring no further byte
PAUSE = 1.0  # seconds before the second try; twice as long before each further one
TIMEOUT = 30.0  # seconds without a byte
MOST_BYTES = 4_000_000_000
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # answers that may be others a moment later
_CHUNK = 1 << 13  # bytes of an unfinished chunk are lost when a connection breaks


def download(url: str, path: Path, most: int = MOST_BYTES) -> Path:
    """Write what `url` holds to `path`; return it.

    Bytes arrive in `path` with `.part` at the end, which a later call continues. Broken connections, missing bytes and
    busy hosts are tried again, with growing pauses.
    Errors: DistilvecError for a host that cannot be reached, an answer such as 404, and more than `most` bytes.
    """
    import requests

    part, failures = path.with_name(f"{path.name}.part"), 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            with explained("data", part):
                _fetch(url, part, before, most)
            part.replace(path)
            return path
        except _Refused as error:
            part.unlink(missing_ok=True)
            raise DistilvecError("data", f"{url}: {error}.") from None
        except (requests.RequestException, _Broken) as error:
            failures = 1 if part.exists() and part.stat().st_size > before else failures + 1
            if failures >= TRIES:
                problem = f"{url} cannot be fetched after {TRIES} tries ({type(error).__name__}: {first_line(error)})"
                raise DistilvecError("data", f"{problem}.") from error
            time.sleep(PAUSE * 2 ** (failures - 1))


class _Refused(Exception):
    """An answer that another try would not change."""


class _Broken(Exception):
    """An answer that may be another one a moment later."""


def _fetch(url: str, part: Path, done: int, most: int) -> None:
    """Append what is missing of `url` to `part`, which has `done` bytes."""
    import requests

    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        if answer.status_code == 416:  # the file has no byte after `done`: what is there is another file's
            part.unlink()
            raise _Broken("the part that was kept does not fit")
        if answer.status_code in _BUSY:
            raise _Broken(f"status {answer.status_code}")
        if not answer.ok:
            raise _Refused(f"status {answer.status_code} ({answer.reason})")
        done = done if answer.status_code == 206 else 0
        length = answer.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else None
        if total is not None and total > most:
            raise _Refused(f"{total:,} bytes, more than the {most:,} allowed")
        name = unquote(url.rpartition("/")[2])[:40]
        with (
            part.open("ab" if done else "wb") as file,
            progress(f"fetching {name}", total or 0, "bytes", done) as advance,
        ):
            for chunk in answer.iter_content(_CHUNK):
                done += len(chunk)
                if done > most:
                    raise _Refused(f"more than {most:,} bytes")
                file.write(chunk)
                advance(done, "")
        if total is not None and done != total:
            raise _Broken(f"{done:,} of {total:,} bytes")
