"""Results as tables on standard output."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from distilvec.evaluation.evaluate import Score
from distilvec.evaluation.summary import scores_table
from distilvec.evaluation.tasks import Problem
from distilvec.report.card import loading_call, supervised_table
from distilvec.report.tables import leaderboard
from distilvec.train.metrics import WATCHED

if TYPE_CHECKING:
    from distilvec.run import RunResult


HELD_OUT = {
    "distance": ("distance", "to the teacher on held-out texts"),
    "similarity_gap": ("cosine gap", "to the teacher on held-out texts"),
    "accuracy": ("accuracy", "on held-out examples"),
    "spearman": ("Spearman", "on held-out examples"),
}


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; the first column left-aligned, the others right-aligned if there are several."""
    table = Table(show_edge=False, pad_edge=False)
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number and len(header) > 2 else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False).print(table)


def show_scores(scores: dict[str, list[Score]]) -> None:
    """One row a task, one column a model, with the average and what is retained of the teacher."""
    header, *rows = scores_table(scores, reference="teacher" if "teacher" in scores else None)
    show_table(header, rows)


def show_result(result: RunResult) -> None:
    """What a newcomer wants to know at the end of a run: figures, where everything is, how to load the student."""
    if result.scores:
        show_scores(result.scores)
    if header_and_rows := supervised_table(result.record.get("supervised") or {}):
        header, *rows = header_and_rows
        show_table([f"{result.record['supervised']['task']}, test", *header[1:]], rows)
    student, teacher = result.record["student"], result.record["teacher"]
    size = f"{student['parameters'] / 1e6:.1f} M parameters"
    if "parameters" in teacher:
        size += f" (teacher: {teacher['parameters'] / 1e6:.1f} M)"
    name = next(name for name in WATCHED if name in result.distance)
    measure, where = HELD_OUT[name]
    found, before = result.distance[name], result.distance.get(f"untrained_{name}")
    print(f"\nstudent   {size}")
    began = "" if before is None else f" ({before:.4f} before training)"
    print(f"{measure:9} {found:.4f} {where}{began}")
    print(f"run       {result.folder}")
    if result.page is not None:
        print(f"report    {result.page}")
    if "supervised" in result.record:
        print("\nfrom distilvec.students.head import predict")
        print(f'predict("{result.folder / "student"}", texts)  # labels or scores; pairs of texts are tuples')
    imported, call = loading_call(student)
    print(f"\n{imported}")
    print(f'student = {call}("{result.folder / "student"}")')
    print('vectors = student.encode_query(["a text to search for"])')


def show_problems(problems: Sequence[Problem]) -> None:
    """Name what could not be scored, or only in part, on standard error, and leave with exit status 1; nothing without problems."""
    for problem in problems:
        column = f" ({problem.column})" if problem.column else ""
        print(f"distilvec: task '{problem.task}'{column}: {problem.message}", file=sys.stderr)
    if problems:
        raise typer.Exit(1)


def show_comparison(comparison: Mapping[str, Any]) -> None:
    """The leaderboard, the differences from the reference, and what the comparison says about itself."""
    header, *rows = leaderboard(comparison)
    show_table(header, rows)
    if comparison["differences"]:
        print(f"\nDifferences from {comparison['reference']} (points, 95 % interval, p by paired bootstrap)")
        shown = [
            [row["a"], row["task"], f"{row['difference']:+.2f}{row['mark']}", f"{row['low']:+.2f} to {row['high']:+.2f}", f"{row['p']:.3f}"]
            for row in comparison["differences"]
        ]
        show_table(["run", "task", "difference", "interval", "p"], shown)
    for note in comparison["notes"]:
        print(f"note: {note}")
