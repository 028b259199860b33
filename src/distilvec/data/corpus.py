"""The training texts on disk: sources mixed, exact duplicates dropped, a part held out by seed.

Texts stream from their sources into one flat file with offsets; duplicates are found by partitions of 16-byte keys. What
grows with the rows in memory is one byte a row while building, nothing afterwards: every array is memory-mapped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import CorpusSection, Role, SourceSection
from distilvec.core.artifacts import META, Column, open_column, open_or_build
from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError
from distilvec.core.hashing import hash_files
from distilvec.core.log import log
from distilvec.data.dedup import CHUNK, Mask, first_occurrences, thin
from distilvec.data.readers import read_source, source_files

Progress = Callable[[str, int], None]
Rows = npt.NDArray[np.int64]

FORMAT = 1
LONGEST_TEXT = 1_000_000  # characters; what is beyond is cut
KEY_BYTES = 16
SEPARATOR = "\uffff"  # between two texts that are one input: no character of any text (data/labeled.py)
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_BUFFER = 1 << 20  # bytes of text held before they are written
_REPORTED = ("read", "empty", "excluded", "duplicates", "left_out", "kept", "cut")


class Corpus:
    """Texts on disk, WITHOUT prompts, numbered from 0; made by `build_corpus`, or opened from its folder.

    `report` counts rows: read, empty, excluded, duplicates, left_out (by a random limit), kept, cut; and in
    `report["sources"]` the same for each source. `keys` [rows] are 16 bytes each (`text_key` of prompt and text),
    `sources` [rows] the source's number; `train_rows` and `holdout_rows` are sorted row numbers. All are memory-mapped.
    Where the corpus is `paired`, a row is two texts that are one input, stored with SEPARATOR between them.
    Errors: OSError, ValueError or KeyError for a folder that is missing, incomplete or damaged.
    """

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.folder = folder
        self.fingerprint: str = meta["fingerprint"]
        self.report: dict[str, Any] = meta["report"]
        self.prompts: dict[Role, str] = meta["prompts"]
        self.source_names: list[str] = meta["source_names"]
        self.languages: list[str | None] = meta["languages"]
        self.roles: list[Role] = meta["roles"]
        self.paired: bool = meta.get("paired", False)
        self.offsets: Rows = open_column(folder / "offsets.npy")
        self.keys: npt.NDArray[np.void] = open_column(folder / "keys.npy")
        self.sources: npt.NDArray[np.uint16] = open_column(folder / "sources.npy")
        self.train_rows: Rows = open_column(folder / "train_rows.npy")
        self.holdout_rows: Rows = open_column(folder / "holdout_rows.npy")
        self._bytes = np.memmap(folder / "texts.bin", dtype=np.uint8, mode="r").data
        if (
            not len(self.keys)
            == len(self.sources)
            == len(self.offsets) - 1
            == len(self.train_rows) + len(self.holdout_rows)
        ):
            raise ValueError(f"{folder}: columns of different lengths")
        if len(self._bytes) != self.offsets[-1]:
            raise ValueError(f"{folder}: texts.bin is cut short")

    def __len__(self) -> int:
        return len(self.keys)

    def stored(self, rows: Sequence[int] | Rows) -> list[str]:
        """The texts of `rows` as they are kept, in their order, without prompts; a pair is one text with SEPARATOR inside."""
        wanted = np.asarray(rows, dtype=np.int64)
        starts, ends = self.offsets[wanted].tolist(), self.offsets[wanted + 1].tolist()
        return [str(self._bytes[start:end], "utf-8") for start, end in zip(starts, ends, strict=True)]

    def texts(self, rows: Sequence[int] | Rows) -> list[Text]:
        """The texts of `rows`, in their order, without prompts; pairs where the corpus is paired."""
        return self._split(self.stored(rows))

    def prompted(self, rows: Sequence[int] | Rows) -> list[Text]:
        """The texts of `rows`, each (of a pair the first) behind the prompt of its source's role: what teacher and student read."""
        prompts = [self.prompts.get(role, "") for role in self.roles]
        sources = self.sources[np.asarray(rows, dtype=np.int64)].tolist()
        return self._split([prompts[source] + text for source, text in zip(sources, self.stored(rows), strict=True)])

    def _split(self, texts: list[str]) -> list[Text]:
        if not self.paired:
            return list(texts)
        parts = [text.split(SEPARATOR) for text in texts]
        return [(first, second) for first, second in parts]


