"""A run's JSON files when they are read again: sealed, whole, of the right shape."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from refusals import refused

from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.record import best_distance
from distilvec.report.record import parse_record, read_record
from distilvec.report.values import read_report
from distilvec.report.write import refresh_report
from tests.report.report_sample import as_report, sample_report


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path)
    run.make()
    return run


SCORE = {"task": "a", "type": "sts", "metric": "x"}
DRAWN = {"compression", "margin", "speed", "experts", "projections", "tokens", "history", "vocabulary", "texts"}


def test_what_is_not_there(run):
    assert read_report(run) is read_record(run) is refresh_report(run) is None


def test_a_whole_report_is_read_as_it_was_written(run):
    report = as_report(sample_report())
    report.write(run)
    again = read_report(run)
    assert again == replace(report, folder=str(run.path)) and again.to_json() == report.to_json()
    content = json.loads(run.report.read_text())
    assert content["format"] == 4 and content["scores"]["student"][0]["task"] == "stsb" and "folder" not in content
    assert content["texts"]["by_length"][0]["from"] == 1 and content["intervals"]["student"]["stsb"][2] > 0


def test_a_record_is_read_as_it_was_written(run):
    record = parse_record(sample_report()["record"])
    write_json(run.record, record.to_json(), sealed=True)
    assert read_record(run) == record
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
        best_distance([run.metrics])
