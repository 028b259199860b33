"""Results of a run: its record, the student's model card, the report's page."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from distilvec.config import recipe as recipes
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec
from distilvec.evaluation.speed import Speed
from distilvec.formats.sentence_transformers import finish_student
from distilvec.pipeline.job import Job
from distilvec.pipeline.opened_run import Run
from distilvec.pipeline.record import run_record
from distilvec.pipeline.resolve import make_objective
from distilvec.pipeline.start import fresh_layer, read_start
from distilvec.pipeline.student import fitting_texts, trained_student
from distilvec.pipeline.train import Training
from distilvec.report import write
from distilvec.report.exports import read_exports
from distilvec.report.model_card import model_card
from distilvec.report.record import SpeedRecord, read_run_record, write_record
from distilvec.report.sections.compression import averaged_tasks
from distilvec.report.values import Marks, Report


def publish(job: Job, training: Training, report: Report) -> Run:
    """Write record, model card and report page; return the run."""
    folder = job.files.student
    student = trained_student(job)
    stages = list(zip(job.stages, training.stages, strict=True))
    unread = job.required == OutputSpec()
    teachers = [teacher.record(len(job.teachers) > 1, unread) for teacher in job.teachers]
    objective = make_objective(job.stages[-1], job.context)
    start = read_start(job)
    hub: dict[str, Any] = {}
    with suppress(DistilvecError):  # a damaged record is written again
        before = read_run_record(job.files)
        hub = {} if before is None else before.hub
    record = run_record(stages, teachers, student, job.corpus, objective, training.shipped, report, start, hub)
    layer = fresh_layer(job, student)
    if layer is not None and record.training is not None:
        origin = "ridge" if f"student.{layer}" in start.ridge_distances else "random"
        record = replace(record, training=replace(record.training, linear_layer=origin))

    if record.cuts and report.compression is not None:
        record = replace(record, cut_tasks=averaged_tasks(report.compression.rows))
    record = replace(record, speed=_speed_record(report.speed))
    card = model_card(record, exports=read_exports(folder))
    finish_student(folder, student, record.to_json(), card, fitting_texts(job))
    write_record(job.files, record)
    marks = job.recipe.evaluation.marks
    report.marks = Marks(marks.good, marks.fair)
    write.write_report(job.files, report, record, recipes.dump(job.recipe))
    write.draw_report(job.files, report)
    return Run(job.folder, record, job.recipe.student.trust_remote_code)


def _speed_record(speed: Speed | None) -> SpeedRecord | None:
    """Return the student's time for one query, for its card; None where it was not measured."""
    if speed is None:
        return None
    one_query = {}
    for row in speed.rows:
        if (row.backend, row.role, row.batch_size) == ("pytorch", "query", 1):
            one_query[row.model] = row
    if "student" not in one_query:
        return None
    student = one_query["student"]
    times_faster = None
    if "teacher" in one_query and student.median_ms:
        times_faster = one_query["teacher"].median_ms / student.median_ms
    processor, threads = speed.machine.get("processor"), speed.machine.get("threads")
    return SpeedRecord(
        milliseconds=round(student.median_ms, 3),
        tokens=student.tokens,
        times_faster=times_faster,
        processor=None if processor is None else str(processor),
        threads=None if threads is None else int(threads),
    )
