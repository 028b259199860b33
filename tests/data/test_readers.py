"""The one reader of files: the same rows from every format, and one error for every damage, with file and line."""

import csv
import gzip
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distilvec.core.errors import about, user_error
from distilvec.data.readers import TABLES, read_rows

TEXTS = ["first text", '  a second, with "quotes" ', "", "dördüncü cümle 🌍"]


def texts_of(path):
    return [row["text"] for _, row in read_rows(path)]


def problem_of(path, choose=None):
    """The sentence that a user gets about a file, whose key the reader's caller knows."""
    with pytest.raises(Exception) as caught, about("key", path):
        list(read_rows(path, choose))
    return str(user_error(caught.value))


def write(path, texts):
    """The same texts in the format that the name gives."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path)
        return path
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8", newline="") as file:
        if name.endswith(".txt"):
            file.writelines(f"{text}\n" for text in texts)
        elif name.endswith(".jsonl"):
            file.writelines(json.dumps({"text": text}) + "\n\n" for text in texts)
        else:
            file.write("\ufeff")
            writer = csv.writer(file, delimiter="\t" if name.endswith(".tsv") else ",")
            writer.writerow(["id", " text"])
            writer.writerows(enumerate(texts))
    if path.suffix == ".zst":
        path.write_bytes(pa.compress(path.read_bytes(), "zstd", asbytes=True))
    return path


@pytest.mark.parametrize("ending", [".txt", ".txt.gz", ".txt.zst", *TABLES, ".JSONL"])
def test_every_format_gives_the_same_texts(tmp_path, ending):
    path = write(tmp_path / f"a.b{ending}", TEXTS)
    assert [text.rstrip("\n") for text in texts_of(path)] == TEXTS


def test_rows_come_with_their_locations(tmp_path):
    path = write(tmp_path / "a.jsonl", ["a", "b"])
    assert [where for where, _ in read_rows(path)] == [f"{path}, line 1", f"{path}, line 3"]
    path = write(tmp_path / "a.parquet", ["a"])
    assert [where for where, _ in read_rows(path)] == [f"{path}, row 1"]


def test_txt_keeps_windows_line_ends_apart_and_drops_the_byte_order_mark(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree")
    assert [text.strip() for text in texts_of(tmp_path / "a.txt")] == ["one", "two", "three"]


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv", ".tsv"])
@pytest.mark.parametrize("line_end", [b"\r", b"\r\n"], ids=["cr", "crlf"])
def test_line_ends_of_other_systems(tmp_path, ending, line_end):
    path = write(tmp_path / f"a{ending}", ["one", "two", "three"])
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", line_end))
    assert [text.strip() for text in texts_of(path)] == ["one", "two", "three"]
    assert [where.rpartition(" ")[2] for where, _ in read_rows(path)][-1] in ("3", "4", "5")


def test_an_array_of_objects_is_rows(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"text": "one"}, {"text": "two"}], indent=2))
    assert texts_of(tmp_path / "a.json") == ["one", "two"]
    (tmp_path / "words.json").write_text(json.dumps({"word": ["one", "two"]}))
    assert texts_of(tmp_path / "words.json") == ["one", "two"]


def test_csv_fields_may_hold_line_ends_and_be_long(tmp_path):
    long = "word " * 60_000
    (tmp_path / "a.csv").write_text(f'text,label\n"two\nlines",a\n"{long}",b\n')
    assert texts_of(tmp_path / "a.csv") == ["two\nlines", long]


def test_quotes_in_tsv_files_are_text_unless_they_enclose_a_whole_field(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tlabel\n"loose\tx\n"he said ""no"""\ty\n"a" and "b"\tz\n')
    assert texts_of(tmp_path / "a.tsv") == ['"loose', 'he said "no"', '"a" and "b"']


def test_a_tsv_file_of_one_column_may_have_loose_quotes(tmp_path):
    lines = ['"an opening one', "no quote", 'an "inner" one', 'a closing one"', '"whole"', '"and" "two"', '""']
    (tmp_path / "a.tsv").write_text("\n".join(["text", *lines]))
    assert texts_of(tmp_path / "a.tsv") == [*lines[:4], "whole", '"and" "two"', ""]


def test_only_the_chosen_columns_of_parquet_are_read(tmp_path):
    table = pa.table({"text": [str(i) for i in range(5000)], "vector": [[1.0]] * 5000})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    rows = [row for _, row in read_rows(tmp_path / "a.parquet", lambda names: names[:1])]
    assert rows == [{"text": str(i)} for i in range(5000)]


