"""A run's JSON files when they are read again: sealed, whole, of the right shape."""

from __future__ import annotations

import json

import pytest
from refusals import refused

from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.pipeline.record import best_distance
from distilvec.report.run_files import RECORD, REPORT, read_run_file
from distilvec.report.write import refresh_report
from tests.report.report_sample import sample_report

DRAWN = {"compression", "margin", "speed", "experts", "projections", "tokens", "history", "vocabulary", "texts"}


def test_what_is_not_there(tmp_path):
    assert read_run_file(tmp_path, REPORT) is None and refresh_report(tmp_path) is None


def test_a_whole_report_is_read_as_it_was_written(tmp_path):
    report = json.loads(json.dumps(sample_report()))
    write_json(tmp_path / REPORT, report, sealed=True)
    write_json(tmp_path / RECORD, report["record"], sealed=True)
    found = read_run_file(tmp_path, REPORT)
    assert found is not None and found.pop("seal") and found == report
    assert read_run_file(tmp_path, RECORD) is not None


def test_a_page_is_not_made_of_an_edited_report(tmp_path):
    report = {name: part for name, part in json.loads(json.dumps(sample_report())).items() if name not in DRAWN}
    write_json(tmp_path / REPORT, report, sealed=True)
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


def test_metrics_without_a_figure(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "epoch": 0.1, "train/loss": 0.5}\n')
    with refused("metrics.jsonl"):
        best_distance([tmp_path / "metrics.jsonl"])
