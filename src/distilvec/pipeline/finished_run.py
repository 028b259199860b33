"""The folder of a finished run as values: recipe, record, report, scores, predictions, student."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError, about, first_line, plain_errors
from distilvec.core.model_name import ModelName
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.evaluator import Sample
from distilvec.evaluation.tasks import TaskFailure
from distilvec.models.load import load_model
from distilvec.report.record import RunRecord, read_run_record
from distilvec.report.scores import Scores
from distilvec.report.values import Report, Verdict, read_report


@dataclass(frozen=True)
class FinishedRun:
    """A finished run in a folder. Everything but the record is read when it is asked for.

    `trust_remote_code`: whether the user has said that the code of the student's model may run.
    """

    folder: Path
    record: RunRecord
    trust_remote_code: bool = False

    @classmethod
    def open(cls, folder: str | Path, key: str = "run folder") -> Self:
        """Open the folder of a finished run.

        Errors: DistilvecError with `key` for a folder without a record, `record.json` for a damaged one.
        """
        files = RunFolder(Path(folder))
        files.check_format(key)
        record = read_run_record(files)
        if record is None or not files.recipe.is_file():
            missing = files.record if record is None else files.recipe
            raise DistilvecError(
                f"{folder} is no finished run: {missing} is missing.", "Give the folder of `distilvec run`.", key=key
            )
        return cls(files.path, record)

    @property
    def files(self) -> RunFolder:
        """The paths of the folder."""
        return RunFolder(self.folder)

    @property
    def name(self) -> str:
        """The name in the recipe."""
        return self.record.name or self.folder.resolve().name

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of the run. Errors: DistilvecError for a recipe of another version."""
        return recipes.load(self.files.recipe)

    @cached_property
    def report(self) -> Report:
        """The report; an empty one if the run was not evaluated. Errors: DistilvecError `report.json` for damage."""
        return read_report(self.files) or Report(folder=str(self.folder))

    @cached_property
    def student(self) -> SentenceTransformer:
        """The best student, loaded on the CPU at first use."""
        with plain_errors(), about("student", self.student_folder):
            return load_model(ModelName(str(self.student_folder), trusted=self.trust_remote_code))

    @property
    def student_folder(self) -> Path:
        """The folder of the best student."""
        return self.files.student

    @property
    def scores(self) -> Scores:
        """Scores by model, times 100: the report's, else those of the record."""
        return Scores(self.report.scores or self.record.scores, self.problems)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the student, with advice."""
        return self.report.verdict or Verdict()

    @property
    def validation(self) -> Mapping[str, float | None]:
        """The numbers of the best student on validation texts, and `untrained_...` ones of the student it began as."""
        return self.record.metrics

    @property
    def problems(self) -> list[TaskFailure]:
        """What could not be measured."""
        return self.report.failures

    @property
    def page(self) -> Path | None:
        """The report's page; None if it could not be drawn."""
        page = self.files.report_page
        return page if page.is_file() else None

    def samples(self, column: str, tasks: Iterable[str]) -> dict[str, Sample]:
        """Return the predictions of a model's scores by task; tasks without stored predictions are missing.

        Errors: DistilvecError for a damaged file, or rows without a finite prediction and gold value.
        """
        path = self.files.samples
        if not path.exists():
            return {}
        scores = {score.task: score for score in self.scores.get(column, ())}
        samples = {}
        try:
            with np.load(path, allow_pickle=False) as stored:
                for task in tasks:
                    names = [f"{column}/{task}/{part}" for part in ("predicted", "gold")]
                    if task in scores and all(name in stored for name in names):
                        predicted, gold = (stored[name] for name in names)
                        _check_predictions(f"{column}/{task}", predicted, gold)
                        samples[task] = Sample(scores[task].type, scores[task].metric, predicted, gold)
        except MemoryError:
            raise
        except Exception as error:  # numpy and zlib raise any kind
            raise DistilvecError(
                f"{path} is damaged: {first_line(error)}.",
                f"Delete it and {self.files.report} and run the same recipe again: training is kept.",
                key=path.name,
            ) from None
        return samples

    def verdict_lines(self) -> list[tuple[str, str]]:
        """Return the verdict, then the advice, as (name, value)."""
        lines = [("verdict", self.verdict.text)] if self.verdict.text else []
        return [*lines, *(("advice", text) for text in self.verdict.advice)]

    def lines(self) -> list[tuple[str, str]]:
        """Return the other main results as (name, value): the watched metric, also before training, folder, report."""
        lines = []
        watched = self.record.watched
        if watched is not None:
            before = self.validation.get(f"untrained_{watched.name}")
            began = "" if before is None else f" ({before:.4f} before training)"
            lines.append((watched.title, f"{watched.value:.4f} in validation{began}"))
        lines.append(("run", str(self.folder)))
        if self.page is not None:
            lines.append(("report", str(self.page)))
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return folder, page, validation metrics, verdict, scores by model and problems as plain data."""
        return {
            "folder": str(self.folder),
            "page": None if self.page is None else str(self.page),
            "validation": dict(self.validation),
            "verdict": asdict(self.verdict),
            "scores": {model: [asdict(score) for score in column] for model, column in self.scores.items()},
            "problems": [asdict(problem) for problem in self.problems],
            "record": self.record.to_json(),
        }


def _check_predictions(name: str, predicted: np.ndarray[Any, Any], gold: np.ndarray[Any, Any]) -> None:
    """Raise ValueError unless every row has a finite prediction and a finite gold value."""
    rows_fit = predicted.ndim == gold.ndim == 1 and len(predicted) == len(gold)
    numbers = all(values.dtype.kind in "biuf" and np.isfinite(values).all() for values in (predicted, gold))
    if not rows_fit or not numbers:
        shapes = f"{predicted.dtype} {list(predicted.shape)} and {gold.dtype} {list(gold.shape)}"
        raise ValueError(f"{name}: expected two lists of finite numbers; found {shapes}")