def text_key(prompt: str, text: str) -> bytes:
    """16 bytes that name a text behind a prompt: the key of every teacher cache (BLAKE2b)."""
    return hashlib.blake2b(f"{prompt}\0{text}".encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def excluded_fingerprint(excluded: Iterable[str]) -> str:
    """A fingerprint of evaluation texts, whatever their order and repeats, for `corpus_fingerprint`."""
    return _fingerprint_of_keys(_loose_keys(excluded))


def corpus_fingerprint(
    section: CorpusSection, prompts: dict[Role, str], batch_size: int, excluded_fingerprint: str
) -> str:
    """Changes when a file (name, content), an option, a prompt or an excluded text does; for docstrings, the Python too."""
    for position, source in enumerate(section.sources):
        hash_files(
            source_files(source, position), key=f"corpus.sources.{position}.path"
        )  # read once: whose file it is, is known here
    files = hash_files(_files(section))
    python = sys.version if any(source.builtin for source in section.sources) else None
    settings = section.model_dump(mode="json")
    settings["exclude_evaluation"] = bool(
        section.exclude_evaluation
    )  # which texts are excluded tells excluded_fingerprint
    return fingerprint(FORMAT, settings, files, python, prompts, batch_size, excluded_fingerprint)


def build_corpus(
    section: CorpusSection,
    prompts: dict[Role, str],
    batch_size: int,
    folder: Path,
    excluded: Iterable[str] = (),
    progress: Progress | None = None,
) -> Corpus:
    """Build the corpus in `folder`, or reopen it if it is complete and was built from the same things.

    `prompts` by role (a missing role has none); `holdout_batches * batch_size` rows are held out; texts equal to an
    `excluded` one but for case and white space are dropped. `progress(stage, rows)` is called every few thousand rows.
    Errors: DistilvecError for sources that cannot be read, no rows, a hold-out of more than half, no disk space.
    """
    barred = _loose_keys(excluded) if section.exclude_evaluation else frozenset()
    mark = corpus_fingerprint(section, prompts, batch_size, _fingerprint_of_keys(barred))
    tell = progress or (lambda stage, rows: None)
    needed = sum(path.stat().st_size * (6 if path.suffix == ".gz" else 2) for path in _files(section))

    def build(place: Path) -> dict[str, Any]:
        raw = place / "raw"
        counts = _ingest(section.sources, prompts, barred, raw, tell)
        keep = first_occurrences(raw / "keys.npy", tell)
        for position, (source, count) in enumerate(zip(section.sources, counts, strict=True)):
            count.settle(keep, source.limit, np.random.Generator(np.random.PCG64([section.seed, position])))
        totals = {name: sum(getattr(count, name) for count in counts) for name in _REPORTED}
        held_out = _holdout_size(section.holdout_batches, batch_size, totals)
        _compact(raw, place, keep, np.array([count.end for count in counts]), tell)
        _split(place, totals["kept"], held_out, section.seed)
        shutil.rmtree(raw)
        report = {**totals, "train": totals["kept"] - held_out, "holdout": held_out}
        return _meta(section.sources, counts, report, prompts)

    return open_or_build(folder, mark, "corpus", needed, build, Corpus)


# -- reading ---------------------------------------------------------------------------------------------------------


@dataclass
class _Count:
    """What became of one source's rows; they are `start` to `end` of the raw rows."""

    start: int
    end: int = 0
    read: int = 0
    empty: int = 0
    excluded: int = 0
    duplicates: int = 0
    left_out: int = 0
    kept: int = 0
    cut: int = 0

    def settle(self, keep: Mask, limit: int | None, generator: np.random.Generator) -> None:
        """Count this source's duplicates and thin what is left to `limit` by chance, in `keep` itself."""
        own = keep[self.start : self.end]
        distinct = int(np.count_nonzero(own))
        self.kept = distinct if limit is None else min(limit, distinct)
        self.duplicates, self.left_out = len(own) - distinct, distinct - self.kept
        if self.left_out:
            thin(own, self.kept, generator)


class _RawRows:
    """Writes texts, offsets and keys of all candidate rows, buffered."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        folder.mkdir()
        self.texts = stack.enter_context((folder / "texts.bin").open("wb"))
        self.offsets = stack.enter_context(Column(folder / "offsets.npy", np.int64))
        self.keys = stack.enter_context(Column(folder / "keys.npy", f"V{KEY_BYTES}"))
        self.offsets.append(np.zeros(1))
        self.rows = self.end = self.held = 0
        self.pending: list[bytes] = []
        self.pending_keys: list[bytes] = []

    def add(self, text: str, key: bytes) -> None:
        self.pending.append(text.encode())
        self.pending_keys.append(key)
        self.rows += 1
        self.held += len(self.pending[-1])
        if self.held > _BUFFER or len(self.pending) >= 8192:
            self.flush()

    def flush(self) -> None:
        ends = self.end + np.cumsum([len(text) for text in self.pending], dtype=np.int64)
        self.texts.write(b"".join(self.pending))
        self.offsets.append(ends)
        self.keys.append(np.frombuffer(b"".join(self.pending_keys), dtype=f"V{KEY_BYTES}"))
        self.end, self.held = self.end + self.held, 0
        self.pending, self.pending_keys = [], []


def _ingest(
    sources: list[SourceSection], prompts: dict[Role, str], barred: frozenset[bytes], raw: Path, tell: Progress
) -> list[_Count]:
    """Read every source into raw rows: stripped, empty and excluded ones dropped; 'first' limits stop the reading."""
    counts: list[_Count] = []
    with contextlib.ExitStack() as stack:
        out = _RawRows(raw, stack)
        for position, source in enumerate(sources):
            count, prompt, replaced = _Count(start=out.rows), prompts.get(source.role, ""), 0
            for text in read_source(source, position):
                count.read += 1
                clean = _clean(text)
                if not clean:
                    count.empty += 1
                elif barred and _loose_key(clean) in barred:
                    count.excluded += 1
                else:
                    replaced += _UNKNOWN in clean and _UNKNOWN not in text
                    count.cut += len(text) > LONGEST_TEXT and len(text.strip()) > LONGEST_TEXT
                    out.add(clean, text_key(prompt, clean))
                    if source.sample == "first" and out.rows - count.start == source.limit:
                        break
                if count.read % 8192 == 0:
                    tell(f"reading {source.label}", count.read)
            tell(f"reading {source.label}", count.read)
            if replaced:
                log(f"{source.label}: {replaced:,} texts with halves of surrogate pairs, which became {_UNKNOWN}")
            count.end = out.rows
            counts.append(count)
        out.flush()
    return counts


def _clean(text: str) -> str:
    """Stripped, cut to LONGEST_TEXT characters; halves of surrogate pairs, which UTF-8 cannot hold, become U+FFFD."""
    text = text.strip()[:LONGEST_TEXT].rstrip()
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _loose_key(text: str) -> bytes:
    return text_key("", " ".join(text.casefold().split()))


def _loose_keys(texts: Iterable[str]) -> frozenset[bytes]:
    return frozenset(_loose_key(text) for text in texts if text.strip())


def _fingerprint_of_keys(keys: frozenset[bytes]) -> str:
    return hashlib.blake2b(b"".join(sorted(keys)), digest_size=8).hexdigest()


def _files(section: CorpusSection) -> list[Path]:
    return [path for position, source in enumerate(section.sources) for path in source_files(source, position)]


# -- writing ---------------------------------------------------------------------------------------------------------


def _holdout_size(batches: int, batch_size: int, totals: dict[str, int]) -> int:
    rows, size = totals["kept"], batches * batch_size
    if rows == 0:
        lost = ", ".join(f"{totals[name]} {name}" for name in ("empty", "excluded"))
        raise DistilvecError(
            f"[corpus.sources] no text to train on: {totals['read']} rows read, {lost}. Add a source, or look at 'where'."
        )
    if size * 2 <= rows:
        return size
    most = rows // 2 // batch_size
    todo = (
        f"Set corpus.holdout_batches to at most {most}"
        if most
        else f"Set corpus.holdout_batches to 1 and train.batch_size to at most {rows // 2}"
    )
    raise DistilvecError(
        f"[corpus.holdout_batches] {batches} batches of {batch_size} rows are {size}, more than half of the corpus's {rows}. "
        f"{todo}, or add texts."
    )


def _compact(raw: Path, place: Path, keep: Mask, source_ends: Rows, tell: Progress) -> None:
    """Copy the kept rows to their final files, run by run."""
    offsets, keys = open_column(raw / "offsets.npy"), open_column(raw / "keys.npy")
    view, end = np.memmap(raw / "texts.bin", dtype=np.uint8, mode="r").data, 0
    with contextlib.ExitStack() as stack:
        texts = stack.enter_context((place / "texts.bin").open("wb"))
        kinds: dict[str, Any] = {"offsets": np.int64, "keys": f"V{KEY_BYTES}", "sources": np.uint16}
        out = {name: stack.enter_context(Column(place / f"{name}.npy", kind)) for name, kind in kinds.items()}
        out["offsets"].append(np.zeros(1))
        for start in range(0, len(keep), CHUNK):
            rows = np.flatnonzero(keep[start : start + CHUNK]) + start
            if len(rows):
                breaks = np.flatnonzero(np.diff(rows) != 1)
                firsts, lasts = rows[np.r_[0, breaks + 1]], rows[np.r_[breaks, len(rows) - 1]]
                for begin, stop in zip(offsets[firsts].tolist(), offsets[lasts + 1].tolist(), strict=True):
                    texts.write(view[begin:stop])
                ends = end + np.cumsum(offsets[rows + 1] - offsets[rows])
                end = int(ends[-1])
                out["offsets"].append(ends)
                out["keys"].append(keys[rows])
                out["sources"].append(np.searchsorted(source_ends, rows, side="right"))
            tell("writing", start + len(rows))


def _split(place: Path, rows: int, held_out: int, seed: int) -> None:
    """Draw the hold-out among all rows by seed and write both lists of row numbers, sorted."""
    mask = np.ones(rows, dtype=np.bool_)
    thin(mask, held_out, np.random.Generator(np.random.PCG64(seed)))
    with Column(place / "train_rows.npy", np.int64) as train, Column(place / "holdout_rows.npy", np.int64) as holdout:
        for start in range(0, rows, CHUNK):
            chunk = mask[start : start + CHUNK]
            train.append(np.flatnonzero(~chunk) + start)
            holdout.append(np.flatnonzero(chunk) + start)


def _meta(
    sources: list[SourceSection], counts: list[_Count], report: dict[str, Any], prompts: dict[Role, str]
) -> dict[str, Any]:
    by_source = [
        {"name": s.label, **{name: getattr(c, name) for name in _REPORTED}}
        for s, c in zip(sources, counts, strict=True)
    ]
    return {
        "report": {**report, "sources": by_source},
        "prompts": prompts,
        "source_names": [source.label for source in sources],
        "languages": [source.language for source in sources],
        "roles": [source.role for source in sources],
    }
