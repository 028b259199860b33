"""The teacher cache: vectors by text, in checked shards that survive a kill at any moment.

    manifest.json             settings that the vectors depend on
    shards.jsonl              the journal: one line a shard, with rows and, for every file, bytes and checksum
    00000.keys.npy            [rows] V16, the key of each text with the prompt prepended (data.corpus.text_key)
    00000.embedding.npy       [rows, width] float16 or float32
    00000.pre_dense.npy       [rows, pre_dense_width], if the manifest has such vectors; vector likewise
    00000.hidden.npy          [items, width], the rows' items end to end: a signal of uneven length (manifest: `tokens`)
    00000.hidden-offsets.npy  [rows + 1] int64, the first item of each row
    lock                      held by the one process that writes

Files are plain .npy and can be memory-mapped. A file counts once the journal names it. A further signal is a further
file, in the shard's line or in a later line about the same shard; readers ignore names that they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import torch

from distilvec.core.errors import DistilvecError, about
from distilvec.core.hashing import checksum
from distilvec.teachers.cache import journal
from distilvec.teachers.cache.index import KEY, KeyIndex, Keys
from distilvec.teachers.cache.journal import JOURNAL, KEY_NAME, Shard, damaged, read_journal
from distilvec.teachers.cache.manifest import Manifest, read_manifest
from distilvec.teachers.cache.signals import (
    OFFSETS,
    Array,
    Ragged,
    Rows,
    Signal,
    file_names,
    item_positions,
    join_ragged,
)

MANIFEST = "manifest.json"
SHARD_ROWS = 16384
_OFFSET = Signal(1, "int64")
_QUOTE_LENGTH = 80  # characters
_INVALID = "Look at this text and at teacher.dtype; float32 often helps."
_FLOAT32 = "Set cache.dtype=float32."
_EMPTY = "A zero vector has no direction: drop such texts, or look at teacher.max_length and the tokenizer."

Describe = Callable[[int], str]  # the text of a row


class CacheSummary(TypedDict):
    """What `distilvec cache inspect` shows. `worst_cosine`: the smallest of a vector to its stored form."""

    rows: int
    shards: int
    bytes: int
    bytes_per_text: float
    bytes_per_text_by_signal: dict[str, float]
    worst_cosine: float | None
    fingerprint: str
    manifest: dict[str, Any]


class TeacherCache:
    """Vectors of texts on disk; made by `create_or_open`, or opened from its folder. Positions count rows from 0.

    Reading copies the requested rows and nothing else. In memory are the keys (17 bytes a row), from the first time on
    that texts are looked up. Any number of processes may read while one writes; a reader sees the shards of the moment
    when it opened the cache.
    """

    def __init__(self, folder: Path, manifest: Manifest, shard_rows: int = SHARD_ROWS) -> None:
        self.folder = folder
        self.manifest = manifest
        self.shard_rows = shard_rows
        self._shards: list[Shard] = []
        self._shard_ends: Rows = np.zeros(0, dtype=np.int64)  # rows up to each shard's end
        self._index = KeyIndex()  # of the first shards, of `_indexed` of them
        self._indexed = 0
        self._index_lock = Lock()  # several threads may read
        self._files: dict[tuple[int, str], Array] = {}  # memory maps, by the shard's place in _shards and the file
        self._journal_size = 0  # bytes of whole lines
        self._is_writing = False
        self._load()

    @classmethod
    def create_or_open(cls, folder: Path, manifest: Manifest, shard_rows: int = SHARD_ROWS) -> TeacherCache:
        """The cache in `folder`, new if there is none; `shard_rows` is the size of shards written from now on.

        A superset cache, with more signals than `manifest` has, is opened as it is.
        Errors: DistilvecError if the folder holds something else, vectors of other settings (each differing field is
        named) or damaged shards.
        """
        if not (folder / MANIFEST).exists():
            journal.begin(folder / MANIFEST, manifest.to_json())
        stored_manifest = read_manifest(folder / MANIFEST)
        if manifest.fingerprint in stored_manifest.subsets:
            return cls(folder, stored_manifest, shard_rows)
        with about(KEY_NAME):
            stored_manifest.check_equal(manifest, str(folder))
        return cls(folder, manifest, shard_rows)

    @classmethod
    def open(cls, folder: Path) -> TeacherCache:
        """The cache in `folder`. DistilvecError if there is none, or shards are missing or truncated."""
        return cls(folder, _manifest_of(folder))

    @classmethod
    def verify_folder(cls, folder: Path, repair: bool = False) -> list[str]:
        """Compare every file with its checksum: one line for each problem. `repair` drops the shards concerned.

        Works where `open` refuses. Errors: DistilvecError if the folder is no cache, or another process writes to the
        cache that is to be repaired.
        """
        names = file_names(_manifest_of(folder).signals)
        with journal.lock(folder, wait=False) if repair else nullcontext():
            contents = read_journal(folder, strict=False)
            problems = []
            if contents.damaged_lines:
                problems.append(
                    f"{JOURNAL}: {contents.damaged_lines} damaged line(s); their rows must be computed again"
                )
            sound_shards = []
            for shard in contents.shards:
                shard_problems = shard.problems(folder, shard.files, checksum)
                for problem in shard_problems:
                    problems.append(f"{problem}; its {shard.rows:,} rows must be computed again")
                if not shard_problems:
                    sound_shards.append(shard)
            if problems and repair:
                with journal.write_errors(folder, 0):
                    journal.write_journal(folder, sound_shards)
                    journal.remove_leftovers(folder, sound_shards, names)
        return problems

    def verify(self) -> list[str]:
        """Compare every file with its checksum: one line for each problem."""
        return self.verify_folder(self.folder)

    @property
    def signals(self) -> dict[str, Signal]:
        """Every signal of a row."""
        return self.manifest.signals

    def __len__(self) -> int:
        return int(self._shard_ends[-1]) if self._shards else 0

    def positions(self, keys: Keys) -> Rows:
        """int64 [n] positions of keys; -1 for a missing text. DistilvecError for damaged keys of a shard."""
        with self._index_lock:
            for shard in self._shards[self._indexed :]:
                self._index.add(self._keys_of(shard))
                self._indexed += 1
            return self._index.positions(keys)

    def shard_keys(self) -> Iterator[Keys]:
        """The keys of every shard, V16 [rows], as they are stored. DistilvecError for damaged ones."""
        return map(self._keys_of, self._shards)

    def read(self, positions: Rows, signal: str = "embedding") -> npt.NDArray[np.float32]:
        """float32 [n, width] of a signal at these positions. IndexError for an unknown position."""
        kind = self._signal(signal, uneven=False)
        vectors = np.empty((len(positions), kind.width), dtype=kind.dtype)
        for number, places, rows in self._by_shard(positions):
            vectors[places] = self._file(number, signal, kind)[rows]
        return vectors.astype(np.float32)

    def read_ragged(self, positions: Rows, signal: str) -> Ragged:
        """Items of a signal of uneven length at these positions, as stored. IndexError for an unknown position."""
        kind = self._signal(signal, uneven=True)
        parts = [Ragged(np.empty((0, kind.width), kind.dtype), np.empty(0, np.int64))]
        order = [np.empty(0, np.int64)]
        for number, places, rows in self._by_shard(positions):
            offsets = self._file(number, signal + OFFSETS, _OFFSET)[:, 0]
            lengths = offsets[rows + 1] - offsets[rows]
            items = self._file(number, signal, kind)[item_positions(offsets[rows], lengths)]
            parts.append(Ragged(items, lengths))
            order.append(places)
        return join_ragged(parts).take(np.argsort(np.concatenate(order)))

    def append(
        self,
        keys: Keys,
        signals: Mapping[str, Array | Ragged],
        describe: Describe,
        number: int | None = None,
        all_new: bool = False,
    ) -> None:
        """Add one shard: keys (V16, [n]) and every signal of the cache ([n, width], or Ragged for an uneven one).

        Texts that the cache has are left out; `describe(row)` gives a row's text, for messages. Waits for other
        writers. The shard has the given `number` if that is free, else the smallest free one. `all_new`: the caller,
        who holds the cache, knows that each text is there once and is new. The keys then need no memory.
        Errors: DistilvecError for vectors that must not be stored, or a full disk; nothing of the shard is left then.
        """
        assert set(signals) == set(self.signals)
        with self.writing():
            keys = np.ascontiguousarray(keys, dtype=KEY)
            stored = {}  # all of it is checked before the first file is written
            for name, signal in self.signals.items():
                stored[name] = stored_form(name, signals[name], len(keys), signal, describe)

            new_rows = np.arange(len(keys))
            if not all_new:
                new_rows = np.sort(np.unique(keys, return_index=True)[1])
                new_rows = new_rows[self.positions(keys[new_rows]) < 0]
            if len(new_rows) == 0:
                return

            arrays: dict[str, Array] = {"keys": keys[new_rows]}
            for name, values in stored.items():
                if isinstance(values, Ragged):
                    items = values if len(new_rows) == len(values) else values.take(new_rows)
                    arrays[name] = np.ascontiguousarray(items.values)
                    arrays[name + OFFSETS] = items.offsets
                else:
                    arrays[name] = values[new_rows]
            cosine = worst_cosine(np.asarray(signals["embedding"])[new_rows], arrays["embedding"])
            shard = Shard(self._free_number(number), len(new_rows), notes={"worst_cosine": cosine})
            self._write(shard, arrays)

    def adopt(self, shard: Shard, source: Path) -> None:
        """Add another cache's shard, whose keys are new here, by its files; the caller holds the cache for writing.

        The shard's number stays if it is free: then the files are those of one process that computed every shard.
        """
        number = self._free_number(shard.number)
        needed = sum(size for size, _ in shard.files.values())
        with journal.write_errors(self.folder, needed):
            adopted, size = journal.adopt_shard(self.folder, shard, source, number, self._journal_size)
        self._journal_size = size
        self._admit(adopted)

    def sort_shards(self) -> None:
        """Write the journal in the order of the shards' numbers; the caller holds the cache for writing."""
        shards = sorted(self._shards, key=lambda shard: shard.number)
        if shards != self._shards:
            journal.write_journal(self.folder, shards)
            self._load()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the cache for writing, with all that others have written; waits while another process holds it.

        May be entered again inside: a whole filling holds the lock, and so does each `append` in it.
        """
        if self._is_writing:
            yield
            return
        with journal.lock(self.folder):
            self._is_writing = True
            try:
                # In this order: only a journal that was read under the lock tells which files nobody needs.
                self._load()
                with journal.write_errors(self.folder, 0):
                    journal.remove_leftovers(self.folder, self._shards, file_names(self.signals))
                yield
            finally:
                self._is_writing = False

    def inspect(self) -> CacheSummary:
        """Rows, shards, bytes, bytes a text (also by signal), smallest cosine to the stored form, and the manifest."""
        sizes: dict[str, int] = {}
        for shard in self._shards:
            for file_name, (size, _) in shard.files.items():
                name = file_name.removesuffix(OFFSETS)
                sizes[name] = sizes.get(name, 0) + size
        total = sum(sizes.values())
        cosines = [shard.notes.get("worst_cosine", 1.0) for shard in self._shards]
        return {
            "rows": len(self),
            "shards": len(self._shards),
            "bytes": total,
            "bytes_per_text": round(total / len(self), 1) if len(self) else 0.0,
            "bytes_per_text_by_signal": {name: round(size / len(self), 1) for name, size in sizes.items()},
            "worst_cosine": min(cosines, default=None),
            "fingerprint": self.manifest.fingerprint,
            "manifest": self.manifest.settings(),
        }

    def close(self) -> None:
        """Unmap the files; reading maps them again."""
        self._files.clear()

    def _load(self) -> None:
        """Read the journal and admit the shards that are new in it."""
        contents = read_journal(self.folder)
        self._journal_size = contents.size
        loaded = [_identity(shard) for shard in self._shards]
        if loaded != [_identity(shard) for shard in contents.shards[: len(loaded)]]:  # sorted, or repaired by a process
            self.close()
            loaded = []
            self._index = KeyIndex()
            self._indexed = 0
            self._shard_ends = self._shard_ends[:0]
        for shard in contents.shards:
            problems = shard.problems(self.folder, shard.files, checksum=None)
            if problems:
                raise damaged(self.folder, problems[0])
        self._shards = contents.shards[: len(loaded)]
        for shard in contents.shards[len(loaded) :]:
            self._admit(shard)

    def _admit(self, shard: Shard) -> None:
        self._shard_ends = np.append(self._shard_ends, len(self) + shard.rows)
        self._shards.append(shard)

    def _keys_of(self, shard: Shard) -> Keys:
        keys: Keys = np.load(shard.verify(self.folder, "keys"), allow_pickle=False)
        if keys.shape != (shard.rows,) or keys.dtype != KEY:
            raise damaged(self.folder, f"shard {shard.number} has damaged keys")
        return keys

    def free_numbers(self) -> Iterator[int]:
        """Numbers that no shard has, in order, as of the first one that is asked for."""
        numbers = {shard.number for shard in self._shards}
        for number in count():
            if number not in numbers:
                yield number

    def _free_number(self, preferred: int | None) -> int:
        """The preferred number if no shard has it, else the smallest free one."""
        if preferred is not None and all(shard.number != preferred for shard in self._shards):
            return preferred
        return next(self.free_numbers())

    def _write(self, shard: Shard, arrays: dict[str, Array]) -> None:
        """Write a shard and admit it; nothing of the shard is left if that fails. The caller holds the cache."""
        with journal.write_errors(self.folder, sum(array.nbytes for array in arrays.values())):
            try:
                self._journal_size = journal.write_shard(self.folder, shard, arrays, self._journal_size)
            except OSError:
                journal.remove_leftovers(self.folder, self._shards, file_names(self.signals))
                raise
        self._admit(shard)

    def _by_shard(self, positions: Rows) -> Iterator[tuple[int, Rows, Rows]]:
        """For each shard concerned: its place in the list, places in `positions`, and the shard's rows for these."""
        positions = np.asarray(positions, dtype=np.int64)
        if len(positions) == 0:
            return
        if not 0 <= positions.min() <= positions.max() < len(self):
            raise IndexError(f"positions {positions.min()} to {positions.max()} of a cache with {len(self)} rows")
        shards = np.searchsorted(self._shard_ends, positions, side="right")
        order = np.argsort(shards, kind="stable")
        next_shard_at = np.flatnonzero(np.diff(shards[order])) + 1
        for places in np.split(order, next_shard_at):
            number = int(shards[places[0]])
            first_position = self._shard_ends[number] - self._shards[number].rows
            yield number, places, positions[places] - first_position

    def _file(self, number: int, name: str, kind: Signal) -> Array:
        """A shard's file as an array [items, width] on a memory map, which holds no file open; verified once."""
        if (number, name) not in self._files:
            shard = self._shards[number]
            path = shard.verify(self.folder, name)
            size, _ = shard.files[name]
            # np.memmap would hold a file open for each signal of each shard, of which a process may have too few.
            data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).numpy()
            header = 10 + int(data[8:10].view("<u2")[0])  # of the .npy format, version 1.0
            self._files[number, name] = data[header:].view(kind.dtype).reshape(-1, kind.width)
        return self._files[number, name]

    def _signal(self, name: str, uneven: bool) -> Signal:
        signal = self.signals.get(name)
        if signal is None or signal.uneven != uneven:
            raise DistilvecError(
                f"{self.folder} has no signal '{name}', only {', '.join(self.signals)}.",
                "Fill another cache.",
                key=KEY_NAME,
            )
        return signal


