"""End screens: at most six lines of 80 columns, first what decides, last a command that applies."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import pytest
import yaml

from distilvec.report.advice import advice
from distilvec.report.screen import LINES, WIDTH, comparison_screen, run_screen
from distilvec.report.verdicts import make_verdict
from tests.report.comparison_sample import sample_comparison
from tests.report.report_sample import as_report

PAGE = Path("runs/mine/report.html")
STUDENT = {"base_model": "all-MiniLM-L6-v2", "layers": 6, "parameters": 5_000_000}
TEACHER = {"name": "all-MiniLM-L6-v2", "parameters": 22_700_000}


def share(mean):
    return {"mean": mean, "low": mean - 0.02, "high": mean + 0.02}


def overlap(origin, student, start=None, trained=None, **more):
    found = {"origin": origin, "queries": 500, "candidates": 5500, "texts": 6000, "similarity": "cosine", **more}
    for name, mean in (("student", student), ("start", start), ("trained", trained)):
        if mean is not None:
            found[name] = {"among": share(mean), "alone": share(mean - 0.05)}
    return found


def screen_of(judgement=None, training=None, supervised=None, scores=None, recipe=None):
    record = {
        "student": STUDENT,
        "teacher": TEACHER,
        "training": {"texts": 100_000, "epochs": 10, "steps": 300, "best_step": 300} | (training or {}),
        "data": {"train_rows": 10_000},
        **({"overlap": judgement} if judgement else {}),
        **({"supervised": supervised} if supervised else {}),
    }
    stated = {"teacher": {}, "student": {}, "train": {"epochs": "auto"}} | (recipe or {})
    content = {"record": record, "scores": scores or {}, "recipe": yaml.safe_dump(stated)}
    report = as_report(content | ({"overlap": judgement} if judgement else {}))
    report.folder = "runs/mine"
    report.verdict = make_verdict(report.scores, record=report.record)
    report.verdict.advice = advice(report)
    lines = run_screen(report, PAGE)
    assert sum(math.ceil(len(line) / WIDTH) for line in lines) <= LINES, lines
    assert lines[-2] == f"report: {PAGE}" and shlex.split(lines[-1])[:2] == ["next:", "distilvec"]
    return lines


def test_overlap_comes_first_where_nothing_was_tested():
    first, facts, *advised, _, last = screen_of(overlap("teacher", 0.75, start=0.49, trained=0.9))
    assert first == "It finds 0.75 of the teacher's ten nearest (overlap@10) [0.73, 0.77]: fair"
    assert facts == "0.49 before training, 20 MB, 4.5x smaller"
    assert " ".join(advised).startswith("More texts would help: overlap@10 is 0.90 for trained texts")
    assert last == "next: distilvec export runs/mine/student --to onnx-int8"


def test_a_test_comes_before_overlap():
    def scores(value):
        return [{"task": task, "type": "sts", "metric": "spearman", "value": value} for task in ("a", "b")]

    first, facts, *_ = screen_of(overlap("teacher", 0.75), scores={"teacher": scores(80.0), "student": scores(76.0)})
    assert first == "95.0% of the teacher's average on 2 tasks: good"
    assert facts.startswith("overlap@10 0.75 [0.73, 0.77], ")


@pytest.mark.parametrize(
    ("student", "recipe", "decision", "advised", "command"),
    [
        (0.32, {}, "Do not use it", "another student may fit better.", "distill mydb/docs.lance --student intfloat"),
        (0.32, {"train": {"epochs": 2}}, "Do not use it", "it sees about 100,000.", "train.epochs=auto"),
        (0.65, {"student": {"size": "5M"}}, "Use it with a reranker", "train the whole model.", "student.size=null"),
        (0.9, {}, "Use it", "Compare its answers on real queries for some days.", "export runs/mine/student"),
    ],
)
def test_an_index_has_a_decision_a_reason_and_a_command(student, recipe, decision, advised, command):
    recipe = {"teacher": {"vectors": "mydb/docs.lance"}} | recipe
    training = {"texts": 6000} if "train" in recipe else {}
    gain = {"among": share(0.1)}
    first, facts, *reasons, _, last = screen_of(
        overlap("index", student, start=0.2, gain=gain), training, recipe=recipe
    )
    assert first.startswith(f"{decision}: finds {student:.2f} of the index's ten nearest [")
    assert facts.startswith("0.20 before training, judged on stored texts") and command in last
    assert advised in " ".join(reasons) and decision not in " ".join(reasons)


def test_a_student_that_kept_its_texts_tokens_is_told_that_more_texts_keep_more():
    training = {
        "texts": 0,
        "steps": 0,
        "best_step": 0,
        "shipped": "Saved as it is: the student already equals the teacher on these texts.",
    }
    lines = screen_of(overlap("teacher", 0.82, start=0.82, trained=1.0), training)
    shares = "overlap@10 is 1.00 for these texts, 0.82 for new ones."
    assert " ".join(lines[2:-2]) == f"{training['shipped']} More texts keep more words: {shares}"


def test_texts_bring_more_than_training_where_the_start_equals_the_teacher_on_the_texts_whose_tokens_it_kept():
    stage = {"name": "only", "method": "redact", "trained": "all", "learning_rate": 3e-6, "steps": 79, "texts": 2498,
             "minutes": 9.0, "dropped": True}  # fmt: skip
    shipped = "Training brought nothing: the untrained student is saved."
    lower = "Lower train.learning_rate (it was 3e-06), or train longer (it was 79 steps)."
    training = {"steps": 79, "best_step": 0, "texts": 2498, "learning_rate": 3e-6, "stages": [stage]}
    training["shipped"] = f"{shipped} {lower}"
    recipe = {"train": {"minutes": 8}}
    shares = "overlap@10 is 1.00 for these texts, 0.89 for new ones."
    lines = screen_of(overlap("teacher", 0.89, start=0.89, trained=1.0), training, recipe=recipe)
    assert " ".join(lines[2:-2]) == f"{shipped} More texts keep more words: {shares}" and "export" in lines[-1]
    lines = screen_of(overlap("teacher", 0.89, start=0.89, trained=0.89), training, recipe=recipe)
    assert "it sees about 100,000." in " ".join(lines) and "train.minutes=null" in lines[-1]


def test_a_sentence_that_is_too_long_loses_its_numbers_first():
    shipped = (
        "Training did not bring the student closer (distance 0.83 before, 0.84 after): the untrained one is saved."
    )
    training = {"best_step": 0, "learning_rate": 3e-4, "shipped": shipped}
    training["stages"] = [
        {"name": "only", "method": "redact", "trained": "all", "learning_rate": 3e-4, "steps": 9, "texts": 9,
         "minutes": 1.0, "dropped": True}
    ]  # fmt: skip
    *_, advised, _, last = screen_of(overlap("index", 0.43, start=0.43), training)
    assert advised == "Training did not bring the student closer: the untrained one is saved."
    assert "train.learning_rate=7.5e-05 --out runs/mine-slower" in last


@pytest.mark.parametrize(("kind", "command"), [("classification", "export"), ("pair", "report runs/mine --open")])
def test_labels_are_right_or_wrong(kind, command):
    scores = {"student": {"accuracy": 0.8}, "teacher": {"accuracy": 0.833}}
    labels = {"task": "intents", "type": kind, "rows": 3080, "scores": scores}
    first, facts, *_, last = screen_of(overlap("teacher", 0.5), supervised=labels)
    assert first == "80.0% right on 3,080 test rows [78.6, 81.4]; the teacher has 83.3%"
    assert facts == "20 MB, 4.5x smaller" and f"distilvec {command}" in last


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_comparison_names_the_best_and_its_command(count):
    comparison = sample_comparison()
    comparison.rows = comparison.rows[:count]
    command = "distilvec compare runs/x --out comparison.html"
    lines = comparison_screen(comparison, None, command)
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH and lines[-1] == f"next: {command}"
    assert lines[0] == comparison.verdict
    rows = [line for line in lines if "% of its teacher" in line or "average " in line][-count:]
    assert rows[0].startswith("cosine ") and rows[0].count("average 72.90 ± 0.21") == 1
    assert len(comparison_screen(comparison, PAGE, command)) <= LINES
    if count == 4:
        assert comparison_screen(comparison, PAGE, command)[-3] == "and 2 more: talas, english <two>"
