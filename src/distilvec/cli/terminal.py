"""Results on standard output: tables, and the end screens of runs and comparisons."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from distilvec.cli.output import BOLD, RED, coloured, coloured_table
from distilvec.core.escape import one_line, visible
from distilvec.core.similarity import NEIGHBOR_COUNT
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.overlap import WIDER, LogOverlap
from distilvec.evaluation.tasks import TaskFailure
from distilvec.report.scores import problem_text, score_remarks, score_table
from distilvec.report.screen import comparison_screen, run_screen
from distilvec.report.tables import ABSENT, text_table, to_text

if TYPE_CHECKING:
    from distilvec.pipeline.finished_run import FinishedRun
    from distilvec.report.comparison import Comparison
    from distilvec.report.next_step import NextStep
    from distilvec.report.values import VocabularyChange
    from distilvec.verbs.export.export import Exported

_SHOWN_QUERIES = 3  # of those that differ most
_SHOWN_CHARACTERS = 36  # of a hit: two are side by side in 80 columns
_PLAIN = str.maketrans({"│": "|", "─": "-", "┼": "+", ABSENT: "-", "±": "+-", "→": "->", "\N{MINUS SIGN}": "-"})


def print_result(text: str = "", error: bool = False, link: Path | None = None, style: str = "") -> None:
    """Print on standard output (or error), with hidden characters written out, and those that its encoding lacks.

    On a terminal the path `link` in the text opens its file (OSC 8), headers of tables are bold, and the text has the
    `style` (output.py).
    """
    stream = sys.stderr if error else sys.stdout
    encoding = stream.encoding or "utf-8"
    output = visible(text)
    try:
        output.encode(encoding)
    except UnicodeEncodeError:
        output = output.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    output = coloured(output, style, stream) if style else coloured_table(output, stream)
    if link is not None and stream.isatty() and os.environ.get("TERM") != "dumb":
        path = visible(str(link))
        hyperlink = f"\x1b]8;;{link.resolve().as_uri()}\x1b\\{path}\x1b]8;;\x1b\\"
        output = output.replace(path, hyperlink)
    print(output, file=stream)


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table as wide as the terminal at most (80 columns where there is none); see `text_table`.

    The first column is left-aligned, the others right-aligned if there are several.
    """
    print_result(text_table(header, rows))


def show_scores(scores: Mapping[str, Sequence[Score]], also: Mapping[str, Sequence[str]] | None = None) -> None:
    """One row a task, one column a model, with the averages, what is retained of the teacher, and remarks on tasks."""
    print_result(to_text(score_table(scores, also=also)))
    for remark in score_remarks(scores):
        print_result(f"note: {remark}")


def show_log(log: LogOverlap) -> None:
    """The shares by length of the queries, then the queries whose lists differ most, with both lists side by side."""
    rows = []
    for group in log.lengths:
        among, wider, interval = group.shares.among, group.shares.among_wider, group.shares.among_wider_interval
        assert among is not None and wider is not None and interval is not None
        name = f"{group.shortest:,} to {group.longest:,}"
        rows.append(
            [
                name,
                f"{group.queries:,}",
                f"{among.mean:.2f} {among.text}",
                f"{wider:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]",
            ]
        )
    show_table(["characters", "queries", f"overlap@{NEIGHBOR_COUNT}", f"in the first {WIDER}"], rows)
    for query in log.differing[:_SHOWN_QUERIES]:
        count = round(NEIGHBOR_COUNT * query.among)
        words = one_line(query.query)[: 2 * _SHOWN_CHARACTERS]
        print_result(f"\n{count} of the {NEIGHBOR_COUNT} for {words!r}")
        for maker, student in zip(query.maker, query.student, strict=True):
            left = one_line(maker.text)[:_SHOWN_CHARACTERS].ljust(_SHOWN_CHARACTERS)
            right = one_line(student.text)[:_SHOWN_CHARACTERS]
            print_result(f"  {left}  {right}".rstrip())
    if log.differing:
        print_result(
            f"\nLeft is what {log.made_by} finds, right the model; --json has {len(log.differing)} such queries."
        )


def show_end(run: FinishedRun, step: NextStep | None = None) -> None:
    """Print the end screen of a run, with its own next step by default, then what could not be scored."""
    _show_screen(run_screen(run.report, run.page, step), run.page)
    show_problems(run.problems)


def show_comparison(comparison: Comparison, page: Path | None, command: str) -> None:
    """Print the end screen of a comparison."""
    _show_screen(comparison_screen(comparison, page, command), page)


def _show_screen(lines: Sequence[str], page: Path | None) -> None:
    first, *rest = lines
    print_result(first, style=BOLD)
    print_result("\n".join(rest), link=page)


def show_problems(problems: Sequence[TaskFailure], key: str = "evaluation") -> None:
    """Name what could not be scored, or only in part, on standard error, and leave with exit status 1."""
    for problem in problems:
        print_result(f"distilvec: [{key}] {problem_text(problem)}", error=True, style=RED)
    if problems:
        raise typer.Exit(1)


def show_tokenizers(content: VocabularyChange) -> None:
    """Two tokenizers side by side, table by table."""
    from distilvec.report.sections.vocabulary import note, tokenizer_tables

    for table in tokenizer_tables(content):
        print_result(f"{to_text(table)}\n")
    print_result(note(content))


def show_export(exported: Exported) -> None:
    """Print the parity of an exported file with PyTorch, and the file; the note says what is out of tolerance."""
    from distilvec.report.exports import export_note, export_table

    if exported.forms:
        print_result(f"{to_text(export_table(exported.forms))}\n{export_note(exported.forms)}")
    print_result(str(exported.path))
