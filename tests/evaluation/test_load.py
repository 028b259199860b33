import json
from contextlib import contextmanager

import datasets
import numpy as np
import pytest
from refusals import refused

from distilvec.core.errors import DistilvecError, about
from distilvec.data.labelled_rows import load_labelled
from distilvec.data.task_rows import TableOptions
from distilvec.evaluation.task_files import join_title, load_classification, load_pairs, load_retrieval, load_sts
from distilvec.evaluation.tasks import make_retrieval, task_texts


@contextmanager
def refused_data(word):
    """The block is refused with the key that the suite's reader notes."""
    with refused("suite", word), about("suite"):
        yield


STS = [
    {"split": "test", "sentence1": "a", "sentence2": "b", "score": 1, "subset": "x"},
    {"split": "test", "sentence1": "c", "sentence2": "d", "score": "4.5", "subset": "y"},
    {"split": "test", "sentence1": "e", "sentence2": "f", "score": 2.5, "subset": "y"},
    {"split": "train", "sentence1": "g", "sentence2": "h", "score": 0, "subset": "z"},
]
LABELLED = [
    {"split": "train", "text": f"train {i}", "label": "ab"[i % 2] if i else "rare"} for i in range(20)
] + [{"split": "test", "text": "test", "label": "a"}]  # fmt: skip


def test_sts_keeps_the_split_and_subset(write_jsonl):
    path = write_jsonl("a.jsonl", STS)
    task = load_sts("t", path)
    assert task.first == ["a", "c", "e"] and task.second == ["b", "d", "f"] and task.gold.tolist() == [1, 4.5, 2.5]
    assert load_sts("t", path, TableOptions(subset=("y",))).first == ["c", "e"]
    assert list(task_texts(task)) == ["a", "c", "e", "b", "d", "f"]
    with pytest.raises(DistilvecError, match=r".*'w'; found x, y"):
        load_sts("t", path, TableOptions(subset=("w",)))


def test_columns_of_other_names(write_jsonl):
    path = write_jsonl("a.jsonl", [{"left": "a", "right": "b", "gold": s} for s in (1, 2)])
    columns = {"sentence1": "left", "sentence2": "right", "score": "gold"}
    assert load_sts("t", path, TableOptions(columns=columns)).second == ["b", "b"]
    with pytest.raises(DistilvecError, match="no column middle"):
        load_sts("t", path, TableOptions(columns={**columns, "sentence2": "middle"}))


@pytest.mark.parametrize("score", ["high", None, float("nan"), float("inf"), True])
def test_a_score_that_is_no_number_is_named(write_jsonl, score):
    path = write_jsonl("a.jsonl", [*STS[:2], {**STS[2], "score": score}])
    with refused_data("a.jsonl, line 3"):
        load_sts("t", path)


def test_wrong_columns_texts_and_constant_scores(write_jsonl):
    with refused_data("no column sentence1, score"):
        load_sts("t", write_jsonl("a.jsonl", [{"text": "a", "sentence2": "b"}]))
    with pytest.raises(DistilvecError, match="line 1 has None in column sentence1"):
        load_sts("t", write_jsonl("b.jsonl", [{**STS[0], "sentence1": None}, STS[1]]))
    with pytest.raises(DistilvecError, match="all 2 scores are 1"):
        load_sts("t", write_jsonl("c.jsonl", [STS[0], STS[0]]))


@pytest.mark.parametrize(
    ("labels", "positive_label"),
    [((1, 0), "1"), (("1", "0"), "1"), ((True, False), "1"), (("e", "n"), "e"), ((1.0, 0.0), "1")],
)
def test_pair_labels_however_they_are_written(write_jsonl, labels, positive_label):
    path = write_jsonl("a.jsonl", [{"sentence1": "a", "sentence2": "b", "label": label} for label in labels])
    assert load_pairs("t", path, positive_label=positive_label).positive.tolist() == [True, False]


@pytest.mark.parametrize("positive_label", [1, "1", "equivalent"])
def test_pairs_of_named_classes_match_by_number_and_by_name(tmp_path, positive_label):
    kind = datasets.ClassLabel(names=["not_equivalent", "equivalent"])
    data = datasets.Dataset.from_dict({"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [1, 0]})
    data.cast_column("label", kind).to_parquet(tmp_path / "a.parquet")
    assert load_pairs("t", tmp_path / "a.parquet", positive_label=positive_label).positive.tolist() == [True, False]


def test_classes_have_the_names_that_the_file_states(tmp_path):
    kind = datasets.ClassLabel(names=["joy", "fear"])
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0], "split": ["train", "train"]})
    tested = datasets.Dataset.from_dict({"text": ["c"], "label": [1], "split": ["test"]})
    both = datasets.concatenate_datasets([data, tested]).cast_column("label", kind)
    both.to_parquet(tmp_path / "a.parquet")
    task = load_classification("t", tmp_path / "a.parquet")
    assert task.train_labels == ["fear", "joy"] and task.test_labels == ["fear"]


