"""The local copy of an index: Parquet shards of our layout, written once and continued after a kill.

Folder: part-00000.parquet, ... with columns text, teacher_embedding_final, id; meta.json when it is complete, with the
metric that the index states. The metadata of a part has the reader's cursor behind its last row: a killed copy goes on
from there. A file is read again when its content changes; the copy of a server's table is a snapshot, read again with
`refresh`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import TeacherSection
from distilvec.core.artifacts import META
from distilvec.core.errors import DistilvecError, explained
from distilvec.core.files import full_disk_explained, locked, read_json, remove, remove_scratch, scratch, write_json
from distilvec.core.hashing import hash_files
from distilvec.core.log import log, progress
from distilvec.teachers.cache.columns import FINAL
from distilvec.teachers.indexes.address import Address, read_address
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, Vectors, metric_similarity, rows_with_vectors

FORMAT = 2
KEY = "teacher.vectors"
_STATE = b"distilvec.index"
_ROWS = 16_384  # of a part, at least


@dataclass(frozen=True)
class CopyState:
    """How far the copy is: rows `read` of all `rows` of the index, `kept` of them in the copy, the reader's cursor."""

    after: Cursor
    read: int
    kept: int
    rows: int


def local_table(section: TeacherSection, root: Path, refresh: bool = False) -> TeacherSection:
    """The section with a local Parquet table: itself for whole Parquet files, else with the copy below `root`.

    A similarity that the section states comes before that of the index.

    Errors: DistilvecError for an index that cannot be read, or that has no row with text and vector.
    """
    if section.vectors is None:
        return section
    address = read_address(section.vectors, KEY)
    if address.kind == "parquet" and section.limit is None:
        return section
    settings = [address.text, section.columns, section.limit, str(section.texts or "")]
    files = _files(address)
    if section.texts is not None:
        files.insert(0, section.texts)
    folder = root / "indexes" / fingerprint(FORMAT, *settings, hash_files(files, key=KEY))
    with explained("cache.root", folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f".{folder.name}.lock"), "cache.root", f"the copy {folder}", wait=True):
        if (folder / META).is_file() and not refresh:
            log(f"index: the copy of {address.text} in {folder} is used")
        else:
            _copy(section, address, folder, refresh)
    similarity = section.similarity
    metric = read_json(folder / META, "Delete the folder.")["metric"]
    if similarity is None and metric is not None:
        similarity = metric_similarity(metric, address.text, KEY)
    changes = {
        "vectors": folder,
        "columns": None,
        "limit": None,
        "texts": None,
        "name": section.name or address.name,
        "similarity": similarity,
    }
    return section.model_copy(update=changes)


def open_reader(section: TeacherSection, address: Address) -> Reader:
    """The reader of an index."""
    if address.kind == "qdrant":
        from distilvec.teachers.indexes.qdrant import QdrantCollection

        return QdrantCollection(address.text, section.columns, KEY)
    if address.kind == "pgvector":
        from distilvec.teachers.indexes.postgres import PostgresTable

        return PostgresTable(address.text, section.columns, KEY)
    assert address.path is not None
    if address.kind == "lancedb":
        from distilvec.teachers.indexes.lance import LanceTable

        return LanceTable(address.path, section.columns, KEY)
    if address.kind in ("npy", "faiss"):
        from distilvec.teachers.indexes.arrays import ArrayIndex

        return ArrayIndex(address.path, section.texts, section.columns, KEY)
    from distilvec.teachers.indexes.files import ArrowFiles

    return ArrowFiles(address.path, section.columns, KEY)


