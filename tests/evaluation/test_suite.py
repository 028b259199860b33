import dataclasses
from pathlib import Path

import pytest
import yaml
from refusals import refused

from distilvec.core.errors import DistilvecError
from distilvec.evaluation.suite import load_suite, read_suite, suite_fingerprint, suite_texts

PAIRS = [
    {"sentence1": "a", "sentence2": "b", "score": 1, "label": 1},
    {"sentence1": "c", "sentence2": "d", "score": 2, "label": 0},
]
CLASSES = [{"split": split, "text": f"{split} {label}", "label": label} for split in ("fit", "test") for label in "xy"]


@pytest.fixture
def suite(tmp_path, write_jsonl):
    """A suite with a task of each type; its folder lies beside the data's."""
    write_jsonl("data/pairs.jsonl", PAIRS)
    write_jsonl("data/classes.jsonl", CLASSES)
    write_jsonl("data/search/corpus.jsonl", [{"id": "d", "title": "T", "text": "document"}])
    write_jsonl("data/search/queries.jsonl", [{"id": "q", "text": "query"}])
    (tmp_path / "data/search/relevant.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    entries = [
        {"name": "graded", "type": "sts", "path": "../data/pairs.jsonl"},
        {"name": "same", "type": "pair", "path": "../data/pairs.jsonl", "positive_label": 0, "role": "query"},
        {
            "name": "classes",
            "type": "classification",
            "path": "../data/classes.jsonl",
            "train_split": "fit",
            "train_limit": 2,
        },
        {"name": "search", "type": "retrieval", "path": "../data/search", "qrels": "relevant.tsv", "titles": "never"},
    ]
    path = tmp_path / "suites" / "small.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(entries))
    return path


def test_a_suite_gives_its_tasks_in_order(suite):
    tasks = load_suite(suite)
    assert [(task.name, task.type) for task in tasks] == [
        ("graded", "sts"), ("same", "pair"), ("classes", "classification"), ("search", "retrieval")
    ]  # fmt: skip
    assert tasks[1].positive.tolist() == [False, True] and tasks[1].role == "query" and tasks[0].role == "document"
    assert tasks[2].train_texts == ["fit x", "fit y"] and tasks[3].documents == ["document"]


def test_suite_texts_are_those_scored_and_no_training_rows(suite):
    tasks, labelled = load_suite(suite), {"a", "b", "c", "d", "test x", "test y"}
    texts = {kind: set(found) for kind, found in suite_texts(tasks).items()}
    expected = {"queries": {"query"}, "stored texts": set(), "labelled test texts": labelled, "documents": {"document"}}
    assert texts == expected
    assert not suite_texts(tasks, documents=False)["documents"]


def test_fingerprint_changes_with_the_data_only(suite, write_jsonl):
    tasks = load_suite(suite)
    first = suite_fingerprint(tasks)
    assert first == suite_fingerprint(load_suite(suite)) and len(first) == 16
    variants = [
        [*tasks[:3]],
        [dataclasses.replace(tasks[0], gold=tasks[0].gold + 1), *tasks[1:]],
        [dataclasses.replace(tasks[0], first=["a", "e"]), *tasks[1:]],
        [dataclasses.replace(tasks[0], first=["ac", ""]), *tasks[1:]],
        [dataclasses.replace(tasks[0], role="query"), *tasks[1:]],
        [*tasks[:3], dataclasses.replace(tasks[3], gains=tasks[3].gains * 2)],
    ]
    assert len({first, *map(suite_fingerprint, variants)}) == 7


