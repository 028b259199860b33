"""Files of JSON lines as indexes: dumps of search engines, chunks as rows, and files without vectors."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pytest
from refusals import refused
from samples import make_texts

from distilvec.config.schema import SourceSection, TeacherSection
from distilvec.data.sources import read_source
from distilvec.teachers.indexes import jsonl
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.table_embedder import TableEmbedder

TEXTS = make_texts(60)
VECTORS = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path, folder, **keys):
    """Rows of the copy."""
    table = local_table(TeacherSection(vectors=str(path), **keys), folder / "cache")
    texts, vectors = TableEmbedder(table).documents()
    return table, dict(zip(texts, vectors, strict=True))


def columns(table):
    """Ids and documents of a copy's rows."""
    rows = pa.parquet.read_table(sorted(table.vectors.glob("part-*.parquet"))).to_pydict()
    return rows["id"], rows.get("document_id", rows.get("text_origin"))


def elastic(text, vector, row, **fields):
    source = {"title": "a title", "place": [29.0, 41.0], **fields, **text}
    return {"_index": "docs", "_id": f"d{row}", "_score": 1, "_source": {**source, **vector}}


def opensearch(text, vector, row):
    return {"_index": "docs", "_id": f"d{row}", "_source": {"metadata": {"page": row}, **text, **vector}}


FORMS = {  # of one row, and the fields that are read
    "elasticdump": (
        lambda text, vector, row: elastic({"content": text}, {"embedding": vector}, row),
        ("_source.content", "_source.embedding"),
    ),
    "an object with the usual name of a text": (
        lambda text, vector, row: elastic({"content": {"lang": "en", "body": text}}, {"embedding": vector}, row),
        ("_source.content.body", "_source.embedding"),
    ),
    "langchain's opensearch": (
        lambda text, vector, row: opensearch({"text": text}, {"vector": vector}, row),
        ("_source.text", "_source.vector"),
    ),
    "weaviate": (
        lambda text, vector, row: {"id": f"d{row}", "properties": {"text": text}, "vector": {"default": vector}},
        ("properties.text", "vector.default"),
    ),
    "pinecone": (
        lambda text, vector, row: {"id": f"d{row}", "values": vector, "metadata": {"text": text}},
        ("metadata.text", "values"),
    ),
    "plain": (lambda text, vector, row: {"id": f"d{row}", "text": text, "embedding": vector}, ("text", "embedding")),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ending", [".jsonl", ".json", ".jsonl.gz", ".ndjson.zst"])
def test_dumps_are_read_by_their_usual_names(form, ending, tmp_path, capsys):
    make, (text_field, vector_field) = FORMS[form]
    rows = [make(text, vector.tolist(), row) for row, (text, vector) in enumerate(zip(TEXTS, VECTORS, strict=True))]
    path = write(tmp_path / f"dump{ending}", rows)
    content = path.read_bytes()
    if ending.endswith(".gz"):
        content = gzip.compress(content)
    elif ending.endswith(".zst"):
        content = pa.compress(content, "zstd", asbytes=True)
    path.write_bytes(content)

    table, found = read(path, tmp_path)
    assert list(found) == TEXTS
    np.testing.assert_array_equal(np.stack(list(found.values())), VECTORS)  # float32, to the bit
    assert columns(table)[0] == [f"d{row}" for row in range(60)]
    printed = " ".join(capsys.readouterr().err.split())
    assert f"texts are those of '{text_field}', vectors those of '{vector_field}'" in printed
    assert path.read_bytes() == content


def test_an_array_of_objects_is_read(tmp_path):
    rows = [{"id": row, "text": text, "embedding": VECTORS[row].tolist()} for row, text in enumerate(TEXTS)]
    for indent in (None, 2):
        path = tmp_path / f"{indent}.json"
        path.write_text(json.dumps(rows, indent=indent))
        table, found = read(path, tmp_path)
        assert list(found) == TEXTS and columns(table)[0] == [str(row) for row in range(60)]


def test_fields_of_any_name_are_read_by_their_dotted_names(tmp_path):
    pairs = zip(TEXTS, VECTORS, strict=True)
    rows = [elastic({"txt": text}, {"title_vec": vector.tolist()}, 0) for text, vector in pairs]
    path = write(tmp_path / "dump.jsonl", rows)
    with refused("teacher.columns", "_source.title_vec"):
        read(path, tmp_path)
    _, found = read(path, tmp_path, columns={"text": "_source.txt", "embedding": "_source.title_vec"})
    assert list(found) == TEXTS
    with refused("teacher.columns", "no list of numbers in '_source.title'; it has lists of numbers in _source.place"):
        read(path, tmp_path, columns={"text": "_source.txt", "embedding": "_source.title"})


def test_the_only_long_list_of_numbers_is_the_vector(tmp_path):
    rows = []
    for row, text in enumerate(TEXTS):
        vectors = {"body_vector": [row + 1.0] * 64}
        rows.append(elastic({"content": text}, vectors, row))
    _, found = read(write(tmp_path / "dump.jsonl", rows), tmp_path)
    assert list(found) == TEXTS and len(found[TEXTS[0]]) == 64
    rows[-1]["_source"]["title_vector"] = [1.0] * 64
    with refused("teacher.columns", "_source.body_vector"):
        read(write(tmp_path / "two.jsonl", rows), tmp_path)


@pytest.mark.parametrize(
    ("row", "fix"),
    [
        ({"_id": "1", "_source": {"text": "a"}}, "exclude_vectors"),
        ({"id": "1", "properties": {"text": "a"}}, "include_vector"),
        ({"id": "1", "values": [], "metadata": {"text": "a"}}, "fetch"),
        ({"text": "a", "label": 1}, "after a model"),
    ],
)
def test_a_file_without_vectors_is_said_to_be_so(row, fix, tmp_path):
    path = write(tmp_path / "dump.jsonl", [row] * 30)
    with refused("teacher.vectors", "holds no vectors") as caught:
        read(path, tmp_path)
    assert fix in caught.value.fix


def test_as_texts_its_vectors_are_not_read_and_this_is_said(tmp_path, capsys):
    rows = [{"text": text, "embedding": vector.tolist()} for text, vector in zip(TEXTS, VECTORS, strict=True)]
    path = write(tmp_path / "dump.jsonl", rows)
    assert list(read_source(SourceSection(path=path), 0)) == TEXTS
    assert "as TEACHER it is an index" in " ".join(capsys.readouterr().err.split())


def test_chunks_are_rows_of_their_document(tmp_path):
    rows = []
    for row in range(20):
        chunks = [
            {"text": TEXTS[part], "vector": {"predicted_value": VECTORS[part].tolist()}}
            for part in range(3 * row, 3 * row + 3)
        ]
        rows.append(elastic({"text": "the whole document"}, {"passages": chunks}, row))
    rows.insert(4, elastic({"text": "no chunk"}, {}, 99))
    rows.insert(7, elastic({"text": "one"}, {"passages": {"text": "alone", "vector": None}}, 98))
    path = write(tmp_path / "dump.jsonl", rows)
    table, found = read(path, tmp_path)
    assert list(found) == TEXTS
    ids, documents = columns(table)
    assert ids[:4] == ["d0:0", "d0:1", "d0:2", "d1:0"] and documents[:4] == ["d0", "d0", "d0", "d1"]
    np.testing.assert_array_equal(np.stack(list(found.values())), VECTORS)


def test_chunks_without_a_text_of_their_own_are_refused(tmp_path):
    """As semantic_text of Elasticsearch, whose chunks are places in the text."""
    chunks = [{"start_offset": 0, "end_offset": 9, "embeddings": VECTORS[0].tolist()}]
    path = write(tmp_path / "a.jsonl", [elastic({"text": "a whole text"}, {"chunks": chunks}, row) for row in range(9)])
    with refused("teacher.columns", "'_source.chunks.embeddings' and '_source.text' are not of one object"):
        read(path, tmp_path)
    parts = [{"text": "one"}, {"text": "two"}]
    path = write(tmp_path / "b.jsonl", [elastic({"parts": parts}, {"vector": VECTORS[0].tolist()}, 1)])
    with refused("teacher.columns", "are not of one object"):
        read(path, tmp_path)
    lists = [{"inner": [{"text": "one", "vector": VECTORS[0].tolist()}]}]
    path = write(tmp_path / "c.jsonl", [elastic({}, {"outer": lists}, 1)])
    with refused("teacher.columns", "inside of the list '_source.outer'"):
        read(path, tmp_path)


def test_rows_that_cannot_be_used_are_left_out_and_others_are_refused_by_line(tmp_path, capsys):
    vectors = [vector.tolist() for vector in VECTORS]
    texts = list(TEXTS)
    texts[3] = None
    vectors[5] = None
    vectors[7] = [0] * 8
    vectors[9] = [1e300] * 8
    vectors[11] = [None, *vectors[11][1:]]
    vectors[13] = []
    rows = [
        {"id": row, "text": text, "vector": vector}
        for row, (text, vector) in enumerate(zip(texts, vectors, strict=True))
    ]
    del rows[15]["vector"]
    path = write(tmp_path / "dump.jsonl", rows)
    _, found = read(path, tmp_path)
    assert list(found) == [TEXTS[row] for row in range(60) if row not in (3, 5, 7, 9, 11, 13, 15)]
    printed = " ".join(capsys.readouterr().err.split())
    assert "3 without a vector (first id 5)" in printed and "NaN or infinity (first id 9)" in printed
    for wrong in (str(vectors[20]), [vectors[20], vectors[20]], {"a": 1}, [True] * 8, ["1"] * 8):
        rows[20]["vector"] = wrong
        write(path, rows)
        with refused("teacher.vectors", "line 21: 'vector' holds"):
            read(path, tmp_path)
    rows[20]["vector"] = vectors[20][:5]
    write(path, rows)
    with refused("teacher.vectors", "different dims"):
        read(path, tmp_path)
    path.write_text(path.read_text()[:-40])
    with refused("teacher.vectors", "line 60: not JSON"):
        read(path, tmp_path)


def test_vectors_may_come_late(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "_FIRST_LINES", 5)
    rows = [{"text": text} for text in TEXTS[:40]]
    rows += [{"text": text, "vector": vector.tolist()} for text, vector in zip(TEXTS[40:], VECTORS[40:], strict=True)]
    _, found = read(write(tmp_path / "dump.jsonl", rows), tmp_path)
    assert list(found) == TEXTS[40:]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_packed_file_that_ends_too_soon_is_an_error(ending, tmp_path):
    content = "".join(json.dumps({"text": text, "vector": [1.0, 2.0]}) + "\n" for text in TEXTS).encode()
    packed = gzip.compress(content) if ending == ".gz" else pa.compress(content, "zstd", asbytes=True)
    path = tmp_path / f"dump.jsonl{ending}"
    path.write_bytes(packed[:-20])
    with refused("teacher.vectors", "runcated"):
        read(path, tmp_path)
