"""What `classify` reads, and how it splits: columns, labels, shares of every label, refusals by key."""

from __future__ import annotations

import csv
import json
from collections import Counter

import datasets
import numpy as np
import pandas
import pytest
from refusals import refused

from distilvec.data.labelled_rows import read_labelled
from distilvec.verbs.classify.split import read_and_split, split_rows

INTENTS = [{"utterance": f"text {number}", "intent": f"intent {number % 4}"} for number in range(40)]


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def split(rows, **changes):
    data = read_labelled(rows, [], [])
    return split_rows(data, changes.get("test"), changes.get("test_size"), changes.get("seed", 0))


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_every_kind_of_table_gives_the_same_rows(ending, tmp_path):
    path = tmp_path / f"intents.{ending}"
    if ending == "csv":
        write_csv(path, INTENTS)
    elif ending == "tsv":
        path.write_text("utterance\tintent\n" + "".join("\t".join(row.values()) + "\n" for row in INTENTS))
    elif ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in INTENTS))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(INTENTS), path)
    found = read_labelled(path, [], [])
    assert found.name == "intents" and found.columns.texts == ("utterance",) and found.columns.label == "intent"
    assert found.rows == read_labelled(INTENTS, ["utterance"], ["intent"]).rows
    assert not found.several and found.rows[5].texts == ("text 5",) and found.rows[5].labels == ("intent 1",)


def test_lists_of_labels_that_pandas_has_as_arrays(tmp_path):
    rows = [{"text": "one", "label": ["b", "a"]}, {"text": "two", "label": []}]
    pandas.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")
    found = read_labelled(pandas.read_parquet(tmp_path / "rows.parquet"), [], [])
    assert found.several and [row.labels for row in found.rows] == [("a", "b"), ()]


MARKS = ([1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 0])
OF_MARKS = [("0",), ("1", "2"), (), ("0", "1")]


@pytest.mark.parametrize(
    "form", ["integers", "booleans", "floats", "json in csv", "parquet", "numpy", "objects of numpy"]
)
def test_lists_of_0_and_1_are_read_by_their_places(form, tmp_path):
    rows = [{"text": f"text {number}", "labels": marks} for number, marks in enumerate(MARKS)]
    source = rows
    if form in ("booleans", "floats"):
        kind = bool if form == "booleans" else float
        source = [{**row, "labels": [kind(mark) for mark in row["labels"]]} for row in rows]
    elif form == "json in csv":
        source = write_csv(tmp_path / "rows.csv", rows)
    elif form == "parquet":
        source = tmp_path / "rows.parquet"
        pandas.DataFrame(rows).to_parquet(source)
    elif form == "numpy":
        source = [{**row, "labels": np.array(row["labels"], dtype=np.float32)} for row in rows]
    elif form == "objects of numpy":
        source = [{**row, "labels": [np.int64(mark) for mark in row["labels"]]} for row in rows]
    found = read_labelled(source, [], [])
    assert found.several and [row.labels for row in found.rows] == OF_MARKS
    # A test file is read as the training file is, though these two rows could be lists of labels
    tested = read_labelled([{"text": "a", "labels": [0, 1, 0]}], [], [], found)
    assert tested.rows[0].labels == ("1",)
    with refused("label", "3 classes"):
        read_labelled([{"text": "a", "labels": [0, 1]}], [], [], found)


@pytest.mark.parametrize("form", ["csv", "words in csv", "booleans"])
def test_a_column_of_0_and_1_for_each_label(form, tmp_path):
    """The wide form, as pandas' get_dummies writes it."""
    zero, one = {"csv": (0, 1), "words in csv": ("False", "True"), "booleans": (False, True)}[form]
    rows = [
        {"comment": f"text {number}", "toxic": one if number % 2 else zero, "insult": one if number % 3 else zero}
        for number in range(4)
    ]
    source = rows if form == "booleans" else write_csv(tmp_path / "rows.csv", rows)
    found = read_labelled(source, ["comment"], ["toxic", "insult"])
    assert [row.labels for row in found.rows] == [(), ("insult", "toxic"), ("insult",), ("toxic",)]
    with refused("label", "row 1"):
        read_labelled([{"text": "a", "toxic": 0.3, "insult": 1}], [], ["toxic", "insult"])


