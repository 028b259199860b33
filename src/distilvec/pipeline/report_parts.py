"""Everything a report holds about a student, part by part: each part is written as soon as it is there, so a killed study goes on.

The parts share one Memo: each distinct text is embedded once a model and role, whatever the number of tasks, widths and
precisions. What the parts hold is described in docs/report.md.
"""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.config.schema import PARTS, EvaluationSection
from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_file, write_json
from distilvec.core.log import progress
from distilvec.data.corpus import Corpus
from distilvec.evaluation.aggregate import average, averages
from distilvec.evaluation.agreement import ranking_agreement
from distilvec.evaluation.compression import PRECISIONS, compression_rows
from distilvec.evaluation.diagnostics import Group, experts_report, task_groups, vocabulary_report
from distilvec.evaluation.evaluator import Embedder, EmbeddingCache, Sample, Score, evaluate, read_score
from distilvec.evaluation.margin import margin_report
from distilvec.evaluation.projection import (
    draw_sentences,
    project_sentences,
    project_token_planes,
    project_tokens,
    token_states,
)
from distilvec.evaluation.significance import average_interval
from distilvec.evaluation.tasks import ClassificationTask, RetrievalTask, Task, TaskFailure, task_texts
from distilvec.models.load import load
from distilvec.teachers.model import LocalTeacher, wrap_model

FORMAT = 2
SENTENCES, TOKEN_SENTENCES, PLANES = 150, 3, 4  # texts in the pictures
Scores = dict[str, list[Score]]


@dataclass(frozen=True)
class SavedStudent:
    """A student kept along the way: after `step`, at this held-out distance, in this folder."""

    step: int
    distance: float
    folder: Path


