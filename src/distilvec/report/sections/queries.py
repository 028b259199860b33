"""Search results of teacher and student: agreement of rankings, every query with its loss, rankings side by side."""

from __future__ import annotations

from typing import Any

from distilvec.report.scores import by_model
from distilvec.report.section import Block, Section, get, make_section
from distilvec.report.tables import ABSENT, Cell, Part, Table, make_table, number_cell, words

COLUMNS = {
    "Task": "task",
    "Model": "model",
    "top 10 shared, %": ("overlap@10", 1, 100),
    "Kendall's τ": ("kendall_tau", 2),
}
FEW = "Listed are {shown:,} of {count:,} queries of {task}: those that lose most."
CHANGES = {"lost": "loss", "gained": "gain", "same": "same"}


def section(report: Part) -> Section | None:
    """Return the agreement by task and model, every query, and sample queries of reports without the list."""
    tasks = get(report, "agreement")
    rows = [
        {"task": task, "model": name, **by_model(found)[name]}
        for task, found in tasks.items()
        for name in by_model(found)
        if name not in ("examples", "queries")
    ]
    samples = [
        Block("rankings", _ranking(one["columns"]), f"{task}: {one['query']}")
        for task, found in tasks.items()
        for one in (() if found.get("queries") else found.get("examples") or ())
    ]
    listed = {task: found["queries"] for task, found in tasks.items() if found.get("queries")}
    few = [
        FEW.format(shown=len(found["rows"]), count=found["count"], task=task)
        for task, found in listed.items()
        if len(found["rows"]) < found["count"]
    ]
    agreement = make_table("agreement-table", "Agreement with the teacher's rankings", rows, COLUMNS)
    every = Block("queries", {"table": query_table(listed), "rankings": rankings(listed)} if listed else None)
    return make_section("Search results side by side", agreement, *few, every, *samples)


def query_table(listed: dict[str, Part]) -> Table:
    """Return one row per query: task, result, nDCG@10 by model, the student's change and its share of the top 10."""
    every = _worst_first(listed)
    models = list(by_model(dict.fromkeys((name for _, row in every for name in row["scores"]), True)))
    rows = []
    for task, row in every:
        change, shared = _change(row), row["overlap"].get("student")
        result = "same" if abs(change) < 0.005 else "lost" if change < 0 else "gained"
        cells = [number_cell(row["scores"].get(name), 1) for name in models]
        moved = number_cell(change, 1, sign=True)
        cells += [Cell(moved.text, moved.value, kind=CHANGES[result])]
        cells += [number_cell(None if shared is None else 10 * shared, 0)]
        rows.append([*words(row["query"], task, result), *cells])
    header = ["Query", "Task", "Result", *models, "student, change", "shared of 10"]
    return Table("query-table", "Every query, nDCG@10 times 100; those that lose most first", header, rows, words=3)


def rankings(listed: dict[str, Part]) -> dict[str, Any]:
    """Return the documents' texts by task and id, and for every row of `query_table` each model's ids, or None."""
    rows = [
        {"task": task, "found": by_model(row["found"]), "relevant": row["relevant"]} if "found" in row else None
        for task, row in _worst_first(listed)
    ]
    return {"documents": {task: found["documents"] for task, found in listed.items()}, "rows": rows}


def _worst_first(listed: dict[str, Part]) -> list[tuple[str, Part]]:
    """Task and row of every query; those that lose most come first."""
    every = [(task, row) for task, found in listed.items() for row in found["rows"]]
    return sorted(every, key=lambda pair: _change(pair[1]))


def _change(row: Part) -> float:
    """The student's score less the teacher's; without a student 0."""
    ours, theirs = row["scores"].get("student"), row["scores"].get("teacher")
    return 0.0 if ours is None or theirs is None else float(ours - theirs)


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