BAD = {
    "": "an empty suite",
    "[]": "an empty suite",
    "tasks: []": "expected a list of tasks.*found a dict",
    "- {name: [": "not valid YAML",
    "- stsb": r"\[0\] expected a mapping",
    "- {name: a, path: b}": r"\[0\.type\] found None. Expected one of sts, classification, pair, retrieval",
    "- {name: a, path: b, type: retrival}": r"did you mean 'retrieval'\?",
    "- {name: a, type: sts, path: b, splt: dev}": r"\[0\.splt\] unknown key; did you mean 'split'\? Known here: ",
    "- {name: a, type: sts, path: b, train_limit: 3}": r"\[0\.train_limit\] unknown key",
    "- {name: a, type: classification, path: b, train_limit: none}": r"\[0\.train_limit\] .*integer.*found 'none'",
    "- {name: a, type: sts}": r"\[0\.path\] Field required",
    "- {name: a, type: sts, path: b}\n- {name: a, type: sts, path: c}": r"\[1\.name\] 'a' is",
    "- {name: average, type: sts, path: b}": r"\[0\.name\] 'average' is",
    "- {name: a, type: sts, path: ''}": r"\[0\.path\] the path is empty",
    "- {name: a, type: classification, path: b, seed: -1}": r"\[0\.seed\] .*greater than or equal to 0",
    "- {name: a, type: classification, path: b, train_limit: true}": r"\[0\.train_limit\] expected a number, not a boolean",  # noqa: E501
    "- {name: a, name: b}": r"line 1, column 13: key 'name' is repeated",
    "- {{a: b}: c}": r"cannot be a key",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_suites_end_with_one_clear_message(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(DistilvecError, match=BAD[text]) as caught:
        load_suite(path)
    assert str(caught.value).startswith("[suite] ") and "bad.yaml" in str(caught.value)


def test_all_problems_come_in_one_message(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("- {name: a, type: sts, pth: b}\n- {name: b, type: nli, path: c}\n")
    with pytest.raises(
        DistilvecError, match=r"(?s)\[0\.path\].*\[0\.pth\] unknown key; did you mean 'path'.*\[1\.type\]"
    ):
        load_suite(path)


def test_problems_of_the_data_name_task_and_file(suite):
    (suite.parent.parent / "data/classes.jsonl").unlink()
    with refused("suite", "classes.jsonl"):
        load_suite(suite)


def test_a_suite_that_is_missing_or_no_text(tmp_path):
    with refused("suite", "No such file"):
        load_suite(tmp_path / "none.yaml")
    with pytest.raises(DistilvecError, match=r"^\[suite\] .* is a folder"):
        load_suite(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with refused("suite", "not valid Unicode"):
        load_suite(tmp_path / "binary.yaml")


def test_the_papers_suites_have_their_tasks():
    """TALAS, table 1 (* in domain), DistillMoE, table 14, and the files that README.md asks for."""
    folder = Path(__file__).parents[2] / "recipes" / "suites"
    found = {name: read_suite(folder / f"{name}.yaml") for name in ("talas", "distillmoe", "surgery")}
    names = {name: [(task.name, task.domain) for task in tasks] for name, tasks in found.items()}
    columns = "banking77 tweeteval_sentiment emotion* mrpc scitail wic* sick sts12 stsb*"
    assert names["talas"] == [(name.rstrip("*"), "in" if "*" in name else "out") for name in columns.split()]
    inside, outside = ([name for name, domain in names["distillmoe"] if domain == wanted] for wanted in ("in", "out"))
    assert inside == ["banking77", "tweeteval_sentiment", "mrpc", "wic", "sick", "stsb"]
    assert outside == ["sts12", "sts13", "sts14", "sts15", "sick_r", "emotion", "scitail"]
    assert [(task.name, task.split) for task in found["surgery"]] == [
        ("stsb_tr_train", "train"),
        ("stsb_tr_test", "test"),
    ]
    own = {name: f"{name}/{name}.jsonl.gz" for name in ("emotion", "scitail", "sick", "sick_r", "sts12", "sts15")}
    own["stsb_tr_test"] = "stsb_tr/stsb_tr.jsonl.gz"
    page = (folder / "README.md").read_text(encoding="utf-8")
    paths = {task.name: str(task.path) for tasks in found.values() for task in tasks}
    assert all(f"`{path}`" in page and paths[name].endswith(f"data/{path}") for name, path in own.items())


def test_the_suites_of_the_project_hold_together():
    folder = Path(__file__).parents[2] / "recipes" / "suites"
    for path in folder.glob("*.yaml"):
        assert read_suite(path)
