import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distilvec.config.schema import SourceSection
from distilvec.core.errors import DistilvecError
from distilvec.data import readers
from distilvec.data.readers import read_source, source_files

TEXTS = ["first text", '  a second,\twith "quotes" ', "", "dördüncü cümle 🌍"]


def read(path, position=0, **options):
    return list(read_source(SourceSection(path=path, **options), position))


def write_jsonl(path, rows):
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def refused(*parts, path, **options):
    with pytest.raises(DistilvecError) as caught:
        read(path, **options)
    for part in (*parts, str(path)):
        assert part in str(caught.value), str(caught.value)


def write(path, texts):
    """The same texts in the format that the name says."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path)
        return
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        if name.endswith(".txt"):
            file.writelines(f"{text}\n" for text in texts)
        elif name.endswith(".jsonl"):
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        else:
            writer = csv.writer(file, delimiter="\t" if name.endswith(".tsv") else ",")
            writer.writerow(["id", "text"])
            writer.writerows(enumerate(text.replace("\t", " ") if name.endswith(".tsv") else text for text in texts))


@pytest.mark.parametrize(
    "name",
    ["a.txt", "a.txt.gz", "a.jsonl", "a.jsonl.gz", "a.csv", "a.csv.gz", "a.tsv", "a.tsv.gz", "a.parquet", "A.JSONL"],
)
def test_every_format_gives_the_same_texts(tmp_path, name):
    path = tmp_path / name
    write(tmp_path / name.lower(), TEXTS)
    (tmp_path / name.lower()).rename(path)
    expected = [text.replace("\t", " ") for text in TEXTS] if ".tsv" in name else TEXTS
    got = read(path)
    assert [text.rstrip("\n") for text in got] == expected


def test_txt_keeps_windows_line_ends_apart_and_drops_the_byte_order_mark(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree")
    assert [text.strip() for text in read(path)] == ["one", "two", "three"]


def test_csv_fields_may_hold_line_ends_and_be_long(tmp_path):
    path = tmp_path / "a.csv"
    long = "word " * 60_000
    path.write_text(f'text,label\n"two\nlines",a\n"{long}",b\n')
    assert read(path) == ["two\nlines", long]


def test_tsv_takes_loose_quotes_as_text(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"Hello, she said\t1\nhe said "no"\t0\n"a ""quoted"" word"\t1\n')
    assert read(path) == ['"Hello, she said', 'he said "no"', 'a "quoted" word']


def test_folder_is_read_sorted_at_any_depth(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("b/2.txt", "a.txt", "c.jsonl", "README.md", ".hidden/x.txt", "d.json"):
        (tmp_path / name).write_text(json.dumps({"text": name}) + "\n")
    files = source_files(SourceSection(path=tmp_path), 0)
    assert [str(file.relative_to(tmp_path)) for file in files] == ["a.txt", "b/2.txt", "c.jsonl"]
    assert read(tmp_path)[-1] == "c.jsonl"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"sentence": "s", "text": "t"}, ["t"]),
        ({"sentence": "s", "query": "q"}, ["s"]),
        ({"question": "q", "answer": "a"}, ["q"]),
        ({"anchor": "a", "positive": "p", "negative": "n"}, ["a", "p"]),
        ({"sentence1": "1", "sentence2": "2", "score": 0.5}, ["1", "2"]),
        ({"id": "7", "title": "a title", "text": "body"}, ["body"]),
        ({"id": "7", "title": "a title", "text": " "}, ["a title"]),
        ({"id": "7", "title": "a title", "text": None}, ["a title"]),
        ({"text": None}, [""]),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_columns_are_found_by_name(tmp_path, name, row, expected):
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        write_jsonl(path, [row])
    assert read(path) == expected


def test_of_query_and_document_the_role_decides(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"query": "q", "document": "d"}])
    assert read(path, role="query") == ["q"]
    assert read(path, role="document") == ["d"]
    assert read(path, column=["query", "document"]) == ["q", "d"]


def test_column_and_where(tmp_path):
    rows = [{"lang": lang, "label": label, "body": f"{lang}{label}"} for lang in ("en", "tr", "de") for label in (0, 1)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for file in (path, tmp_path / "a.parquet"):
        assert read(file, column="body", where={"lang": ["en", "de"], "label": 1}) == ["en1", "de1"]
        assert read(file, column=["body", "lang"], where={"lang": "tr", "label": "0"}) == ["tr0", "tr"]
    refused(
        "corpus.sources.3.where",
        "langs",
        "lang",
        "did you mean",
        path=path,
        position=3,
        column="body",
        where={"langs": "en"},
    )
    refused("corpus.sources.0.column", "bodi", "'body'", path=path, column="bodi")


def test_parquet_reads_needed_columns_by_batch(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": [str(i) for i in range(5000)], "vector": [[1.0]] * 5000}), path, row_group_size=700
    )
    assert read(path) == [str(i) for i in range(5000)]


def test_missing_and_unreadable_files_are_named(tmp_path):
    key = "corpus.sources.2.path"
    refused(key, "not found", path=tmp_path / "none.txt", position=2)
    refused(key, "unknown extension '.json'", ".jsonl", path=write_jsonl(tmp_path / "a.json", [{}]), position=2)
    (tmp_path / "empty").mkdir()
    refused(key, "no readable file", path=tmp_path / "empty", position=2)


def test_files_that_are_not_what_their_name_says(tmp_path):
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"fine\n" * 3 + "caf\xe9\n".encode("latin1"))
    refused("not UTF-8", "line 4", "0xe9", path=latin)
    wide = tmp_path / "wide.jsonl"
    wide.write_bytes('{"text": "a"}\n'.encode("utf-16"))
    refused("not UTF-8", "line 1", path=wide)
    plain = tmp_path / "plain.jsonl.gz"
    plain.write_text('{"text": "a"}\n')
    refused("not gzip", path=plain)
    zipped = tmp_path / "zipped.jsonl"
    zipped.write_bytes(gzip.compress(b'{"text": "a"}\n'))
    refused("holds gzip data", ".jsonl.gz", path=zipped)
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(gzip.compress(b"".join(b"%d\n" % i for i in range(100_000)))[:-5000])
    refused("cut short after line", path=cut)
    for content in (b"not parquet at all", b"", b"PAR1 but no footer PAR1"):
        fake = tmp_path / "fake.parquet"
        fake.write_bytes(content)
        refused("not a readable Parquet file", path=fake)
    real = tmp_path / "real.txt"
    pq.write_table(pa.table({"text": ["a"]}), real)
    refused("holds Parquet data", path=real)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.parquet"])
def test_nul_is_refused(tmp_path, name):
    path = tmp_path / name
    write(path, ["good", "bad\0text"])
    refused("[corpus.sources.3.path]", "2" if "csv" not in name else "3", "NUL", path=path, position=3)


def test_utf_16_without_a_byte_order_mark_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("plain ascii\n".encode("utf-16-le"))
    refused("[corpus.sources.0.path]", "line 1", "UTF-16", path=path)


def test_parquet_with_strings_that_are_not_utf_8_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    broken = pa.StringArray.from_buffers(2, pa.array([0, 4, 8], pa.int32()).buffers()[1], pa.py_buffer(b"fineb\xe9d!"))
    pq.write_table(pa.table({"text": broken}), path)
    refused("[corpus.sources.0.path]", "not a readable Parquet file", path=path)


def test_broken_rows_are_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": }\n')
    refused("line 3 is not JSON", path=path)
    path.write_text('{"text": "a"}\n["b"]\n')
    refused("line 2", "expected an object", "list", path=path)
    path.write_text('{"text": "a"}\n{"txt": "b"}\n')
    refused("line 2", "no 'text'", "did you mean", path=path)
    path.write_text('{"text": "a"}\n{"text": 5}\n')
    refused("line 2", "'text' holds int", path=path)
    path.write_text('{"body": "a", "texts": "b"}\n')
    refused("corpus.sources.0.column", "found: body, texts", "did you mean 'texts'", path=path)
    numbers = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"text": [["a"], ["b"]]}), numbers)
    refused("row 1", "'text' holds list", path=numbers)


def test_broken_tables_are_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,text\n1,a\n2,b,c\n")
    refused("line 3 has 3 fields, the header has 2", path=path)
    path.write_text('id,text\n1,a\n2,"open\n3,c\n')
    refused("not valid CSV", path=path)
    path.write_text("")
    assert read(path) == []


def test_reading_stops_where_the_reader_stops(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\n" * 100_000 + b"\xff\n")
    texts = read_source(SourceSection(path=path), 0)
    assert next(texts).strip() == "good"
    texts.close()


def test_builtin_docstrings_are_the_passages(monkeypatch):
    monkeypatch.setattr(readers.docstrings, "passages", lambda: iter(["a passage"]))
    assert list(read_source(SourceSection(builtin="python-docstrings"), 0)) == ["a passage"]


def test_missing_datasets_package_is_named(monkeypatch):
    monkeypatch.setattr("distilvec.core.extras._is_there", lambda name: name != "datasets")
    with pytest.raises(DistilvecError, match=r"\[corpus\.sources\.1\.dataset\].*datasets.*pip install"):
        list(read_source(SourceSection(dataset="some/data"), 1))


def test_saved_dataset_folder(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [0, 1]})
    data.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "many"))
    for name in ("one", "many"):
        section = SourceSection(dataset=str(tmp_path / name), where={"label": 1})
        assert list(read_source(section, 0)) == ["b", "d"]
        assert source_files(section, 0)
    with pytest.raises(DistilvecError, match=r"no split 'test'; found: train"):
        list(read_source(SourceSection(dataset=str(tmp_path / "many"), split="test"), 0))
    with pytest.raises(DistilvecError, match=r"corpus\.sources\.0\.path.*save_to_disk"):
        read(tmp_path / "one")
    with pytest.raises(DistilvecError, match=r"corpus\.sources\.0\.column.*found: sentence1, sentence2, label"):
        list(read_source(SourceSection(dataset=str(tmp_path / "one"), column="text"), 0))
