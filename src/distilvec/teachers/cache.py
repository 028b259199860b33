"""The teacher cache: vectors by text, in checked shards that survive a kill at any moment.

    manifest.json             what the vectors depend on
    shards.jsonl              the journal: one line a shard, with rows and, for every file, bytes and checksum
    00000.keys.npy            [rows] V16, the key of each text behind its prompt (data.corpus.text_key)
    00000.embedding.npy       [rows, width] float16 or float32
    00000.pre_dense.npy       [rows, pre_dense_width], if the manifest says so
    lock                      held by the one process that writes

Files are plain .npy and can be memory-mapped as such. A file counts once the journal names it. A further signal is a
further file: `NNNNN.<signal>.npy` with one row a text, or, for signals of uneven length, `NNNNN.<signal>.npy` with the
values end to end and `NNNNN.<signal>-offsets.npy` [rows + 1]. It may stand in the shard's line from the beginning or in
a later line about the same shard; readers take no notice of names they do not ask for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DistilvecError
from distilvec.teachers.checks import Describe, stored_form, worst_cosine
from distilvec.teachers.keys import KEY, KeyIndex
from distilvec.teachers.manifest import Manifest, read_manifest
from distilvec.teachers.shards import (
    JOURNAL,
    TEMPORARY,
    Shard,
    append_journal,
    how_to_repair,
    read_journal,
    remove_leftovers,
    replace_file,
    telling_disk_full,
    write_shard,
)

MANIFEST = "manifest.json"
LOCK = "lock"
SHARD_ROWS = 16384
_OPEN_FILES = 128


class TeacherCache:
    """Vectors of texts on disk; made by `create_or_open`, or opened from its folder. Positions count rows from 0.

    Reading copies the rows that are asked for and nothing else; in memory are the keys (20 bytes a row). Any number of
    processes may read while one writes; a reader sees the shards that were there when it opened.
    """

    def __init__(self, folder: Path, manifest: Manifest, shard_rows: int = SHARD_ROWS) -> None:
        self.folder, self.manifest, self.shard_rows = folder, manifest, shard_rows
        self._shards: list[Shard] = []
        self._ends: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._index = KeyIndex()
        self._whole = 0  # bytes of the journal that are whole lines
        self._writes = False
        self._files: dict[tuple[int, str], int] = {}
        self._load()

    @classmethod
    def create_or_open(cls, folder: Path, manifest: Manifest, shard_rows: int = SHARD_ROWS) -> TeacherCache:
        """The cache in `folder`, new if there is none; `shard_rows` is the size of shards written from now on.

        Errors: DistilvecError if the folder holds something else, other vectors than `manifest` asks for (each differing
        field is named) or damaged shards.
        """
        path = folder / MANIFEST
        if path.exists():
            differences = read_manifest(path).differences(manifest)
            if differences:
                listed = "".join(f"\n  {line}" for line in differences)
                raise DistilvecError(
                    f"[cache.path] {folder} holds the vectors of another teacher or other settings:{listed}\n"
                    "Set these back in the recipe, or choose another cache.path (without one, every teacher gets its own folder)."
                )
        else:
            if folder.exists() and (not folder.is_dir() or any(file.name != path.name + TEMPORARY for file in folder.iterdir())):
                raise DistilvecError(
                    f"[cache.path] {folder} exists and is not a teacher cache: it has no {MANIFEST}. Choose another folder."
                )
            with telling_disk_full(folder.parent if not folder.exists() else folder, 0):
                folder.mkdir(parents=True, exist_ok=True)
                replace_file(path, manifest.to_json().encode())
        return cls(folder, manifest, shard_rows)

    @classmethod
    def open(cls, folder: Path) -> TeacherCache:
        """The cache that is in `folder`. DistilvecError if there is none, or shards are missing or cut short."""
        return cls(folder, _manifest_of(folder))

    @classmethod
    def verify_folder(cls, folder: Path, repair: bool = False) -> list[str]:
        """Compare every file with its checksum: one line for each problem. `repair` drops the shards concerned.

        Works where `open` refuses. Errors: DistilvecError if the folder is no cache, or another process writes to it.
        """
        _manifest_of(folder)
        journal = read_journal(folder, strict=False)
        problems = [f"{JOURNAL}: {journal.damaged} damaged line(s); their rows must be computed again"] if journal.damaged else []
        sound = []
        for shard in journal.shards:
            found = shard.problems(folder, checksums=True)
            problems += [f"{problem}; its {shard.rows:,} rows must be computed again" for problem in found]
            sound += [] if found else [shard]
        if problems and repair:
            with _locked(folder), telling_disk_full(folder, 0):
                replace_file(folder / JOURNAL, b"".join(shard.to_line() for shard in sound))
                remove_leftovers(folder, sound)
        return problems

    @property
    def width(self) -> int:
        """Dimensions of an embedding."""
        return self.manifest.width

    @property
    def signals(self) -> dict[str, int]:
        """Width of every signal that a row has here."""
        pre_dense = self.manifest.pre_dense_width
        return {"embedding": self.width} if pre_dense is None else {"embedding": self.width, "pre_dense": pre_dense}

    def __len__(self) -> int:
        return len(self._index)

    def positions(self, keys: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """int64 [n] positions of keys (V16, [n]); -1 where a text is missing."""
        return self._index.positions(keys)

    def read(self, positions: npt.NDArray[np.int64], signal: str = "embedding") -> npt.NDArray[np.float32]:
        """float32 [n, width] of a signal at these positions. IndexError for a position that is not there."""
        if signal not in self.signals:
            raise DistilvecError(f"the teacher cache {self.folder} holds {', '.join(self.signals)}; '{signal}' was asked for.")
        positions = np.asarray(positions, dtype=np.int64)
        rows = np.empty((len(positions), self.signals[signal]), dtype=self.manifest.store_dtype)
        if len(rows) == 0:
            return rows.astype(np.float32)
        if positions.min() < 0 or positions.max() >= len(self):
            raise IndexError(f"positions {positions.min()} to {positions.max()} of a cache with {len(self)} rows")
        shards = np.searchsorted(self._ends, positions, side="right")
        starts = np.flatnonzero(np.r_[True, (np.diff(positions) != 1) | (np.diff(shards) != 0)])  # runs that lie end to end
        for first, last in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
            number = int(shards[first])
            shard, size = self._shards[number], rows[first].nbytes
            row = int(positions[first]) - (int(self._ends[number]) - shard.rows)
            header = shard.files[signal].bytes - shard.rows * size
            self._read_into(rows[first:last], number, signal, header + row * size)
        return rows.astype(np.float32)

    def append(self, keys: npt.NDArray[Any], signals: dict[str, npt.NDArray[Any]], describe: Describe) -> None:
        """Add one shard: keys (V16, [n]) and every signal of the cache [n, width]; texts that are there already are left out.

        `describe(row)` gives a row's text, for messages. Errors: DistilvecError for vectors that must not be stored, a full
        disk, another writer; then nothing of the shard is there.
        """
        if set(signals) != set(self.signals):
            raise DistilvecError(f"the teacher cache {self.folder} stores {sorted(self.signals)} for a text; found {sorted(signals)}.")
        with self.writing():
            keys = np.ascontiguousarray(keys, dtype=KEY)
            kind, rows = self.manifest.store_dtype, len(keys)
            stored = {name: stored_form(name, signals[name], rows, width, kind, describe) for name, width in self.signals.items()}
            new = np.sort(np.unique(keys, return_index=True)[1])
            new = new[self.positions(keys[new]) < 0]
            if len(new) == 0:
                return
            notes = {"worst_cosine": worst_cosine(np.asarray(signals["embedding"])[new], stored["embedding"][new])}
            taken = {shard.number for shard in self._shards}
            number = next(number for number in range(len(taken) + 1) if number not in taken)
            shard = Shard(number, len(new), notes=notes)
            arrays = {"keys": keys[new], **{name: array[new] for name, array in stored.items()}}
            with telling_disk_full(self.folder, sum(array.nbytes for array in arrays.values())):
                try:
                    write_shard(self.folder, shard, arrays)
                    self._whole = append_journal(self.folder, shard, self._whole)
                except OSError:
                    remove_leftovers(self.folder, self._shards)
                    raise
            self._admit(shard, arrays["keys"])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the cache for writing, with whatever others have written meanwhile. DistilvecError if another process holds it."""
        if self._writes:
            yield
            return
        with _locked(self.folder):
            self._writes = True
            try:
                self._load()
                remove_leftovers(self.folder, self._shards)
                yield
            finally:
                self._writes = False

    def verify(self) -> list[str]:
        """Compare every file with its checksum: one line for each problem, none if all is well."""
        return self.verify_folder(self.folder)

    def inspect(self) -> dict[str, Any]:
        """Rows, shards, bytes, bytes a text, the worst cosine between a vector and its stored form, and the manifest."""
        size = sum(stored.bytes for shard in self._shards for stored in shard.files.values())
        return {
            "rows": len(self),
            "shards": len(self._shards),
            "bytes": size,
            "bytes_per_text": round(size / len(self), 1) if len(self) else 0.0,
            "worst_cosine": min((shard.notes.get("worst_cosine", 1.0) for shard in self._shards), default=None),
            "fingerprint": self.manifest.fingerprint,
            "manifest": vars(self.manifest).copy(),
        }

    def close(self) -> None:
        """Close the files that are open; reading opens them again."""
        while self._files:
            os.close(self._files.popitem()[1])

    def __del__(self) -> None:
        if hasattr(self, "_files"):
            self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Read the journal and admit the shards that are not known yet."""
        journal = read_journal(self.folder)
        shards, self._whole = journal.shards, journal.whole
        known = [shard.number for shard in self._shards]
        if known != [shard.number for shard in shards[: len(known)]]:  # repaired by another process
            known, self._shards, self._index, self._ends = [], [], KeyIndex(), self._ends[:0]
            self.close()
        problems = [problem for shard in shards for problem in shard.problems(self.folder, checksums=False)]
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise DistilvecError(f"teacher cache {self.folder}: {problems[0]}{more}. {how_to_repair(self.folder)}")
        self._shards = shards[: len(known)]
        for shard in shards[len(known) :]:
            keys = np.load(shard.path(self.folder, "keys"), allow_pickle=False)
            if keys.shape != (shard.rows,) or keys.dtype != KEY:
                raise DistilvecError(f"teacher cache {self.folder}: shard {shard.number} has damaged keys. {how_to_repair(self.folder)}")
            self._admit(shard, keys)

    def _admit(self, shard: Shard, keys: npt.NDArray[Any]) -> None:
        self._shards.append(shard)
        self._index.add(keys)
        self._ends = np.append(self._ends, len(self._index))

    def _read_into(self, rows: npt.NDArray[Any], number: int, signal: str, offset: int) -> None:
        """Fill `rows` from a shard's file; the files read last stay open."""
        handle = self._files.pop((number, signal), None)
        if handle is None:
            if len(self._files) >= _OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            handle = os.open(self._shards[number].path(self.folder, signal), os.O_RDONLY)
        self._files[number, signal] = handle
        view = rows.data.cast("B")
        while len(view):
            count = os.preadv(handle, [view], offset)
            if count == 0:
                raise DistilvecError(f"teacher cache {self.folder}: shard {number} ends too early. {how_to_repair(self.folder)}")
            view, offset = view[count:], offset + count


def _manifest_of(folder: Path) -> Manifest:
    if not (folder / MANIFEST).is_file():
        raise DistilvecError(f"{folder} is not a teacher cache: it has no {MANIFEST}. Give the folder that `distilvec cache fill` prints.")
    return read_manifest(folder / MANIFEST)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system frees when the process ends; refused if another holds it."""
    with telling_disk_full(folder, 0), (folder / LOCK).open("a+") as file:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise DistilvecError(
                    f"[cache.path] process {file.read().strip()} is writing to the teacher cache {folder}. "
                    "Wait until it has ended and run the same command again."
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield
