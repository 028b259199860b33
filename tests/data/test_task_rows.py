"""Tables of labelled rows: formats, splits, subsets, and what is refused."""

import gzip
import json

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused

from distilvec.core.errors import DistilvecError
from distilvec.data.corpus import loose_key
from distilvec.data.labelled_rows import load_labelled
from distilvec.data.task_rows import (
    TableOptions,
    find_table,
    id_text,
    label_of,
    loose_text,
    number_of,
    some_of,
    table_rows,
)

WHERE = "row 1"


@pytest.fixture
def write_jsonl(tmp_path):
    def write(name, rows):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / name

    return write


def texts(path, split="test", **options):
    return [row["text"] for _, row in table_rows(path, TableOptions(split, **options), ("text",))]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".csv", ".tsv.gz"])
def test_tables_are_found_by_their_stem(tmp_path, ending):
    lines = '{"split": "test", "text": "a"}\n' if "jsonl" in ending else "split\ttext\ntest\ta\n"
    content = (lines.replace("\t", ",") if ending == ".csv" else lines).encode()
    path = tmp_path / f"rows{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith(".gz") else content)
    assert find_table(tmp_path, "rows") == path and find_table(tmp_path, "other") is None
    assert texts(path) == texts(tmp_path) == ["a"]


def test_a_folder_has_one_file_a_split(write_jsonl, tmp_path):
    write_jsonl("data/train.jsonl", [{"text": "a"}])
    write_jsonl("data/test.jsonl", [{"text": "b"}])
    assert texts(tmp_path / "data", "train") == ["a"]
    with refused("", "expected validation.jsonl"):
        texts(tmp_path / "data", "validation")


def test_missing_splits_and_rows_without_one_are_refused(write_jsonl):
    path = write_jsonl("a.jsonl", [{"split": "dev", "text": "a"}, {"split": "train", "text": "a"}])
    with pytest.raises(DistilvecError, match=r".*'test'; found dev, train"):
        texts(path)
    for split in ({}, {"split": None}, {"split": ""}):
        path = write_jsonl("a.jsonl", [{"split": "test", "text": "a"}, {"text": "b", **split}])
        with pytest.raises(DistilvecError, match=r".*a\.jsonl, line 2: no split"):
            texts(path)


def test_missing_empty_and_ambiguous_files_are_refused(tmp_path, write_jsonl):
    with pytest.raises(DistilvecError, match=r".*none.jsonl: not found"):
        texts(tmp_path / "none.jsonl")
    with pytest.raises(DistilvecError, match="no rows"):
        load_labelled(write_jsonl("empty.jsonl", []), "classification", "test")
    write_jsonl("twice.jsonl", [])
    (tmp_path / "twice.csv").write_text("text\n")
    with pytest.raises(DistilvecError, match=r".*several files"):
        find_table(tmp_path, "twice")


