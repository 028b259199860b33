"""The parts of report.json alongside the scores: one function for each name in `evaluation.parts` (docs/report.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.config.schema import EvaluationSection
from distilvec.config.score_columns import ScoredModel
from distilvec.core.errors import DistilvecError
from distilvec.core.log import progress
from distilvec.data.corpus import Corpus
from distilvec.evaluation.agreement import TaskRankings, ranking_agreement
from distilvec.evaluation.columns import Columns, make_columns
from distilvec.evaluation.compression import PRECISIONS, CompressionScore, compression_rows, default_dims
from distilvec.evaluation.diagnostics import Group, experts_report, task_groups, vocabulary_report
from distilvec.evaluation.evaluator import EmbeddingCache, Score, requests, score_tasks
from distilvec.evaluation.margin import LEAST_POINTS, Margin, MarginPoint, margin_report
from distilvec.evaluation.speed import Speed, Timing, measure_speed
from distilvec.evaluation.tasks import ClassificationTask, RetrievalTask, Task, embedded_texts
from distilvec.evaluation.text_distances import TextDistances, farthest_texts, spread_rows, text_distances
from distilvec.models.parts import text_tokenizer
from distilvec.models.settings import is_placed
from distilvec.pipeline.judgement import RowVectors, embed_rows
from distilvec.pipeline.student import load_saved
from distilvec.report.json_values import from_json
from distilvec.report.values import Compression, Report, VocabularyChange
from distilvec.teachers.embedder import Embedder
from distilvec.teachers.model_embedder import ModelEmbedder

if TYPE_CHECKING:
    from distilvec.teachers.api_embedder import ApiEmbedder
    from distilvec.teachers.table_embedder import TableEmbedder

MAIN = ("teacher", "student", "asymmetric")
SETTING_SECONDS = 1.0  # for each model and setting of the speed table


@dataclass(frozen=True)
class SavedStudent:
    """A saved checkpoint: its step, its validation distance, its folder, whether it is of a cycle's first epoch."""

    step: int
    distance: float
    folder: Path
    in_first_epoch: bool = False


def _nothing(rows: Any) -> Any:
    """No vectors."""


@dataclass(frozen=True)
class Models:
    """The models of a run and the texts they are compared on; all parts share one cache of embeddings.

    All models are on one device, and so are those that a part loads itself; only the speed is measured on the CPU.
    `labeled` are test texts of the run's own task. `scores` are those of the report, by model. `remote` is the
    teacher if it is a table of vectors or an API. `cached` returns the teacher's vectors of rows of the corpus from its
    cache, None where it lacks one; `embedded` has those of the student from its judgement. `dims` are those that the
    student was trained to be cut to. `trust_remote_code` is the user's word on code of the student's model.
    """

    section: EvaluationSection
    tasks: Sequence[Task]
    corpus: Corpus
    student: ModelEmbedder
    untrained: ModelEmbedder | None = None
    teacher: ModelEmbedder | None = None
    projected: ModelEmbedder | None = None
    saved: Sequence[SavedStudent] = ()
    in_teacher_space: bool = True
    labeled: Sequence[Group] = ()
    scores: dict[str, list[Score]] = field(default_factory=dict)
    cache: EmbeddingCache = field(default_factory=EmbeddingCache)
    remote: TableEmbedder | ApiEmbedder | None = None
    cached: Callable[[Any], Any] = _nothing
    embedded: RowVectors | None = None
    dims: Sequence[int] = ()
    trust_remote_code: bool = False

    @property
    def device(self) -> str:
        """The device of the models."""
        return str(self.student.model.device)

    @property
    def columns(self) -> Columns:
        """Query and document embedder of every model that `evaluation.columns` names."""
        models: dict[ScoredModel, Embedder | None] = {
            "teacher": self.teacher or self.remote,
            "untrained": self.untrained,
            "student": self.student,
            "projected": self.projected,
        }
        present = {name: model for name, model in models.items() if model is not None}
        columns = make_columns(present, self.in_teacher_space)
        scored = self.scores or columns  # a table of vectors may lack the texts of every task
        return {name: pair for name, pair in columns.items() if name in self.section.columns and name in scored}

    @property
    def main_columns(self) -> Columns:
        """Teacher, student and asymmetric, as far as they are scored."""
        return {name: pair for name, pair in self.columns.items() if name in MAIN}

    @cached_property
    def scored_tasks(self) -> list[Task]:
        """The tasks that every model has a score on."""
        names = [{score.task for score in column} for column in self.scores.values()]
        return [task for task in self.tasks if all(task.name in of_model for of_model in names)]

    @property
    def quick_tasks(self) -> list[Task]:
        """The tasks that are scored many times: no classification, unless the recipe asks for it."""
        every, tasks = self.section.every_classification, self.scored_tasks
        return [task for task in tasks if every or not isinstance(task, ClassificationTask)] or tasks

    @property
    def groups(self) -> list[Group]:
        """The texts whose gates are measured: the tasks', and those of the run's own task."""
        return [*task_groups(self.scored_tasks), *self.labeled]