def test_numbers_of_classes_are_labels_also_where_they_are_0_and_1():
    rows = [{"text": f"text {number}", "label": label} for number, label in enumerate([[0], [1], [0, 1], []])]
    found = read_labelled(rows, [], [])
    assert [row.labels for row in found.rows] == [("0",), ("1",), ("0", "1"), ()]
    tested = read_labelled([{"text": "a", "label": [0, 1]}], [], [], found)
    assert tested.rows[0].labels == ("0", "1")


@pytest.mark.parametrize("lists", [[[0], [1], [1]], [[0, 1, 0], [1, 0]], [[True], []]])
def test_lists_that_may_be_numbers_or_places_are_refused(lists):
    with refused("label"):
        read_labelled([{"text": f"text {number}", "label": marks} for number, marks in enumerate(lists)], [], [])


@pytest.mark.parametrize("labels", [["x", "x"], [["x", "y"], ["y", "x"]], [[1, 0], [1, 0]], [[], []]])
def test_rows_of_the_same_labels_are_refused(labels):
    rows = [{"text": f"text {number}", "label": labels[number % 2]} for number in range(20)]
    with refused("label", "same"):
        split(rows)


@pytest.mark.parametrize("form", ["parquet", "in memory", "saved", "saved with splits"])
@pytest.mark.parametrize("several", [False, True])
def test_the_names_of_classes_are_those_of_the_file(form, several, tmp_path):
    """ClassLabel of datasets, as nearly all labelled sets of the hub have it."""
    kind = datasets.ClassLabel(names=["joy", "fear", "anger"])
    labels = [[number % 3] if several else number % 3 for number in range(12)]
    data = datasets.Dataset.from_dict({"text": [f"text {number}" for number in range(12)], "label": labels})
    data = data.cast_column("label", datasets.List(kind) if several else kind)
    source = data
    if form == "parquet":
        source = tmp_path / "rows.parquet"
        data.to_parquet(source)
    elif form.startswith("saved"):
        source = tmp_path / "saved"
        whole = data if form == "saved" else data.train_test_split(4, shuffle=False)
        whole.save_to_disk(source)
    found = read_labelled(source, [], [])
    assert [row.labels for row in found.rows] == [("joy",), ("fear",), ("anger",)] * 4
    if form == "saved with splits":
        assert [row.split for row in found.rows] == ["train"] * 8 + ["test"] * 4


def test_a_row_of_the_class_minus_1_has_no_label(tmp_path):
    data = datasets.Dataset.from_dict({"text": ["one", "two"], "label": [0, -1]})
    data.cast_column("label", datasets.ClassLabel(names=["joy", "fear"])).to_parquet(tmp_path / "rows.parquet")
    with refused("label", "row 2"):
        read_labelled(tmp_path / "rows.parquet", [], [])


@pytest.mark.parametrize(
    "labels",
    [["['billing']", "['billing', 'refund']"], ["billing", '["billing", "refund"]'], ["[0 1 0]", "[1. 0. 0.]"]],
)
def test_a_list_in_a_text_is_no_label(labels, tmp_path):
    """pandas writes the lists of a frame into CSV as Python shows them."""
    path = write_csv(tmp_path / "rows.csv", [{"text": f"text {label}", "label": label} for label in labels])
    with refused("label", "JSON"):
        read_labelled(path, [], [])
    bracketed = write_csv(tmp_path / "other.csv", [{"text": "one", "label": "[urgent]"}, {"text": "two", "label": "x"}])
    assert [row.labels for row in read_labelled(bracketed, [], []).rows] == [("[urgent]",), ("x",)]


def test_pairs_and_lists_of_labels(tmp_path):
    pairs = [{"premise": "a", "hypothesis": f"b {n}", "label": n % 2} for n in range(8)]
    found = read_labelled(pairs, [], [])
    assert found.columns.texts == ("premise", "hypothesis") and found.rows[3].labels == ("1",)
    assert read_labelled(pairs, ["hypothesis", "premise"], ["label"]).rows[0].texts == ("b 0", "a")

    lists = [{"text": "one", "label": ["b", "a", "b"]}, {"text": "two", "label": []}]
    in_csv = write_csv(tmp_path / "lists.csv", [{**row, "label": json.dumps(row["label"])} for row in lists])
    for source in (lists, in_csv):
        found = read_labelled(source, [], [])
        assert found.several and [row.labels for row in found.rows] == [("a", "b"), ()]


def test_a_data_frame_gives_rows():
    pandas = pytest.importorskip("pandas")
    assert read_labelled(pandas.DataFrame(INTENTS), [], []).rows == read_labelled(INTENTS, [], []).rows


def test_every_label_has_its_share_of_the_test():
    found = split([{"text": f"{number}", "label": "rare" if number < 5 else "frequent"} for number in range(105)])
    tested = Counter(row.labels[0] for row in found.test)
    assert tested == {"rare": 1, "frequent": 20}
    assert Counter(row.labels[0] for row in found.validation) == {"rare": 1, "frequent": 8}
    rows = {*found.train, *found.validation, *found.test}
    assert len(rows) == 105 == len(found.train) + len(found.validation) + len(found.test)


def test_the_seed_decides_on_the_split():
    assert split(INTENTS).test == split(INTENTS).test != split(INTENTS, seed=1).test


def test_a_label_with_one_row_is_trained_on():
    found = split([*INTENTS, {"utterance": "alone", "intent": "single"}])
    assert any(row.labels == ("single",) for row in found.train)
    assert any("single" in note for note in found.notes)


def test_a_repeated_row_is_in_one_part():
    found = split([*INTENTS, *INTENTS])
    assert len(found.train) + len(found.validation) + len(found.test) == 40 and "40 rows" in found.notes[0]


def test_rows_with_several_labels_leave_every_label_a_training_row():
    rows = [{"text": f"{number}", "label": ["all", f"label {number // 2}"]} for number in range(40)]
    found = split(rows)
    trained = {label for row in found.train for label in row.labels}
    assert found.test and {label for row in found.test for label in row.labels} <= trained


@pytest.mark.parametrize("names", [("test", "train", "train"), ("validation", "train", "train")])
def test_a_share_is_refused_where_the_column_states_the_test_rows(names):
    rows = with_splits(names)
    with refused("test_size", "split"):
        split(rows, test_size=0.5)
    assert len(split([{**row, "split": "train"} for row in INTENTS], test_size=0.5).test) == 20


def test_a_column_split_is_kept():
    rows = [{**row, "split": "test" if number < 10 else "train"} for number, row in enumerate(INTENTS)]
    found = split(rows)
    assert {row.texts[0] for row in found.test} == {f"text {number}" for number in range(10)}
    assert len(found.train) + len(found.validation) == 30


def test_a_test_file_is_the_test(tmp_path):
    test = [{"utterance": "new", "intent": "intent 2"}, INTENTS[0]]
    data, found = read_and_split(INTENTS, [], [], test, None, 0)
    assert [row.texts[0] for row in found.test] == ["new", "text 0"] and len(data.rows) == 40
    assert len(found.train) + len(found.validation) == 39
    assert any("text is in the test: 1" in note for note in found.notes), "one test row is a training row"
    with refused("test", "unseen"):
        read_and_split(INTENTS, [], [], [{"utterance": "new", "intent": "unseen"}], None, 0)
    with refused("text", "utterance"):
        read_and_split(INTENTS, [], [], [{"text": "new", "intent": "intent 2"}], None, 0)