def test_names_are_shortened():
    assert some_of(["a" * 50, "b"]) == "a" * 48 + "…, b"
    assert some_of(str(number) for number in range(12)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"


@pytest.mark.parametrize(
    "value", [1, 1.0, True, "1", np.int64(1), np.uint8(1), np.float64(1), np.float32(1), np.bool_(True), np.str_("1")]
)
def test_a_label_is_the_same_whatever_type_of_number_it_has(value):
    assert label_of(value, WHERE) == "1"


@pytest.mark.parametrize("value", [1.5, np.float32(1.5), float("nan"), np.float64("nan"), None, "", [1], np.array([1])])
def test_what_is_no_label_is_refused(value):
    with pytest.raises(DistilvecError, match="row 1"):
        label_of(value, WHERE)


def test_numbers_of_numpy_are_ids_and_scores_as_those_of_python():
    assert id_text(np.float32(3)) == id_text(np.int64(3)) == "3"
    assert number_of(np.float32(0.5), WHERE, "score") == 0.5
    with pytest.raises(DistilvecError, match="row 1"):
        number_of(np.bool_(True), WHERE, "score")


def test_loose_texts_are_equal_where_loose_keys_are():
    texts = ["Straße  am\tMeer", " STRASSE AM MEER\n", "strasse am meer.", "İ", "i̇"]
    for first in texts:
        for second in texts:
            assert (loose_text(first) == loose_text(second)) == (loose_key(first) == loose_key(second))
    assert loose_text(texts[0]) == loose_text(texts[1])


def test_blanks_beside_labels_and_splits_are_none_of_them(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text, label, split\nhello, pos, train\nbye,neg,train\nok,pos ,train\nx,pos,test\n")
    texts, labels = load_labelled(path, "classification", "train", {})
    assert texts == [("hello",), ("bye",), ("ok",)] and labels == ["pos", "neg", "pos"]


def test_columns_that_a_task_does_not_name_are_neither_read_nor_kept(write_jsonl, columns_read):
    row = {"utterance": "hello", "label": "pos", "split": "test", "subset": "en", "vector": [0.5], "label_text": "+"}
    path = write_jsonl("a.jsonl", [row])
    pq.write_table(pa.Table.from_pylist([row]), path.with_suffix(".parquet"))
    options = TableOptions("test", ("en",), {"text": "utterance"})
    for file in (path, path.with_suffix(".parquet")):
        assert [row for _, row in table_rows(file, options, ("text", "label"))] == [{"text": "hello", "label": "pos"}]
    assert columns_read == {"utterance", "label", "split", "subset"}


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_missing_column_is_refused_with_all_that_a_table_has(write_jsonl, ending):
    rows = [{"texts": "hello", "label": "pos", "vector": [0.5]}]
    path = write_jsonl("a.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
    with refused("", "no column text; expected text, label, found texts, label, vector"):
        table_rows(path.with_suffix(ending), TableOptions(), ("text", "label"))


LISTS = {
    "places": ([[1, 0, 0], [0, 1, 1], [0, 0, 0]], [[0, 1, 0]], [("0",), ("1", "2"), ()], [("1",)]),
    "numbers": ([[0], [0, 1], []], [[0, 1]], [("0",), ("0", "1"), ()], [("0", "1")]),
    "names": ([["a", "b"], ["b"], []], [["a"]], [("a", "b"), ("b",), ()], [("a",)]),
}


@pytest.mark.parametrize(("train", "test", "trained", "tested"), LISTS.values(), ids=LISTS)
def test_the_training_rows_decide_how_lists_of_labels_are_read(write_jsonl, train, test, trained, tested):
    rows = [{"text": "a", "label": label, "split": "train"} for label in train]
    path = write_jsonl("task.jsonl", rows + [{"text": "b", "label": label, "split": "test"} for label in test])
    assert load_labelled(path, "multilabel", "train")[1] == trained
    assert load_labelled(path, "multilabel", "test")[1] == tested


def test_a_column_for_each_class(write_jsonl):
    path = write_jsonl(
        "task.jsonl", [{"body": "a", "toxic": 1, "insult": True}, {"body": "b", "toxic": 0, "insult": 1}]
    )
    texts, labels = load_labelled(path, "multilabel", "train", {"text": "body", "label": ["toxic", "insult"]})
    assert texts == [("a",), ("b",)] and labels == [("insult", "toxic"), ("insult",)]


@pytest.mark.parametrize("form", ["a folder of Parquet", "saved", "one split saved"])
def test_a_task_has_the_names_of_classes_that_its_files_state(form, tmp_path):
    kind = datasets.ClassLabel(names=["joy", "fear"])
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}).cast_column("label", kind)
    folder = tmp_path / "task"
    folder.mkdir()
    if form == "a folder of Parquet":
        data.to_parquet(folder / "train.parquet")
    elif form == "saved":
        datasets.DatasetDict({"train": data, "test": data}).save_to_disk(folder)
    else:
        data.save_to_disk(folder)
    assert load_labelled(folder, "classification", "train") == ([("a",), ("b",)], ["joy", "fear"])
