"""A student behind the projection into the teacher's space that was trained with the student, and not shipped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError
from distilvec.core.escape import visible
from distilvec.core.objective import Objective
from distilvec.core.registry import method_class
from distilvec.core.run_folder import RunFolder
from distilvec.formats.replace import read_record
from distilvec.formats.sentence_transformers import save_student
from distilvec.pipeline.job import Job
from distilvec.pipeline.opened_run import Run
from distilvec.pipeline.resolve import make_objective, reopen
from distilvec.pipeline.student import fitting_texts, load_saved
from distilvec.report.model_card import model_card
from distilvec.report.record import RunRecord, student_record
from distilvec.students.build import with_projection
from distilvec.train.checkpoint import load_objective


def trains_projection(job: Job) -> bool:
    """Return whether the method has a projection of the student's vectors into the teacher's space."""
    return method_class(job.stages[-1].recipe.method.name).space_projection is not Objective.space_projection


def projected_student(job: Job, student: SentenceTransformer) -> SentenceTransformer | None:
    """Return the student behind the projection that was trained with the student; None without one."""
    path = job.files.objective("student")
    if not trains_projection(job) or not path.exists():
        return None
    objective = make_objective(job.stages[-1], job.context)
    load_objective(path, objective)
    projection = objective.space_projection()
    return None if projection is None else with_projection(student, projection)


def finished_job(student: Path, to: str) -> tuple[Job, RunRecord]:
    """Return job and record of the run whose student is in this folder, for the form `to`.

    Errors: DistilvecError for a folder that is no run's student.
    """
    folder = student.resolve()
    files = RunFolder(folder.parent)
    if folder != files.student or not files.record.exists() or not files.recipe.exists():
        raise DistilvecError(
            f"{student} is not the student of a finished run.", f"Give RUN/student for --to {to}.", key="model"
        )
    run = Run.open(files.path, key="model")
    return reopen(run.recipe, run.folder, run.record), run.record


def check_form_folder(out: Path, name: str | None) -> None:
    """DistilvecError for a folder with another model of distilvec's than an earlier export of this name."""
    found = read_record(out)
    if found is not None and found.get("name") != name:
        problem = f"{out} holds another model ({visible(str(found.get('name')))}), which would be lost."
        raise DistilvecError(problem, "Choose a new or empty folder.", key="--out")


def export_projected(student: Path, out: Path | None) -> Path:
    """Write a finished run's student behind its projection as a plain model, by default as RUN/projected.

    Errors: DistilvecError for a folder that is no run's student, and for a method without a projection.
    """
    job, record = finished_job(student, "projected")
    model = projected_student(job, load_saved(student))
    if model is None:
        raise DistilvecError(
            f"method '{job.stages[-1].recipe.method.name}' trains no projection of the student's vectors.",
            "Use the student itself.",
            key="--to",
        )
    base_model = None if record.student is None else record.student.base_model
    about = student_record(model, f"{record.name}-projected", base_model)
    projected = replace(
        record,
        name=about.name,
        student=about,
        teacher_compatible=record.teacher is not None and about.width == record.teacher.width,
        scores={},  # of the student without its projection, as the next two
        supervised=None,
        overlap=None,
    )
    out = out or job.files.projected
    check_form_folder(out, projected.name)
    save_student(model, out, projected.to_json(), model_card(projected), key="--out", texts=fitting_texts(job))
    return out
