"""FAISS: which vector belongs to which text, whatever the ids, the layers around an index and what was removed."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from refusals import refused
from samples import make_texts

from distilvec.config.schema import TeacherSection
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.sources import check_source_kind
from distilvec.teachers.table_embedder import TableEmbedder

faiss = pytest.importorskip("faiss")

DIM, ROWS = 16, 300
TEXTS = make_texts(ROWS)
VECTORS = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
PERMUTED = np.random.default_rng(1).permutation(ROWS).astype(np.int64)
SPARSE = 1000 + 3 * PERMUTED


PLAIN = ["Flat", "HNSW8", "PQ8x4", "SQ8", "SQbf16", "IVF4,Flat", "IVF4,PQ8x4,Refine(Flat)"]


def section_of(folder, index, lines):
    faiss.write_index(index, str(folder / "index.faiss"))
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TeacherSection(vectors=folder / "index.faiss", texts=folder / "texts.jsonl")


def read(folder, index, lines):
    table = TableEmbedder(local_table(section_of(folder, index, lines), folder / "cache"))
    return table, dict(zip(*table.documents(), strict=True))


def nearest_texts(rows):
    """How many vectors are nearest to those of their texts."""
    right = 0
    for text, vector in rows.items():
        right += TEXTS[int(np.argmax(VECTORS @ (vector / np.linalg.norm(vector))))] == text
    return right


def by_id(ids, texts=TEXTS):
    return [{"id": int(number), "text": text} for number, text in zip(ids, texts, strict=True)]


def made(description, ids=None, wrap=None):
    index = faiss.index_factory(DIM, description)
    index.train(VECTORS)
    index = index if wrap is None else wrap(index)
    if ids is None:
        index.add(VECTORS)
    else:
        index.add_with_ids(VECTORS, ids)
    return index


@pytest.mark.parametrize("ids", [PERMUTED, SPARSE], ids=["permuted", "sparse"])
@pytest.mark.parametrize(
    ("description", "tolerance"),
    [
        ("IVF4,Flat", 1e-6),
        ("IVF4,SQ8", 0.01),
        ("IVF4,SQfp16", 1e-3),
        ("IVF4,PQ8x4", 0.7),
        ("PCA16,IVF4,Flat", 1e-5),
        ("OPQ8,IVF4,SQ8", 0.02),
        ("IVF4_HNSW8,Flat", 1e-6),
    ],
)
def test_ids_of_inverted_lists_find_their_texts(description, tolerance, ids, tmp_path):
    table, rows = read(tmp_path, made(description, ids), by_id(ids)[::-1])
    assert len(rows) == ROWS and nearest_texts(rows) == ROWS and table.similarity == "euclidean"
    np.testing.assert_allclose([rows[text] for text in TEXTS], VECTORS, atol=tolerance)


@pytest.mark.parametrize("wrap", [faiss.IndexIDMap, faiss.IndexIDMap2])
@pytest.mark.parametrize("description", ["Flat", "HNSW8", "SQ8", "PCA16,Flat", "IVF4,Flat", "PCA16,IVF4,Flat"])
def test_a_map_of_ids_may_lie_around_any_index(description, wrap, tmp_path):
    _, rows = read(tmp_path, made(description, SPARSE, wrap), by_id(SPARSE)[::-1])
    assert len(rows) == ROWS and nearest_texts(rows) == ROWS


@pytest.mark.parametrize(
    "description", ["Flat", "HNSW8", "PQ8x4", "SQ8", "SQbf16", "IVF4,Flat", "IVF4,PQ8x4,Refine(Flat)"]
)
def test_vectors_without_ids_have_the_texts_of_their_lines(description, tmp_path):
    _, rows = read(tmp_path, made(description), [{"text": text} for text in TEXTS])
    assert list(rows) == TEXTS and nearest_texts(rows) == ROWS


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("wrap", [None, faiss.IndexIDMap2])
def test_removed_vectors_leave_their_ids_with_the_others(wrap, named, tmp_path):
    numbers = np.arange(ROWS)
    index = made("IVF4,Flat") if wrap is None else made("Flat", numbers, wrap)
    index.remove_ids(np.arange(20, 60))
    lines = by_id(numbers) if named else [{"text": text} for text in TEXTS]
    _, rows = read(tmp_path, index, lines)
    assert sorted(rows) == sorted(TEXTS[:20] + TEXTS[60:]) and nearest_texts(rows) == ROWS - 40


@pytest.mark.parametrize(("first", "removed"), [(0, 0), (1, 0), (1, 40)])
def test_line_numbers_count_from_0_or_from_1(first, removed, tmp_path, capsys):
    """A database that counts rows from 1 has the last line's number as its highest id."""
    index = made("Flat", PERMUTED + first, faiss.IndexIDMap2)
    index.remove_ids(np.arange(20, 20 + removed) + first)
    lines = [{"text": TEXTS[row]} for row in np.argsort(PERMUTED)]
    _, rows = read(tmp_path, index, lines)
    assert len(rows) == ROWS - removed and nearest_texts(rows) == ROWS - removed
    assert f"line numbers of {tmp_path / 'texts.jsonl'}, counted from {first}" in " ".join(
        capsys.readouterr().err.split()
    )


