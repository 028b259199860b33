"""Search results of teacher and student: agreement of rankings, and sample queries."""

from __future__ import annotations

from typing import Any

from distilvec.report.scores import by_model
from distilvec.report.section import Block, Section, get, make_section
from distilvec.report.tables import ABSENT, Part, make_table

COLUMNS = {
    "Task": "task",
    "Model": "model",
    "top 10 shared, %": ("overlap@10", 1, 100),
    "Kendall's τ": ("kendall_tau", 2),
}


def section(report: Part) -> Section | None:
    """Return the agreement by task and model, then the sample queries of each task."""
    tasks = get(report, "agreement")
    rows = [
        {"task": task, "model": name, **by_model(found)[name]}
        for task, found in tasks.items()
        for name in by_model(found)
        if name != "examples"
    ]
    samples = [
        Block("rankings", _ranking(one["columns"]), f"{task}: {one['query']}")
        for task, found in tasks.items()
        for one in found.get("examples") or ()
    ]
    agreement = make_table("agreement-table", "Agreement with the teacher's rankings", rows, COLUMNS)
    return make_section("Search results side by side", agreement, *samples)


def _ranking(models: Part) -> dict[str, list[dict[str, Any]]]:
    """The found documents by model, with the teacher's rank of each document."""
    ranks = {entry["id"]: entry["rank"] for entry in models.get("teacher") or ()}
    return {
        name: [
            {**entry, "note": f"teacher: {ranks.get(entry['id'], ABSENT)}" if ranks and name != "teacher" else ""}
            for entry in found
        ]
        for name, found in by_model(models).items()
    }
