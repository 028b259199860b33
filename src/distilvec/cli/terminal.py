"""Results as tables on standard output."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from distilvec.core.escape import visible
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.tasks import TaskFailure
from distilvec.report.model_card import loading_call, supervised_table
from distilvec.report.notebook import comparison_text, problem_text, scores_text
from distilvec.report.plain_tables import ABSENT
from distilvec.report.table_layout import text_table

if TYPE_CHECKING:
    from distilvec.pipeline.run_result import RunResult

_PLAIN = str.maketrans({"│": "|", "─": "-", "┼": "+", ABSENT: "-", "±": "+-", "→": "->", "\N{MINUS SIGN}": "-"})


def print_result(text: str = "", error: bool = False) -> None:
    """Print on standard output (or error), with hidden characters written out, and those that its encoding lacks."""
    stream = sys.stderr if error else sys.stdout
    encoding, shown = stream.encoding or "utf-8", visible(text)
    try:
        shown.encode(encoding)
    except UnicodeEncodeError:
        shown = shown.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    print(shown, file=stream)


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> None:
    """Print a table at most as wide as the terminal; see `table_layout`."""
    print_result(text_table(header, rows, width))


def show_scores(scores: dict[str, list[Score]]) -> None:
    """Print one row a task, one column a model, with the average and its share of the teacher's."""
    print_result(scores_text(scores))


def show_result(result: RunResult) -> None:
    """Print the scores and metrics of a run, its files, and the code that loads the student."""
    if result.scores:
        show_scores(result.scores)
    if table := supervised_table(result.record.get("supervised") or {}):
        header, *rows = table
        show_table([f"{result.record['supervised']['task']}, test", *header[1:]], rows)
    student, teacher, folder = result.record["student"], result.record["teacher"], result.folder / "student"
    size = f"{student['parameters'] / 1e6:.1f} M parameters"
    if "parameters" in teacher:
        size += f" (teacher: {teacher['parameters'] / 1e6:.1f} M)"
    print_result("\n".join(["", f"student   {size}", *(f"{name:9} {text}" for name, text in result.lines())]))
    if "supervised" in result.record:
        print_result("\nfrom distilvec import predict")
        print_result(f'predict("{folder}", texts)  # labels or scores; pairs of texts are tuples')
    imported, call = loading_call(student)
    print_result(f'\n{imported}\nstudent = {call}("{folder}")')
    print_result('vectors = student.encode_query(["a text to search for"])')


def show_finished(result: RunResult | None) -> None:
    """Print a run's result and its problems; nothing in all processes but the main one."""
    if result is not None:
        show_result(result)
        show_problems(result.problems)


def show_problems(problems: Sequence[TaskFailure], key: str = "evaluation") -> None:
    """Print tasks that could not be scored on standard error, and leave with exit status 1 if there are any."""
    for problem in problems:
        print_result(f"distilvec: [{key}] {problem_text(problem)}", error=True)
    if problems:
        raise typer.Exit(1)


def show_comparison(comparison: Mapping[str, Any]) -> None:
    """Print the leaderboard, the differences from the reference, and notes."""
    print_result(comparison_text(comparison))


def show_tokenizers(content: Mapping[str, Any]) -> None:
    """Print the tables that compare two tokenizers."""
    from distilvec.report.vocabulary_report import note, tables, text_rows

    for table in tables(content).values():
        header, *rows = text_rows(content, table)
        show_table(header, rows)
        print_result()
    print_result(note(content))


def show_sharpness(*runs: Mapping[str, Any]) -> None:
    """Print sharpness at the saved checkpoints, runs one below the other."""
    from distilvec.report.sharpness_report import note, point_cells

    rows = [[run["name"], *point_cells(point)] for run in runs for point in run["points"]]
    header = ["run", "step", "epoch", "lambda_max", "trace", "SAM", "ASAM", "loss"]
    one = len(runs) == 1
    show_table(header[one:], [row[one:] for row in rows])
    print_result(note(runs[0]))