def test_reading_stops_where_the_reader_stops(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good\n" * 100_000 + b"\xff\n")
    rows = read_rows(tmp_path / "a.txt")
    assert next(rows)[1] == {"text": "good\n"}
    rows.close()


BROKEN = pa.StringArray.from_buffers(2, pa.array([0, 4, 8], pa.int32()).buffers()[1], pa.py_buffer(b"fineb\xe9d!"))
DAMAGED = {
    "latin.txt": (b"fine\n" * 3 + b"caf\xe9\n", "line 4: not UTF-8"),
    "latin.csv": (b"text\ncaf\xe9\n", "line 2: not UTF-8"),
    "utf16.jsonl": ('{"text": "a"}\n'.encode("utf-16"), "line 1: "),
    "utf16.txt": ("plain ascii\n".encode("utf-16-le"), "line 1: NUL bytes"),
    "nul.csv": (b"id,text\n1,good\n2,bad\0text\n", "line 3: NUL bytes"),
    "plain.jsonl.gz": (b'{"text": "a"}\n', "not gzip data"),
    "zipped.jsonl": (gzip.compress(b'{"text": "a"}\n'), r"line 1: .*\.gz"),
    "cut.txt.gz": (gzip.compress(b"".join(b"%d\n" % i for i in range(100_000)))[:-5000], r"line \d+: truncated"),
    "json.jsonl": (b'{"text": "a"}\n\n{"text": }\n', "line 3: not JSON"),
    "digits.jsonl": (b'{"score": ' + b"9" * 5000 + b"}\n", "line 1: not JSON"),
    "deep.jsonl": (b"[" * 100_000 + b"\n", "line 1: not JSON"),
    "list.jsonl": (b'{"text": "a"}\n["b"]\n', "line 2: a JSON list"),
    "fields.csv": (b"id,text\n1,a\n2,b,c\n", "line 3: 3 fields, the header has 2"),
    "many.csv": (b"text\n" + b"x," * 5000 + b"\n", "line 2: 5001 fields, the header has 1"),
    "open.csv": (b'id,text\n1,a\n2,"open\n3,c\n', "not valid CSV"),
    "lines.tsv": (b'text\na\n"begins\n\n""here"" and\nends"\n', "line 6: the end of a .* begins in line 3"),
    "lines_of_two.tsv": (b'text\tid\n"begins\nends"\t1\n', "line 2: 1 fields, the header has 2"),
    "twice.csv": (b"text,text\na,b\n", "line 1: column 'text' occurs twice"),
    "fake.parquet": (b"not parquet at all", "ArrowInvalid: "),
    "empty.parquet": (b"", "ArrowInvalid: "),
    "footer.parquet": (b"PAR1" + bytes(100) + b"PAR1", "OSError: "),
    "semicolons.csv": (b"id;text\n1;a, b\n", "line 1: its columns are separated by ';'"),
    "tabs.csv": (b"id\ttext\n1\ta\n", "line 1: its columns are separated by"),
    "wide.jsonl": ('{"text": "a"}\n'.encode("utf-16"), "line 1: UTF-16"),
    "texts.json": (b'["a", 1]', "row 2: a JSON int"),
    "number.json": (b"3", "a JSON int"),
    "a.xlsx": (b"text\n", r"unknown extension '.xlsx'.*\.jsonl"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named_with_file_and_line(tmp_path, name):
    content, message = DAMAGED[name]
    (tmp_path / name).write_bytes(content)
    problem = problem_of(tmp_path / name)
    assert re.match(rf"^\[key\] .*{name}.*{message}", problem) and len(problem) < 500


def test_parquet_with_strings_that_are_not_utf_8_is_refused(tmp_path):
    pq.write_table(pa.table({"text": BROKEN}), tmp_path / "a.parquet")
    assert re.match(r"^\[key\] .*a.parquet: text that is not valid Unicode", problem_of(tmp_path / "a.parquet"))


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path):
    pq.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), tmp_path / "a.parquet")
    for choose in (None, lambda names: names[:1]):
        assert "a.parquet: column 'text' occurs twice" in problem_of(tmp_path / "a.parquet", choose)


def test_missing_files_and_folders_are_refused(tmp_path):
    (tmp_path / "a.csv").mkdir()
    for name, problem in (("none.txt", "not found"), ("a.csv", "a folder")):
        assert f"{name}: {problem}" in problem_of(tmp_path / name)


def test_a_file_without_rows_gives_none(tmp_path):
    (tmp_path / "a.csv").write_text("")
    assert texts_of(tmp_path / "a.csv") == []


def test_values_that_python_does_not_have_are_explained(tmp_path):
    """A date after the year 9999."""
    dates = pa.array([4_000_000], pa.date32())
    pq.write_table(pa.table({"text": ["a"], "date": dates}), tmp_path / "a.parquet")
    assert problem_of(tmp_path / "a.parquet").startswith("[key] cannot use")
    assert [row["text"] for _, row in read_rows(tmp_path / "a.parquet", lambda names: ["text"])] == ["a"]