def test_pairs_of_one_kind_are_refused(write_jsonl):
    path = write_jsonl("a.jsonl", [{"sentence1": "a", "sentence2": "b", "label": label} for label in "en"])
    with refused_data("found: e, n"):
        load_pairs("t", path)


def test_classification_reads_two_splits_and_limits_the_first(write_jsonl):
    path = write_jsonl("a.jsonl", LABELLED)
    task = load_classification("t", path)
    assert len(task.train_texts) == 20 and task.test_texts == ["test"] and list(task_texts(task)) == ["test"]
    limited = [load_classification("t", path, train_limit=6, seed=seed) for seed in (0, 0, 1)]
    assert limited[0].train_texts == limited[1].train_texts != limited[2].train_texts
    for part in limited:
        assert len(set(part.train_texts)) == 6 and set(part.train_labels) == {"a", "b", "rare"}
        assert all((text, label) in set(zip(task.train_texts, task.train_labels, strict=True))
                   for text, label in zip(part.train_texts, part.train_labels, strict=True))  # fmt: skip
    with pytest.raises(DistilvecError, match="train_limit is 2, but there are 3 labels"):
        load_classification("t", path, train_limit=2)


def test_classification_refuses_unseen_labels_one_label_and_one_split(write_jsonl):
    with pytest.raises(DistilvecError, match=r"lacks: 'new' \(2 rows\)"):
        load_classification(
            "t", write_jsonl("a.jsonl", [*LABELLED, *[{"split": "test", "text": "t", "label": "new"}] * 2])
        )
    rows = [{"split": split, "text": "t", "label": "a"} for split in ("train", "test")]
    with pytest.raises(DistilvecError, match="one label only, 'a'"):
        load_classification("t", write_jsonl("b.jsonl", rows))
    with pytest.raises(DistilvecError, match="are the test rows"):
        load_classification("t", write_jsonl("c.jsonl", LABELLED), train_split="test")
    without = [{key: value for key, value in row.items() if key != "split"} for row in LABELLED]
    with pytest.raises(DistilvecError, match="are the test rows"):
        load_classification("t", write_jsonl("d.jsonl", without))
    with pytest.raises(DistilvecError, match="Expected a text or a whole number"):
        load_classification("t", write_jsonl("e.jsonl", [*LABELLED, {"split": "test", "text": "t", "label": None}]))


def retrieval_folder(write_jsonl, tmp_path, qrels, place="qrels.tsv"):
    documents = [("d1", "Title", "Title and text"), ("d2", "", "no title"), ("d10", "Other", "text"), ("d3", "", "")]
    write_jsonl("r/corpus.jsonl", [{"id": i, "title": title, "text": text} for i, title, text in documents])
    write_jsonl("r/queries.jsonl", [{"_id": f"q{i}", "text": f"query {i}"} for i in range(3)])
    file = tmp_path / "r" / place
    file.parent.mkdir(exist_ok=True)
    file.write_text("query-id\tcorpus-id\tscore\n" + "".join("\t".join(map(str, pair)) + "\n" for pair in qrels))
    return tmp_path / "r"


@pytest.mark.parametrize("place", ["qrels.tsv", "qrels/test.tsv"])
def test_retrieval_joins_titles_orders_documents_and_counts_what_it_leaves_out(write_jsonl, tmp_path, place):
    qrels = [
        ("q0", "d1", 1),
        ("q0", "d10", 2),
        ("q1", "d3", 0),
        ("q2", "d2", 1),
        ("q2", "gone", 1),
        ("gone", "d1", 1),
        ("q0", "d1", 1),
    ]
    task = load_retrieval("t", retrieval_folder(write_jsonl, tmp_path, qrels, place))
    assert task.document_ids == ["d3", "d2", "d10", "d1"]
    assert task.documents == ["", "no title", "Other text", "Title Title and text"]
    assert task.query_ids == ["q0", "q2"] and task.queries == ["query 0", "query 2"]
    assert {(*pair, gain) for pair, gain in zip(map(tuple, task.judged.tolist()), task.gains, strict=True)} == {
        (0, 3, 1),
        (0, 2, 2),
        (1, 1, 1),
    }
    assert task.warnings == (
        "2 of 6 judgements name ids that are not in corpus or queries; left out",
        "1 of 3 judged queries have no relevant document; left out",
    )
    assert {"text", "Other text", "Title and text"} <= set(task_texts(task))


def test_title_rules():
    assert join_title("T", "T x") == "T T x" and join_title("T", "T x", "unless_repeated") == "T x"
    assert (
        join_title("T", "x", "unless_repeated") == "T x"
        and join_title("T", "x", "never") == "x"
        and join_title("T", "") == "T"
    )


