"""The parts of report.json alongside the scores: one function for each name in `evaluation.parts` (docs/report.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.config.schema import EvaluationSection
from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError
from distilvec.core.log import progress
from distilvec.core.run_folder import RunFolder
from distilvec.core.spread import spread_items
from distilvec.data.corpus import Corpus
from distilvec.evaluation.agreement import TaskRankings, ranking_agreement
from distilvec.evaluation.compression import PRECISIONS, CompressionScore, compression_rows, default_dims
from distilvec.evaluation.diagnostics import Experts, Group, experts_report, task_groups, vocabulary_report
from distilvec.evaluation.evaluator import EmbeddingCache, Score, evaluate, requests
from distilvec.evaluation.margin import LEAST_POINTS, Margin, MarginPoint, margin_report
from distilvec.evaluation.projection import (
    SeparatePlanes,
    draw_sentences,
    project_sentences,
    project_token_planes,
    project_tokens,
    token_states,
)
from distilvec.evaluation.speed import Speed, Timing, measure_speed
from distilvec.evaluation.tasks import ClassificationTask, RetrievalTask, Task, embedded_texts, task_texts
from distilvec.evaluation.text_distances import TextDistances, farthest_texts, spread_rows, text_distances
from distilvec.models.load import load_model
from distilvec.models.placement import is_placed
from distilvec.models.static import is_static, text_tokenizer
from distilvec.pipeline.columns import Columns, make_columns
from distilvec.pipeline.judgement import embed_rows
from distilvec.pipeline.student import load_saved
from distilvec.report.json_values import from_json
from distilvec.report.values import Compression, Projections, Vocabulary
from distilvec.teachers.api_embedder import ApiEmbedder
from distilvec.teachers.embedder import Embedder
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.table_embedder import TableEmbedder

MAIN = ("teacher", "student", "asymmetric")
SETTING_SECONDS = 1.0  # for each model and setting of the speed table
SENTENCES, FEWEST, TOKEN_SENTENCES, PLANES = 150, 3, 3, 4  # texts in the pictures


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
    cache, None where it lacks one. `dims` are those that the student was trained to be cut to. `trust_remote_code` is
    the user's word on code of the student's model.
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
    dims: Sequence[int] = ()
    trust_remote_code: bool = False

    @property
    def device(self) -> str:
        """The device of the models."""
        return str(self.student.model.device)

    @property
    def columns(self) -> Columns:
        """Query and document embedder of every model that `evaluation.columns` names."""
        teacher = self.teacher or self.remote
        columns = make_columns(self.student, self.untrained, teacher, self.in_teacher_space, self.projected)
        known = self.scores or columns  # a table of vectors may lack the texts of every task
        return {name: pair for name, pair in columns.items() if name in self.section.columns and name in known}

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
        """The texts of the pictures: the tasks', and those of the run's own task."""
        return [*task_groups(self.scored_tasks), *self.labeled]

    @property
    def present(self) -> dict[str, ModelEmbedder]:
        """Teacher, student and untrained student, as far as the run has them."""
        models = {"teacher": self.teacher, "student": self.student, "untrained": self.untrained}
        return {name: model for name, model in models.items() if model is not None}


def agreement(models: Models) -> dict[str, TaskRankings]:
    """Compare the rankings of student and teacher, for every retrieval task."""
    columns = models.main_columns
    if "teacher" not in columns:
        return {}
    rankings = {}
    for task in models.scored_tasks:
        if isinstance(task, RetrievalTask):
            rankings[task.name] = ranking_agreement(task, columns, models.cache)
    return rankings


def compression(models: Models) -> Compression:
    """Score truncated embeddings and small number formats."""
    columns = models.main_columns
    tasks = models.quick_tasks
    texts = np.array([sum(len(part) for _, part in embedded_texts(task)) for task in tasks])
    texts_before = np.concatenate([[0], np.cumsum(np.repeat(texts, len(columns)))])
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


def margin(models: Models) -> Margin | None:
    """Fit scores against validation distance over the saved checkpoints; None for fewer than three.

    Checkpoints of each cycle's first epoch are left out, as in the paper (REDACT, footnote 5): at high learning rates
    scores vary much. Errors: DistilvecError if fewer than three are left.
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
            found = evaluate(tasks, embedder, memo=cache)
            values = {score.task: score.value for score in found}
            points.append(MarginPoint(saved.step, saved.distance, values))
            advance(number + 1, name)
    names = {task.name for task in tasks}
    teacher = {score.task: score.value for score in models.scores["teacher"] if score.task in names}
    return margin_report(points, teacher, left_out)


