"""The local copy of an index: Parquet shards of our layout, written once and continued after a kill.

Folder: part-00000.parquet, ... with columns text, teacher_embedding_final, id; meta.json when it is complete, with the
metric that the index states. The metadata of a part has the reader's cursor behind its last row. A file is read again
when its content changes; the copy of a server's table is a snapshot, read again with `refresh`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
from distilvec.teachers.indexes.reader import Batch, Reader, metric_similarity, rows_with_vectors

FORMAT = 2  # 1 had no metric
KEY = "teacher.vectors"
_STATE = b"distilvec.index"
_ROWS = 16_384  # of a part, at least


def local_table(section: TeacherSection, root: Path, refresh: bool = False) -> TeacherSection:
    """The section with a local Parquet table: itself for whole Parquet files, else that of the copy below `root`.

    Its similarity is its own, else that of the index.

    Errors: DistilvecError for an index that cannot be read, or that has no row with text and vector.
    """
    if section.vectors is None:
        return section
    address = read_address(section.vectors, KEY)
    if address.kind == "parquet" and section.limit is None:
        return section
    settings = [address.text, section.columns, section.limit, str(section.texts or "")]
    files = [path for path in (section.texts, *_files(address)) if path is not None]
    folder = root / "indexes" / fingerprint(FORMAT, *settings, hash_files(files, key=KEY))
    with explained("cache.root", folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f".{folder.name}.lock"), "cache.root", f"the copy {folder}", wait=True):
        if (folder / META).is_file() and not refresh:
            log(f"index: the copy of {address.text} in {folder} is used")
        else:
            _copy(section, address, folder, refresh)
    similarity, metric = section.similarity, read_json(folder / META, "Delete the folder.")["metric"]
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
        if refresh:  # the index can be read; a last part without those before it would look complete
            for path in (folder / META, *reversed(_parts(folder))):
                remove(path)
        parts = _parts(folder)
        state: dict[str, Any] = {"after": None, "read": 0, "kept": 0}
        state |= _state(parts[-1]) if parts else {"rows": reader.count()}
        chosen = _drawn(state["rows"], section.limit)
        with progress(f"reading {address.name}", state["rows"], "rows", state["read"]) as advance:
            if not parts or state["after"] is not None:
                for table, state in _tables(reader, address, chosen, state):  # noqa: B020 - the last is kept
                    _write(folder / f"part-{len(_parts(folder)):05d}.parquet", table, state)
                    advance(state["read"], "")
        if not state["kept"]:
            problem = f"has {state['rows']:,} rows, none with a text and a vector"
            raise DistilvecError(KEY, f"{address.text} {problem}.", "Check the columns.")
        content = {"index": address.text, "metric": reader.metric, **state}
        write_json(folder / META, content, sealed=True, key="cache.root")
    log(f"index: {state['kept']:,} of {state['read']:,} rows of {address.text} copied to {folder}")


def _tables(
    reader: Reader, address: Address, chosen: Any, state: dict[str, Any]
) -> Iterator[tuple[pa.Table, dict[str, Any]]]:
    """Parts of at least _ROWS rows as Arrow tables, each with the state behind it."""
    state, waiting, count = dict(state), list[pa.Table](), 0
    for batch in reader.batches(state["after"]):
        kept, vectors = rows_with_vectors(batch, address.text, KEY)
        numbers = state["read"] + np.array(kept, dtype=np.int64)
        taken = np.ones(len(kept), dtype=bool) if chosen is None else chosen[np.minimum(numbers, len(chosen) - 1)]
        if taken.any():
            waiting.append(_table(batch, [row for row, one in zip(kept, taken, strict=True) if one], vectors[taken]))
        state |= {"after": batch.after, "read": state["read"] + len(batch.texts), "kept": state["kept"] + taken.sum()}
        state["kept"] = int(state["kept"])
        count += int(taken.sum())
        if count >= _ROWS:
            yield _joined(waiting, address), dict(state)
            waiting, count = [], 0
    if waiting:
        yield _joined(waiting, address), dict(state)


def _table(batch: Batch, rows: list[int], vectors: Any) -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    texts = pa.array([batch.texts[row] for row in rows], pa.large_string())
    return pa.table({"text": texts, FINAL: lists, "id": pa.array([batch.ids[row] for row in rows])})


def _joined(tables: list[pa.Table], address: Address) -> pa.Table:
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid:
        raise DistilvecError(KEY, f"{address.text} has vectors of different dims.", "Give one model's.") from None


def _write(path: Path, table: pa.Table, state: dict[str, Any]) -> None:
    new = scratch(path)
    try:
        with full_disk_explained("cache.root", path, table.nbytes, "The parts before it are kept."):
            pq.write_table(table.replace_schema_metadata({_STATE: json.dumps(state)}), new)
            new.replace(path)
    finally:
        remove(new)


def _drawn(rows: int, limit: int | None) -> Any:
    """A mask of `limit` rows drawn by seed 0; None for all rows."""
    if limit is None or limit >= rows:
        return None
    mask = np.zeros(rows, dtype=bool)
    mask[np.random.Generator(np.random.PCG64(0)).choice(rows, limit, replace=False)] = True
    return mask


def _files(address: Address) -> list[Path]:
    path = address.path
    if path is None or not path.is_dir():
        return [] if path is None else [path]
    return sorted(file for file in path.rglob("*") if file.is_file())


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def _state(part: Path) -> dict[str, Any]:
    return dict(json.loads((pq.read_schema(part).metadata or {})[_STATE]))
