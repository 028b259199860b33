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

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_file
from distilvec.core.hashing import checksum
from distilvec.teachers.cache import shard as journal
from distilvec.teachers.cache.index import KEY, KeyIndex, Keys
from distilvec.teachers.cache.manifest import Manifest, read_manifest
from distilvec.teachers.cache.shard import JOURNAL, KEY_NAME, Shard, damaged, read_journal
from distilvec.teachers.cache.signals import OFFSETS, Array, Ragged, Rows, Signal, file_names, item_positions, join
from distilvec.teachers.cache.validate import Describe, stored_form, worst_cosine

MANIFEST = "manifest.json"
SHARD_ROWS = 16384
_OFFSET = Signal(1, "int64")


class TeacherCache:
    """Vectors of texts on disk; made by `create_or_open`, or opened from its folder. Positions count rows from 0.

    Reading copies the requested rows and nothing else; in memory are the keys (20 bytes a row). Any number of processes
    may read while one writes; a reader sees the shards of the moment when it opened the cache.
    """

    def __init__(self, folder: Path, manifest: Manifest, shard_rows: int = SHARD_ROWS) -> None:
        self.folder, self.manifest, self.shard_rows = folder, manifest, shard_rows
        self._shards: list[Shard] = []
        self._ends: Rows = np.zeros(0, dtype=np.int64)  # rows up to each shard's end
        self._index = KeyIndex()
        self._files: dict[tuple[int, str], Array] = {}
        self._whole = 0  # bytes of the journal's whole lines
        self._writes = False
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
        found = read_manifest(folder / MANIFEST)
        if manifest.fingerprint in found.subsets:
            return cls(folder, found, shard_rows)
        found.check_equal(manifest, KEY_NAME, str(folder))
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
            shards, _, broken = read_journal(folder, strict=False)
            found = {shard.number: shard.problems(folder, shard.files, checksum) for shard in shards}
            again = "must be computed again"
            problems = [f"{JOURNAL}: {broken} damaged line(s); their rows {again}"] if broken else []
            for shard in shards:
                problems += [f"{problem}; its {shard.rows:,} rows {again}" for problem in found[shard.number]]
            if problems and repair:
                sound = [shard for shard in shards if not found[shard.number]]
                with journal.write_errors(folder, 0):
                    write_file(folder / JOURNAL, b"".join(shard.to_line() for shard in sound), KEY_NAME)
                    journal.remove_leftovers(folder, sound, names)
        return problems

    def verify(self) -> list[str]:
        """Compare every file with its checksum: one line for each problem."""
        return self.verify_folder(self.folder)

    @property
    def signals(self) -> dict[str, Signal]:
        """Every signal of a row."""
        return self.manifest.signals

    def __len__(self) -> int:
        return len(self._index)

    def positions(self, keys: Keys) -> Rows:
        """int64 [n] positions of keys; -1 for a missing text."""
        return self._index.positions(keys)

    def read(self, positions: Rows, signal: str = "embedding") -> npt.NDArray[np.float32]:
        """float32 [n, width] of a signal at these positions. IndexError for an unknown position."""
        kind = self._known(signal, uneven=False)
        found = np.empty((len(positions), kind.width), dtype=kind.dtype)
        for number, chosen, rows in self._by_shard(positions):
            found[chosen] = self._file(number, signal, kind)[rows]
        return found.astype(np.float32)

    def read_ragged(self, positions: Rows, signal: str) -> Ragged:
        """Items of a signal of uneven length at these positions, as stored. IndexError for an unknown position."""
        kind = self._known(signal, uneven=True)
        parts, order = [Ragged(np.empty((0, kind.width), kind.dtype), np.empty(0, np.int64))], [np.empty(0, np.int64)]
        for number, chosen, rows in self._by_shard(positions):
            offsets = self._file(number, signal + OFFSETS, _OFFSET)[:, 0]
            lengths = offsets[rows + 1] - offsets[rows]
            items = self._file(number, signal, kind)[item_positions(offsets[rows], lengths)]
            parts.append(Ragged(items, lengths))
            order.append(chosen)
        return join(parts).take(np.argsort(np.concatenate(order)))

    def append(
        self, keys: Keys, signals: Mapping[str, Array | Ragged], describe: Describe, number: int | None = None
    ) -> None:
        """Add one shard: keys (V16, [n]) and every signal of the cache ([n, width], or Ragged for an uneven one).

        Texts that the cache has are left out; `describe(row)` gives a row's text, for messages. Waits for other
        writers. The shard has the given `number` if that is free, else the smallest free one.
        Errors: DistilvecError for vectors that must not be stored, or a full disk; nothing of the shard is left then.
        """
        if set(signals) != set(self.signals):
            raise DistilvecError(
                KEY_NAME, f"{self.folder} stores {[*self.signals]}; found {[*signals]}.", "Use another."
            )
        with self.writing():
            keys = np.ascontiguousarray(keys, dtype=KEY)
            stored = {
                name: stored_form(name, signals[name], len(keys), signal, describe)
                for name, signal in self.signals.items()
            }
            new = np.sort(np.unique(keys, return_index=True)[1])
            new = new[self.positions(keys[new]) < 0]
            if len(new) == 0:
                return
            arrays: dict[str, Array] = {"keys": keys[new]}
            for name, values in stored.items():
                if isinstance(values, Ragged):
                    kept = values if len(new) == len(values) else values.take(new)
                    arrays |= {name: np.ascontiguousarray(kept.values), name + OFFSETS: kept.offsets}
                else:
                    arrays[name] = values[new]
            notes = {"worst_cosine": worst_cosine(np.asarray(signals["embedding"])[new], arrays["embedding"])}
            self._write(Shard(next(self.free_numbers(number)), len(new), notes=notes), arrays)

    def adopt(self, shard: Shard, source: Path, keys: Keys) -> None:
        """Add another cache's shard, whose keys are new here, by its files; it keeps its number if that is free."""
        number = next(self.free_numbers(shard.number))
        with journal.write_errors(self.folder, sum(size for size, _ in shard.files.values())):
            new, self._whole = journal.adopt_shard(self.folder, shard, source, number, self._whole)
        self._admit(new, keys)

    def sort_shards(self) -> None:
        """Write the journal in the order of the shards' numbers; the caller holds the cache for writing."""
        if self._shards != (ordered := sorted(self._shards, key=lambda shard: shard.number)):
            write_file(self.folder / JOURNAL, b"".join(shard.to_line() for shard in ordered), KEY_NAME)
            self._load()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the cache for writing, with all that others have written; waits while another process holds it."""
        if self._writes:
            yield
            return
        with journal.lock(self.folder):
            self._writes = True
            try:
                self._load()
                with journal.write_errors(self.folder, 0):
                    journal.remove_leftovers(self.folder, self._shards, file_names(self.signals))
                yield
            finally:
                self._writes = False

    def inspect(self) -> dict[str, Any]:
        """Rows, shards, bytes, bytes a text (also by signal), smallest cosine to the stored form, and the manifest."""
        shards, sizes = self._shards, dict[str, int]()
        for shard in shards:
            for name, (size, _) in shard.files.items():
                name = name.removesuffix(OFFSETS)
                sizes[name] = sizes.get(name, 0) + size
        return {
            "rows": len(self),
            "shards": len(shards),
            "bytes": sum(sizes.values()),
            "bytes_per_text": round(sum(sizes.values()) / len(self), 1) if len(self) else 0.0,
            "bytes_per_text_by_signal": {name: round(size / len(self), 1) for name, size in sizes.items()},
            "worst_cosine": min((shard.notes.get("worst_cosine", 1.0) for shard in shards), default=None),
            "fingerprint": self.manifest.fingerprint,
            "manifest": self.manifest.settings(),
        }

    def close(self) -> None:
        """Unmap the files; reading maps them again."""
        self._files.clear()

    def _load(self) -> None:
        """Read the journal and admit the shards that are not known yet."""
        shards, self._whole, _ = read_journal(self.folder)
        known = [shard.number for shard in self._shards]
        if known != [shard.number for shard in shards[: len(known)]]:  # repaired by another process
            self.close()
            known, self._index, self._ends = [], KeyIndex(), self._ends[:0]
        for shard in shards:
            if problems := shard.problems(self.folder, shard.files, checksum=None):
                raise damaged(self.folder, problems[0])
        self._shards = shards[: len(known)]
        for shard in shards[len(known) :]:
            keys = np.load(shard.verify(self.folder, "keys"), allow_pickle=False)
            if keys.shape != (shard.rows,) or keys.dtype != KEY:
                raise damaged(self.folder, f"shard {shard.number} has damaged keys")
            self._admit(shard, keys)

    def _admit(self, shard: Shard, keys: Keys) -> None:
        self._shards.append(shard)
        self._ends = np.append(self._ends, len(self) + shard.rows)
        self._index.add(keys)

    def free_numbers(self, first: int | None = None) -> Iterator[int]:
        """Numbers that no shard has, in order; before them `first`, if no shard has it."""
        taken = {shard.number for shard in self._shards}
        return (number for number in chain(() if first is None else (first,), count()) if number not in taken)

    def _write(self, shard: Shard, arrays: dict[str, Array]) -> None:
        """Write a shard and admit it; nothing of the shard is left if that fails."""
        with journal.write_errors(self.folder, sum(array.nbytes for array in arrays.values())):
            try:
                self._whole = journal.write_shard(self.folder, shard, arrays, self._whole)
            except OSError:
                journal.remove_leftovers(self.folder, self._shards, file_names(self.signals))
                raise
        self._admit(shard, arrays["keys"])

    def _by_shard(self, positions: Rows) -> Iterator[tuple[int, Rows, Rows]]:
        """For each shard concerned: its index, rows of the result, rows of the shard."""
        positions = np.asarray(positions, dtype=np.int64)
        if len(positions) and not 0 <= positions.min() <= positions.max() < len(self):
            raise IndexError(f"positions {positions.min()} to {positions.max()} of a cache with {len(self)} rows")
        shards = np.searchsorted(self._ends, positions, side="right")
        order = np.argsort(shards, kind="stable")
        for chosen in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1) if len(order) else ():
            number = int(shards[chosen[0]])
            yield number, chosen, positions[chosen] - (self._ends[number] - self._shards[number].rows)

    def _file(self, number: int, name: str, kind: Signal) -> Array:
        """A shard's file as an array [items, width] on a memory map, which holds no file open; verified once."""
        if (number, name) not in self._files:
            shard = self._shards[number]
            path, size = shard.verify(self.folder, name), shard.files[name][0]
            data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).numpy()
            header = 10 + int(data[8:10].view("<u2")[0])  # of the .npy format, version 1.0
            self._files[number, name] = data[header:].view(kind.dtype).reshape(-1, kind.width)
        return self._files[number, name]

    def _known(self, name: str, uneven: bool) -> Signal:
        signal = self.signals.get(name)
        if signal is None or signal.uneven != uneven:
            known = ", ".join(self.signals)
            raise DistilvecError(
                KEY_NAME, f"{self.folder} has no signal '{name}', only {known}.", "Fill another cache."
            )
        return signal


def _manifest_of(folder: Path) -> Manifest:
    if not (folder / MANIFEST).is_file():
        raise DistilvecError(
            KEY_NAME,
            f"{folder} is not a teacher cache: it has no {MANIFEST}.",
            "Give the folder that `distilvec cache fill` prints.",
        )
    return read_manifest(folder / MANIFEST)