def test_ids_that_faiss_has_given_are_not_those_of_a_database(tmp_path, capsys):
    """`add` numbers vectors from 0; a file with ids from 1 on, or names, is read line by line, and the log says so."""
    for number, ids in enumerate((range(1, ROWS + 1), [f"doc-{row}" for row in range(ROWS)])):
        lines = [{"id": name, "text": text} for name, text in zip(ids, TEXTS, strict=True)]
        folder = tmp_path / str(number)
        folder.mkdir()
        _, rows = read(folder, made("IVF4,Flat"), lines)
        assert nearest_texts(rows) == ROWS and "line by line" in capsys.readouterr().err


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("description", ["Flat", "HNSW8", "IVF4,Flat"])
def test_texts_in_another_order_are_found_by_the_numbers_of_rows(description, first, tmp_path, capsys):
    """A search gives a row's number as its id."""
    if description.startswith("IVF") and first == 1:
        pytest.skip("its ids are known not to be those of the texts")
    lines = [{"id": int(row) + first, "text": TEXTS[row]} for row in PERMUTED]
    _, rows = read(tmp_path, made(description), lines)
    assert nearest_texts(rows) == ROWS == len(rows)
    assert "line by line" not in capsys.readouterr().err


def test_ids_that_number_the_rows_of_an_array_in_another_order_are_refused(tmp_path):
    """Whether the texts or the vectors are in the order of ids is not known."""
    np.save(tmp_path / "v.npy", VECTORS)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in by_id(PERMUTED)))
    with refused("teacher.texts", "in another order"):
        local_table(TeacherSection(vectors=tmp_path / "v.npy", texts=tmp_path / "t.jsonl"), tmp_path / "cache")


def test_ids_beyond_the_lines_need_a_column(tmp_path):
    with refused("teacher.texts", "ids such as 1000"):
        read(tmp_path, made("IVF4,Flat", SPARSE), [{"text": text} for text in TEXTS])
    with refused("teacher.texts", "no text has an id"):
        read(tmp_path, made("IVF4,Flat", SPARSE), by_id(SPARSE + 1))


def test_ids_may_be_written_as_numbers_of_any_kind(tmp_path):
    forms = [float, str, lambda number: f" {number} ", int]
    lines = [{"id": forms[row % 4](number), "text": text} for row, (number, text) in
             enumerate(zip((SPARSE - 2000).tolist(), TEXTS, strict=True))]  # fmt: skip
    _, rows = read(tmp_path, made("Flat", SPARSE - 2000, faiss.IndexIDMap), lines)
    assert len(rows) == ROWS and nearest_texts(rows) == ROWS


def test_an_id_without_a_text_is_left_out_and_counted(tmp_path, capsys):
    lines = [line for line in by_id(SPARSE) if line["id"] not in (1000, 1003)]
    lines[0]["text"] = None
    _, rows = read(tmp_path, made("IVF4,Flat", SPARSE), lines)
    assert len(rows) == ROWS - 3 and nearest_texts(rows) == ROWS - 3
    assert "3 without a text (first id 1000)" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("description", ["Flat", "IVF4,Flat"])
