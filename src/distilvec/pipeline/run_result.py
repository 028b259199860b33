"""The result of a run: its folder, metrics, scores and student."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.tasks import TaskFailure
from distilvec.models.load import load_model
from distilvec.report.model_card import Distillation
from distilvec.report.scores import problem_text, score_frame, score_table
from distilvec.report.tables import Table, html_list, to_html, words
from distilvec.train.checkpoint import Progress
from distilvec.train.metrics import MONITORED

MEASURES = {
    "distance": ("distance", "to the teacher on validation texts"),
    "similarity_gap": ("cosine gap", "to the teacher on validation texts"),
    "accuracy": ("accuracy", "on validation examples"),
    "f1": ("F1", "on validation examples"),
    "spearman": ("Spearman", "on validation examples"),
}


@dataclass(frozen=True, repr=False)
class RunResult:
    """A finished run: folder, training state, validation metrics, scores by model, record, failures, page, verdict."""

    folder: Path
    state: Progress
    distance: dict[str, float]
    scores: dict[str, list[Score]]
    record: Distillation
    problems: list[TaskFailure]
    page: Path | None
    verdict: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def student(self) -> SentenceTransformer:
        """The best student, loaded on the CPU at first use."""
        return load_model(str(self.folder / "student"), "student")

    def verdict_lines(self) -> list[tuple[str, str]]:
        """Return the verdict, then the advice, as (name, value)."""
        advice = [("advice", text) for text in self.verdict.get("advice") or ()]
        return [("verdict", self.verdict["text"]), *advice] if self.verdict.get("text") else advice

    def lines(self) -> list[tuple[str, str]]:
        """Return the other main results as (name, value): distance, also before training, folder, report."""
        name = next(name for name in MONITORED if name in self.distance)
        measure, where = MEASURES[name]
        before = self.distance.get(f"untrained_{name}")
        began = "" if before is None else f" ({before:.4f} before training)"
        found = [(measure, f"{self.distance[name]:.4f} {where}{began}")]
        if sentence := self.record.get("training", {}).get("shipped"):
            found.append(("shipped", sentence))
        found.append(("run", str(self.folder)))
        return [*found, ("report", str(self.page))] if self.page is not None else found

    def to_json(self) -> dict[str, Any]:
        """Return folder, page, validation metrics, verdict, scores by model and problems as plain data."""
        return {
            "folder": str(self.folder),
            "page": None if self.page is None else str(self.page),
            "validation": self.distance,
            "verdict": dict(self.verdict),
            "scores": {name: [asdict(score) for score in column] for name, column in self.scores.items()},
            "problems": [asdict(problem) for problem in self.problems],
            "record": dict(self.record),
        }

    def __repr__(self) -> str:
        problems = [("not scored", problem_text(problem)) for problem in self.problems]
        lines = [*self.verdict_lines(), *self.lines(), *problems]
        return "\n".join(["RunResult", *(f"  {name:10} {text}" for name, text in lines)])

    def _repr_html_(self) -> str:
        problems = [f"not scored: {problem_text(problem)}" for problem in self.problems]
        lines = [*self.verdict_lines(), *self.lines()]
        about = Table("run-result", "", ["RunResult", ""], [words(*line) for line in lines], words=2)
        scores = to_html(score_table(self.scores)) if self.scores else ""
        return "\n".join([to_html(about), scores, html_list(problems)])

    def to_dataframe(self) -> Any:
        """Return the scores as a pandas DataFrame: task, type, metric and one column for each model, in points."""
        return score_frame(self.scores)