def _identity(shard: Shard) -> tuple[Any, ...]:
    """What tells a shard from another one: a repaired cache may have other rows under a number."""
    return shard.number, shard.rows, shard.files.get("keys")


def _manifest_of(folder: Path) -> Manifest:
    if not (folder / MANIFEST).is_file():
        raise DistilvecError(
            f"{folder} is not a teacher cache: it has no {MANIFEST}.",
            "Give the folder that `distilvec cache fill` prints.",
            key=KEY_NAME,
        )
    return read_manifest(folder / MANIFEST)


def stored_form(name: str, values: Array | Ragged, rows: int, signal: Signal, describe: Describe) -> Array | Ragged:
    """A signal of `rows` texts in the number format of the cache; of uneven length it comes in that format.

    Errors: DistilvecError for another shape, NaN, infinite or all-zero vectors and values that overflow the format.
    """
    if isinstance(values, Ragged):
        _check_ragged(name, values, rows, signal, describe)
        return values
    values = np.asarray(values)
    if values.shape != (rows, signal.width):
        raise _wrong_shape(f"{name} vectors", values, f"[{rows}, {signal.width}]", rows)
    with np.errstate(over="ignore"):  # an overflow is refused below, with its text
        stored = values.astype(signal.dtype)
    refuse(np.isfinite(values).all(1), f"{name} vectors hold NaN or infinity", describe)
    refuse(np.isfinite(stored).all(1), f"{name} vectors overflow {signal.dtype}", describe, _FLOAT32)
    refuse(values.any(1), f"{name} vectors are all zeros", describe, _EMPTY)
    refuse(stored.any(1), f"{name} vectors are all zeros in {signal.dtype}", describe, _FLOAT32)
    return stored


