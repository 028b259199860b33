"""The local copy of an index: Parquet shards of our layout, written once and continued after a kill.

Folder: part-00000.parquet, ... with columns text, teacher_embedding_final, id (role, documents); meta.json when it is
complete, with the metric that the index or its store searches by, the rows that are left out, and the checksums of the
parts. Until then reading.json has the state behind each part: a killed copy goes on from there if the index is the
same, and begins again if it has changed. A file is read again when its content changes; the copy of a server's table is
a snapshot, read again with `refresh`.

A Parquet table of whose rows none is left out is not copied: meta.json alone says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import Role, TeacherSection
from distilvec.core.addresses import Address
from distilvec.core.arrow import Vectors
from distilvec.core.artifacts import CHECKSUMS, META, read_stored, store_json
from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import acquire_lock, disk_space_needed, remove, remove_scratch, scratch, write_json
from distilvec.core.hashing import checksum_once, has_checksum, hash_files
from distilvec.core.log import log, progress
from distilvec.data.origins import COLUMN
from distilvec.teachers.cache.columns import FINAL, ROLE_VALUES, Part
from distilvec.teachers.cache.parquet import IndexNotes, VectorTable
from distilvec.teachers.indexes.conditions import no_row, read_where
from distilvec.teachers.indexes.reader import (
    METRICS,
    Batch,
    Cursor,
    Reader,
    metric_similarity,
    regular_file,
    usable_rows,
)
from distilvec.teachers.indexes.stores import open_reader, read_address, store_of

FORMAT = 7
KEY = "teacher.vectors"
READING = "reading.json"
_ROWS = 16_384  # of a part, at least
# Prompts that tell roles apart where texts are compared
_WORDS: dict[Role, str] = {"query": "query", "document": "document"}
_FOUND_ORIGIN = "document_id"  # of a copy, where the column of documents was found by its name
_DIFFERENT = "with another vector than a row of the same text"


@dataclass(frozen=True)
class LeftOut:
    """Rows that are left out for one reason: how many, and the id of the first."""

    rows: int
    first: str


@dataclass(frozen=True)
class CopyState:
    """How far the copy is.

    `read` rows of all `rows` of the index, `kept` of them in the copy, the reader's cursor, and those left out.
    """

    after: Cursor
    read: int
    kept: int
    rows: int
    left_out: dict[str, LeftOut] = field(default_factory=dict)


def local_table(section: TeacherSection, root: Path, refresh: bool = False) -> TeacherSection:
    """The section with a local Parquet table: itself for whole Parquet files of usable rows, else with the copy.

    A similarity that the section states comes before that of the index.
    """
    assert section.vectors is not None
    with about(KEY):
        address = read_address(section.vectors)
    with about(KEY, address.text):
        content = _content(section, address)
        settings: list[object] = [
            address.text,
            section.columns,
            section.limit,
            str(section.texts or ""),
            section.repeats,
        ]
        settings.append(read_where(section.where))
        folder = root / "indexes" / fingerprint(FORMAT, *settings, content)
        meta = _read_or_copy(section, address, folder, content, refresh)
        left_out = []
        for reason, rows in meta["left_out"].items():
            left_out.append(f"{rows['rows']:,} {reason} (first id {rows['first']})")
        if left_out:
            log(f"index: {meta['kept']:,} rows of {address.text} are used; left out are {', '.join(left_out)}")
        if meta["plain"]:
            return section
        similarity = section.similarity
        if similarity is None and meta["metric"] is not None:
            similarity = metric_similarity(meta["metric"], address.text)
    changes: dict[str, object] = {
        "vectors": folder,
        "columns": None,
        "limit": None,
        "texts": None,
        "where": {},
        "refresh": False,
        "name": section.name or address.name,
        "similarity": similarity,
    }
    return section.model_copy(update=changes)


def _read_or_copy(
    section: TeacherSection, address: Address, folder: Path, content: str, refresh: bool
) -> dict[str, Any]:
    """Make the copy unless a whole one is there; return the content of its meta.json."""
    with about("cache.root", folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(folder.with_name(f".{folder.name}.lock"), f"the copy {folder}", wait=True)
    with lock:
        meta = None if refresh else _read_complete(folder)
        if meta is None:
            meta = _read_index(section, address, folder, refresh)
            if _content(section, address) != content:
                remove(folder)
                problem = f"{address} was changed while it was read."
                raise DistilvecError(problem, "Run it again when nothing writes to it.")
        elif not meta["plain"]:
            log(f"index: the copy of {address} in {folder} is used{_columns_text(meta)}")
    return meta


def _read_index(section: TeacherSection, address: Address, folder: Path, refresh: bool) -> dict[str, Any]:
    """Copy the index, unless it is a Parquet table that is used as it is; return the content of meta.json."""
    remove_scratch(folder)
    with open_reader(section, address) as reader:
        if refresh:  # only now, when the index can be read
            remove(folder / META)
            _start_again(folder)
        if reader.where and not reader.count():
            raise no_row(reader.where, [(name, reader.values(name)) for name in reader.where], address.text)
        metric = reader.metric or reader.default_metric
        meta: dict[str, Any] = {"index": address.text, "metric": metric, "columns": reader.columns}
        plain = _plain_state(reader, section, address)
        if plain is not None:
            meta |= {"plain": True, **asdict(plain), CHECKSUMS: {}}
        else:
            state = _copy(reader, section, address, folder)
            if not state.kept:
                raise _no_rows(address, state)
            state = _check_repeats(section, folder, state)
            checksums = {path.name: checksum_once(path) for path in _parts(folder)}
            meta |= {"plain": False, **asdict(state), CHECKSUMS: checksums}
            rows = f"{state.kept:,} of {state.read:,} rows"
            log(f"index: {rows} of {address.text} copied to {folder}{_columns_text(meta)}")
    # Last of all: a folder with this file is a whole copy.
    write_json(folder / META, meta, sealed=True)
    remove(folder / READING)
    return meta


def _plain_state(reader: Reader, section: TeacherSection, address: Address) -> CopyState | None:
    """The state behind the last row of a Parquet table that needs no copy; None for any other index."""
    if section.limit is not None or not reader.is_plain():
        return None
    state = CopyState(after=None, read=0, kept=0, rows=reader.count())
    with progress(f"reading {address.name}", state.rows, "rows") as advance:
        for batch in reader.batches(None):
            usable = usable_rows(batch, address.text)
            if usable.left_out:
                return None
            state = replace(state, read=state.read + len(batch.texts), kept=state.kept + len(usable.rows))
            advance(state.read, "")
    if not state.kept:
        raise _no_rows(address, state)
    table = VectorTable(Path(address.text), dict(_WORDS), role="document", columns=section.columns)
    repeats = table.find_repeats("embedding")
    if section.repeats is None:
        table.refuse_differing(repeats, "embedding")
    return None if repeats.differing and section.repeats == "drop" else state


def _copy(reader: Reader, section: TeacherSection, address: Address, folder: Path) -> CopyState:
    """Write the parts that are missing."""
    version = reader.version()
    behind_parts = _read_parts(folder, version)
    if behind_parts:
        content = behind_parts[-1]["state"]
        left_out = {reason: LeftOut(**rows) for reason, rows in content["left_out"].items()}
        state = CopyState(**{**content, "left_out": left_out})
    else:
        state = CopyState(after=None, read=0, kept=0, rows=reader.count())
        _start_again(folder)
    is_complete = bool(behind_parts) and state.after is None  # killed between the last part and meta.json
    is_drawn = _draw_rows(state.rows, section.limit)
    with progress(f"reading {address.name}", state.rows, "rows", state.read) as advance:
        if not is_complete:
            for table, next_state in _tables(reader, address, is_drawn, state, section.columns or {}):
                state = next_state
                if table is not None:
                    path = folder / f"part-{len(behind_parts):05d}.parquet"
                    _write(path, table)
                    behind_parts.append({"checksum": checksum_once(path), "state": asdict(state)})
                    store_json(folder / READING, {"version": version, "parts": behind_parts})
                advance(state.read, "")
    if state.read < state.rows:
        problem = f"{address.text} counts {state.rows:,} rows and gives {state.read:,}."
        raise DistilvecError(problem, "Run it again when nothing writes to it.")
    return state


def _read_parts(folder: Path, version: str | None) -> list[dict[str, Any]]:
    """Checksums of the whole parts of a copy that was killed, and the states behind them; others are removed.

    None are left of an index that has changed since, or that cannot tell.
    """
    reading = read_stored(folder / READING, "the state of a copy")
    if reading is None:
        return []
    if version is None or reading["version"] != version:
        log(f"index: the unfinished copy in {folder} begins again, since the index has changed or may have")
        return []
    whole = []
    for number, part in enumerate(reading["parts"]):
        path = folder / f"part-{number:05d}.parquet"
        if not has_checksum(path, part["checksum"]):
            log(f"index: {path} is damaged; it is read again from there")
            break
        whole.append(part)
    for path in _parts(folder)[len(whole) :]:
        remove(path)
    return whole


def _start_again(folder: Path) -> None:
    for path in (folder / READING, *_parts(folder)):
        remove(path)


def _read_complete(folder: Path) -> dict[str, Any] | None:
    """The content of meta.json of a copy that is whole and undamaged; None for another, of which nothing is kept."""
    if not (folder / META).is_file():
        return None
    meta = read_stored(folder / META, "the copy of an index")
    if meta is not None:
        checksums = meta[CHECKSUMS]
        damaged = [name for name, checksum in checksums.items() if not has_checksum(folder / name, checksum)]
        damaged += [path.name for path in _parts(folder) if path.name not in checksums]
        if not damaged:
            return meta
        log(f"index: {folder / damaged[0]} is damaged or no part of the copy; the index is read again")
    _start_again(folder)
    remove(folder / META)
    return None


def _columns_text(meta: dict[str, Any]) -> str:
    """The columns that texts and vectors are read from; empty for vectors without columns."""
    columns = meta["columns"]
    if "embedding" not in columns:
        return ""
    return f": texts are those of '{columns['text']}', vectors those of '{columns['embedding']}'"


def _no_rows(address: Address, state: CopyState) -> DistilvecError:
    reasons = [f"{rows.rows:,} {reason}" for reason, rows in state.left_out.items()]
    problem = f"{address.text} has {state.rows:,} rows, none with a text and a vector"
    if reasons:
        problem = f"{problem}: {', '.join(reasons)}"
    return DistilvecError(f"{problem}.", "Check the columns.")


def _check_repeats(section: TeacherSection, folder: Path, state: CopyState) -> CopyState:
    """Refuse rows of one text with different vectors, or leave them out, as the section says.

    Without either, and for vectors that are almost the same, all readers of the copy take the first row.
    """
    table = VectorTable(folder, dict(_WORDS), role="document")
    repeats = table.find_repeats("embedding")
    if not repeats.differing:
        return state
    if section.repeats is None:
        table.refuse_differing(repeats, "embedding", str(section.vectors))
    if section.repeats != "drop":
        return state
    remove(folder / READING)  # parts without some rows are no state to go on from
    left_out = dict(state.left_out)
    for path in _parts(folder):
        part = pq.read_table(path)
        keys = table.keys_of(part)
        differs = repeats.differs(keys)
        if differs.any():
            first = part.column("id")[int(np.argmax(differs))].as_py()
            _count(left_out, _DIFFERENT, int(differs.sum()), first)
            _write(path, part.filter(pa.array(~differs)))
    dropped = left_out[_DIFFERENT].rows
    state = replace(state, kept=state.kept - dropped, left_out=left_out)
    if not state.kept:
        raise _no_rows(Address.parse(str(section.vectors)), state)
    return state


def _count(left_out: dict[str, LeftOut], reason: str, rows: int, first: str) -> None:
    """Add rows to those that are left out for a reason."""
    before = left_out.get(reason, LeftOut(0, first))
    left_out[reason] = LeftOut(before.rows + rows, before.first)


def _tables(
    reader: Reader,
    address: Address,
    is_drawn: npt.NDArray[np.bool_] | None,
    state: CopyState,
    choices: Mapping[Part, str],
) -> Iterator[tuple[pa.Table | None, CopyState]]:
    """Parts of at least _ROWS rows as Arrow tables, each with the state behind it.

    None instead of the last one if no row is left for it: its state counts the rows behind the part before.
    """
    tables: list[pa.Table] = []
    count = 0
    metric = reader.metric or reader.default_metric or ""
    is_default = reader.metric is None and reader.default_metric is not None
    all_rows = None if is_drawn is None else state.rows
    notes = IndexNotes(all_rows, METRICS.get(metric.lower()), is_default, reader.is_quantized).metadata()
    for batch in reader.batches(state.after):
        batch_rows = np.arange(len(batch.texts))
        # Rows that were added to the index meanwhile count as its last one
        is_wanted = np.ones(len(batch_rows), dtype=bool)
        if is_drawn is not None:
            is_wanted = is_drawn[np.minimum(state.read + batch_rows, len(is_drawn) - 1)]
        usable = usable_rows(batch, address.text)
        left_out = dict(state.left_out)
        for row, reason in usable.left_out:
            if is_wanted[row]:
                _count(left_out, reason, 1, batch.ids[row])
        rows = np.array(usable.rows, dtype=np.int64)
        is_chosen = is_wanted[rows]
        chosen = rows[is_chosen].tolist()
        if chosen:
            tables.append(_table(batch, chosen, usable.vectors[is_chosen], address, choices))
        count += len(chosen)
        read = state.read + len(batch_rows)
        state = replace(state, after=batch.after, read=read, kept=state.kept + len(chosen), left_out=left_out)
        if count >= _ROWS:
            yield _join(tables, address).replace_schema_metadata(notes), state
            tables = []
            count = 0
    yield (_join(tables, address).replace_schema_metadata(notes) if tables else None), state


def _table(batch: Batch, rows: list[int], vectors: Vectors, address: Address, choices: Mapping[Part, str]) -> pa.Table:
    """Rows of a batch in our layout; `choices` are the columns that the recipe names."""
    columns = {
        "text": pa.array([batch.texts[row] for row in rows], pa.large_string()),
        FINAL: pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1]),
        "id": pa.array([batch.ids[row] for row in rows], pa.large_string()),
    }
    if batch.roles is not None:
        columns["role"] = pa.array(_roles(batch, rows, address, "role" in choices), pa.string())
    if batch.origins is not None:
        name = COLUMN if "origin" in choices else _FOUND_ORIGIN
        columns[name] = pa.array([batch.origins[row] for row in rows], pa.large_string())
    return pa.table(columns)


def _roles(batch: Batch, rows: list[int], address: Address, must_be_roles: bool) -> list[str | None]:
    """Return the roles of rows; None where the index says none.

    A column that was found by its name may hold something else, such as the speakers of a chat: no roles.
    """
    assert batch.roles is not None
    roles: list[str | None] = []
    for row in rows:
        role = batch.roles[row]
        if isinstance(role, bytes):
            role = role.decode(errors="replace")
        if must_be_roles and role not in (None, *ROLE_VALUES):
            problem = f"{address.text} has the role {role!r} (row {batch.ids[row]}); expected query or document."
            raise DistilvecError(problem, "Correct it, or name no column of roles.")
        roles.append(role if role in ROLE_VALUES else None)
    return roles


def _join(tables: list[pa.Table], address: Address) -> pa.Table:
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid:
        raise DistilvecError(f"{address.text} has vectors of different dims.", "Give one model's.") from None


def _write(path: Path, table: pa.Table) -> None:
    new = scratch(path)
    try:
        with about("cache.root", path), disk_space_needed(path, table.nbytes, "The parts before it are kept."):
            pq.write_table(table, new)
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


def _content(section: TeacherSection, address: Address) -> str:
    """A hash of the files of an index and of its texts; that of a server has none."""
    paths = []
    if section.texts is not None:
        with about("teacher.texts"):
            paths.append(regular_file(section.texts))
    paths += store_of(address).reader_class.files(address)
    return hash_files(paths)


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))
