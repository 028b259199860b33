"""A run's JSON files when they are read again: sealed, whole, of the right shape."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from refusals import refused

from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.columns import intervals
from distilvec.evaluation.evaluator import Sample, Score
from distilvec.evaluation.tasks import OF_AN_INDEX
from distilvec.report.exports import export_note, export_table, read_exports, write_exports
from distilvec.report.html import render_page
from distilvec.report.json_values import from_json
from distilvec.report.model_card import model_card
from distilvec.report.next_step import next_commands
from distilvec.report.record import RunRecord, TeacherRecord, read_run_record
from distilvec.report.sections.record import stated_keys
from distilvec.report.tables import ABSENT
from distilvec.report.values import ExportedForm, Report, read_report
from distilvec.report.verdicts import make_verdict
from distilvec.report.write import refresh_report
from distilvec.train.metrics import shipped_numbers
from tests.report.report_sample import as_report, sample_report


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path)
    run.make()
    return run


SCORE = {"task": "a", "type": "sts", "metric": "x"}
DRAWN = {"compression", "margin", "speed", "experts", "history", "vocabulary", "texts"}


NEXT = """teacher: {{model: me/large, attention: own{teacher}}}
student: {{model: teacher{student}}}
evaluation: {{suite: suite.yaml}}
"""


@pytest.mark.parametrize(
    ("teacher", "student", "evaluate", "speed"),
    [
        ("", "", "--teacher me/large", "speed me/large out"),
        (", pooling: null, trust_remote_code: false", "", "--teacher me/large", "speed me/large out"),
        (", trust_remote_code: true", "", "--teacher me/large --trust-remote-code", "me/large out --trust-remote-code"),
        ("", ", trust_remote_code: true", "me/large --trust-remote-code", "me/large out --trust-remote-code"),
        (", pooling: mean", "", "suite.yaml", "speed out"),
        (", truncate_dim: 64, trust_remote_code: true", "", "suite.yaml", "speed out"),
        (", adapters: [a]", "", "suite.yaml", "speed out"),
    ],
)
def test_commands_on_the_page_open_the_teacher_of_the_run_or_none(teacher, student, evaluate, speed):
    record = RunRecord(teacher=TeacherRecord(name="large", parameters=9))
    report = Report(record=record, recipe=NEXT.format(teacher=teacher, student=student))
    export, *commands = next_commands(replace(report, folder="run"), Path("run/student"))
    assert commands[0].endswith(evaluate.replace("out", "run/student"))
    assert commands[1].endswith(speed.replace("out", "run/student")) and len(commands) == 2
    assert export.endswith("--trust-remote-code") == ("true" in student)


def test_what_is_not_there(run):
    assert read_report(run) is read_run_record(run) is refresh_report(run) is None


def test_a_whole_report_is_read_as_it_was_written(run):
    report = as_report(sample_report())
    report.write(run)
    again = read_report(run)
    assert again == replace(report, folder=str(run.path)) and again.to_json() == report.to_json()
    content = json.loads(run.report.read_text())
    assert content["format"] == 7 and content["scores"]["student"][0]["task"] == "stsb" and "folder" not in content
    assert content["texts"]["by_length"][0]["from"] == 1 and content["intervals"]["student"]["stsb"][2] > 0


def test_a_record_is_read_as_it_was_written(run):
    record = from_json(RunRecord, sample_report()["record"])
    write_json(run.record, record.to_json(), sealed=True)
    assert read_run_record(run) == record
    assert record.to_json()["scores"]["student"][0] == {
        "task": "stsb", "type": "sts", "metric": "spearman", "value": 80.92,
    }  # fmt: skip


def test_a_page_is_not_made_of_an_edited_report(run):
    report = as_report({name: part for name, part in sample_report().items() if name not in DRAWN})
    report.write(run)
    assert refresh_report(run) is not None
    content = json.loads(run.report.read_text(encoding="utf-8"))
    run.report.write_text(json.dumps(content | {"name": "another"}), encoding="utf-8")
    with pytest.raises(DistilvecError, match=r"^\[report\.json\] .*was changed"):
        refresh_report(run)


def test_a_page_is_not_made_of_a_report_without_its_seal(run):
    run.report.write_text(json.dumps({"scores": {}, "compression": {"rows": [{}]}}), encoding="utf-8")
    before = run.report.read_bytes()
    with refused("report.json"):
        refresh_report(run)
    assert run.report.read_bytes() == before


@pytest.mark.parametrize(
    ("part", "key"),
    [
        ({"compression": {"rows": [{}]}}, "compression.rows.0.task"),
        ({"speed": {"rows": [{"texts_per_second": 1.0}]}}, "speed.rows.0.model"),
        (
            {"scores": {"student": [{"task": "a", "type": "sts", "metric": "x", "value": "81"}]}},
            "scores.student.0.value",
        ),
        ({"intervals": {"student": {"average": [1.0, 2.0]}}}, "intervals.student.average"),
        ({"verdict": {"text": 3}}, "verdict.text"),
    ],
)
def test_a_page_is_not_made_of_half_a_report(run, part, key):
    write_json(run.report, part, sealed=True)
    before = run.report.read_bytes()
    with refused("report.json", key):
        refresh_report(run)
    assert run.report.read_bytes() == before


def test_metrics_without_a_figure(run):
    run.metrics.write_text('{"step": 1, "epoch": 0.1, "train/loss": 0.5}\n')
    with refused("metrics.jsonl"):
        shipped_numbers([run.metrics], best_step=1)


FORM = {
    "file": "onnx/model.onnx", "task": "sts", "queries": 5, "documents": 6, "mean_cosine": 0.9, "min_cosine": 0.8,
    "similarity_error": 0.1, "overlap": 0.9, "ndcg": 1.0, "pytorch_ndcg": 1.0, "megabytes": 1.0,
    "pytorch_megabytes": 2.0, "latency_ms": 1.0, "pytorch_latency_ms": 2.0,
}  # fmt: skip


@pytest.mark.parametrize("name", FORM)
def test_any_value_of_a_list_of_exports_is_shown_or_refused(tmp_path, name):
    """With a right seal, as another version could write it."""
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    write_exports(tmp_path, {"onnx": from_json(ExportedForm, FORM)})
    content = json.loads((tmp_path / "exports.json").read_text())
    shown = 0
    for value in (1.0, 0, -1, None, "x", [], {}, 10**30):
        write_json(tmp_path / "exports.json", {**content, "forms": {"onnx": {**FORM, name: value}}}, sealed=True)
        try:
            exports = read_exports(tmp_path)
        except DistilvecError as error:
            assert error.key == "exports.json"
        else:
            shown += 1
            export_table(exports)
            model_card(RunRecord(name="a"), exports=exports)
    assert 1 <= shown < 8


def test_a_form_that_was_kept_out_of_tolerance_is_marked():
    good = from_json(ExportedForm, FORM)
    forced = replace(good, out_of_tolerance=["mean cosine 0.9000, lowest allowed is 0.99"])
    forms = {"onnx": good, "onnx-int8": forced}
    row = next(row for row in export_table(forms).lines if row[0] == "vectors")
    assert row == ["vectors", ABSENT, "within tolerance", "out of tolerance"]
    page = render_page(Report(exports=forms), lambda figure: "")
    card = model_card(RunRecord(name="a"), exports=forms)
    for text in (export_note(forms), page, card):
        assert "onnx-int8 is out of tolerance, and was kept with --force: mean cosine 0.9000" in text
        assert "onnx is out of tolerance" not in text
    assert "out of tolerance |" in card
    assert "tolerance" not in str(export_table({"onnx": good})) + export_note({"onnx": good})


def test_exports_of_a_model_with_other_settings_are_no_longer_its_own(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    write_exports(tmp_path, {"onnx": from_json(ExportedForm, FORM)})
    (tmp_path / "README.md").write_text("another card")
    assert read_exports(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    assert not read_exports(tmp_path)


def test_forms_that_were_measured_apart_are_described_apart():
    first = from_json(ExportedForm, FORM)
    second = replace(first, task="mine", queries=7, threads=8)
    together, apart = (
        export_note({"onnx": first, "onnx-fp16": first}),
        export_note({"onnx": first, "onnx-int8": second}),
    )
    assert together.count("queries") == 1 and "7 queries" not in together
    assert "onnx against" in apart and "onnx-int8 against PyTorch in fp32: 7 queries" in apart and "8 threads" in apart


def test_tasks_of_an_index_count_in_no_average():
    """Where the teacher answers them alone, there is no average of the others."""
    of_index = [Score(name, "retrieval", "ndcg@10", 90.0, {}) for name in OF_AN_INDEX]
    own = Score("mine", "retrieval", "ndcg@10", 70.0, {})
    name, keys = OF_AN_INDEX[0], np.arange(40)
    samples = [Sample("retrieval", "ndcg@10", np.linspace(0, best, 40), keys) for best in (0.8, 1.0)]
    problems = []
    changes = intervals({"student": {name: samples[0]}, "teacher": {name: samples[1]}}, problems)["student"]
    assert list(changes) == [name] and not problems
    changes["average"] = changes[name]
    verdict = make_verdict({"student": [*of_index, own], "teacher": of_index}, changes)
    assert verdict.retention is None and verdict.retention_interval is None


def test_the_pages_recipe_is_the_runs_recipe():
    """An empty value is a choice, null is not: the model's own prompts would stand where the run had none."""
    recipe = "teacher:\n  prompts:\n    query: ''\n    document: ''\n  revision: null\nevaluation:\n  parts: []\n"
    assert yaml.safe_load(stated_keys(recipe)) == {
        "teacher": {"prompts": {"query": "", "document": ""}},
        "evaluation": {"parts": []},
    }
