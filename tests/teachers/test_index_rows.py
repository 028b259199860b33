"""One row of an index: its id, text and vector, by the same rule for every reader, read whole or with a limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from interrupted import kill_copy
from refusals import refused
from samples import make_texts

from distilvec.config.schema import TeacherSection
from distilvec.core.errors import user_error
from distilvec.teachers.indexes import copy
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.indexes.reader import Reader
from distilvec.teachers.indexes.stores import is_index
from distilvec.teachers.table_embedder import TableEmbedder

TEXTS = make_texts(60)
DIM = 8
VECTORS = np.random.default_rng(0).standard_normal((60, DIM)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
COLUMNAR = ("parquet", "parquet with a limit", "arrow", "lance")


def table_of(kind, folder, columns):
    """A table of one kind with these columns, as a section."""
    folder.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    limit = 10_000 if kind.endswith("limit") else None
    if kind == "lance":
        lancedb = pytest.importorskip("lancedb")
        lancedb.connect(folder).create_table("t", table if table.num_rows else None, schema=table.schema,
                                             on_bad_vectors="null")  # fmt: skip
        return TeacherSection(vectors=folder / "t.lance")
    if kind == "arrow":
        pyarrow.feather.write_feather(table, str(folder / "t.arrow"), compression="uncompressed")
        return TeacherSection(vectors=folder / "t.arrow")
    pq.write_table(table, folder / "t.parquet")
    return TeacherSection(vectors=folder / "t.parquet", limit=limit)


def lists(vectors=VECTORS, kind=None):
    return pa.array([None if vector is None else list(vector) for vector in vectors], kind or pa.list_(pa.float32()))


def read(section, folder):
    """Texts with their vectors."""
    table = TableEmbedder(local_table(section, folder / "cache"))
    texts, vectors = table.documents()
    return dict(zip(texts, vectors, strict=True))


def about(section, folder):
    """What is known of the copy."""
    local_table(section, folder / "cache")
    (path,) = (folder / "cache" / "indexes").glob("*/meta.json")
    return json.loads(path.read_text())


def expect(rows, texts=TEXTS, vectors=VECTORS, tolerance=1e-6):
    assert list(rows) == list(texts)
    np.testing.assert_allclose(np.stack(list(rows.values())), vectors, atol=tolerance)


# -- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COLUMNAR)
@pytest.mark.parametrize("type_of_text", ["binary", "large_binary", "large_string", "dictionary", "string_view"])
def test_texts_of_every_type_are_read_alike(kind, type_of_text, tmp_path):
    texts = [*TEXTS[:59], "çay ve kahve"]
    types = {"binary": pa.binary(), "large_binary": pa.large_binary(), "large_string": pa.large_string()}
    if type_of_text == "dictionary":
        column = pa.array(texts).dictionary_encode()
    elif type_of_text == "string_view":
        if kind == "lance":
            pytest.skip("LanceDB stores no views")
        column = pa.array(texts, pa.string_view())
    else:
        column = pa.array([text.encode() if "binary" in type_of_text else text for text in texts], types[type_of_text])
    section = table_of(kind, tmp_path, {"text": column, "vector": lists()})
    expect(read(section, tmp_path), texts)


@pytest.mark.parametrize("kind", COLUMNAR)
def test_bytes_that_are_no_text_are_refused_with_their_row(kind, tmp_path):
    texts = [text.encode() for text in TEXTS]
    texts[7] = "çay".encode("latin1")
    ids = [f"id-{row}" for row in range(60)]
    section = table_of(kind, tmp_path, {"id": ids, "text": pa.array(texts, pa.binary()), "vector": lists()})
    with refused("teacher.vectors", "row id-7 is not UTF-8"):
        read(section, tmp_path)


@pytest.mark.parametrize("kind", COLUMNAR)
@pytest.mark.parametrize(
    "values", [list(range(60)), [[text] for text in TEXTS], [{"a": text} for text in TEXTS]], ids=["int", "list", "map"]
)
def test_columns_that_hold_no_texts_are_refused(kind, values, tmp_path):
    section = table_of(kind, tmp_path, {"text": values, "vector": lists()})
    with refused("teacher.vectors", "column 'text'"):
        read(section, tmp_path)


@pytest.mark.parametrize("kind", COLUMNAR)
def test_a_dotted_name_reaches_a_field(kind, tmp_path):
    documents = [{"text": text, "meta": {"vector": vector.tolist(), "id": f"d{row}"}} for row, (text, vector) in
                 enumerate(zip(TEXTS, VECTORS, strict=True))]  # fmt: skip
    documents[5] = None
    section = table_of(kind, tmp_path, {"doc": documents, "n": list(range(60))})
    columns = {"text": "doc.text", "embedding": "doc.meta.vector", "id": "doc.meta.id"}
    section = section.model_copy(update={"columns": columns})
    keep = [row for row in range(60) if row != 5]
    expect(read(section, tmp_path), [TEXTS[row] for row in keep], VECTORS[keep])
    assert about(section, tmp_path)["left_out"] == {"without a text": {"rows": 1, "first": "5"}}
    with refused("teacher.columns", "'doc.txt'"):
        read(section.model_copy(update={"columns": {**columns, "text": "doc.txt"}}), tmp_path)


@pytest.mark.parametrize("kind", COLUMNAR)
def test_columns_of_which_another_may_be_meant_are_named(kind, tmp_path, capsys):
    """Once for each table, and not where the recipe names them."""
    other = [f"another {text}" for text in TEXTS]
    columns = {"content": other, "text": TEXTS, "vector": lists(-VECTORS), "embedding": lists()}
    section = table_of(kind, tmp_path, columns)
    expect(read(section, tmp_path))
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.count("texts are read from 'text'; content may hold texts as well") == 1
    assert printed.count("vectors are read from 'embedding'; vector may hold vectors as well") == 1
    for names in ({"text": "content", "embedding": "vector"}, {"text": "text", "embedding": "embedding"}):
        read(section.model_copy(update={"columns": names}), tmp_path)
        assert "as well" not in capsys.readouterr().err


def test_the_texts_of_an_array_may_be_of_another_column_and_are_named(tmp_path, capsys):
    np.save(tmp_path / "v.npy", VECTORS)
    rows = [{"content": f"another {text}", "text": text} for text in TEXTS]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expect(read(TeacherSection(vectors=tmp_path / "v.npy", texts=tmp_path / "texts.jsonl"), tmp_path))
    assert "texts are read from 'text'; content may hold texts as well" in " ".join(capsys.readouterr().err.split())


# -- vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COLUMNAR)
@pytest.mark.parametrize(
    "type_of_vector",
    [
        pa.list_(pa.int8()),
        pa.list_(pa.int8(), DIM),
        pa.list_(pa.int64()),
        pa.large_list(pa.float16()),
        pa.list_(pa.float64()),
        pa.list_(pa.float16(), DIM),
    ],
    ids=str,
)
def test_vectors_of_every_type_are_read_alike(kind, type_of_vector, tmp_path):
    values = np.round(VECTORS * 100)
    column = pa.array([list(row.astype(np.int64) if "int" in str(type_of_vector) else row.astype(np.float16)
                            if "half" in str(type_of_vector) else row) for row in values], type_of_vector)  # fmt: skip
    section = table_of(kind, tmp_path, {"text": TEXTS, "vector": column})
    expect(read(section, tmp_path), vectors=values)


@pytest.mark.parametrize("kind", COLUMNAR)
def test_packed_bits_and_strings_are_no_vectors(kind, tmp_path):
    packed = lists(np.packbits(VECTORS > 0, axis=1), pa.list_(pa.uint8()))
    written = pa.array([str(row.tolist()) for row in VECTORS])
    for number, (column, fix) in enumerate([(packed, "with both undone"), (written, "Convert it, or name the column")]):
        section = table_of(kind, tmp_path / str(number), {"text": TEXTS, "vector": column})
        with refused("teacher.vectors", "lists of floats") as caught:
            read(section, tmp_path)
        assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("content", "problem", "fix"),
    [
        (np.array([row.tolist() for row in VECTORS] + [[1.0]], dtype=object), "Python objects", ""),
        (np.array([1.0, "a", None], dtype=object), "Python objects", ""),
        (np.round(VECTORS * 100 + 128).astype(np.uint8), "holds uint8 [60, 8]", "with both undone"),
        (VECTORS.reshape(60, 2, 4), "holds float32 [60, 2, 4]", "Convert it."),
    ],
    ids=["lists", "objects", "unsigned", "three axes"],
)
def test_arrays_of_something_else_are_refused_by_what_they_hold(content, problem, fix, tmp_path):
    np.save(tmp_path / "v.npy", content, allow_pickle=True)
    with refused("teacher.vectors", problem) as caught:
        local_table(TeacherSection(vectors=tmp_path / "v.npy"), tmp_path / "cache")
    assert fix in str(user_error(caught.value))


@pytest.mark.parametrize("kind", COLUMNAR)
def test_a_tensor_of_arrow_is_read(kind, tmp_path):
    if kind == "lance":
        pytest.skip("LanceDB gives lists back")
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(VECTORS)
    expect(read(table_of(kind, tmp_path, {"text": TEXTS, "vector": tensors}), tmp_path))


@pytest.mark.parametrize("kind", COLUMNAR)
@pytest.mark.parametrize("name", ["vector", "doc.vector"])
def test_vectors_with_their_shapes_are_read(kind, name, tmp_path):
    """As Daft writes arrays of NumPy, and Ray in a block of several lengths; also inside of another column."""
    tensors = pa.StructArray.from_arrays(
        [pa.array(VECTORS.tolist(), pa.list_(pa.float32())), pa.array([[DIM]] * 60, pa.list_(pa.uint64()))],
        ["data", "shape"],
    )
    column = tensors if name == "vector" else pa.StructArray.from_arrays([tensors], ["vector"])
    section = table_of(kind, tmp_path, {"text": TEXTS, name.partition(".")[0]: column})
    section = section.model_copy(update={"columns": {"embedding": name}})
    expect(read(section, tmp_path))

    squares = pa.StructArray.from_arrays([tensors.field("data"), pa.array([[2, 4]] * 60)], ["data", "shape"])
    section = table_of(kind, tmp_path / "squares", {"text": TEXTS, "vector": squares})
    with refused("teacher.vectors", "several dimensions"):
        read(section, tmp_path)


RAY_DATA = """
import sys
import numpy as np, ray, ray.data
folder, texts = sys.argv[1], open(sys.argv[1] + "/texts.txt", encoding="utf-8").read().splitlines()
vectors = np.load(folder + "/vectors.npy")
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
rows = ray.data.from_items([{"id": number, "text": text} for number, text in enumerate(texts)], override_num_blocks=3)
rows.map_batches(lambda rows: rows | {"embedding": vectors[rows["id"]]}).write_parquet(folder + "/table")
"""


@pytest.mark.slow
def test_a_folder_that_ray_data_has_written_is_read(tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    np.save(tmp_path / "vectors.npy", VECTORS)
    subprocess.run([sys.executable, "-c", RAY_DATA, str(tmp_path)], check=True, capture_output=True)
    assert len(list((tmp_path / "table").glob("*.parquet"))) == 3
    expect(read(TeacherSection(vectors=tmp_path / "table"), tmp_path))


def test_a_folder_that_spark_has_written_is_read(tmp_path):
    """Lists of floats in several files, beside an empty file that says that all is written, and checksums."""
    folder = tmp_path / "table"
    folder.mkdir()
    for part, rows in enumerate((slice(20), slice(20, 60))):
        name = f"part-0000{part}-6f1c-c000.snappy.parquet"
        pq.write_table(pa.table({"text": TEXTS[rows], "vector": lists(VECTORS[rows])}), folder / name)
        (folder / f".{name}.crc").write_bytes(b"crc\0")
    (folder / "_SUCCESS").touch()
    (folder / "._SUCCESS.crc").write_bytes(b"crc\0")
    expect(read(TeacherSection(vectors=folder), tmp_path))


def test_a_folder_with_the_name_of_a_table_says_what_it_holds(tmp_path):
    (tmp_path / "rows.parquet").mkdir()
    np.save(tmp_path / "rows.parquet" / "part-0.npy", VECTORS)
    with refused("teacher.vectors", "holds part-0.npy"):
        read(TeacherSection(vectors=tmp_path / "rows.parquet"), tmp_path)


BAD = {  # row: text, vector, reason
    3: (None, VECTORS[3], "without a text"),
    9: ("  \n", VECTORS[9], "without a text"),
    12: (TEXTS[12], None, "without a vector"),
    17: (TEXTS[17], np.zeros(DIM), "with a vector of zeros"),
    20: (TEXTS[20], [float("nan"), *VECTORS[20][1:]], "with a vector that holds NaN or infinity"),
    21: (TEXTS[21], [float("inf"), *VECTORS[21][1:]], "with a vector that holds NaN or infinity"),
    30: (TEXTS[30], [None, *VECTORS[30][1:]], "with a vector that holds NaN or infinity"),
}
LEFT_OUT = {
    "without a text": {"rows": 2, "first": "r3"},
    "without a vector": {"rows": 1, "first": "r12"},
    "with a vector of zeros": {"rows": 1, "first": "r17"},
    "with a vector that holds NaN or infinity": {"rows": 3, "first": "r20"},
}


def with_bad_rows():
    texts, vectors = list(TEXTS), list(VECTORS)
    for row, (text, vector, _) in BAD.items():
        texts[row], vectors[row] = text, vector
    return texts, vectors


@pytest.mark.parametrize("kind", COLUMNAR)
@pytest.mark.parametrize("fixed", [False, True])
def test_rows_that_cannot_be_used_are_left_out_and_counted(kind, fixed, tmp_path, capsys):
    texts, vectors = with_bad_rows()
    expected = dict(LEFT_OUT)
    if kind == "lance":  # which stores a vector with NaN as null
        expected["without a vector"] = {"rows": 2, "first": "r12"}
        expected["with a vector that holds NaN or infinity"] = {"rows": 2, "first": "r21"}
    column = lists(vectors, pa.list_(pa.float32(), DIM) if fixed else None)
    ids = [f"r{row}" for row in range(60)]
    section = table_of(kind, tmp_path, {"id": ids, "text": texts, "vector": column})
    good = [row for row in range(60) if row not in BAD]
    expect(read(section, tmp_path), [TEXTS[row] for row in good], VECTORS[good])
    assert about(section, tmp_path)["left_out"] == expected
    printed = " ".join(capsys.readouterr().err.split())
    assert "2 without a text (first id r3)" in printed and "with a vector of zeros (first id r17)" in printed
    local_table(section, tmp_path / "cache")
    assert "first id r3" in capsys.readouterr().err, "also where the copy is used again"


@pytest.mark.parametrize("kind", COLUMNAR)
def test_an_index_without_a_usable_row_is_refused_with_the_reasons(kind, tmp_path):
    section = table_of(kind, tmp_path, {"text": TEXTS, "vector": lists(VECTORS * 0)})
    with refused("teacher.vectors", "60 with a vector of zeros"):
        read(section, tmp_path)
    nothing = pa.schema([("text", pa.string()), ("vector", pa.list_(pa.float32()))]).empty_table()
    with refused("teacher.vectors", "0 rows"):
        read(table_of(kind, tmp_path / "empty", nothing), tmp_path)
    nulls = pa.table({"text": TEXTS, "vector": pa.nulls(60, pa.list_(pa.float32(), DIM))})
    with refused("teacher.vectors", "60 without a vector"):
        read(table_of(kind, tmp_path / "nulls", nulls), tmp_path)


@pytest.mark.parametrize("kind", COLUMNAR[:3])
def test_an_empty_list_is_no_vector_and_other_dims_are_refused(kind, tmp_path):
    vectors = [*VECTORS[:59], []]
    expect(read(table_of(kind, tmp_path / "a", {"text": TEXTS, "vector": lists(vectors)}), tmp_path), TEXTS[:59],
           VECTORS[:59])  # fmt: skip
    vectors = [*VECTORS[:59], VECTORS[0][:5]]
    with refused("teacher.vectors", "dim"):
        read(table_of(kind, tmp_path / "b", {"text": TEXTS, "vector": lists(vectors)}), tmp_path)


def test_roles_stay_with_a_limit(tmp_path):
    roles = ["query", "document"] * 30
    for limit in (None, 1000):
        section = table_of("parquet", tmp_path, {"text": TEXTS, "vector": lists(), "role": roles})
        section = section.model_copy(update={"limit": limit, "prompts": {"query": "find: "}})
        expect(read(section, tmp_path), TEXTS[1::2], VECTORS[1::2])


def test_roles_beside_the_texts_of_an_array_are_read(tmp_path):
    np.save(tmp_path / "v.npy", VECTORS)
    rows = [{"text": text, "role": role} for text, role in zip(TEXTS, ["query", "document"] * 30, strict=True)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = TeacherSection(vectors=tmp_path / "v.npy", texts=tmp_path / "t.jsonl", prompts={"query": "find: "})
    expect(read(section, tmp_path), TEXTS[1::2], VECTORS[1::2])


@pytest.mark.parametrize("ids", [[1000.0 + row for row in range(60)], [b"%d" % (1000 + row) for row in range(60)]])
def test_ids_and_documents_of_a_table_are_those_of_its_copy(ids, tmp_path):
    """pandas makes floats of numbers beside a missing one; an empty name names no document."""
    names = ["", "guide", None] * 20
    section = table_of("parquet", tmp_path, {"text": TEXTS, "vector": lists(), "id": ids, "doc_id": names})
    for limit in (None, 59):  # with a limit it is copied
        table = TableEmbedder(local_table(section.model_copy(update={"limit": limit}), tmp_path / "cache"))
        texts, _ = table.documents()
        assert table.ids(texts) == [str(1000 + TEXTS.index(text)) for text in texts]
        assert table.table.texts_of({"1007"}) == {"1007": TEXTS[7]}
        assert {name for rows in table.rows(()) for name in rows.origins.tolist()} == {None, "guide"}


@pytest.mark.parametrize("kind", COLUMNAR)
def test_a_column_role_of_something_else_says_no_role(kind, tmp_path, capsys):
    """The speakers of a chat."""
    section = table_of(kind, tmp_path, {"text": TEXTS, "vector": lists(), "role": ["user", "assistant"] * 30})
    expect(read(section, tmp_path))
    assert "role" in capsys.readouterr().err


@pytest.mark.parametrize("kind", COLUMNAR)
def test_a_column_that_the_recipe_names_holds_roles(kind, tmp_path):
    section = table_of(kind, tmp_path, {"text": TEXTS, "vector": lists(), "who": ["user", "query"] * 30})
    with refused("teacher.vectors", "'user'"):
        read(section.model_copy(update={"columns": {"role": "who"}}), tmp_path)


@pytest.mark.parametrize("limit", [None, 1000])
def test_a_row_without_a_role_has_every_role(limit, tmp_path):
    roles = ["query", None, "document"] * 20
    section = table_of("parquet", tmp_path, {"text": TEXTS, "vector": lists(), "role": roles})
    section = section.model_copy(update={"limit": limit, "prompts": {"query": "find: "}})
    table = TableEmbedder(local_table(section, tmp_path / "cache"))
    for role, own in (("query", 0), ("document", 2)):
        for row in (own, 1):
            np.testing.assert_allclose(table.embed([TEXTS[row]], role)[0], VECTORS[row], atol=1e-6)
    with refused(".vectors"):
        table.embed([TEXTS[0]], "document")


def test_a_clean_table_is_not_copied(tmp_path):
    section = table_of("parquet", tmp_path, {"text": TEXTS, "vector": lists()})
    assert local_table(section, tmp_path / "cache") == section
    assert not list((tmp_path / "cache").rglob("*.parquet"))


def test_a_stream_of_arrow_is_read_as_a_file_of_it(tmp_path):
    """What save_to_disk of datasets writes."""
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": TEXTS, "vector": VECTORS.tolist()})
    data.save_to_disk(tmp_path / "saved")
    (stream,) = (tmp_path / "saved").glob("*.arrow")
    expect(read(TeacherSection(vectors=stream), tmp_path))
    assert about(TeacherSection(vectors=stream), tmp_path)["kept"] == 60


def test_a_cut_stream_and_what_is_no_arrow_are_refused(tmp_path):
    path = tmp_path / "t.arrow"
    table = pa.table({"text": TEXTS, "vector": lists()})
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)
    path.write_bytes(path.read_bytes()[:-500])
    with refused("teacher.vectors", "t.arrow"):
        read(TeacherSection(vectors=path), tmp_path)
    path.write_bytes(b"neither a file nor a stream")
    with refused("teacher.vectors", "Not an Arrow file"):
        read(TeacherSection(vectors=path), tmp_path)


@pytest.mark.parametrize("limit", [None, 1000])
def test_files_of_a_folder_may_differ_in_types_and_not_in_names(limit, tmp_path):
    table_of("parquet", tmp_path / "a", {"text": TEXTS[:30], "vector": lists(VECTORS[:30])})
    texts = pa.array([text.encode() for text in TEXTS[30:]])
    table_of("parquet", tmp_path / "a" / "z", {"vector": lists(VECTORS[30:], pa.list_(pa.float64())), "text": texts})
    section = TeacherSection(vectors=tmp_path / "a", limit=limit)
    rows = read(section, tmp_path)
    expect({text: rows[text] for text in TEXTS})
    table_of("parquet", tmp_path / "a" / "z", {"vector": lists(VECTORS[30:]), "txt": TEXTS[30:]})
    with refused("teacher.vectors", "no column 'text'"):
        read(section, tmp_path)


@pytest.mark.parametrize("limit", [None, 1000])
def test_files_of_a_folder_are_read_in_any_case_of_letters_and_hidden_ones_are_not(limit, tmp_path):
    table_of("parquet", tmp_path / "t", {"text": TEXTS[:30], "vector": lists(VECTORS[:30])})
    table_of("parquet", tmp_path / "more", {"text": TEXTS[30:], "vector": lists(VECTORS[30:])})
    (tmp_path / "more" / "t.parquet").rename(tmp_path / "t" / "u.PARQUET")
    (tmp_path / "t" / "._t.parquet").write_bytes(b"\0")  # of macOS
    (tmp_path / "t" / ".trash").mkdir()
    (tmp_path / "t" / ".trash" / "old.parquet").write_bytes(b"\0")
    expect(read(TeacherSection(vectors=tmp_path / "t", limit=limit), tmp_path))


def test_endings_in_capital_letters_are_known(tmp_path):
    columns = {"text": TEXTS, "vector": lists()}
    for kind in ("parquet", "arrow"):
        file = table_of(kind, tmp_path, columns).vectors
        index = file.rename(tmp_path / f"T.{kind.upper()}")
        assert is_index(index)
        expect(read(TeacherSection(vectors=index), tmp_path))
    np.save(tmp_path / "t.npy", VECTORS)
    (tmp_path / "t.npy").rename(tmp_path / "T.NPY")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    expect(read(TeacherSection(vectors=tmp_path / "T.NPY", texts=tmp_path / "texts.txt"), tmp_path))


def test_files_behind_a_link_to_a_folder_are_read(tmp_path):
    for name, rows in (("a", slice(30)), ("b", slice(30, 60))):
        table_of("parquet", tmp_path / name, {"text": TEXTS[rows], "vector": lists(VECTORS[rows])})
    (tmp_path / "a" / "more").symlink_to(tmp_path / "b")
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")
    expect(read(TeacherSection(vectors=tmp_path / "a"), tmp_path), [*TEXTS[30:], *TEXTS[:30]],
           np.concatenate([VECTORS[30:], VECTORS[:30]]))  # fmt: skip


# -- several rows of one text ----------------------------------------------------------------------------------------


def turned(vector, cosine):
    """A vector of length 1 at this cosine to another."""
    other = np.roll(vector, 1)
    other -= (other @ vector) * vector
    return (cosine * vector + np.sqrt(1 - cosine**2) * other / np.linalg.norm(other)).astype(np.float32)


def repeated(cosine):
    texts = [*TEXTS, TEXTS[4], TEXTS[8]]
    return texts, np.concatenate([VECTORS, turned(VECTORS[4], cosine)[None], VECTORS[8:9]])


@pytest.mark.parametrize("kind", COLUMNAR)
def test_almost_equal_vectors_of_one_text_count_once(kind, tmp_path):
    texts, vectors = repeated(0.992)
    section = table_of(kind, tmp_path, {"text": texts, "vector": lists(vectors)})
    expect(read(section, tmp_path))
    table = TableEmbedder(local_table(section, tmp_path / "cache"))
    np.testing.assert_array_equal(table.embed([TEXTS[4]])[0], VECTORS[4], "the first one, wherever it is asked")


@pytest.mark.parametrize("kind", COLUMNAR)
def test_other_vectors_of_one_text_are_refused_or_follow_the_key(kind, tmp_path):
    texts, vectors = repeated(0.98)
    section = table_of(kind, tmp_path, {"text": texts, "vector": lists(vectors)})
    with refused("teacher.vectors", TEXTS[4]):
        read(section, tmp_path)
    expect(read(section.model_copy(update={"repeats": "first"}), tmp_path))
    rest = [row for row in range(60) if row != 4]
    dropped = section.model_copy(update={"repeats": "drop"})
    expect(read(dropped, tmp_path), [TEXTS[row] for row in rest], VECTORS[rest])


# -- the copy --------------------------------------------------------------------------------------------------------


def parts_of(table):
    return sorted(table.vectors.glob("part-*.parquet"))


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["flip", "empty", "missing", "more"])
def test_a_damaged_copy_is_made_again(damage, tmp_path, capsys):
    section = table_of("arrow", tmp_path, {"text": TEXTS, "vector": lists()})
    table = local_table(section, tmp_path / "cache")
    (part,) = parts_of(table)
    whole = part.read_bytes()
    if damage == "missing":
        part.unlink()
    elif damage == "empty":
        part.write_bytes(b"")
    elif damage == "more":
        part.with_name("part-00001.parquet").write_bytes(whole)
    else:
        flip(part, len(whole) // 2)
    assert (
        local_table(section, tmp_path / "cache") == table and part.read_bytes() == whole and parts_of(table) == [part]
    )
    assert "damaged" in capsys.readouterr().err


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(copy, "_ROWS", 10)
    monkeypatch.setattr(Reader, "rows_at_once", 10)
    monkeypatch.setattr("distilvec.teachers.indexes.qdrant._POINTS", 10)
    monkeypatch.setattr("distilvec.teachers.indexes.postgres._BLOCKS", 1)


@pytest.mark.parametrize("damage", ["flip", "empty", "missing"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_damaged_part_of_an_unfinished_copy_is_read_again(damage, number, tmp_path, monkeypatch, small_parts):
    texts, vectors = with_bad_rows()
    section = table_of("arrow", tmp_path, {"text": texts, "vector": lists(vectors)})
    whole = [path.read_bytes() for path in parts_of(local_table(section, tmp_path / "whole"))]
    written = kill_copy(section, tmp_path / "killed", monkeypatch, parts=3)
    if damage == "missing":
        written[number].unlink()
    elif damage == "empty":
        written[number].write_bytes(b"")
    else:
        flip(written[number], 200)
    table = local_table(section, tmp_path / "killed")
    assert [path.read_bytes() for path in parts_of(table)] == whole
    first, second = (json.loads(next((tmp_path / name).glob("indexes/*/meta.json")).read_text()) for name in
                     ("whole", "killed"))  # fmt: skip
    assert first["left_out"] == second["left_out"] and first["kept"] == second["kept"] == 53


def test_dropped_texts_after_a_kill_are_the_same(tmp_path, monkeypatch, small_parts):
    texts, vectors = repeated(0.9)
    section = table_of("arrow", tmp_path, {"text": texts, "vector": lists(vectors)})
    section = section.model_copy(update={"repeats": "drop"})
    whole = [path.read_bytes() for path in parts_of(local_table(section, tmp_path / "whole"))]
    kill_copy(section, tmp_path / "killed", monkeypatch, parts=8)  # seven parts are written, then one without the text
    table = local_table(section, tmp_path / "killed")
    assert [path.read_bytes() for path in parts_of(table)] == whole


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    section = table_of("arrow", tmp_path, {"text": TEXTS, "vector": lists()})
    write = copy._write

    def change(path, table):
        table_of("arrow", tmp_path, {"text": TEXTS[::-1], "vector": lists()})
        write(path, table)

    monkeypatch.setattr(copy, "_write", change)
    with refused("teacher.vectors", "was changed while it was read"):
        local_table(section, tmp_path / "cache")
    monkeypatch.setattr(copy, "_write", write)
    expect(read(section, tmp_path), TEXTS[::-1])


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "texts.jsonl")
    os.mkfifo(tmp_path / "v.npy")
    np.save(tmp_path / "w.npy", VECTORS)
    with refused("teacher.texts", "not a file"):
        local_table(TeacherSection(vectors=tmp_path / "w.npy", texts=tmp_path / "texts.jsonl"), tmp_path / "cache")
    with refused("teacher.vectors", "not a file"):
        local_table(TeacherSection(vectors=tmp_path / "v.npy", texts=tmp_path / "w.npy"), tmp_path / "cache")