def agreement_part(models: Models) -> dict[str, TaskRankings]:
    """Compare the rankings of student and teacher, for every retrieval task."""
    columns = models.main_columns
    if "teacher" not in columns:
        return {}
    rankings = {}
    for task in models.scored_tasks:
        if isinstance(task, RetrievalTask):
            rankings[task.name] = ranking_agreement(task, columns, models.cache)
    return rankings


def compression_part(models: Models) -> Compression:
    """Score truncated embeddings and small number formats."""
    columns = models.main_columns
    tasks = models.quick_tasks
    text_counts = np.array([sum(len(part) for _, part in embedded_texts(task)) for task in tasks])
    texts_before = np.concatenate([[0], np.cumsum(np.repeat(text_counts, len(columns)))])
    dims = sorted({*default_dims(models.student.dim), *models.dims}) if models.dims else None
    every_classification = models.section.every_classification
    pairs = [(task, name) for task in tasks for name in columns]
    rows: list[CompressionScore] = []
    with progress("dimensions and precisions", len(pairs), "tasks") as advance:
        for done, (task, name) in enumerate(pairs):
            advance(done, f"{name}: {task.name}", work=len(pairs) * float(texts_before[done] / texts_before[-1]))
            rows += compression_rows(task, name, columns[name], models.cache, dims, classification=every_classification)
        advance(len(pairs))
    return Compression(rows, sorted({row.width for row in rows}), list(PRECISIONS))


def margin_part(models: Models) -> Margin | None:
    """Fit scores against validation distance over the saved checkpoints; None for fewer than three.

    Checkpoints of each cycle's first epoch are left out, as in the paper (REDACT, footnote 5): at high learning rates
    scores vary much.
    """
    if len(models.saved) < LEAST_POINTS or not models.scores.get("teacher"):
        return None
    later = [saved for saved in models.saved if not saved.in_first_epoch]
    left_out = [saved.step for saved in models.saved if saved.in_first_epoch]
    if len(later) < LEAST_POINTS:
        raise DistilvecError(
            f"{len(left_out)} of {len(models.saved)} saved checkpoints are of a cycle's first epoch, which the margin "
            f"leaves out, and a line needs {LEAST_POINTS}.",
            "Save more, or train more epochs.",
            key="train.keep_students",
        )
    tasks, points = models.quick_tasks, list[MarginPoint]()
    with progress("saved checkpoints", len(later), "students") as advance:
        for number, saved in enumerate(later):
            model, name = load_saved(saved.folder, models.device, models.trust_remote_code), f"step {saved.step}"
            embedder = ModelEmbedder(model, name, models.section.batch_tokens, models.student.prompts)
            cache = EmbeddingCache()
            for request in requests(tasks, embedder, embedder):
                for step in cache.embed(request):
                    advance(number, name, work=number + step.share)
            scores = score_tasks(tasks, embedder, memo=cache)
            values = {score.task: score.value for score in scores}
            points.append(MarginPoint(saved.step, saved.distance, values))
            advance(number + 1, name)
    names = {task.name for task in tasks}
    teacher = {score.task: score.value for score in models.scores["teacher"] if score.task in names}
    return margin_report(points, teacher, left_out)


