"""Reports and records from before asymmetric scores followed REDACT's rule are read by the present one."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from distilvec.core.files import write_json
from distilvec.evaluation.significance import average_interval
from distilvec.pipeline.compare import compare_runs
from distilvec.report.earlier_formats import current_record, current_report, current_scores
from distilvec.report.run_files import RECORD, REPORT, read_run_file
from tests.pipeline.test_compare import sts
from tests.report.report_sample import sample_report


def entry(task, kind, value):
    return {"task": task, "type": kind, "metric": "m", "value": value}


OLD = {
    "teacher": [entry("a", "sts", 80.0), entry("b", "retrieval", 50.0)],
    "student": [entry("a", "sts", 78.0), entry("b", "retrieval", 40.0)],
    "asymmetric": [entry("a", "sts", 60.0), entry("b", "retrieval", 45.0)],
}


def test_the_mixture_gets_its_name_and_the_rules_scores_are_derived():
    found = current_scores(OLD)
    assert found["mixed"] == OLD["asymmetric"] and found["student"] == OLD["student"]
    assert [score["value"] for score in found["asymmetric"]] == [78.0, 45.0]
    assert current_scores(found) == found, "once"
    assert current_scores({"student": OLD["student"]}) == {"student": OLD["student"]}


def test_files_of_the_present_format_stay():
    for read, format in ((current_record, 2), (current_report, 3)):
        assert read({"format": format, "scores": OLD}) == {"format": format, "scores": OLD}
    assert list(current_record({"scores": OLD})["scores"]) == [*OLD, "mixed"], "the first had no format"


def test_every_part_of_an_old_report():
    old = sample_report() | {"format": 2}
    new = current_report(copy.deepcopy(old))
    kinds = {score["task"]: score["type"] for score in old["scores"]["student"]}
    for task, kind in kinds.items():
        origin = "asymmetric" if kind == "retrieval" else "student"
        assert new["intervals"]["asymmetric"][task] == old["intervals"][origin][task]

        def rows(report, column, task=task):
            every = report["compression"]["rows"]
            return [{**row, "column": ""} for row in every if (row["task"], row["column"]) == (task, column)]

        assert rows(new, "asymmetric") == rows(old, origin)
    assert new["intervals"]["mixed"] == old["intervals"]["asymmetric"]
    assert "average" not in new["intervals"]["asymmetric"]
    assert new["averages"]["mixed"]["all"] == pytest.approx(old["averages"]["asymmetric"]["all"], abs=1e-3)
    assert new["record"]["scores"]["mixed"] == old["record"]["scores"]["asymmetric"] and new["format"] == 3


def test_they_are_read_so_from_a_folder(tmp_path):
    for name in (RECORD, REPORT):
        write_json(tmp_path / name, {"scores": OLD, "format": 1}, sealed=True)
        assert [score["value"] for score in read_run_file(tmp_path, name)["scores"]["asymmetric"]] == [78.0, 45.0]


def test_old_runs_are_compared_by_the_rule(tmp_path):
    """Pairs of models come from the old samples: the student's on STS."""
    samples = {}
    for seed, name in enumerate(("one", "two")):
        folder = tmp_path / name
        folder.mkdir()
        rows = {column: sts(quality, seed) for column, quality in (("student", 0.9 + seed), ("asymmetric", 0.1))}
        scores = {column: [entry("a", "sts", 50.0 + seed)] for column in rows}
        (folder / "distillation.json").write_text(json.dumps({"name": name}))
        (folder / "report.json").write_text(json.dumps({"format": 2, "scores": scores}).replace('"m"', '"spearman"'))
        parts = {f"{c}/a/{part}": getattr(s, part) for c, s in rows.items() for part in ("predicted", "gold")}
        np.savez(folder / "samples.npz", **parts)
        samples[name] = rows
    for column, origin in (("asymmetric", "student"), ("mixed", "asymmetric")):
        comparison = compare_runs([tmp_path / "one", tmp_path / "two"], column=column)
        (found,) = [one for one in comparison["differences"] if one["task"] == "a"]
        expected = average_interval([(samples["two"][origin], samples["one"][origin])])
        assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))