@dataclass
class EvaluationRun:
    """The models of one run and what is found out about them; `found` is report.json. `labelled` are test texts of the run's own task."""

    tasks: list[Task]
    section: EvaluationSection
    folder: Path
    student: LocalTeacher
    untrained: LocalTeacher | None = None
    teacher: LocalTeacher | None = None
    kept: list[SavedStudent] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)
    memo: EmbeddingCache = field(default_factory=EmbeddingCache)
    compatible: bool = True  # the student's vectors lie in the teacher's space
    labelled: list[Group] = field(default_factory=list)
    corpus: Corpus | None = None

    @property
    def columns(self) -> dict[str, tuple[Embedder, Embedder]]:
        """Query and document embedder of every column that is asked for."""
        columns = make_columns(self.student, self.untrained, self.teacher, self.compatible)
        return {name: pair for name, pair in columns.items() if name in self.section.columns}

    def run(self, only: Collection[str] = PARTS) -> dict[str, Any]:
        """Find out every part that is asked for and not there yet; one that cannot be found out is named in "failures"."""
        wanted: dict[str, Callable[[], Any]] = {
            "agreement": self.agreement,
            "compression": self.compression,
            "margin": self.margin,
            "speed": self.speed,
            "projections": self.projections,
            "experts": self.experts,
            "tokens": self.tokens,
            "vocabulary": lambda: vocabulary_report(self.teacher, self.student, self.corpus),
        }
        if "scores" not in self.found:
            self.found |= self.scores()
            self.write()
        for name in self.section.parts:
            if name in only and name not in self.found:
                try:
                    self.found[name] = wanted[name]()
                except DistilvecError as error:  # one part less; scores, record and model card are still written
                    self.found[name] = None
                    self.found["failures"].append(asdict(TaskFailure(name, str(error))))
                self.write()
                gc.collect()
        return self.found

    def write(self) -> None:
        """report.json as it stands."""
        write_json(self.folder / "report.json", self.found, sealed=True, key="report.json")

    # -- the parts ---------------------------------------------------------------------------------------------------

    def scores(self) -> dict[str, Any]:
        """Scores, samples.npz, averages by domain, and confidence intervals of the differences from the teacher."""
        problems: list[TaskFailure] = []
        scores, samples = score_columns(self.tasks, self.columns, self.memo, problems)
        write_samples(self.folder, samples)
        return {
            "scores": {name: [asdict(score) for score in column] for name, column in scores.items()},
            "averages": {name: averages(column) for name, column in scores.items() if column},
            "intervals": intervals(samples, self.section.draws, problems),
            "failures": [asdict(problem) for problem in problems],
        }

    def agreement(self) -> dict[str, Any]:
        """Do student and teacher rank alike, for every retrieval task."""
        columns = {name: pair for name, pair in self.columns.items() if name != "untrained"}
        if "teacher" not in columns:
            return {}
        return {
            task.name: ranking_agreement(task, columns, self.memo)
            for task in self.scored_tasks
            if isinstance(task, RetrievalTask)
        }

    def compression(self) -> dict[str, Any]:
        """Scores at cut widths and in small number formats."""
        columns = {name: pair for name, pair in self.columns.items() if name != "untrained"}
        tasks = self._quick_tasks()
        with progress("widths and precisions", len(tasks) * len(columns), "tasks") as advance:
            rows = compression_rows(
                tasks,
                columns,
                self.memo,
                progress=lambda note, done, total: advance(done, note),
                classification=self.section.every_classification,
            )
        return {"widths": sorted({row["width"] for row in rows}), "precisions": list(PRECISIONS), "rows": rows}

    def margin(self) -> dict[str, Any] | None:
        """Score against held-out distance over the kept students; None for fewer than three."""
        if len(self.kept) < 3 or not self.found["scores"].get("teacher"):
            return None
        tasks, points = self._quick_tasks(), list[dict[str, Any]]()
        with progress("kept students", len(self.kept), "students") as advance:
            for number, kept in enumerate(self.kept):
                model = load(kept.folder, device="cpu")
                embedder = wrap_model(model, f"step {kept.step}", self.section.batch_tokens, self.student.prompts)
                scores = evaluate(tasks, embedder)
                figures = {score.task: score.value for score in scores} | {"average": average(scores)}
                points.append({"step": kept.step, "distance": kept.distance, "scores": figures})
                advance(number + 1, f"step {kept.step}")
        names = {task.name for task in tasks}
        teacher = [read_score(score) for score in self.found["scores"]["teacher"] if score["task"] in names]
        return margin_report(points, {score.task: score.value for score in teacher} | {"average": average(teacher)})

    def speed(self) -> dict[str, Any]:
        """Latency and throughput of teacher and student."""
        from distilvec.evaluation.speed import Timing, measure_speed

        models = {"student": self.student.model}
        if self.teacher is not None:
            models = {"teacher": self.teacher.model, **models}
        with progress("speed", 100, "%") as advance:
            return measure_speed(
                models,
                timing=Timing(20, 200, self.section.speed_seconds),
                progress=lambda what, done, total: advance(100 * done // max(1, total), what),
            )

    def projections(self) -> dict[str, Any]:
        """Sentences of the tasks and tokens of a few of them, in two dimensions."""
        tasks = self.scored_tasks
        if self.teacher is None or not tasks:
            return {}
        groups = [
            (task.name, text)
            for task in tasks
            for text in spread(sorted(set(task_texts(task))), max(1, SENTENCES // len(tasks)))
        ]
        groups = [(name, text) for name, text in groups if text.strip()]
        texts = [text for _, text in groups]
        models = {"teacher": self.teacher, "student": self.student, "untrained": self.untrained}
        vectors = {
            name: self.memo.vectors(model, texts, "document") for name, model in models.items() if model is not None
        }
        sentences = project_sentences(vectors) | {
            "labels": [text[:80] for text in texts],
            "groups": [name for name, _ in groups],
        }
        short = [text for text in texts if 6 <= len(text.split()) <= 16] or texts
        chosen = spread(short, TOKEN_SENTENCES)
        states = [token_states(model.model, chosen) for model in (self.teacher, self.student)]
        return {"sentences": sentences, "tokens": project_tokens(chosen, *states)}

    def experts(self) -> dict[str, Any]:
        """What the gate of a student with experts does with the texts, and where its experts place them."""
        return experts_report(self.student, self.groups, None if self.teacher is None else self._teacher_vectors)

    def tokens(self) -> list[dict[str, Any]]:
        """The tokens of a few sentences, each model's in a plane of its own."""
        texts = [
            part
            for group in self.groups
            for text in group.texts
            for part in ([text] if isinstance(text, str) else text)
        ]
        models = {"teacher": self.teacher, "student": self.student, "untrained": self.untrained}
        there = {name: model.model for name, model in models.items() if model is not None}
        return project_token_planes(draw_sentences(texts, PLANES), there) if "teacher" in there and texts else []

    def _teacher_vectors(self, group: Group, texts: Sequence[Text]) -> Any:
        assert self.teacher is not None
        if group.role is not None:
            return self.memo.vectors(self.teacher, [text for text in texts if isinstance(text, str)], group.role)
        return self.teacher.signals(texts)["embedding"]

    @property
    def groups(self) -> list[Group]:
        """The texts of the pictures: the tasks', and those of the task the student was trained on."""
        return [*task_groups(self.scored_tasks), *self.labelled]

    @property
    def scored_tasks(self) -> list[Task]:
        """The tasks that every column has a score on."""
        columns = self.found["scores"].values()
        return [
            task for task in self.tasks if all(task.name in {score["task"] for score in column} for column in columns)
        ]

    def _quick_tasks(self) -> list[Task]:
        """The tasks that are scored many times: without classification, unless it is asked for."""
        tasks = self.scored_tasks
        return [
            task for task in tasks if self.section.every_classification or not isinstance(task, ClassificationTask)
        ] or tasks


def make_columns(
    student: LocalTeacher,
    untrained: LocalTeacher | None = None,
    teacher: LocalTeacher | None = None,
    compatible: bool = True,
) -> dict[str, tuple[Embedder, Embedder]]:
    """The columns of a report: teacher, untrained, student, asymmetric (student queries, teacher documents).

    The last only where the student is `compatible`, that is trained into the teacher's space, and the widths agree.
    """
    columns: dict[str, tuple[Embedder, Embedder]] = {}
    if teacher is not None:
        columns["teacher"] = (teacher, teacher)
    if untrained is not None:
        columns["untrained"] = (untrained, untrained)
    columns["student"] = (student, student)
    if teacher is not None and compatible and teacher.width == student.width:
        columns["asymmetric"] = (student, teacher)
    return columns


def score_columns(
    tasks: Sequence[Task],
    columns: dict[str, tuple[Embedder, Embedder]],
    memo: EmbeddingCache,
    problems: list[TaskFailure],
) -> tuple[Scores, dict[str, dict[str, Sample]]]:
    """Scores and samples of every column; what could not be scored is added to `problems` with its column."""
    scores: Scores = {}
    samples: dict[str, dict[str, Sample]] = {}
    with progress("evaluating", len(columns) * len(tasks), "tasks") as advance:
        for number, (name, (query, document)) in enumerate(columns.items()):
            found: list[TaskFailure] = []
            samples[name] = {}

            def tell(task: str, done: int, total: int, number: int = number, name: str = name) -> None:
                advance(number * len(tasks) + done, f"{name}: {task}")

            scores[name] = evaluate(tasks, query, document, memo, tell, found, samples[name])
            problems += [TaskFailure(problem.task, problem.message, name) for problem in found]
    return scores, samples


def intervals(
    samples: dict[str, dict[str, Sample]], draws: int, problems: list[TaskFailure]
) -> dict[str, dict[str, list[float]]]:
    """[low, high, p] of each column's difference from the teacher, by task and on average (paired bootstrap, points).

    A task whose difference is undefined is added to `problems` with its column, and the column has no average then.
    """
    report: dict[str, dict[str, list[float]]] = {}
    theirs = samples.get("teacher", {})
    for name, ours in samples.items():
        shared = [task for task in ours if task in theirs]
        if name == "teacher" or not shared:
            continue
        pairs = {task: (ours[task], theirs[task]) for task in shared}
        found = {}
        for task, pair in pairs.items():
            try:
                found[task] = average_interval([pair], draws=draws)
            except DistilvecError as error:
                problems.append(TaskFailure(task, str(error), name))
        if len(found) == len(pairs):
            found["average"] = average_interval(list(pairs.values()), draws=draws)
        report[name] = {task: [interval.low, interval.high, interval.p] for task, interval in found.items()}
    return report


def write_samples(folder: Path, samples: dict[str, dict[str, Sample]]) -> None:
    """Write samples.npz, whole or not at all."""
    np.savez_compressed(content := io.BytesIO(), **flat_samples(samples))
    write_file(folder / "samples.npz", content.getvalue(), "samples.npz")


def flat_samples(samples: dict[str, dict[str, Sample]]) -> dict[str, Any]:
    """Samples as the arrays of samples.npz, named <column>/<task>/predicted and <column>/<task>/gold."""
    return {
        f"{column}/{task}/{name}": getattr(sample, name)
        for column, found in samples.items()
        for task, sample in found.items()
        for name in ("predicted", "gold")
    }


def spread(items: Sequence[str], count: int) -> list[str]:
    """`count` items, evenly spread."""
    places = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int).tolist()
    return [items[place] for place in dict.fromkeys(places)]