def _check_ragged(name: str, values: Ragged, rows: int, signal: Signal, describe: Describe) -> None:
    shape = (int(values.lengths.sum()), signal.width)
    if values.values.shape != shape or values.values.dtype != signal.dtype or len(values) != rows:
        what = f"{name} of {len(values):,} rows"
        raise _wrong_shape(what, values.values, f"{list(shape)} {signal.dtype}", rows)
    if signal.dtype == "float16":
        is_valid = np.ones(rows, dtype=bool)
        wrong_items = np.flatnonzero(~np.isfinite(values.values).all(1))
        is_valid[np.searchsorted(values.offsets, wrong_items, side="right") - 1] = False
        refuse(is_valid, f"{name} holds NaN, infinity or values beyond float16", describe)


def refuse(is_valid: Any, problem: str, describe: Describe, fix: str = _INVALID) -> None:
    """DistilvecError that quotes the first text that is not valid (`is_valid`: [rows]), unless all are."""
    if is_valid.all():
        return
    text = beginning(describe(int(np.argmin(is_valid))))
    count = int((~is_valid).sum())
    raise DistilvecError(
        f"{problem}: {count:,} of {len(is_valid):,} texts, such as {text}.",
        f"{fix} Shards before are kept.",
        key="teacher",
    )


def worst_cosine(exact: Array, stored: Array) -> float:
    """Smallest cosine between vectors and their stored form (both [rows, dim]), to 9 digits."""
    dots = np.einsum("rd,rd->r", exact, stored, dtype=np.float64)
    exact_squares = np.einsum("rd,rd->r", exact, exact, dtype=np.float64)
    stored_squares = np.einsum("rd,rd->r", stored, stored, dtype=np.float64)
    cosines = dots / np.sqrt(exact_squares * stored_squares)
    return round(float(min(1.0, cosines.min())), 9)


def beginning(text: str) -> str:
    """The start of a text in quotes, on one line."""
    line = " ".join(text.split())
    if len(line) > _QUOTE_LENGTH:
        line = line[:_QUOTE_LENGTH] + "…"
    return repr(line)


def _wrong_shape(what: str, values: Array, expected: str, rows: int) -> DistilvecError:
    return DistilvecError(
        f"the teacher's {what} have shape {values.shape} and type {values.dtype}; expected {expected}, for {rows:,} "
        "texts, as the cache's manifest has it. The model has changed since: choose another cache folder.",
        key="teacher",
    )
