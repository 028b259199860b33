"""Query tower and document tower: a run's student and its teacher in one model that routes texts by their role."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError
from distilvec.formats.router import save_router
from distilvec.formats.sentence_transformers import first_dims
from distilvec.models.unreadable import stated_width
from distilvec.pipeline.job import Job
from distilvec.pipeline.projected import check_form_folder, finished_job, projected_student
from distilvec.pipeline.student import load_saved
from distilvec.report.model_card import model_card
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import load_teacher


def export_router(student: Path, out: Path | None) -> Path:
    """Write a finished run's student for queries and its first teacher for documents, by default as RUN/router.

    A student with a space of its own encodes queries behind its trained projection.
    Errors: DistilvecError for a folder that is no run's student, a teacher that is a table of vectors, is behind an API
    or has changed since the run, and a student whose vectors cannot be compared with the teacher's.
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
    with load_teacher(section.model_copy(update={"dtype": "float32"}), "cpu") as teacher:
        if teacher.manifest().weights != job.teacher.manifest.weights:
            raise DistilvecError(
                f"{section.model} is another model than the one that {job.folder} was trained with.",
                "Restore the teacher, or run the recipe again with --restart.",
                key="--to",
            )
        save_router(query, document_tower(teacher), out, routed.to_json(), model_card(routed), "--out")
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
        modules.insert(before_normalize, first_dims(full, teacher.dim))
    return SentenceTransformer(modules=modules, prompts=dict(teacher.prompts), device="cpu")
