"""The student of a job: built before its training, loaded after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerBase

from distilvec.config.student import StudentSection
from distilvec.core.errors import DistilvecError, about
from distilvec.core.model_name import ModelName
from distilvec.data.corpus import Corpus
from distilvec.formats.replace import damaged_files
from distilvec.models.checks import reading
from distilvec.models.load import load, load_tokenizer
from distilvec.pipeline.job import Job
from distilvec.students.build import build_student, source_model, with_dropout
from distilvec.students.encoder import Encoder
from distilvec.students.factorize import TEXTS
from distilvec.students.lora import add_adapters
from distilvec.train.stages import any_in_teacher_space


def untrained_student(job: Job, section: StudentSection | None = None, fitted: bool = True) -> SentenceTransformer:
    """Build the student of the recipe, or of another `section`, before its start (start.py); the same every time.

    `fitted`: to texts, which takes a while where layers are narrower; else it has the size and not all the weights.
    """
    described = None if section is not None else job.loaded.take_untrained()
    section = section or job.recipe.student
    if described is not None:
        # It was built before the dropout of the recipe was decided
        if isinstance(section.dropout, float | int) and not section.is_static:
            described[0].model = with_dropout(described[0].auto_model, section.dropout)
        return described
    tokenizer = None if job.vocabulary is None else job.vocabulary.tokenizer
    texts = fitting_texts(job) if fitted and section.reads_texts else ()
    seed, shared = job.recipe.train.seed, any_in_teacher_space(job.stages)
    return build_student(section, job.teacher.info, seed, shared, tokenizer, texts)


def trained_student(job: Job, device: str = "cpu") -> SentenceTransformer:
    """Return the student of a finished training; it states how its vectors are compared, as the recipe has it now."""
    student = job.loaded.student
    if student is None:
        trusted = job.recipe.student.trust_remote_code
        student = job.loaded.student = load_saved(job.files.student, device, trusted)
    student.similarity_fn_name = student_similarity(job)
    return student.to(device)


def load_saved(folder: Path, device: str = "cpu", trust_remote_code: bool = False) -> SentenceTransformer:
    """Load a model that a run has saved."""
    damaged = damaged_files(folder)
    if damaged:
        raise DistilvecError(
            f"{folder / damaged[0]} is missing or damaged: it is not as it was saved.",
            "Restore it from a copy, or train again with --restart, which moves the run aside.",
            key="student",
        )
    with about("student", folder), reading(ModelName(str(folder))):
        return load(folder, device, trust_remote_code=trust_remote_code)


def student_similarity(job: Job) -> str:
    """Return how the student's vectors are compared: as the teacher's, in a space of its own by the cosine."""
    return job.teacher.info.similarity if any_in_teacher_space(job.stages) else "cosine"


def student_tokenizer(job: Job) -> PreTrainedTokenizerBase | None:
    """Return the student's tokenizer without its model, to align its tokens; None if the method aligns none."""
    if job.required.tokens is None or job.required.tokens.alignment is None:
        return None
    if job.vocabulary is not None:
        tokenizer: PreTrainedTokenizerBase = job.vocabulary.tokenizer
        return tokenizer
    section = job.recipe.student
    source = source_model(section, job.teacher.info)
    assert source is not None, "resolve has described a student of this model"
    with about("student.model" if section.config is None else "student.tokenizer", source.name):
        tokenizer = load_tokenizer(source)
    tokenizer.truncation_side = "right"  # as a student cuts texts (students/build.py)
    return tokenizer


def fitting_texts(job: Job) -> list[str]:
    """Return training texts drawn by the seed, with their prompts, which the untrained student is fitted to."""
    return draw_fitting_texts(job.corpus, job.recipe.train.seed)


def draw_fitting_texts(corpus: Corpus, seed: int) -> list[str]:
    """Return training texts of a corpus drawn by a seed, with their prompts; of pairs both texts."""
    rows = corpus.train_rows
    chosen = np.random.default_rng(seed).choice(rows, min(TEXTS, len(rows)), replace=False)
    texts: list[str] = []
    for row in corpus.prompted(np.sort(chosen)):
        if isinstance(row, str):
            texts.append(row)
        else:
            texts.extend(row)
    return texts


def trainable(job: Job, model: SentenceTransformer) -> Encoder:
    """Wrap a student for training; with adapters if the recipe has them."""
    if job.recipe.student.lora is not None:
        add_adapters(model, job.recipe.student.lora, job.recipe.train.seed)
    return Encoder(model)
