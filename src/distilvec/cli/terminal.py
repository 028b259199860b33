"""Results as tables on standard output."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from distilvec.core.escape import one_line, visible
from distilvec.evaluation.aggregate import ABSENT, scores_table
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.tasks import Problem
from distilvec.report.model_card import loading_call, supervised_table
from distilvec.report.table_layout import layout
from distilvec.report.tables import leaderboard
from distilvec.train.metrics import WATCHED

if TYPE_CHECKING:
    from distilvec.pipeline.run import RunResult


HELD_OUT = {
    "distance": ("distance", "to the teacher on held-out texts"),
    "similarity_gap": ("cosine gap", "to the teacher on held-out texts"),
    "accuracy": ("accuracy", "on held-out examples"),
    "spearman": ("Spearman", "on held-out examples"),
}

NARROWEST = 30  # columns of a terminal
_PLAIN = str.maketrans({"│": "|", "─": "-", "┼": "+", ABSENT: "-", "±": "+-", "→": "->", "\N{MINUS SIGN}": "-"})


def say_result(text: str = "", error: bool = False) -> None:
    """Text on standard output (or error), with hidden characters written out, and those that its encoding lacks."""
    stream = sys.stderr if error else sys.stdout
    encoding, shown = stream.encoding or "utf-8", visible(text)
    try:
        shown.encode(encoding)
    except UnicodeEncodeError:
        shown = shown.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    print(shown, file=stream)


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> None:
    """A table as wide as the terminal at most (80 columns where there is none); see `table_layout`.

    The first column is left-aligned, the others right-aligned if there are several.
    """
    for line in layout(header, rows, width or max(NARROWEST, shutil.get_terminal_size().columns)):
        say_result(line)


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
    say_result(f"\nstudent   {size}")
    began = "" if before is None else f" ({before:.4f} before training)"
    say_result(f"{measure:9} {found:.4f} {where}{began}")
    say_result(f"run       {result.folder}")
    if result.page is not None:
        say_result(f"report    {result.page}")
    if "supervised" in result.record:
        say_result("\nfrom distilvec.students.task_head import predict")
        say_result(f'predict("{result.folder / "student"}", texts)  # labels or scores; pairs of texts are tuples')
    imported, call = loading_call(student)
    say_result(f"\n{imported}")
    say_result(f'student = {call}("{result.folder / "student"}")')
    say_result('vectors = student.encode_query(["a text to search for"])')


def show_problems(problems: Sequence[Problem], key: str = "evaluation") -> None:
    """Name what could not be scored, or only in part, on standard error, and leave with exit status 1; nothing without problems."""
    for problem in problems:
        column = f" ({one_line(problem.column)})" if problem.column else ""
        say_result(f"distilvec: [{key}] task '{one_line(problem.task)}'{column}: {problem.text}", error=True)
    if problems:
        raise typer.Exit(1)


def show_comparison(comparison: Mapping[str, Any]) -> None:
    """The leaderboard, the differences from the reference, and what the comparison says about itself."""
    header, *rows = leaderboard(comparison)
    show_table(header, rows)
    if comparison["differences"]:
        say_result(f"\nDifferences from {one_line(comparison['reference'])} (points, 95 % interval, p by paired bootstrap)")
        show_table(["run", "task", "difference", "interval", "p"], [_difference(row) for row in comparison["differences"]])
    for note in comparison["notes"]:
        say_result(f"note: {one_line(note)}")


def _difference(row: Mapping[str, Any]) -> list[str]:
    """A difference, with dashes where it was not tested."""
    interval = ABSENT if row["low"] is None else f"{row['low']:+.2f} to {row['high']:+.2f}"
    chance = ABSENT if row["p"] is None else f"{row['p']:.3f}"
    return [row["a"], row["task"], f"{row['difference']:+.2f}{row['mark']}", interval, chance]


def show_tokenizers(content: Mapping[str, Any]) -> None:
    """Two tokenizers side by side, table by table."""
    from distilvec.report.vocabulary_report import note, tables, text_rows

    for table in tables(content).values():
        header, *rows = text_rows(content, table)
        show_table(header, rows)
        say_result()
    say_result(note(content))


def show_sharpness(*runs: Mapping[str, Any]) -> None:
    """Sharpness at the kept students, runs one below the other."""
    from distilvec.report.sharpness_report import note, point_cells

    rows = [[run["name"], *point_cells(point)] for run in runs for point in run["points"]]
    header = ["run", "step", "epoch", "lambda_max", "trace", "SAM", "ASAM", "loss"]
    one = len(runs) == 1
    show_table(header[one:], [row[one:] for row in rows])
    say_result(note(runs[0]))