def with_splits(names, rows=INTENTS):
    """The rows with a column split: ten rows of the first name, ten of the second, the others of the third."""
    return [{**row, "split": names[min(number // 10, 2)]} for number, row in enumerate(rows)]


def texts_of(rows):
    return {row.texts[0] for row in rows}


def trained_texts(found):
    return {row.texts[0].casefold().strip() for row in [*found.train, *found.validation]}


def has_note(found, *words):
    return any(all(word in note for word in words) for note in found.notes)


LEAKS = [
    {"utterance": "text 0", "intent": "intent 0"},
    {"utterance": "Text  1 ", "intent": "intent 1"},
    {"utterance": "TEXT 2", "intent": "intent 3"},
    {"utterance": "new", "intent": "intent 2"},
]


@pytest.mark.parametrize("place", ["column", "file"])
def test_no_text_of_a_test_row_is_trained_on(place):
    if place == "column":
        found = split([{**row, "split": "train"} for row in INTENTS] + [{**row, "split": "test"} for row in LEAKS])
    else:
        _, found = read_and_split(INTENTS, [], [], LEAKS, None, 0)
    assert len(found.test) == 4 and len(found.train) + len(found.validation) == 37
    assert trained_texts(found).isdisjoint({"text 0", "text 1", "text 2"})
    assert has_note(found, "in the test: 3", "other labels than there: 1")
    assert has_note(found, "different labels on different rows: 1", "'text 2'")


def test_stated_validation_rows_are_kept_apart_from_test_and_training():
    rows = with_splits(["validation", "test", "train"])
    rows.append({**INTENTS[0], "split": "train"})  # a text of the validation rows
    rows.append({**INTENTS[10], "split": "validation"})  # a text of the test rows
    found = split(rows)
    assert (len(found.train), len(found.validation), len(found.test)) == (20, 10, 10)
    assert texts_of(found.train).isdisjoint(texts_of(found.validation) | texts_of(found.test))
    assert has_note(found, "in the test: 1") and has_note(found, "in the validation rows: 1")


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_one_text_are_drawn_together(seed):
    spelled = [{**row, "utterance": f" {row['utterance'].upper()}"} for row in INTENTS]
    other_labels = [{**row, "intent": f"intent {(number + 1) % 4}"} for number, row in enumerate(INTENTS[:12])]
    found = split([*INTENTS, *spelled, *other_labels], seed=seed)
    parts = [
        {text.casefold().strip() for text in texts_of(part)} for part in (found.train, found.validation, found.test)
    ]
    assert len(found.train) + len(found.validation) + len(found.test) == 92
    assert all(parts) and sum(map(len, parts)) == len(set.union(*parts)) == 40
    assert has_note(found, "different labels on different rows: 12")


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_overlap_are_on_one_side(seed):
    """A paragraph and its text, one more exclamation mark: by seed or stated, none is trained on and tested."""
    words = [f"word{number}" for number in range(2400)]
    rows = []
    for number in range(40):
        text = " ".join(words[60 * number : 60 * number + 60])
        for part in (text, text[: len(text) // 2], f"so {text.upper()}!"):
            rows.append({"text": part, "label": f"intent {number % 4}"})
    found = split(rows, seed=seed)
    beginnings = [{row.texts[0].removeprefix("so ").lower()[:40] for row in part} for part in parts_of(found)]
    assert sum(map(len, beginnings)) == len(set.union(*beginnings)) == 40 and all(beginnings)
    assert len(found.test) == 24
    stated = [{**row, "split": "test" if number == 0 else "train"} for number, row in enumerate(rows)]
    assert len(trained_texts(split(stated))) == 117


def parts_of(found):
    return found.train, found.validation, found.test


def test_rows_with_texts_of_their_own_are_drawn_as_before_texts_counted():
    """A run that was begun before is resumed with the same rows."""
    numbers = sorted(int(text.split()[1]) for text in texts_of(split(INTENTS).test))
    assert numbers == [2, 3, 11, 17, 28, 30, 32, 37]


def test_training_rows_that_are_all_tested_are_refused():
    with refused("test", "training"):
        read_and_split(INTENTS, [], [], INTENTS, None, 0)
    only_there = [*INTENTS, {"utterance": "alone", "intent": "single"}]
    with refused("test", "also tested"):
        read_and_split(only_there, [], [], only_there[-1:], None, 0)


@pytest.mark.parametrize(
    "names",
    [
        ("Test", "Dev", "Train"),
        ("TEST", "VALID", "TRAINING"),
        ("test ", "validation", " training"),
        ("test", "val", "train"),
    ],
)
def test_a_column_split_has_its_usual_names_in_any_case(names):
    found = split(with_splits(names))
    assert texts_of(found.test) == {f"text {number}" for number in range(10)}
    assert texts_of(found.validation) == {f"text {number}" for number in range(10, 20)}
    assert len(found.train) == 20


def test_a_column_split_is_seen_in_any_case_and_may_have_empty_cells():
    rows = [{**row, "Split": row.pop("split")} for row in with_splits(("test", "Train", "Train"))]
    assert texts_of(split(rows).test) == {f"text {number}" for number in range(10)}
    frame = pandas.DataFrame(rows)
    frame.loc[frame.index[-1], "Split"] = None
    found = split(frame)
    assert texts_of(found.test) == {f"text {number}" for number in range(10)}
    assert not has_note(found, "nan")


def test_validation_rows_are_the_test_where_the_column_has_no_test_rows():
    found = split(with_splits(["dev", "Train", "Train"]))
    assert texts_of(found.test) == {f"text {number}" for number in range(10)}
    assert len(found.train) + len(found.validation) == 30 and found.validation
    assert has_note(found, "Train, dev", "validation rows are the test")


@pytest.mark.parametrize("names", [("train",) * 3, ("test",) * 3, ("dev", "test", "test"), ("a", "b", "c")])
def test_a_column_without_training_or_test_rows_is_named_and_the_test_drawn(names):
    found = split(with_splits(names))
    assert [row.texts for row in found.test] == [row.texts for row in split(INTENTS).test]
    assert has_note(found, ", ".join(sorted(set(names))), "drawn from all rows")


def test_the_column_split_counts_where_a_test_file_is_given():
    new = [{"utterance": f"new {number}", "intent": f"intent {number % 4}"} for number in range(40)]
    _, found = read_and_split(with_splits(["test", "dev", "train"]), [], [], new, None, 0)
    assert (len(found.train), len(found.validation), len(found.test)) == (20, 10, 40)
    assert has_note(found, "10 rows", "left out")
    _, found = read_and_split(INTENTS, [], [], with_splits(["Test", "dev", "train"], new), None, 0)
    assert texts_of(found.test) == {f"new {number}" for number in range(10)} and has_note(found, "30 rows", "test file")
    _, found = read_and_split(with_splits(["test"] * 3), [], [], new, None, 0)
    assert len(found.train) + len(found.validation) == 40 and has_note(found, "no training rows")


def test_no_other_column_of_parquet_is_read(tmp_path, columns_read):
    path = tmp_path / "intents.parquet"
    pandas.DataFrame([{**row, "Split": "train", "vector": [0.5]} for row in INTENTS]).to_parquet(path)
    data = read_labelled(path, [], [])
    assert [(*row.texts, *row.labels, row.split) for row in data.rows] == [(*row.values(), "train") for row in INTENTS]
    assert columns_read == {"utterance", "intent", "Split"}


def test_what_cannot_be_read_is_refused(tmp_path):
    for source, word in ((tmp_path / "nope.csv", "nope.csv"), ([], "no rows"), ([["a", "b"]], "list")):
        with refused("file", word):
            read_and_split(source, [], [], None, None, 0)
    with refused("text", "'utterance'"):
        read_labelled(INTENTS, ["uterance"], [])
    with refused("label", "intent"):
        read_labelled(INTENTS, ["utterance"], ["class"])
    with refused("label", "words"):
        read_labelled([{"text": "a", "words": "b"}], [], [])
    with refused("text", "words"):
        read_labelled([{"words": "a", "label": "b"}], [], [])
    with refused("text", "3 columns"):
        read_labelled(INTENTS, ["a", "b", "c"], [])
    with refused("label", "row 2"):
        read_labelled([{"text": "a", "label": "b"}, {"text": "a", "label": ""}], [], [])
    with refused("label", "row 2"):
        read_labelled([{"text": "a", "label": ["b"]}, {"text": "a", "label": "b"}], [], [])
    with refused("label", "lists"):
        read_labelled([{"text1": "a", "text2": "b", "label": ["c"]}], [], [])
    with refused("label", "only"):
        split([{"text": f"{number}", "label": "only"} for number in range(10)])
    with refused("file"):
        rows = [{"text": f"{number}", "label": f"{number}"} for number in range(10)]
        read_and_split(rows, [], [], None, None, 0)
    with refused("test_size", "2"):
        read_and_split(INTENTS, [], [], None, 2.0, 0)
