"""Scores of earlier versions, brought to the present form when they are read. No run has to be measured again.

Until format 2 of report.json and format 1 of distillation.json, "asymmetric" took both models in every type of task.
Such scores are "mixed" now. "asymmetric" takes its retrieval scores, and repeats the student's on other tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distilvec.evaluation.aggregate import averages

REPORT_FORMAT, RECORD_FORMAT = 3, 2
Columns = Mapping[str, Sequence[Mapping[str, Any]]]


def current_scores(columns: Columns) -> dict[str, Any]:
    """Return scores by model, those of "asymmetric" by the present rule; scores that have it already stay."""
    if not columns.get("asymmetric") or "mixed" in columns:
        return dict(columns)
    student = {score["task"]: score for score in columns.get("student") or ()}
    known = [score if score["type"] == "retrieval" else student.get(score["task"]) for score in columns["asymmetric"]]
    return {**columns, "asymmetric": [score for score in known if score], "mixed": list(columns["asymmetric"])}


def current_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a distillation.json in the present form."""
    if record.get("format", 1) >= RECORD_FORMAT or not record.get("scores"):
        return dict(record)
    return {**record, "scores": current_scores(record["scores"])}


def current_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report.json in the present form; derived averages of "asymmetric" have no interval."""
    if report.get("format", 1) >= REPORT_FORMAT or not report.get("scores"):
        return dict(report)
    found = {**report, "scores": current_scores(report["scores"])}
    if report.get("averages"):
        found["averages"] = {name: averages(column) for name, column in found["scores"].items() if column}
    if (report.get("intervals") or {}).get("asymmetric"):
        found["intervals"] = _intervals(report["intervals"], found["scores"]["asymmetric"])
    if report.get("compression"):
        found["compression"] = _compression(report["compression"], found["scores"]["student"])
    if report.get("record"):
        found["record"] = current_record(report["record"])
    return {**found, "format": REPORT_FORMAT}


def sample_model(model: str, kind: str) -> str:
    """Return the name under which samples.npz of an earlier version has a model's rows on a type of task."""
    return {"mixed": "asymmetric", "asymmetric": "asymmetric" if kind == "retrieval" else "student"}.get(model, model)


def _intervals(intervals: Mapping[str, Any], scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    mixed, student = intervals["asymmetric"], intervals.get("student") or {}
    kinds = {score["task"]: mixed if score["type"] == "retrieval" else student for score in scores}
    found = {task: origin[task] for task, origin in kinds.items() if task in origin}
    if "average" in mixed and all(origin is mixed for origin in kinds.values()):
        found["average"] = mixed["average"]
    return {**intervals, "asymmetric": found, "mixed": mixed}


def _compression(part: Mapping[str, Any], scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of "asymmetric" repeat the student's on other tasks than retrieval."""
    retrieval = {score["task"] for score in scores if score["type"] == "retrieval"}
    rows = [row for row in part["rows"] if row["column"] != "asymmetric" or row["task"] in retrieval]
    rows += [
        {**row, "column": "asymmetric"}
        for row in part["rows"]
        if row["column"] == "student" and row["task"] not in retrieval
    ]
    return {**part, "rows": rows}
