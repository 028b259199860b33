"""Results of a run: distillation.json, the student's model card, the report's page."""

from __future__ import annotations

from typing import Any

from distilvec.config import recipe as recipes
from distilvec.core.files import write_json
from distilvec.core.outputs import OutputSpec
from distilvec.evaluation.evaluator import read_score
from distilvec.evaluation.tasks import TaskFailure
from distilvec.formats.replace import read_record
from distilvec.formats.sentence_transformers import replace_texts
from distilvec.pipeline.job import Job
from distilvec.pipeline.record import distillation_record
from distilvec.pipeline.resolve import make_objective
from distilvec.pipeline.run_result import RunResult
from distilvec.pipeline.start import fresh_layer, read_start
from distilvec.pipeline.student import student_similarity, trained_student
from distilvec.pipeline.train import Training
from distilvec.report.exports import read_exports
from distilvec.report.model_card import model_card
from distilvec.report.write import write_report


def publish(job: Job, training: Training, report: dict[str, Any]) -> RunResult:
    """Write record, model card and report page; the result of the run."""
    scores = {name: [read_score(score) for score in column] for name, column in report.get("scores", {}).items()}
    folder = job.folder / "student"
    student = trained_student(job)
    stages = list(zip(job.stages, training.stages, strict=True))
    unread = job.required == OutputSpec()
    teachers = [teacher.record(len(job.teachers) > 1, unread) for teacher in job.teachers]
    objective = make_objective(job.stages[-1], job.context)
    start = read_start(job)
    hub = (read_record(job.folder) or {}).get("hub") or {}
    record = distillation_record(
        stages, teachers, student, job.corpus, objective, training.distance, scores, start, hub
    )
    record["student"]["dense_choice"] = job.recipe.student.dense
    if (layer := fresh_layer(job, student)) is not None:
        fitted = f"student.{layer}" in start.ridge_distances
        record["training"]["linear_layer"] = "ridge" if fitted else "random"
    for name in ("supervised", "neighbors"):
        if report.get(name):
            record[name] = report[name]
    card = model_card(record, exports=read_exports(folder))
    replace_texts(folder, dict(record), card, student_similarity(job))
    write_json(job.folder / "distillation.json", record, sealed=True, key="distillation.json")
    page = write_report(job.folder, report, record, recipes.dump(job.recipe))
    problems = [TaskFailure(**problem) for problem in report["failures"]]
    verdict = report["verdict"]
    return RunResult(job.folder, training.state, training.distance, scores, record, problems, page, verdict)
