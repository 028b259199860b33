import gzip
import json

import pytest

from distilvec.core.errors import DistilvecError
from distilvec.data.data_error import DataError
from distilvec.data.tables import find_table, read_rows, read_split

ROWS = [
    {"split": "test", "text": 'a "quoted", ünïcode text', "label": "x"},
    {"split": "train", "text": "b", "label": "y"},
]


def write(folder, ending):
    path = folder / f"rows{ending}"
    if ending == ".parquet":
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        parquet.write_table(arrow.Table.from_pylist(ROWS), path)
        return path
    if ending.startswith(".jsonl"):
        text = "\n\n".join(json.dumps(row) for row in ROWS)
    elif ending.startswith(".csv"):
        text = '\ufeffsplit,text,label\r\ntest,"a ""quoted"", ünïcode text",x\r\ntrain,b,y\r\n'
    else:
        text = 'split\ttext\tlabel\ntest\ta "quoted", ünïcode text\tx\ntrain\tb\ty\n'
    opener = gzip.open if ending.endswith(".gz") else open
    with opener(path, "wt", encoding="utf-8", newline="") as file:
        file.write(text)
    return path


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet"])
def test_every_format_gives_the_same_rows(tmp_path, ending):
    path = write(tmp_path, ending)
    assert [row for _, row in read_rows(path)] == ROWS
    assert find_table(tmp_path, "rows") == path
    assert [row["text"] for _, row in read_split(path, "train")] == ["b"]
    assert [row["text"] for _, row in read_split(tmp_path, "train")] == ["b"]


def test_quotes_in_tsv_files_are_text_unless_they_enclose_a_whole_field(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"loose\tx\n"he said ""no"""\ty\n"a" and "b"\tz\n')
    assert [row["text"] for _, row in read_rows(path)] == ['"loose', 'he said "no"', '"a" and "b"']


def test_long_fields_are_read(tmp_path):
    (tmp_path / "a.csv").write_text("text\n" + "long " * 50_000 + "\n")
    assert len(next(iter(read_rows(tmp_path / "a.csv")))[1]["text"]) == 250_000


def test_a_folder_has_one_file_a_split(write_jsonl, tmp_path):
    write_jsonl("data/train.jsonl", [{"text": "a"}])
    write_jsonl("data/test.jsonl", [{"text": "b"}])
    assert read_split(tmp_path / "data", "train")[0][1] == {"text": "a"}
    with pytest.raises(DistilvecError, match=r"test\.jsonl, train\.jsonl; expected validation\.jsonl"):
        read_split(tmp_path / "data", "validation")


def test_a_missing_split_is_answered_with_those_present(write_jsonl):
    path = write_jsonl("a.jsonl", [{"split": "dev", "text": "a"}, {"split": "train", "text": "a"}])
    with pytest.raises(DistilvecError, match=r"no split 'test'\. Its splits: dev, train"):
        read_split(path, "test")


BAD = {
    "a.jsonl": (b'{"text": "a"}\n{"text": \n', "line 2 is not JSON"),
    "b.jsonl": (b"[1, 2]\n", "line 1 holds a JSON list"),
    "c.jsonl": ('{"text": "é"}\n'.encode("latin-1"), "not UTF-8"),
    "d.jsonl.gz": (b'{"text": "a"}\n', "not a whole gzip file"),
    "e.jsonl.gz": (gzip.compress(b'{"text": "a"}\n' * 99)[:-9], "not a whole gzip file"),
    "f.csv": (b"text,label\na,b\nc\n", "line 3 has 1 fields, the header 2"),
    "g.parquet": (b"text\n", "not a Parquet file"),
    "h.xlsx": (b"text\n", "the ending is not one of"),
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_files_end_with_one_clear_message(tmp_path, name):
    content, message = BAD[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DistilvecError, match=message) as caught:
        list(read_rows(path))
    assert name in str(caught.value)


def test_missing_and_empty_files(tmp_path, write_jsonl):
    with pytest.raises(DistilvecError, match="file not found"):
        list(read_rows(tmp_path / "none.jsonl"))
    with pytest.raises(DistilvecError, match="holds no rows"):
        read_split(write_jsonl("empty.jsonl", []), "test")
    write_jsonl("twice.jsonl", [])
    (tmp_path / "twice.csv").write_text("text\n")
    with pytest.raises(DistilvecError, match="several files"):
        find_table(tmp_path, "twice")


MORE_BAD = {
    "a.csv": (b"text,text\na,b\n", "line 1: column 'text' stands twice"),
    "b.jsonl": (b'{"score": ' + b"9" * 5000 + b"}\n", "line 1 is not JSON"),
    "c.jsonl": (b"[" * 100_000 + b"\n", "line 1 is not JSON"),
    "d.csv": (b'text\n"never closed\n', "cannot be read"),
    "e.parquet": (b"PAR1" + bytes(100) + b"PAR1", "not a Parquet file, or a damaged one"),
    "f.csv": ("text\n" + "x," * 5000 + "\n").encode(),
}


@pytest.mark.parametrize("name", MORE_BAD)
def test_more_damaged_files(tmp_path, name):
    content, message = (
        MORE_BAD[name] if isinstance(MORE_BAD[name], tuple) else (MORE_BAD[name], "has 5001 fields, the header 1")
    )
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(read_rows(tmp_path / name))
    assert str(caught.value).startswith(f"[suite] {tmp_path / name}") and len(str(caught.value)) < 500


def test_a_folder_in_the_place_of_a_file(tmp_path):
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(DataError, match=r"^\[suite\] .*a\.csv is a folder"):
        list(read_rows(tmp_path / "a.csv"))


@pytest.mark.parametrize("split", [{}, {"split": None}, {"split": ""}])
def test_no_row_is_dropped_for_want_of_a_split(write_jsonl, split):
    path = write_jsonl("a.jsonl", [{"split": "test", "text": "a"}, {"text": "b", **split}])
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: no split"):
        read_split(path, "test")