def speed_part(models: Models) -> Speed:
    """Measure latency and throughput of teacher and student on the CPU, in at most `evaluation.speed_seconds`.

    A teacher that was loaded in parts or in 8 or 4 bits does not fit this machine, and is left out.
    """
    measured = {"student": models.student.model}
    notes = []
    if models.teacher is not None:
        if is_placed(models.teacher.model):
            notes.append("the teacher is not measured: it was loaded in parts, or in 8 or 4 bits")
        else:
            measured = {"teacher": models.teacher.model, **measured}
    with progress("speed", 100, "%") as advance:
        table = measure_speed(
            measured,
            batch_sizes=models.section.speed_batches,
            timing=Timing(20, 200, SETTING_SECONDS),
            progress=lambda what, done, total: advance(100 * done // max(1, total), what),
            limit_seconds=models.section.speed_seconds,
        )
    return replace(table, notes=[*notes, *table.notes])


def texts_part(models: Models) -> TextDistances | None:
    """Measure the distance of student and teacher text by text, on validation texts; None without a common space.

    "trained" has the same of training texts where the teacher's vectors of them are in its cache.
    """
    corpus, teacher = models.corpus, models.teacher
    if not models.in_teacher_space or corpus.paired or not len(corpus.holdout_rows):
        return None
    rows = spread_rows(corpus.holdout_rows)
    teacher_vectors = models.cached(rows)
    if teacher_vectors is None and teacher is not None:
        teacher_vectors = embed_rows(corpus, rows, teacher)
    student_vectors, tokens = _student_side(models, corpus, rows)
    if teacher_vectors is None or teacher_vectors.shape != student_vectors.shape:
        return None
    distances = text_distances(corpus, rows, teacher_vectors, student_vectors, tokens)
    worst = farthest_texts(corpus, rows, teacher_vectors, student_vectors, tokens)
    rows = spread_rows(corpus.train_rows)
    teacher_vectors = models.cached(rows)
    trained = None
    if teacher_vectors is not None:
        trained = text_distances(corpus, rows, teacher_vectors, *_student_side(models, corpus, rows))
    return replace(distances, worst=worst, trained=trained)


def _student_side(models: Models, corpus: Corpus, rows: Any) -> tuple[Any, Any]:
    """The student's vectors of rows of the corpus [rows, dim] and their lengths in its tokens [rows]."""
    tokenizer = text_tokenizer(models.student.model)
    ids = tokenizer(corpus.stored(rows), truncation=True, max_length=models.student.max_length)["input_ids"]
    tokens = np.array([len(text) for text in ids])
    if models.embedded is None:
        return embed_rows(corpus, rows, models.student), tokens
    return models.embedded.of(rows, corpus, models.student), tokens


def add_part(report: Report, name: str, models: Models) -> None:
    """Measure the part `name` of `evaluation.parts`, and add it to the report."""
    match name:
        case "agreement":
            report.agreement = agreement_part(models)
        case "compression":
            report.compression = compression_part(models)
        case "margin":
            report.margin = margin_part(models)
        case "speed":
            report.speed = speed_part(models)
        case "experts":
            report.experts = experts_report(models.student, models.groups)
        case "vocabulary":
            content = vocabulary_report(models.teacher, models.student, models.corpus)
            report.vocabulary = from_json(VocabularyChange, content) if content else None
        case "texts":
            report.texts = texts_part(models)
        case _:
            raise ValueError(f"no part {name!r}")
