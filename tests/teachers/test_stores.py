"""The stores that vectors are read from: those of this package, and one of another package, by its entry point."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from interrupted import kill_copy
from refusals import refused
from samples import make_texts

from benchmarks.indexes import KINDS
from distilvec.config.schema import TeacherSection
from distilvec.core.addresses import Address
from distilvec.teachers.indexes import copy, stores
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.indexes.stores import STORES, is_index
from distilvec.teachers.sources import source_kind
from distilvec.teachers.table_embedder import TableEmbedder

TEXTS = make_texts(60)
VECTORS = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
READER = '''
"""A store of one JSON file: {id: [text, vector]}; its address is a path, or shelf:///FOLDER/NAME."""

import json
from pathlib import Path
from urllib.parse import unquote

from distilvec.teachers.indexes.reader import Batch, Reader
from distilvec.teachers.indexes.stores import Store

SHELF = Store("shelf", "shelf_vectors:Shelf", (".shelf",), ("shelf",), example="vectors.shelf")


class Shelf(Reader):
    @classmethod
    def files(cls, address):
        return [address.path or Path(unquote(address.parts.path)).with_suffix(".shelf")]

    def open(self):
        (path,) = self.files(self.address)
        self.rows = [(name, *row) for name, row in json.loads(path.read_text()).items()]

    @property
    def metric(self):
        return "Euclidean"

    def count(self):
        return len(self.rows)

    def batches(self, after):
        for start in range(after or 0, len(self.rows), 10):
            rows = self.rows[start : start + 10]
            yield Batch([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows], start + 10)
'''


def test_every_store_is_tested():
    """The tests of indexes take their kinds from benchmarks/indexes.py, which makes an index of each."""
    assert {store.name for store in STORES} == set(KINDS)


@pytest.fixture
def another_package(tmp_path, monkeypatch):
    """A package as pip would install it, on the path: a module, and what its entry points are."""

    def install(target):
        folder = tmp_path / "site"
        description = folder / "shelf_vectors-1.0.dist-info"
        description.mkdir(parents=True)
        (folder / "shelf_vectors.py").write_text(READER)
        (description / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf-vectors\nVersion: 1.0\n")
        (description / "entry_points.txt").write_text(f"[distilvec.stores]\nshelf = {target}\n")
        monkeypatch.syspath_prepend(folder)
        stores.all_stores.cache_clear()
        return folder

    yield install
    stores.all_stores.cache_clear()
    sys.modules.pop("shelf_vectors", None)


def write_shelf(folder):
    rows = {f"row {row}": [text, VECTORS[row].tolist()] for row, text in enumerate(TEXTS)}
    (folder / "mine.shelf").write_text(json.dumps(rows))
    return folder / "mine.shelf"


def test_another_package_brings_a_store(another_package, tmp_path, monkeypatch):
    path = write_shelf(tmp_path)
    assert not is_index(path)
    another_package("shelf_vectors:SHELF")
    assert is_index(path) and source_kind(path) == source_kind("shelf:///a/b") == "table"
    for address in (str(path), f"shelf://{path.with_suffix('')}"):
        table = local_table(TeacherSection(vectors=address), tmp_path / "cache")
        assert table.similarity == "euclidean" and table.name == "mine"
        embedder = TableEmbedder(table)
        assert embedder.similarity_source == "index"
        texts, vectors = embedder.documents()
        assert texts == TEXTS
        np.testing.assert_array_equal(vectors, VECTORS)
    with refused("teacher.vectors", "vectors.shelf"):
        local_table(TeacherSection(vectors="table.unknown"), tmp_path / "cache")
    with refused("teacher.vectors", "shelf does not take"):
        local_table(TeacherSection(vectors="shelf:///a/b?host=x"), tmp_path / "cache")

    monkeypatch.setattr(copy, "_ROWS", 20)
    section = TeacherSection(vectors=str(path))
    kill_copy(section, tmp_path / "killed", monkeypatch)
    assert TableEmbedder(local_table(section, tmp_path / "killed")).documents()[0] == TEXTS


def test_the_command_line_reads_the_store_of_another_package(another_package, tmp_path, tiny_model):
    site = another_package("shelf_vectors:SHELF")
    path = write_shelf(tmp_path)
    code = "import sys; from distilvec.__main__ import main; sys.argv = ['distilvec', *sys.argv[2:]]; main()"
    words = ["check", str(tiny_model), str(path)]
    program = f"import sys; sys.path.insert(0, sys.argv[1]); {code}"
    done = subprocess.run([sys.executable, "-c", program, str(site), *words], capture_output=True, text=True)
    assert "overlap@10" in done.stdout + done.stderr, done.stderr


def test_a_store_that_cannot_be_imported_is_named(another_package):
    another_package("shelf_vectors:ABSENT")
    with refused("distilvec.stores", "shelf_vectors:ABSENT"):
        is_index("mine.shelf")
    assert is_index("table.parquet") and not is_index("org/model")


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("postgresql://me:quiet@host/db/t", "postgresql://host/db/t"),
        ("postgresql://me@corp.com:quiet@host/db/t?sslmode=require", "postgresql://host/db/t?sslmode=require"),
        ("postgresql://me:12/qui@et@host/db/t", "postgresql://host/db/t"),
        ("postgresql://host/db/t?password=quiet", "postgresql://host/db/t"),
        ("qdrant://host/t?api%255fkey=quiet", "qdrant://host/t"),
        ("s3://bucket/a?token=quiet", "s3://bucket/a"),
    ],
)
def test_an_address_holds_no_password(text, safe):
    address = Address.parse(text)
    assert address.text == str(address) == safe and address.had_secret
    assert "quiet" not in repr(address) + json.dumps(address.__dict__)
    assert address == Address(safe, had_secret=True) and hash(address) == hash(Address(safe, had_secret=True))


@pytest.mark.parametrize("text", ["a/b.parquet", "http://localhost:1234/v1#model@q8_0", "qdrant://h:6333/name%40home"])
def test_an_address_without_a_password_is_as_it_was_given(text):
    assert Address.parse(text) == Address.of_index(text) == Address(text)