def _copy(section: TeacherSection, address: Address, folder: Path, refresh: bool) -> None:
    """Write the missing parts, or all with `refresh`, then meta.json."""
    remove_scratch(folder)
    with open_reader(section, address) as reader:
        if refresh:  # only now, when the index can be read
            # From the last part back: a last part without those before it would look like a copy up to there.
            for path in (folder / META, *reversed(_parts(folder))):
                remove(path)
        parts = _parts(folder)
        state = _read_state(parts[-1]) if parts else CopyState(after=None, read=0, kept=0, rows=reader.count())
        is_complete = bool(parts) and state.after is None  # killed between the last part and meta.json
        with progress(f"reading {address.name}", state.rows, "rows", state.read) as advance:
            if not is_complete:
                for table, next_state in _tables(reader, address, _draw_rows(state.rows, section.limit), state):
                    state = next_state
                    if table is not None:
                        _write(folder / f"part-{len(_parts(folder)):05d}.parquet", table, state)
                    advance(state.read, "")
        if not state.kept:
            problem = f"has {state.rows:,} rows, none with a text and a vector"
            raise DistilvecError(KEY, f"{address.text} {problem}.", "Check the columns.")
        # Last of all: a folder with this file is a whole copy.
        content = {"index": address.text, "metric": reader.metric, **asdict(state)}
        write_json(folder / META, content, sealed=True, key="cache.root")
    log(f"index: {state.kept:,} of {state.read:,} rows of {address.text} copied to {folder}")


def _tables(
    reader: Reader, address: Address, is_drawn: npt.NDArray[np.bool_] | None, state: CopyState
) -> Iterator[tuple[pa.Table | None, CopyState]]:
    """Parts of at least _ROWS rows as Arrow tables, each with the state behind it.

    None instead of the last one if no row is left for it: its state counts the rows behind the part before.
    """
    tables: list[pa.Table] = []
    count = 0
    for batch in reader.batches(state.after):
        rows, vectors = rows_with_vectors(batch, address.text, KEY)
        numbers = state.read + np.array(rows, dtype=np.int64)
        if is_drawn is None:
            is_chosen = np.ones(len(rows), dtype=bool)
        else:  # rows that were added to the index meanwhile count as its last one
            is_chosen = is_drawn[np.minimum(numbers, len(is_drawn) - 1)]
        chosen = np.array(rows, dtype=np.int64)[is_chosen].tolist()
        if chosen:
            tables.append(_table(batch, chosen, vectors[is_chosen]))
        count += len(chosen)
        state = replace(state, after=batch.after, read=state.read + len(batch.texts), kept=state.kept + len(chosen))
        if count >= _ROWS:
            yield _join(tables, address), state
            tables = []
            count = 0
    yield (_join(tables, address) if tables else None), state


def _table(batch: Batch, rows: list[int], vectors: Vectors) -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    texts = pa.array([batch.texts[row] for row in rows], pa.large_string())
    ids = pa.array([batch.ids[row] for row in rows])
    return pa.table({"text": texts, FINAL: lists, "id": ids})


def _join(tables: list[pa.Table], address: Address) -> pa.Table:
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid:
        raise DistilvecError(KEY, f"{address.text} has vectors of different dims.", "Give one model's.") from None


def _write(path: Path, table: pa.Table, state: CopyState) -> None:
    new = scratch(path)
    try:
        with full_disk_explained("cache.root", path, table.nbytes, "The parts before it are kept."):
            pq.write_table(table.replace_schema_metadata({_STATE: json.dumps(asdict(state))}), new)
            new.replace(path)
    finally:
        remove(new)


def _draw_rows(rows: int, limit: int | None) -> npt.NDArray[np.bool_] | None:
    """A mask of `limit` rows drawn by seed 0; None for all rows."""
    if limit is None or limit >= rows:
        return None
    mask = np.zeros(rows, dtype=bool)
    mask[np.random.Generator(np.random.PCG64(0)).choice(rows, limit, replace=False)] = True
    return mask


def _files(address: Address) -> list[Path]:
    """The files of an index; none of a server."""
    if address.path is None:
        return []
    if not address.path.is_dir():
        return [address.path]
    return sorted(path for path in address.path.rglob("*") if path.is_file())


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def _read_state(part: Path) -> CopyState:
    return CopyState(**json.loads(pq.read_schema(part).metadata[_STATE]))
