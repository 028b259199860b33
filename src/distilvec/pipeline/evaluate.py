"""Evaluation of a job's student, part by part into report.json; an interrupted evaluation continues with what is
missing.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.config.recipe import fingerprint
from distilvec.config.score_columns import columns_with
from distilvec.core.device import pick_device, release_memory
from distilvec.core.errors import user_error
from distilvec.core.files import write_file
from distilvec.core.log import log
from distilvec.evaluation.columns import Samples, change_intervals, intervals, score_columns
from distilvec.evaluation.diagnostics import as_scores, labelled_groups, supervised_report
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.margin import in_first_epoch
from distilvec.evaluation.mistakes import find_mistakes
from distilvec.evaluation.stored import tasks_in_table
from distilvec.evaluation.suite import suite_fingerprint
from distilvec.evaluation.tasks import Task, TaskFailure
from distilvec.pipeline.caches import cached_vectors, open_cache
from distilvec.pipeline.job import Job
from distilvec.pipeline.judgement import RowVectors, judge_run
from distilvec.pipeline.objectives import projected_student, trains_projection
from distilvec.pipeline.parts import Models, SavedStudent, add_part
from distilvec.pipeline.start import read_start
from distilvec.pipeline.student import trained_student
from distilvec.pipeline.texts import test_split
from distilvec.report.scores import complete_averages
from distilvec.report.values import REPORT_FORMAT, Report, read_report
from distilvec.students.task_head import load_head
from distilvec.teachers.embedder import is_api, is_table
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.train.metrics import read_metrics

MEASURED = 6  # changes if the same models would get other scores
OVERLAP = "overlap"
LABELED_PARTS = ("experts", "vocabulary")  # of a run that has a labeled task and no suite
TEXT_PARTS = ("texts", "vocabulary")  # of a run on texts that has no suite


def evaluate(job: Job) -> Report:
    """Return the report: the judgement by overlap@10, scores, and the parts that the recipe names.

    Without a suite there are no scores but on a labeled task, where the part "supervised" has the metrics on its test
    split. Every part is written when it is there, so that a killed evaluation goes on with the next one. A part that
    fails is not measured: its cause may be gone at the next evaluation, such as a network that was down.
    """
    report = stored_report(job)
    embedded = None
    if OVERLAP not in report.measured:
        embedded = _add_judgement(job, report)
        report.write(job.files)
    missing = [name for name in _steps(job) if name not in report.measured]
    if missing:
        release_memory()  # of the training
        with _models(job, report, embedded) as models:
            for name in missing:
                _add(job, models, report, name)
                report.write(job.files)
                release_memory()
    return report


def stored_report(job: Job) -> Report:
    """Return the parts that an earlier evaluation of the same student wrote; a new report if there are none.

    Parts that failed then are not in it, and neither are their failures.
    """
    key = _fingerprint(job)
    try:
        report = read_report(job.files)
    except Exception as error:
        problem = user_error(error)
        if problem is None:
            raise
        log(f"{problem}\nmeasuring everything again")
        report = None
    if report is not None and report.fingerprint == key:
        # Failures of single tasks stay: they have a column, and belong to scores that are measured
        failed = [failure.task for failure in report.failures if failure.column is None]
        report.failures = [failure for failure in report.failures if failure.column is not None]
        # Earlier versions have written failed parts as measured
        report.measured = [name for name in report.measured if name not in failed]
        return report
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Report(name=job.recipe.name, fingerprint=key, created=created)


def _fingerprint(job: Job) -> str:
    """Return what the scores depend on: the student, the suite, and settings of the evaluation."""
    section = job.recipe.evaluation
    if job.tasks:
        chosen = {"columns", "every_classification", "speed_seconds", "speed_batches"}
        settings = section.model_dump(mode="json", include=chosen)
        if not trains_projection(job):
            settings["columns"] = [name for name in settings["columns"] if name not in columns_with("projected")]
        key = fingerprint(job.fingerprint, suite_fingerprint(list(job.tasks)), MEASURED, settings)
    else:
        key = fingerprint(job.fingerprint, MEASURED, "supervised")
    key = fingerprint(key, job.teacher.info.similarity)
    return key


def _steps(job: Job) -> list[str]:
    """List the parts of the report, in the order they are computed: scores first, speed last."""
    parts = sorted(job.recipe.evaluation.parts, key=lambda name: name == "speed")
    if not job.tasks and job.examples is None:
        same = job.context.same_tokenizer
        return [name for name in parts if name in TEXT_PARTS and not (name == "vocabulary" and same)]
    if not job.tasks:
        return ["supervised", *(name for name in parts if name in LABELED_PARTS)]
    if job.examples is None:
        return ["scores", *parts]
    return ["scores", "supervised", *parts]


@contextmanager
def _models(job: Job, report: Report, embedded: RowVectors | None) -> Iterator[Models]:
    """Load the run's models onto the device of its training; the teacher's memory is freed at the end."""
    section, prompts = job.recipe.evaluation, job.student_prompts
    labeled = labelled_groups(job.examples, test_split(job.recipe, job.examples)) if job.examples is not None else []
    device = pick_device(job.recipe.train.device)
    student = trained_student(job)
    projected = projected_student(job, student) if columns_with("projected") & {*section.columns} else None
    if projected is not None:
        projected.to(device)
    student.to(device)  # last: the projected one shares its modules, and is built on the CPU
    # The distances of texts alone need no teacher whose vectors of them are in its cache
    reads_teacher = _steps(job) != ["texts"] or cached_vectors(job, job.corpus.holdout_rows) is None
    with job.teacher.load(job.recipe.train.device) if reads_teacher else nullcontext() as teacher:
        if is_api(teacher):
            teacher.store_in(open_cache(job, job.teacher), job.teacher.corpus)
        if isinstance(teacher, ModelEmbedder):
            teacher.keep_in(job.store.root, job.teacher.embeddings)
        tasks: Sequence[Task] = job.tasks
        if is_table(teacher):
            tasks = tasks_in_table(tasks, teacher)
        untrained = None
        if job.tasks and columns_with("untrained") & {*section.columns}:
            beginning = read_start(job).student(job).to(device)
            untrained = ModelEmbedder(beginning, "untrained", section.batch_tokens, prompts)
        yield Models(
            section,
            tasks,
            job.corpus,
            ModelEmbedder(student, "student", section.batch_tokens, prompts),
            untrained,
            teacher if isinstance(teacher, ModelEmbedder) else None,
            None if projected is None else ModelEmbedder(projected, "projected", section.batch_tokens, prompts),
            saved_students(job),
            job.in_teacher_space,
            labeled,
            dict(report.scores),
            remote=teacher if is_table(teacher) or is_api(teacher) else None,
            cached=partial(cached_vectors, job),
            embedded=embedded,
            dims=job.recipe.student.dims or (),
            trust_remote_code=job.recipe.student.trust_remote_code,
        )


def saved_students(job: Job) -> list[SavedStudent]:
    """List the saved checkpoints with their validation distance; none if the method has no such distance."""
    lines = {line["step"]: line for line in read_metrics(job.files.metrics) if "eval/distance" in line}
    if not lines:
        return []
    train = job.stages[-1].recipe.train
    passes = math.ceil(lines[max(lines)]["epoch"])  # those that were made: steps or minutes may have ended them
    cycles = train.rate_cycles(max(1, passes))
    saved = []
    for step, folder in job.files.saved_students.items():
        if step in lines:
            is_first = in_first_epoch(lines[step]["epoch"], cycles)
            saved.append(SavedStudent(step, lines[step]["eval/distance"], folder, is_first))
    return saved


def _add_judgement(job: Job, report: Report) -> RowVectors | None:
    """Add the judgement by overlap@10, if there is one; one that fails is listed in the failures alone.

    Returns the student's vectors that it took.
    """
    try:
        judged = judge_run(job)
    except Exception as error:
        problem = user_error(error)
        if problem is None:
            raise
        report.failures.append(TaskFailure(OVERLAP, str(problem)))
        return None
    report.measured.append(OVERLAP)
    if judged is None:
        return None
    report.overlap = judged.judgement
    return judged.embedded


def _add(job: Job, models: Models, report: Report, name: str) -> None:
    """Measure one part; one that fails stays empty and is listed in the failures alone.

    Whatever fails: the student is trained, and a picture of it that cannot be made costs neither it nor its scores.
    """
    if name == "scores":
        problems: list[TaskFailure] = []
        scores, samples = score_columns(models.tasks, models.columns, models.cache, problems)
        _add_scores(job, models, report, scores, samples, problems)
    elif name == "supervised":
        _add_supervised(job, models, report)
    else:
        try:
            add_part(report, name, models)
        except Exception as error:
            problem = user_error(error)
            text = f"{type(error).__name__}: {error}" if problem is None else str(problem)
            report.failures.append(TaskFailure(name, text))
            return
    report.measured.append(name)


def _add_scores(
    job: Job, models: Models, report: Report, scores: dict[str, list[Score]], samples: Samples,
    problems: list[TaskFailure],
) -> None:  # fmt: skip
    """Add scores, averages, intervals of differences from the teacher and of changes; write samples.npz."""
    write_samples(job.files.samples, samples)
    report.scores = scores
    report.averages = {name: means for name, means in complete_averages(scores).items() if means}
    report.intervals = intervals(samples, problems)
    report.changes = change_intervals(samples)
    report.failures += problems
    models.scores.update(scores)


def _add_supervised(job: Job, models: Models, report: Report) -> None:
    """Add the metrics of the student, and of a teacher with a head, on the test split; the mistakes of a classifier.

    Mistakes hold test texts: they are in the run's report, not in the record and the card that go with a model.
    """
    assert job.examples is not None
    saved_head = load_head(job.files.student)
    assert saved_head is not None
    heads = {"student": (models.student.model, saved_head[0])}
    if models.teacher is not None and job.teacher.head is not None:
        heads = {"teacher": (models.teacher.model, job.teacher.head), **heads}
    test = test_split(job.recipe, job.examples)
    report.supervised, samples, logits = supervised_report(job.examples.name, heads, test)
    if job.examples.classes:
        report.mistakes = find_mistakes(logits, test, job.examples.classes)
    if not job.tasks:
        _add_scores(job, models, report, as_scores(report.supervised), samples, [])


def write_samples(path: Path, samples: Samples) -> None:
    """Write samples.npz, whole or not at all: arrays <model>/<task>/predicted and <model>/<task>/gold, the format."""
    arrays: dict[str, Any] = {}
    for model, by_task in samples.items():
        for task, sample in by_task.items():
            arrays[f"{model}/{task}/predicted"] = sample.predicted
            arrays[f"{model}/{task}/gold"] = sample.gold
    content = io.BytesIO()
    np.savez_compressed(content, format=np.array(REPORT_FORMAT), **arrays)
    write_file(path, content.getvalue())