def test_one_id_of_two_vectors(description, tmp_path):
    wrap = faiss.IndexIDMap if description == "Flat" else None
    index = made(description, SPARSE, wrap)
    index.add_with_ids(VECTORS[:2], SPARSE[:2])
    _, rows = read(tmp_path, index, by_id(SPARSE))
    assert len(rows) == ROWS and nearest_texts(rows) == ROWS
    index.add_with_ids(VECTORS[5:6], SPARSE[2:3])
    with refused("teacher.vectors", TEXTS[2]):
        read(tmp_path, index, by_id(SPARSE))


def test_an_index_that_gives_no_vectors_back_is_refused(tmp_path):
    with refused("teacher.vectors", "fast scans"):
        read(tmp_path, made("IVF4,PQ8x4fs"), [{"text": text} for text in TEXTS])
    without_repeats = faiss.IndexIVFFlatDedup(faiss.IndexFlatL2(DIM), DIM, 1)
    without_repeats.train(VECTORS)
    without_repeats.add(VECTORS)
    with refused("teacher.vectors", "gives no vectors back (not implemented)"):
        read(tmp_path, without_repeats, [{"text": text} for text in TEXTS])
    binary = faiss.IndexBinaryFlat(DIM)
    binary.add(np.packbits(VECTORS > 0, axis=1))
    section = section_of(tmp_path, made("Flat"), [])
    faiss.write_index_binary(binary, str(tmp_path / "index.faiss"))
    with refused("teacher.vectors", "cannot be read by FAISS"):
        local_table(section, tmp_path / "cache")


def test_a_damaged_file_is_no_crash(tmp_path):
    """Bytes of the sizes of a header, set to large numbers: too much memory is the file's error."""
    lines = [{"text": text} for text in TEXTS]
    section = section_of(tmp_path, made("Flat"), lines)
    content = (tmp_path / "index.faiss").read_bytes()
    for position in range(4, 44, 4):
        (tmp_path / "index.faiss").write_bytes(content[:position] + b"\xff\xff\xff\x7f" + content[position + 4 :])
        try:
            local_table(section, tmp_path / "cache")
        except Exception as error:  # what is not ours fails below
            assert type(error).__name__ == "DistilvecError", error
            assert error.key in ("teacher.vectors", "teacher.texts")


def test_vectors_of_other_lengths_are_refused_where_nothing_is_quantized(tmp_path):
    """Lengths of 0.8 among lengths of 1: two models, not a quantizer's rounding."""
    index = faiss.IndexFlatL2(DIM)
    vectors = VECTORS.copy()
    vectors[::3] *= 0.8
    index.add(vectors)
    with refused(".vectors", "other vectors have length 1"):
        list(read(tmp_path, index, [{"text": text} for text in TEXTS])[0].rows(["embedding"]))


def test_a_quantizer_changes_lengths_of_1(tmp_path):
    for description in ("SQ8", "SQ4", "SQbf16", "PQ8x4", "RQ4x6"):
        table, _ = read(tmp_path, made(description), [{"text": text} for text in TEXTS])
        assert len(list(table.rows(["embedding"]))) == 1, description


def test_the_pickle_of_langchain_is_not_opened_and_the_error_has_the_lines_that_export_it(tmp_path, monkeypatch):
    index = faiss.IndexFlatL2(8)
    index.add(np.ones((3, 8), dtype=np.float32))
    faiss.write_index(index, str(tmp_path / "index.faiss"))
    (tmp_path / "index.pkl").write_bytes(pickle.dumps(["a", "b", "c"]))
    monkeypatch.setattr(pickle, "load", pytest.fail)
    monkeypatch.setattr(pickle, "loads", pytest.fail)
    with refused("teacher.texts", "index.pkl, a pickle") as caught:
        local_table(TeacherSection(vectors=tmp_path / "index.faiss"), tmp_path / "cache")
    first, second = caught.value.fix.splitlines()[1:]
    compile(f"{first}\n{second}", "lines", "exec")
    with refused("teacher.texts", ".pkl"):
        section = TeacherSection(vectors=tmp_path / "index.faiss", texts=tmp_path / "index.pkl")
        local_table(section, tmp_path / "cache")
    with refused("", "index.faiss"):
        check_source_kind(tmp_path)
