"""Search results of teacher and student: agreement of rankings, every query with its loss, rankings side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from distilvec.evaluation.agreement import RankedQueries, RankedQuery
from distilvec.report.scores import models_in_order
from distilvec.report.section import Block, PageSection, make_section
from distilvec.report.tables import Cell, Table, make_table, number_cell, words
from distilvec.report.values import Report

COLUMNS = {
    "Task": "task",
    "Model": "model",
    "overlap@10, %": ("agreement.overlap", 1, 100),
    "Kendall's τ": ("agreement.kendall_tau", 2),
}
LISTED = 50  # queries in all, as many of each task: each adds more than a kilobyte to the page
FEW = "The {shown:,} of {count:,} queries of {task} that lose most."
CHANGES = {"lost": "loss", "gained": "gain", "same": "same"}


def section(report: Report) -> PageSection | None:
    """Return the agreement by task and model, and every query with the rankings of all models."""
    rows = []
    notes = []
    queries = {}
    most = max(1, LISTED // max(1, len(report.agreement)))
    for task, rankings in report.agreement.items():
        for model, agreement in models_in_order(rankings.models).items():
            rows.append({"task": task, "model": model, "agreement": agreement})
        if rankings.queries is not None:
            # Those that lose most, with the texts of their documents alone
            lost = sorted(rankings.queries.rows, key=lambda row: row.change)[:most]
            listed_ids = {document for row in lost for ids in (row.found or {}).values() for document in ids}
            documents = {name: text for name, text in rankings.queries.documents.items() if name in listed_ids}
            queries[task] = replace(rankings.queries, rows=lost, documents=documents)
            listed, count = len(queries[task].rows), rankings.queries.count
            if listed < count:
                notes.append(FEW.format(shown=listed, count=count, task=task))
    agreement_table = make_table("agreement-table", "Agreement with the teacher's rankings", rows, COLUMNS)
    every = None
    if queries:
        every = Block("queries", {"table": query_table(queries), "rankings": document_ids(queries)})
    return make_section("Search results side by side", agreement_table, *notes, every)


def query_table(queries: Mapping[str, RankedQueries]) -> Table:
    """Return one row per query: task, result, nDCG@10 by model, the student's change and its overlap@10."""
    ranked = _worst_first(queries)
    models = list(models_in_order(dict.fromkeys((model for _, row in ranked for model in row.scores), True)))
    rows = []
    for task, row in ranked:
        result = "same"
        if abs(row.change) >= 0.005:
            result = "lost" if row.change < 0 else "gained"
        change = number_cell(row.change, 1, sign=True)
        shared = row.overlap.get(row.compared)
        rows.append(
            [
                *words(row.query, task, result),
                *(number_cell(row.scores.get(model), 1) for model in models),
                Cell(change.text, change.value, kind=CHANGES[result]),
                number_cell(None if shared is None else 10 * shared, 0),
            ]
        )
    compared = ranked[0][1].compared if ranked else "student"
    header = ["Query", "Task", "Result", *models, f"{compared}, change", "shared of 10"]
    return Table("query-table", "Queries, nDCG@10 times 100; the largest loss first", header, rows, words=3)


def document_ids(queries: Mapping[str, RankedQueries]) -> dict[str, Any]:
    """Return what page/queries.js reads: texts by task and id, and for every row of `query_table` each model's ids."""
    rows: list[Any] = []
    for task, row in _worst_first(queries):
        if row.found is None:
            rows.append(None)
        else:
            rows.append({"task": task, "found": models_in_order(row.found), "relevant": row.relevant or []})
    return {"documents": {task: of_task.documents for task, of_task in queries.items()}, "rows": rows}


def _worst_first(queries: Mapping[str, RankedQueries]) -> list[tuple[str, RankedQuery]]:
    """Return task and row of every query; those that lose most come first."""
    rows = [(task, row) for task, of_task in queries.items() for row in of_task.rows]
    return sorted(rows, key=lambda pair: pair[1].change)
