"""The plan of `classify --dry-run`: rows, teacher, student and time, measured in a few steps before any work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sentence_transformers import SentenceTransformer

from distilvec.config.schema import Recipe
from distilvec.core.duration import duration
from distilvec.core.errors import set_by
from distilvec.core.run_folder import RunFolder
from distilvec.data.labelled_rows import LabelledTexts
from distilvec.pipeline.job import Job
from distilvec.pipeline.overview import embedding_rate
from distilvec.pipeline.prepare import tokenize
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.student import untrained_student
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.verbs.classify.recipes import (
    default_layers,
    describe_labels,
    stated_cut,
    student_recipe,
    teacher_recipe,
    whole_cut,
)
from distilvec.verbs.classify.split import SplitRows, split_files, write_split
from distilvec.verbs.plan.plan import Lines, SampleTeacher, measure_stage
from distilvec.vocabulary.compare import parameter_counts

Options = tuple[int | None, int, bool, Mapping[str, Any]]  # epochs, seed, trust_remote_code, overrides


def plan_classifier(
    data: LabelledTexts,
    split: SplitRows,
    teacher: str,
    knows_labels: bool,
    cut: Mapping[str, Any],
    folder: Path,
    options: Options,
) -> Lines:
    """Return rows of (name, value). Models are loaded and timed on a few texts; nothing is trained.

    Args:
        knows_labels: the teacher has learned the labels already
        cut: keys of the section `student`: how small it is
        folder: the run folder, in which nothing is written
        options: those of `teacher_recipe` and `student_recipe`
    """
    with TemporaryDirectory() as scratch:
        files = RunFolder(Path(scratch))
        write_split(split_files(split, data.several), files)
        labels = describe_labels(data, split, files.labels)
        learning = teacher_recipe(teacher, labels, *options)
        stated_size = stated_cut(cut, options[3])
        if "size" in stated_size:
            check_size(learning, stated_size, files.path)
        teacher_job = resolve(learning, files.path)
        cut = whole_cut(cut, options[3], default_layers(teacher_job.student.layers))
        distilling = student_recipe(Path(teacher), Path(teacher).name, cut, labels, *options)
        # On the labels alone: a step takes as long, and a teacher that has not learned them has no answers yet
        distilling = distilling.model_copy(update={"teacher": learning.teacher, "method": learning.method})
        student_job = resolve(distilling, files.path)
        return _lines(data, split, teacher_job, student_job, knows_labels, folder)


def check_size(recipe: Recipe, cut: Mapping[str, Any], folder: Path) -> None:
    """Raise DistilvecError for a size that the model cannot be cut to, before the teacher learns anything."""
    student = recipe.student.model_copy(update=cut)
    with set_by({"student.size": "size"}):
        resolve(recipe.model_copy(update={"student": student}), folder)


def _lines(
    data: LabelledTexts, split: SplitRows, teacher_job: Job, student_job: Job, knows_labels: bool, folder: Path
) -> Lines:
    teacher_model = untrained_student(teacher_job, fitted=False)
    student_model = untrained_student(student_job, fitted=False)
    teacher_seconds = _seconds_a_text(teacher_job, teacher_model)
    student_seconds = _seconds_a_text(student_job, student_model)

    lines = [["labels", f"{len(split.classes):,} ({data.columns.label}), at least {split.fewest:,} rows each"]]
    lines.append(["training rows", f"{len(split.train):,}, and {len(split.validation):,} for validation"])
    lines.append(["test rows", f"{len(split.test):,}"])
    lines += [["  note", note] for note in split.notes]

    tests_of_teacher = 1  # beside the student
    lines.append(["teacher", f"{teacher_job.teacher.info.name}, {_size(teacher_job, teacher_model)}"])
    if knows_labels:
        lines.append(["  training", "none: it has learned these labels"])
    else:
        tests_of_teacher = 2  # after its own training as well
        lines.append(["  training", _training(teacher_job, teacher_model)])
    texts = len(student_job.corpus)
    lines.append(["  its answers", f"{texts:,} texts: about {duration(texts * teacher_seconds)}"])

    lines.append(["student", _size(student_job, student_model)])
    lines += [["  note", note] for note in student_job.student.notes]
    lines.append(["  training", _training(student_job, student_model)])
    test_seconds = len(split.test) * (tests_of_teacher * teacher_seconds + student_seconds)
    lines.append(["test of both", f"about {duration(test_seconds)}"])
    lines.append(["run folder", str(folder)])
    return lines


def _size(job: Job, model: SentenceTransformer) -> str:
    layers = "layer" if job.student.layers == 1 else "layers"
    return f"{parameter_counts(model)['total'] / 1e6:.1f} M parameters, {job.student.layers} {layers}"


def _training(job: Job, student: SentenceTransformer) -> str:
    tokens = tokenize(job, job.corpus, student)
    teachers = [SampleTeacher(job, job.teacher, None)]
    costs = [measure_stage(job, stage, student, tokens, None, teachers) for stage in job.stages]
    return "; ".join(cost.line for cost in costs)


def _seconds_a_text(job: Job, model: SentenceTransformer) -> float:
    """Measure how long a model takes for one of the corpus's texts."""
    embedder = ModelEmbedder(model, "model", job.recipe.evaluation.batch_tokens, job.teacher.info.prompts)
    rate, lengths = embedding_rate(embedder, job.corpus.prompted(range(len(job.corpus))))
    return rate.mean(lengths)