def test_retrieval_refuses_what_cannot_be_scored(write_jsonl, tmp_path):
    folder = retrieval_folder(write_jsonl, tmp_path, [("1", "d1", 1), ("2", "d1", 1)])
    with pytest.raises(DistilvecError, match="none of 2 pairs names known ids"):
        load_retrieval("t", folder)
    with pytest.raises(DistilvecError, match="no pair has a score above 0"):
        load_retrieval("t", retrieval_folder(write_jsonl, tmp_path, [("q0", "d1", 0)]))
    with refused_data("qrels.tsv, line 2"):
        load_retrieval("t", retrieval_folder(write_jsonl, tmp_path, [("q0", "d1", "x")]))
    (folder / "qrels.tsv").unlink()
    with refused_data("qrels.tsv or qrels/test.tsv"):
        load_retrieval("t", folder)
    write_jsonl("r/corpus.jsonl", [{"id": "d1", "text": "a"}, {"id": "d1", "text": "b"}])
    with pytest.raises(DistilvecError, match="line 2 repeats the id 'd1'"):
        load_retrieval("t", folder)
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(DistilvecError, match="no corpus file"):
        load_retrieval("t", folder)
    with pytest.raises(DistilvecError, match="folder not found"):
        load_retrieval("t", tmp_path / "none")
    with pytest.raises(DistilvecError, match="all 1 documents are empty"):
        make_retrieval("t", {"d": " "}, {"q": "q"}, {("q", "d"): 1})


def test_made_in_memory():
    task = make_retrieval("t", {"a": "x", "b": "y"}, {"q": "z"}, {("q", "a"): 1})
    np.testing.assert_array_equal(task.judged, [[0, 1]])
    assert task.document_ids == ["b", "a"] and task.warnings == ()


def test_lone_surrogates_are_named(write_jsonl, tmp_path):
    def bad(row):
        (tmp_path / "bad.jsonl").write_text(json.dumps(row) + "\n")
        return tmp_path / "bad.jsonl"

    with refused_data("column sentence2"):
        load_sts("t", bad({"sentence1": "a", "sentence2": "b\ud800", "score": 1}))
    with refused_data("column label"):
        load_pairs("t", bad({"sentence1": "a", "sentence2": "b", "label": "b\ud800"}))
    folder = retrieval_folder(write_jsonl, tmp_path, [("q0", "d1", 1)])
    for name in ("id", "title", "text"):
        (folder / "corpus.jsonl").write_text(json.dumps({"id": "d1", "text": "a", name: "x\ud800"}) + "\n")
        with refused_data(f"column {name}"):
            load_retrieval("t", folder)


@pytest.mark.parametrize("score", [10**400, [], {}, "1e999"])
def test_scores_beyond_numbers(write_jsonl, score):
    with refused_data("in column score"):
        load_sts("t", write_jsonl("a.jsonl", [{**STS[0], "score": score}]))


def test_a_renamed_column_wins_over_one_of_the_name(write_jsonl):
    rows = [{"sentence1": "x", "mine": "a", "sentence2": "b", "score": number} for number in (1, 2)]
    assert load_sts("t", write_jsonl("a.jsonl", rows), TableOptions(columns={"sentence1": "mine"})).first == ["a", "a"]
    rows = [{"mine": "a", "sentence1": "x", "sentence2": "b", "score": number} for number in (1, 2)]
    assert load_sts("t", write_jsonl("b.jsonl", rows), TableOptions(columns={"sentence1": "mine"})).first == ["a", "a"]


def test_judgements_that_contradict_each_other_are_told(write_jsonl, tmp_path):
    folder = retrieval_folder(
        write_jsonl, tmp_path, [(f"q{number}", "d1", 1) for number in range(3)] + [("q0", "d1", 2), ("q1", "d1", 1)]
    )
    task = load_retrieval("t", folder)
    assert (
        task.warnings == ("1 of 3 judgements repeat with different scores; the highest counts",)
        and task.gains.max() == 2
    )


def test_qrels_anywhere(write_jsonl, tmp_path):
    folder = retrieval_folder(write_jsonl, tmp_path, [("q0", "d1", 1)])
    with refused_data("../absent.tsv"):
        load_retrieval("t", folder, qrels=str(tmp_path / "absent.tsv"))


def test_a_labelled_text_that_is_missing_is_named(write_jsonl):
    with pytest.raises(DistilvecError, match="line 1"):
        load_labelled(write_jsonl("a.jsonl", [{"text": None, "label": 1}]), "classification", "test")


# -- search tasks in their official forms ------------------------------------------------------------------------------

EXPECTED = {("q0", "d1", 1), ("q1", "d2", 2)}
FORMS = {
    "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq0\td1\t1\nq1\td2\t2\n",
    "qrels.tsv": "query_id\tdoc_id\trelevance\nq0\td1\t1\nq1\td2\t2\n",
    "qrels.txt": "q0 0 d1 1\n\nq1  Q0  d2  2\n",  # TREC
    "qrels/test.txt": "q0\t0\td1\t1\r\nq1\t0\td2\t2\r\n",
    "trec/test.qrels": "q0 0 d1 1\rq1 0 d2 2\r",
    "qrels/test.jsonl": '{"query-id": "q0", "corpus-id": "d1", "score": 1}\n{"qid": "q1", "docid": "d2", "rel": 2}\n',
    "qrels.json": '[{"query-id": "q0", "corpus-id": "d1", "score": 1}, {"qid": "q1", "docid": "d2", "rel": 2}]',
    "qrels.csv": "query-id,corpus-id,score\nq0,d1,1.0\nq1,d2,2\n",
}


def triples(task):
    pairs = zip(task.judged.tolist(), task.gains.tolist(), strict=True)
    return {(task.query_ids[query], task.document_ids[document], gain) for (query, document), gain in pairs}


@pytest.mark.parametrize("place", FORMS)
def test_judgements_of_every_form(write_jsonl, tmp_path, place):
    folder = retrieval_folder(write_jsonl, tmp_path, [])
    (folder / "qrels.tsv").unlink()
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_bytes(FORMS[place].encode())
    task = load_retrieval("t", folder, qrels=place if place.startswith("trec") else None)
    assert triples(task) == EXPECTED
    assert task.warnings == (), "a query of another split is no gap"


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("q0 Q0 d1 1 12.5 tag\n", "line 1"),
        ("q0 0 d1 1\nq1 d2 2\n", "line 2"),
        ("q0 0 d1 high\n", "line 1"),
        ("", "no judg"),
    ],
)
def test_files_that_hold_no_judgements(write_jsonl, tmp_path, content, word):
    folder = retrieval_folder(write_jsonl, tmp_path, [])
    (folder / "qrels.tsv").write_text(content)
    with refused_data(word):
        load_retrieval("t", folder)


def test_a_split_that_is_missing_is_told_with_those_that_are_there(write_jsonl, tmp_path):
    folder = retrieval_folder(write_jsonl, tmp_path, [("q0", "d1", 1)], "qrels/dev.tsv")
    with refused_data("dev.tsv"):
        load_retrieval("t", folder)
    assert triples(load_retrieval("t", folder, split="dev")) == {("q0", "d1", 1)}


def test_corpora_that_are_arrays_and_ids_that_are_numbers(tmp_path):
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "corpus.json").write_text(
        json.dumps([{"id": None, "_id": 1.0, "text": "a"}, {"_id": 2, "text": "b"}], indent=1)
    )
    (folder / "queries.jsonl").write_bytes(b'{"_id": 7, "text": "q"}\r{"_id": 8, "text": "r"}\r')
    (folder / "qrels.tsv").write_text("7 0 1 1\n8 0 2 1\n")
    assert triples(load_retrieval("t", folder)) == {("7", "1", 1), ("8", "2", 1)}


CLAIMS = [{"_id": f"a{number}", "title": "", "text": f"claim {number}"} for number in range(4)]


def own_rows(write_jsonl, tmp_path, queries, qrels, mode="same_text"):
    write_jsonl("r/corpus.jsonl", CLAIMS)
    write_jsonl("r/queries.jsonl", [{"_id": name, "text": text} for name, text in queries.items()])
    (tmp_path / "r" / "qrels.tsv").write_text("".join(f"{query} 0 {document} 1\n" for query, document in qrels))
    task = load_retrieval("t", tmp_path / "r", own_documents=mode)
    return [task.document_ids[row] if row >= 0 else None for row in task.own], task.notes


def test_a_query_that_is_a_document_is_not_searched_for_itself(write_jsonl, tmp_path):
    """As in ArguAna and Quora. Data that number queries and documents alike are other texts, or the answer is there."""
    queries = {"a0": "claim 0", "a1": " claim 1\n", "a2": "a question"}
    qrels = [("a0", "a1"), ("a1", "a2"), ("a2", "a2")]
    own, notes = own_rows(write_jsonl, tmp_path, queries, qrels)
    assert own == ["a0", "a1", None] and "2 of 3" in notes[0]
    assert own_rows(write_jsonl, tmp_path, queries, qrels, "keep") == ([], ())
    other = [("a0", "a1"), ("a2", "a1")]
    assert own_rows(write_jsonl, tmp_path, queries, other, "leave_out")[0] == ["a0", "a2"]
    answer = [("a0", "a0"), ("a1", "a1")]
    assert own_rows(write_jsonl, tmp_path, queries, answer)[0] == []
