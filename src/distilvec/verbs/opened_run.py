"""`Run`, which users hold: the folder of a finished run that exports its student and shows itself.

A verb's documented function says what is asked for, as a value; functions with its arguments run that, or plan it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from distilvec.core.errors import plain_errors
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.report.next_step import next_step
from distilvec.report.scores import problem_text, score_frame, score_table
from distilvec.report.tables import Table, html_list, to_html, words

if TYPE_CHECKING:
    from distilvec.verbs.export.export import Exported


Arguments = ParamSpec("Arguments")
Work = TypeVar("Work")
Result = TypeVar("Result")


class Run(FinishedRun):
    """A finished run in a folder, at a prompt and in a notebook. Everything but the record is read at first use."""

    @classmethod
    def of(cls, finished: FinishedRun) -> Run:
        """Return the run of a folder that the pipeline has finished."""
        return cls(finished.folder, finished.record, finished.trust_remote_code)

    @plain_errors()
    def export(self, to: str = "onnx", out: Path | None = None, **options: Any) -> Exported:
        """Write the student in another form; `options` are those of `verbs.export.export.export_model`."""
        from distilvec.verbs.export.export import export_model  # with onnx: a command loads its own verb only

        return export_model(str(self.student_folder), to, out, **options)

    def to_dataframe(self) -> Any:
        """Return the scores as a pandas DataFrame: task, type, metric and one column for each model, in points."""
        return score_frame(self.scores)

    def __repr__(self) -> str:
        problems = [("not scored", problem_text(problem)) for problem in self.problems]
        lines = [*self._main_lines(), *problems]
        return "\n".join(["Run", *(f"  {name:10} {text}" for name, text in lines)])

    def _repr_html_(self) -> str:
        about = Table("run-result", "", ["Run", ""], [words(*line) for line in self._main_lines()], words=2)
        scores = to_html(score_table(self.scores)) if self.scores else ""
        problems = [f"not scored: {problem_text(problem)}" for problem in self.problems]
        return "\n".join([to_html(about), scores, html_list(problems)])

    def _main_lines(self) -> list[tuple[str, str]]:
        """Return verdict, advice, results and the next command, as (name, value); a classifier's depends on its use."""
        lines = [*self.verdict_lines(), *self.lines()]
        if self.record.supervised is None and self.report.record is not None:
            step = next_step(self.report)
            if step.why:
                lines += [("advice", step.why)]
            lines.append(("next", step.command))
        return lines


def with_the_arguments_of(
    prepare: Callable[Arguments, Work], name: str, finish: Callable[[Work], Result]
) -> Callable[Arguments, Result]:
    """Return a function with the arguments and the documentation of `prepare`, which returns what `finish` does."""

    @plain_errors()
    @wraps(prepare)
    def function(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        return finish(prepare(*arguments, **options))

    function.__name__ = function.__qualname__ = name
    result = inspect.signature(finish).return_annotation
    function.__signature__ = inspect.signature(prepare).replace(return_annotation=result)  # type: ignore[attr-defined]
    return function
