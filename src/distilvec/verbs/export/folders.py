"""Forms of a run's student that are model folders: behind its projection, and beside its teacher in one model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError, about
from distilvec.core.escape import visible
from distilvec.core.run_folder import RunFolder
from distilvec.formats.replace import read_record
from distilvec.formats.sentence_transformers import save_router, save_student
from distilvec.models.checks import stated_width
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.job import Job
from distilvec.pipeline.objectives import projected_student
from distilvec.pipeline.resolve import reopen
from distilvec.pipeline.student import fitting_texts, load_saved
from distilvec.report.model_card import model_card
from distilvec.report.record import RunRecord, student_record
from distilvec.students.after_pooling import first_dims_layer
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import load_teacher


def finished_job(student: Path, to: str) -> tuple[Job, RunRecord]:
    """Return job and record of the run whose student is in this folder, for the form `to`."""
    folder = student.resolve()
    files = RunFolder(folder.parent)
    if folder != files.student or not files.record.exists() or not files.recipe.exists():
        raise DistilvecError(
            f"{student} is not the student of a finished run.", f"Give RUN/student for --to {to}.", key="model"
        )
    run = FinishedRun.open(files.path, key="model")
    return reopen(run.recipe, run.folder, run.record), run.record


def check_form_folder(out: Path, name: str | None) -> None:
    """DistilvecError for a folder with another model of distilvec's than an earlier export of this name."""
    record = read_record(out)
    if record is not None and record.get("name") != name:
        problem = f"{out} holds another model ({visible(str(record.get('name')))}), which would be lost."
        raise DistilvecError(problem, "Choose a new or empty folder.", key="--out")


def export_projected(student: Path, out: Path | None) -> Path:
    """Write a finished run's student behind its projection as a plain model, by default as RUN/projected."""
    job, record = finished_job(student, "projected")
    model = projected_student(job, load_saved(student))
    if model is None:
        raise DistilvecError(
            f"method '{job.stages[-1].recipe.method.name}' trains no projection of the student's vectors.",
            "Use the student itself.",
            key="--to",
        )
    base_model = None if record.student is None else record.student.base_model
    described = student_record(model, f"{record.name}-projected", base_model)
    projected = replace(
        record,
        name=described.name,
        student=described,
        teacher_compatible=record.teacher is not None and described.width == record.teacher.width,
        scores={},  # of the student without its projection, as the next two
        supervised=None,
        overlap=None,
    )
    out = out or job.files.projected
    check_form_folder(out, projected.name)
    with about("--out"):
        save_student(model, out, projected.to_json(), model_card(projected), texts=fitting_texts(job))
    return out


def export_router(student: Path, out: Path | None) -> Path:
    """Write a finished run's student for queries and its first teacher for documents, by default as RUN/router.

    A student with a space of its own encodes queries behind its trained projection.
    """
    job, record = finished_job(student, "router")
    section = job.teacher.section
    if section.vectors is not None:
        raise DistilvecError(
            f"the teacher of {job.folder} is a table of vectors ({job.teacher.info.name}), not a model that embeds "
            "documents.",
            "Use the student alone for queries to the index.",
            key="--to",
        )
    if section.local_model is None:
        raise DistilvecError(
            f"the teacher of {job.folder}, {job.teacher.info.name}, is behind an API: there is no model to embed "
            "documents with in one folder.",
            "Use the student alone for queries, and the API for documents.",
            key="--to",
        )
    compatible = bool(record.teacher_compatible)
    query = _query_tower(job, load_saved(student), compatible)
    out = out or job.files.router
    routed = replace(
        record,
        name=f"{record.name}-router",
        teacher_compatible=True,
        documents=job.teacher.info.name,
        overlap=record.overlap if compatible else None,  # judged was the student without its projection
    )
    check_form_folder(out, routed.name)
    with about("teacher"):
        opened_teacher = load_teacher(section.model_copy(update={"dtype": "float32"}), "cpu")
    with opened_teacher as teacher:
        if teacher.manifest().weights != job.teacher.manifest.weights:
            raise DistilvecError(
                f"{section.model} is another model than the one that {job.folder} was trained with.",
                "Restore the teacher, or run the recipe again with --restart.",
                key="--to",
            )
        with about("--out"):
            save_router(query, document_tower(teacher), out, routed.to_json(), model_card(routed))
    return out


def _query_tower(job: Job, student: SentenceTransformer, compatible: bool) -> SentenceTransformer:
    """Return the student, or the student behind its projection; DistilvecError without vectors in teacher space."""
    tower = student if compatible else projected_student(job, student)
    if tower is None or tower.get_embedding_dimension() != job.teacher.info.dim:
        raise DistilvecError(
            f"the student of {job.folder} has a vector space of its own: its queries cannot be compared with the "
            "teacher's documents.",
            "Use the student for both, or train it with a method in the teacher's space.",
            key="--to",
        )
    return tower


def document_tower(teacher: ModelEmbedder) -> SentenceTransformer:
    """Return the teacher's modules with its prompts; `truncate_dim` becomes a linear layer that cuts the vector."""
    modules = list(teacher.model)
    full = stated_width(teacher.model) or teacher.dim
    if teacher.dim < full:
        before_normalize = len(modules) - 1 if teacher.normalized else len(modules)
        modules.insert(before_normalize, first_dims_layer(full, teacher.dim))
    return SentenceTransformer(modules=modules, prompts=dict(teacher.prompts), device="cpu")
