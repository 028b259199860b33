"""A run's JSON files when they are read again: sealed, whole, of the right shape."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from refusals import refused

from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.pipeline.record import best_distance
from distilvec.report.record import RECORD, parse_record, read_record
from distilvec.report.values import REPORT, read_report
from distilvec.report.write import refresh_report
from tests.report.report_sample import as_report, sample_report

SCORE = {"task": "a", "type": "sts", "metric": "x"}
DRAWN = {"compression", "margin", "speed", "experts", "projections", "tokens", "history", "vocabulary", "texts"}


def test_what_is_not_there(tmp_path):
    assert read_report(tmp_path) is read_record(tmp_path) is refresh_report(tmp_path) is None


def test_a_whole_report_is_read_as_it_was_written(tmp_path):
    report = as_report(sample_report())
    report.write(tmp_path)
    again = read_report(tmp_path)
    assert again == replace(report, folder=str(tmp_path)) and again.to_json() == report.to_json()
    content = json.loads((tmp_path / REPORT).read_text())
    assert content["format"] == 4 and content["scores"]["student"][0]["task"] == "stsb" and "folder" not in content
    assert content["texts"]["by_length"][0]["from"] == 1 and content["intervals"]["student"]["stsb"][2] > 0


def test_a_record_is_read_as_it_was_written(tmp_path):
    record = parse_record(sample_report()["record"])
    write_json(tmp_path / RECORD, record.to_json(), sealed=True)
    assert read_record(tmp_path) == record
    assert record.to_json()["scores"]["student"][0] == {
        "task": "stsb", "type": "sts", "metric": "spearman", "value": 80.92,
    }  # fmt: skip


def test_a_page_is_not_made_of_an_edited_report(tmp_path):
    report = as_report({name: part for name, part in sample_report().items() if name not in DRAWN})
    report.write(tmp_path)
    assert refresh_report(tmp_path) is not None
    content = json.loads((tmp_path / REPORT).read_text(encoding="utf-8"))
    (tmp_path / REPORT).write_text(json.dumps(content | {"name": "another"}), encoding="utf-8")
    with pytest.raises(DistilvecError, match=r"^\[report\.json\] .*was changed"):
        refresh_report(tmp_path)


def test_a_page_is_not_made_of_a_report_without_its_seal(tmp_path):
    (tmp_path / REPORT).write_text(json.dumps({"scores": {}, "compression": {"rows": [{}]}}), encoding="utf-8")
    before = (tmp_path / REPORT).read_bytes()
    with refused("report.json"):
        refresh_report(tmp_path)
    assert (tmp_path / REPORT).read_bytes() == before


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
def test_a_page_is_not_made_of_half_a_report(tmp_path, part, key):
    write_json(tmp_path / REPORT, part, sealed=True)
    before = (tmp_path / REPORT).read_bytes()
    with refused("report.json", key):
        refresh_report(tmp_path)
    assert (tmp_path / REPORT).read_bytes() == before


def test_metrics_without_a_figure(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "epoch": 0.1, "train/loss": 0.5}\n')
    with refused("metrics.jsonl"):
        best_distance([tmp_path / "metrics.jsonl"])