def speed(models: Models) -> Speed:
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


def projections(models: Models) -> Projections | None:
    """Project sentences of the tasks, and tokens of a few of them, onto two dimensions; None for too few texts."""
    tasks = models.scored_tasks
    teacher = models.teacher or models.remote
    if teacher is None or not tasks:
        return None
    share = max(1, SENTENCES // len(tasks))
    pairs = [(task.name, text) for task in tasks for text in spread_items(sorted(set(task_texts(task))), share)]
    pairs = [(name, text) for name, text in pairs if text.strip()]
    if isinstance(models.remote, TableEmbedder):
        pairs = [(name, text) for name, text in pairs if not models.remote.lacking([text])]
    if len(pairs) < FEWEST:
        return None
    texts = [text for _, text in pairs]
    present: dict[str, Embedder] = {"teacher": teacher, **models.present}
    vectors = {name: models.cache.vectors(model, texts, "document") for name, model in present.items()}
    sentences = project_sentences(vectors, [text[:80] for text in texts], [name for name, _ in pairs])
    if models.teacher is None or is_static(models.student.model):  # a static student has no states of tokens
        return Projections(sentences)
    chosen = spread_items([text for text in texts if 6 <= len(text.split()) <= 16] or texts, TOKEN_SENTENCES)
    states = [token_states(model.model, chosen) for model in (models.teacher, models.student)]
    return Projections(sentences, project_tokens(chosen, *states))


def experts(models: Models) -> Experts | None:
    """Describe the routing of a student with experts, and the experts' embeddings; None without experts."""
    teacher = models.teacher

    def vectors(group: Group, texts: Sequence[Text]) -> Any:
        assert teacher is not None
        if group.role is None:
            return teacher.signals(texts)["embedding"]
        return models.cache.vectors(teacher, [text for text in texts if isinstance(text, str)], group.role)

    return experts_report(models.student, models.groups, None if teacher is None else vectors)


def tokens(models: Models) -> list[SeparatePlanes]:
    """Project the tokens of a few sentences, each model's onto a plane of its own."""
    texts: list[str] = []
    for group in models.groups:
        for text in group.texts:
            texts += [text] if isinstance(text, str) else text
    if models.teacher is None or not texts:
        return []
    shown = {name: model.model for name, model in models.present.items() if not is_static(model.model)}
    if (folder := models.section.finetuned) is not None:
        finetuned = load_model(str(finetuned_model(folder)), "evaluation.finetuned")
        shown["finetuned"] = finetuned.to(models.device)
    return project_token_planes(draw_sentences(texts, PLANES), shown)


def finetuned_model(folder: Path) -> Path:
    """Return the model that `evaluation.finetuned` names: the student of a run, or the folder itself."""
    student = RunFolder(folder).student
    return student if student.is_dir() else folder


def vocabulary(models: Models) -> Vocabulary | None:
    """Compare the tokenizers of teacher and student on the corpus; None for one tokenizer."""
    content = vocabulary_report(models.teacher, models.student, models.corpus)
    return from_json(Vocabulary, content) if content else None


def texts(models: Models) -> TextDistances | None:
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
    return embed_rows(corpus, rows, models.student), np.array([len(text) for text in ids])


PARTS: dict[str, Callable[[Models], Any]] = {
    part.__name__: part
    for part in (agreement, compression, margin, speed, projections, experts, tokens, vocabulary, texts)
}
