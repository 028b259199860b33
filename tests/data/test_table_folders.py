"""Folders that engines write: the rows that their owner sees are read, or the table is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused

from distilvec.config.schema import SourceSection
from distilvec.core.addresses import Address
from distilvec.core.files import is_parquet, table_files
from distilvec.core.storage import Remote
from distilvec.data.sources import read_source
from distilvec.teachers.cache.parquet import VectorTable
from distilvec.teachers.indexes.parquet import ParquetFiles
from distilvec.teachers.indexes.stores import is_index

KEY = "corpus.sources.0.path"


def write_rows(path: Path, *texts: str) -> str:
    """Write a Parquet file of texts and vectors; return its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    vectors = pa.array([[1.0, float(number)] for number, _ in enumerate(texts)], pa.list_(pa.float32()))
    pq.write_table(pa.table({"text": pa.array(texts, pa.string()), "embedding": vectors}), path)
    return path.name


def write_lines(path: Path, *entries: dict) -> None:
    """Write a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")


def delta(folder: Path) -> None:
    """Write a Delta table of one row, whose other row was overwritten; by year, which the files do not hold."""
    names: list[str] = []
    for version, (year, text) in enumerate((("2023", "overwritten"), ("2024", "current"))):
        name = f"year={year}/{write_rows(folder / f'year={year}' / f'part-0000{version}-c000.snappy.parquet', text)}"
        add = {"path": name, "partitionValues": {"year": year}, "size": 1, "modificationTime": 1, "dataChange": True}
        entries = [{"commitInfo": {"operation": "WRITE"}}, {"add": add}]
        if version:
            entries.append({"remove": {"path": names[-1], "deletionTimestamp": 1, "dataChange": True}})
        write_lines(folder / "_delta_log" / f"{version:020}.json", *entries)
        names.append(name)


def iceberg(folder: Path) -> None:
    """Write an Iceberg table with a file of deleted positions."""
    write_rows(folder / "data" / "00000-0-0.parquet", "deleted", "current")
    positions = pa.table({"file_path": ["data/00000-0-0.parquet"], "pos": [0]})
    pq.write_table(positions, folder / "data" / "00000-0-0-deletes.parquet")
    write_lines(folder / "metadata" / "v1.metadata.json", {"format-version": 2, "current-snapshot-id": 1})


def hudi(folder: Path) -> None:
    """Write a Hudi table with two versions of one file."""
    for commit in ("20240101000000000", "20240102000000000"):
        write_rows(folder / f"a1b2-0_0-1-1_{commit}.parquet", f"of {commit}")
        write_lines(folder / ".hoodie" / f"{commit}.commit", {"partitionToWriteStats": {}})
    (folder / ".hoodie" / "hoodie.properties").write_text("hoodie.table.name=t\n")


def lance(folder: Path) -> None:
    """Write the folders of a Lance dataset."""
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "0.lance").write_bytes(b"LANC")
    (folder / "_versions").mkdir()
    (folder / "_versions" / "1.manifest").write_bytes(b"LANC")


def ducklake(folder: Path) -> None:
    """Write the data files of a DuckLake, whose catalog lies elsewhere."""
    write_rows(folder / "main" / "t" / "ducklake-018f-a.parquet", "deleted", "current")
    positions = pa.table({"file_path": ["ducklake-018f-a.parquet"], "pos": [0]})
    pq.write_table(positions, folder / "main" / "t" / "ducklake-018f-b-delete.parquet")


TABLES = {
    "Delta table": (delta, "DeltaTable("),
    "Iceberg table": (iceberg, "StaticTable.from_metadata("),
    "Hudi table": (hudi, "format('hudi')"),
    "Lance dataset": (lance, "lance.dataset("),
    "DuckLake table": (ducklake, "ATTACH 'ducklake:"),
}


def texts(path: Path, **changes) -> list[str]:
    return list(read_source(SourceSection(path=path, **changes), 0))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_with_a_log_is_refused_by_its_name(name, tmp_path):
    """As texts, also in a folder of several tables, by its files or one of its folders; as vectors; at an address."""
    write, export = TABLES[name]
    write(tmp_path / "lake" / "table")
    table = tmp_path / "lake" / "table"
    for place in (table, table.parent):
        with refused(KEY, f" {name}: ") as found:
            texts(place)
        assert export in str(found.value) and str(table) in str(found.value)
        with refused("", name):
            Remote(place.as_uri()).download(is_parquet)
    for file in table.rglob("*.parquet"):
        for place in {file, file.parent} if name != "DuckLake table" else {file.parent}:
            with refused(KEY, name):
                texts(place)
    if name != "Lance dataset":  # which is read as an index
        assert is_index(table)
        with refused("", name), ParquetFiles(Address.parse(table)):
            pass
        with refused("", name):
            VectorTable(table, {"query": "", "document": ""})


def test_what_spark_writes_beside_a_table_is_no_part_of_it(tmp_path, capsys):
    """Files of tasks that failed, marks, checksums, an index of columns; partitions are read, of any name."""
    folder = tmp_path / "out.parquet"
    for name in ("lang=tr/part-0.parquet", "_old=1/part-1.parquet", "lang=__HIVE_DEFAULT_PARTITION__/part-2.PARQUET"):
        write_rows(folder / name, name)
    for name in ("_temporary/0/part-0.parquet", "lang=tr/.part-0.parquet", "_metadata.parquet", ".tmp/part-9.parquet"):
        write_rows(folder / name, "not a row")
    for name in ("_SUCCESS", "lang=tr/.part-0.parquet.crc", "_committed_1", "part-3.parquet._COPYING_"):
        (folder / name).write_text("{}")
    rows = ["_old=1/part-1.parquet", "lang=__HIVE_DEFAULT_PARTITION__/part-2.PARQUET", "lang=tr/part-0.parquet"]
    assert texts(folder) == rows
    assert "2 files whose name or folder begins with _ are passed over" in capsys.readouterr().err
    assert [path.relative_to(folder).as_posix() for path in table_files(folder, is_parquet)] == rows
    with ParquetFiles(Address.parse(folder)) as reader:
        assert reader.count() == 3
    assert VectorTable(folder, {"query": "", "document": ""}).paths == [folder / row for row in rows]
    fetched = Remote(folder.as_uri()).download(is_parquet)
    assert sorted(pq.read_table(path)["text"].to_pylist()[0] for path in fetched) == rows


def test_a_file_is_read_whatever_its_name_is(tmp_path):
    (tmp_path / "_mine").mkdir()
    path = tmp_path / "_mine" / "_texts.txt"
    path.write_text("a river\n")
    assert texts(path) == ["a river\n"] and texts(path.parent.parent / "_mine" / "_texts.txt") == ["a river\n"]
