"""The teacher cache: vectors by text, in checked shards that survive a kill at any moment.

    manifest.json             what the vectors depend on
    shards.jsonl              the journal: one line a shard, with rows and, for every file, bytes and checksum
    00000.keys.npy            [rows] V16, the key of each text behind its prompt (data.corpus.text_key)
    00000.embedding.npy       [rows, width] float16 or float32
    00000.pre_dense.npy       [rows, pre_dense_width], if the manifest says so; vector likewise
    00000.hidden.npy          [items, width], the rows' items end to end: a signal of uneven length, if the manifest has `tokens`
    00000.hidden-offsets.npy  [rows + 1] int64, where each row's items begin
    lock                      held by the one process that writes

Files are plain .npy and can be memory-mapped as such. A file counts once the journal names it. A further signal is a
further file. It may stand in the shard's line from the beginning or in a later line about the same shard; readers take
no notice of names they do not ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_file
from distilvec.teachers.cache.index import KEY, KeyIndex
from distilvec.teachers.cache.layout import Ragged, Signal
from distilvec.teachers.cache.manifest import Manifest, read_manifest
from distilvec.teachers.cache.reader import OFFSETS, Reader
from distilvec.teachers.cache.shard import (
    CACHE_PATH,
    JOURNAL,
    Shard,
    append_journal,
    begin,
    how_to_repair,
    lock,
    read_journal,
    remove_leftovers,
    write_errors,
    write_shard,
)
from distilvec.teachers.cache.validate import Describe, stored_form, stored_items, worst_cosine

MANIFEST = "manifest.json"
SHARD_ROWS = 16384


class TeacherCache:
    """Vectors of texts on disk; made by `create_or_open`, or opened from its folder. Positions count rows from 0.

    Reading copies the rows that are asked for and nothing else; in memory are the keys (20 bytes a row). Any number of
    processes may read while one writes; a reader sees the shards that were there when it opened.
    """

    def __init__(self, folder: Path, manifest: Manifest, shard_rows: int = SHARD_ROWS) -> None:
        self.folder, self.manifest, self.shard_rows = folder, manifest, shard_rows
        self._reader = Reader(folder)
        self._index = KeyIndex()
        self._whole = 0  # bytes of the journal that are whole lines
        self._writes = False
        self._load()

    @classmethod
    def create_or_open(cls, folder: Path, manifest: Manifest, shard_rows: int = SHARD_ROWS) -> TeacherCache:
        """The cache in `folder`, new if there is none; `shard_rows` is the size of shards written from now on.

        A cache that holds more signals than `manifest` asks for is opened as it is.
        Errors: DistilvecError if the folder holds something else, other vectors than `manifest` asks for (each differing
        field is named) or damaged shards.
        """
        if not (folder / MANIFEST).exists():
            begin(folder / MANIFEST, manifest.to_json())
        found = read_manifest(folder / MANIFEST)  # of a process that was faster, perhaps
        if manifest.fingerprint in found.answers - {found.fingerprint}:
            return cls(folder, found, shard_rows)
        if differences := found.differences(manifest):
            listed = "".join(f"\n  {line}" for line in differences)
            raise DistilvecError(
                f"[cache.path] {folder} holds the vectors of another teacher or other settings:{listed}\n"
                "Set these back in the recipe, or choose another cache.path (without one, every teacher gets its own folder)."
            )
        return cls(folder, manifest, shard_rows)

    @classmethod
    def open(cls, folder: Path) -> TeacherCache:
        """The cache that is in `folder`. DistilvecError if there is none, or shards are missing or cut short."""
        return cls(folder, _manifest_of(folder))

    @classmethod
    def verify_folder(cls, folder: Path, repair: bool = False) -> list[str]:
        """Compare every file with its checksum: one line for each problem. `repair` drops the shards concerned.

        Works where `open` refuses. Errors: DistilvecError if the folder is no cache, or is to be repaired while another process
        writes to it.
        """
        names = _file_names(_manifest_of(folder))
        with lock(folder, wait=False) if repair else nullcontext():
            sound, problems = cls._sound(folder)
            if problems and repair:
                with write_errors(folder, 0):
                    write_file(folder / JOURNAL, b"".join(shard.to_line() for shard in sound), CACHE_PATH)
                    remove_leftovers(folder, sound, names)
        return problems

    @staticmethod
    def _sound(folder: Path) -> tuple[list[Shard], list[str]]:
        """The shards without damage, and a line for each problem of the others."""
        journal = read_journal(folder, strict=False)
        problems = (
            [f"{JOURNAL}: {journal.damaged} damaged line(s); their rows must be computed again"]
            if journal.damaged
            else []
        )
        sound = []
        for shard in journal.shards:
            found = shard.problems(folder, checksums=True)
            problems += [f"{problem}; its {shard.rows:,} rows must be computed again" for problem in found]
            sound += [] if found else [shard]
        return sound, problems

    @property
    def width(self) -> int:
        """Dimensions of an embedding."""
        return self.manifest.width

    @property
    def signals(self) -> dict[str, Signal]:
        """Every signal that a row has here."""
        return self.manifest.signals

    def __len__(self) -> int:
        return len(self._index)

    def positions(self, keys: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """int64 [n] positions of keys (V16, [n]); -1 where a text is missing."""
        return self._index.positions(keys)

    def read(self, positions: npt.NDArray[np.int64], signal: str = "embedding") -> npt.NDArray[np.float32]:
        """float32 [n, width] of a signal at these positions. IndexError for a position that is not there."""
        return self._reader.rows(
            np.asarray(positions, dtype=np.int64), signal, self._known(signal, uneven=False)
        ).astype(np.float32)

    def read_ragged(self, positions: npt.NDArray[np.int64], signal: str) -> Ragged:
        """The items of a signal of uneven length at these positions, as stored. IndexError for a position that is not there."""
        return self._reader.ragged(np.asarray(positions, dtype=np.int64), signal, self._known(signal, uneven=True))

    def append(
        self, keys: npt.NDArray[Any], signals: Mapping[str, npt.NDArray[Any] | Ragged], describe: Describe
    ) -> None:
        """Add one shard: keys (V16, [n]) and every signal of the cache ([n, width], or Ragged where it is of uneven length).

        Texts that are there already are left out; `describe(row)` gives a row's text, for messages. Errors: DistilvecError
        for vectors that must not be stored, or a full disk; then nothing of the shard is there. Waits for other writers.
        """
        if set(signals) != set(self.signals):
            raise DistilvecError(
                f"[{CACHE_PATH}] the teacher cache {self.folder} stores {sorted(self.signals)} for a text; found {sorted(signals)}."
            )
        with self.writing():
            keys = np.ascontiguousarray(keys, dtype=KEY)
            stored = {
                name: _stored(name, signals[name], len(keys), signal, describe) for name, signal in self.signals.items()
            }
            new = np.sort(np.unique(keys, return_index=True)[1])
            new = new[self.positions(keys[new]) < 0]
            if len(new) == 0:
                return
            notes = {"worst_cosine": worst_cosine(np.asarray(signals["embedding"])[new], stored["embedding"][new])}
            taken = {shard.number for shard in self._shards}
            number = next(number for number in range(len(taken) + 1) if number not in taken)
            shard = Shard(number, len(new), notes=notes)
            arrays = {"keys": keys[new]}
            for name, values in stored.items():
                arrays |= _files(name, values, new)
            with write_errors(self.folder, sum(array.nbytes for array in arrays.values())):
                try:
                    write_shard(self.folder, shard, arrays)
                    self._whole = append_journal(self.folder, shard, self._whole)
                except OSError:
                    remove_leftovers(self.folder, self._shards, _file_names(self.manifest))
                    raise
            self._admit(shard, arrays["keys"])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the cache for writing, with whatever others have written meanwhile; waits while another process holds it."""
        if self._writes:
            yield
            return
        with lock(self.folder):
            self._writes = True
            try:
                self._load()
                with write_errors(self.folder, 0):
                    remove_leftovers(self.folder, self._shards, _file_names(self.manifest))
                yield
            finally:
                self._writes = False

    def verify(self) -> list[str]:
        """Compare every file with its checksum: one line for each problem, none if all is well."""
        return self.verify_folder(self.folder)

    def inspect(self) -> dict[str, Any]:
        """Rows, shards, bytes, bytes a text (also by signal), the worst cosine between a vector and its stored form, and the manifest."""
        by_signal: dict[str, int] = {}
        for shard in self._shards:
            for name, stored in shard.files.items():
                name = name.removesuffix(OFFSETS)
                by_signal[name] = by_signal.get(name, 0) + stored.bytes
        size = sum(by_signal.values())
        return {
            "rows": len(self),
            "shards": len(self._shards),
            "bytes": size,
            "bytes_per_text": round(size / len(self), 1) if len(self) else 0.0,
            "bytes_per_text_by_signal": {name: round(found / len(self), 1) for name, found in by_signal.items()},
            "worst_cosine": min((shard.notes.get("worst_cosine", 1.0) for shard in self._shards), default=None),
            "fingerprint": self.manifest.fingerprint,
            "manifest": self.manifest.settings(),
        }

    def close(self) -> None:
        """Close the files that are open; reading opens them again."""
        self._reader.close()

    def __del__(self) -> None:
        if hasattr(self, "_reader"):
            self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Read the journal and admit the shards that are not known yet."""
        journal = read_journal(self.folder)
        shards, self._whole = journal.shards, journal.whole
        known = [shard.number for shard in self._shards]
        if known != [shard.number for shard in shards[: len(known)]]:  # repaired by another process
            known, self._index = [], KeyIndex()
            self._reader.forget()
        problems = [problem for shard in shards for problem in shard.problems(self.folder, checksums=False)]
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise DistilvecError(
                f"[{CACHE_PATH}] teacher cache {self.folder}: {problems[0]}{more}. {how_to_repair(self.folder)}"
            )
        self._reader.shards = shards[: len(known)]
        for shard in shards[len(known) :]:
            keys = np.load(shard.verify(self.folder, "keys"), allow_pickle=False)
            if keys.shape != (shard.rows,) or keys.dtype != KEY:
                raise DistilvecError(
                    f"[{CACHE_PATH}] teacher cache {self.folder}: shard {shard.number} has damaged keys. {how_to_repair(self.folder)}"
                )
            self._admit(shard, keys)

    def _admit(self, shard: Shard, keys: npt.NDArray[Any]) -> None:
        self._reader.admit(shard)
        self._index.add(keys)

    @property
    def _shards(self) -> list[Shard]:
        return self._reader.shards

    def _known(self, name: str, uneven: bool) -> Signal:
        signal = self.signals.get(name)
        if signal is None or signal.uneven != uneven:
            known = (
                ", ".join(name for name, signal in self.signals.items() if signal.uneven == uneven) or "no such signals"
            )
            raise DistilvecError(
                f"[{CACHE_PATH}] the teacher cache {self.folder} holds {known}; '{name}' was asked for."
            )
        return signal


def _stored(name: str, values: npt.NDArray[Any] | Ragged, rows: int, signal: Signal, describe: Describe) -> Any:
    """A signal as it is stored; DistilvecError for what must not be."""
    if isinstance(values, Ragged):
        return stored_items(name, values, rows, signal, describe)
    return stored_form(name, values, rows, signal.width, signal.dtype, describe)


def _files(name: str, values: npt.NDArray[Any] | Ragged, rows: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    """The arrays that hold these rows of a signal."""
    if not isinstance(values, Ragged):
        return {name: values[rows]}
    kept = values if len(rows) == len(values) else values.take(rows)
    return {name: np.ascontiguousarray(kept.values), name + OFFSETS: kept.offsets}


def _file_names(manifest: Manifest) -> list[str]:
    """What the files of a shard are called."""
    offsets = [name + OFFSETS for name, signal in manifest.signals.items() if signal.uneven]
    return ["keys", *manifest.signals, *offsets]


def _manifest_of(folder: Path) -> Manifest:
    if not (folder / MANIFEST).is_file():
        raise DistilvecError(
            f"[{CACHE_PATH}] {folder} is not a teacher cache: it has no {MANIFEST}. Give the folder that `distilvec cache fill` prints."
        )
    return read_manifest(folder / MANIFEST)
