"""From a job to training data: tokens, alignment, and teachers that answer from a cache or run in every step."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from distilvec.alignment.store import AlignmentStore, build_alignment
from distilvec.config import recipe as recipes
from distilvec.config.student import StudentSection
from distilvec.core.device import pick_device
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec
from distilvec.core.processes import main_first
from distilvec.core.registry import method_class
from distilvec.data.corpus import Corpus
from distilvec.data.tokens import TokenStore, build_tokens
from distilvec.models.load import load
from distilvec.models.tokenizers import tokenizer_hash
from distilvec.pipeline.caches import fill, open_cache, reads_tokens
from distilvec.pipeline.job import Job, Teacher
from distilvec.pipeline.resolve import log_live
from distilvec.pipeline.texts import progress_logger
from distilvec.students.build import build_student
from distilvec.students.encoder import Encoder
from distilvec.students.factorize import TEXTS
from distilvec.students.lora import add_adapters
from distilvec.teachers.cache.fill import count_missing
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cached import BatchTeacher, CachedTeacher, NoTeacher, SeveralTeachers
from distilvec.teachers.live import LiveTeacher
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.train.dataset import TrainingData
from distilvec.train.sharding import shard, sharding


@dataclass(frozen=True)
class ReadyTeacher:
    """A teacher that can give outputs: from its `cache`, or from `model` and its own `tokens` of every row.

    `encoder` wraps the model if it is sharded.
    """

    teacher: Teacher
    cache: TeacherCache | None = None
    model: ModelEmbedder | None = None
    tokens: TokenStore | None = None
    encoder: Encoder | None = None

    def signals_for(self, required: OutputSpec) -> BatchTeacher:
        """Return an object that gives these outputs for a batch."""
        if required == OutputSpec():
            return NoTeacher()
        if self.model is not None:
            assert self.tokens is not None
            return LiveTeacher(self.model, self.tokens, required, self.teacher.head, self.encoder)
        assert self.cache is not None
        return CachedTeacher(self.cache, self.teacher.corpus.keys, required, self.teacher.head)


@dataclass(frozen=True)
class Prepared:
    """The data of a job, ready for training."""

    job: Job
    tokens: TokenStore
    alignment: AlignmentStore | None
    teachers: tuple[ReadyTeacher, ...]

    def training_data(self, required: OutputSpec) -> TrainingData:
        """Return rows of the corpus, or examples of the task, with their tokens and these outputs of every teacher."""
        return training_data(
            self.job, self.tokens, self.alignment, [one.signals_for(required) for one in self.teachers], required
        )


def training_data(
    job: Job, tokens: TokenStore, alignment: AlignmentStore | None, teachers: list[BatchTeacher], required: OutputSpec
) -> TrainingData:
    """Combine tokens, alignment and teachers; several teachers become one.

    Examples without a label are left out if nothing is required of a teacher.
    """
    train, validation, unlabeled = job.corpus.train_rows, job.corpus.holdout_rows, None
    if job.examples is not None:
        train, validation = job.examples.labeled, job.examples.holdout
        if len(train) < len(job.examples.train) and required != OutputSpec():
            unlabeled = np.setdiff1d(job.examples.train, train)
    first, *others = teachers
    teacher = SeveralTeachers(first, others) if others else first
    return TrainingData(job.corpus, tokens, teacher, train, validation, alignment, job.examples, unlabeled)


def in_teacher_space(job: Job) -> bool:
    """Whether a stage trains the student in the teacher's space, for which it is built then."""
    return any(method_class(stage.recipe.method.name).in_teacher_space for stage in job.stages)


def untrained_student(job: Job, section: StudentSection | None = None) -> SentenceTransformer:
    """Build the student of the recipe, or of another `section`, before its start (start.py); the same every time."""
    section = section or job.recipe.student
    texts = fitting_texts(job) if section.reads_texts else ()
    seed, shared = job.recipe.train.seed, in_teacher_space(job)
    return build_student(section, job.teacher.info, seed, shared, job.vocabulary, texts)


def trained_student(job: Job, device: str = "cpu") -> SentenceTransformer:
    """Load the student of a finished training; it states how its vectors are compared, as the recipe has it now."""
    student = load(job.folder / "student", device=device)
    student.similarity_fn_name = job.teacher.info.similarity if in_teacher_space(job) else "cosine"
    return student


def fitting_texts(job: Job) -> list[str]:
    """Return training texts drawn by the seed, with their prompts, which the untrained student is fitted to."""
    rows = job.corpus.train_rows
    chosen = np.random.default_rng(job.recipe.train.seed).choice(rows, min(TEXTS, len(rows)), replace=False)
    found = job.corpus.prompted(np.sort(chosen))
    return [text for row in found for text in ([row] if isinstance(row, str) else row)]


def trainable(job: Job, model: SentenceTransformer) -> Encoder:
    """Wrap a student for training; with adapters if the recipe has them."""
    if job.recipe.student.lora is not None:
        add_adapters(model, job.recipe.student.lora, job.recipe.train.seed)
    return Encoder(model)


def prepare(job: Job, student: SentenceTransformer) -> Prepared:
    """Tokenize the corpus for the `student`, align tokens, fill the caches, load live teachers; what is stored is
    reused.
    """
    with main_first():
        log_live(job)
        tokens = tokenize(job, job.corpus, student)
        alignment: AlignmentStore | None = None
        ready = []
        for teacher in job.teachers:
            one, found = prepare_teacher(job, teacher, student)
            ready.append(one)
            alignment = alignment or found
    return Prepared(job, tokens, alignment, tuple(ready))


def cached_teachers(job: Job) -> list[Teacher]:
    """List the teachers that have a cache. DistilvecError if there is none."""
    log_live(job)
    found = [teacher for teacher in job.teachers if not teacher.live]
    if not found:
        names = ", ".join(teacher.info.name for teacher in job.teachers)
        raise DistilvecError(
            "teacher.live", f"{job.recipe.name} runs {names} in every step: there is nothing to cache."
        )
    return found


def fill_cache(job: Job, teacher: Teacher) -> TeacherCache:
    """Fill a teacher's cache with every row of the corpus; what is stored is kept."""
    cache = prepare_teacher(job, teacher, untrained_student(job))[0].cache
    return open_cache(job, teacher) if cache is None else cache


def prepare_teacher(
    job: Job, teacher: Teacher, student: SentenceTransformer
) -> tuple[ReadyTeacher, AlignmentStore | None]:
    """Make one teacher ready, with the alignment of its tokens if the method requires one.

    A cached teacher's model is loaded if rows are missing, or for its tokenizer, and freed at the end.
    """
    if job.required == OutputSpec():
        return ReadyTeacher(teacher), None
    cache = None if teacher.live else open_cache(job, teacher)
    kind = job.required.tokens.alignment if job.required.tokens else None
    if cache is not None and kind is None and not count_missing(cache, teacher.corpus):
        return ReadyTeacher(teacher, cache), None
    loaded = teacher.load(job.recipe.train.device, teacher.live and sharding(job.recipe.train))
    with nullcontext() if teacher.live else loaded:
        alignment, tokens = None, None
        if isinstance(loaded, ModelEmbedder) and kind is not None:
            alignment = align(job, student, loaded)
        if isinstance(loaded, ModelEmbedder) and (teacher.live or reads_tokens(teacher)):
            tokens = tokenize_for(job, teacher, loaded)
        if cache is None:
            assert isinstance(loaded, ModelEmbedder)
            return ReadyTeacher(teacher, None, loaded, tokens), alignment
        if count_missing(cache, teacher.corpus):
            fill(job, teacher, cache, loaded, tokens, alignment)
        return ReadyTeacher(teacher, cache), alignment


def check_shards(job: Job) -> None:
    """DistilvecError if a live teacher cannot be sharded, as the recipe requires."""
    for teacher in job.teachers if sharding(job.recipe.train) else ():
        for name in ("quantize", "device_map"):
            if teacher.live and getattr(teacher.section, name) is not None:
                raise DistilvecError(
                    f"{teacher.key}.{name}",
                    "a live teacher of this kind cannot be sharded.",
                    "Remove the key, or set train.shard=false.",
                )


def shard_teachers(data: Prepared) -> Prepared:
    """Shard the live teachers over the processes, if the recipe asks for it. All processes call this."""
    if not sharding(data.job.recipe.train):
        return data
    teachers = []
    for one in data.teachers:
        encoder = None if one.model is None else Encoder(one.model.model.requires_grad_(False))
        if encoder is not None:
            shard(encoder, torch.device(pick_device(data.job.recipe.train.device)))
        teachers.append(replace(one, encoder=encoder))
    return replace(data, teachers=tuple(teachers))


def tokenize(job: Job, corpus: Corpus, student: SentenceTransformer) -> TokenStore:
    """Tokenize the corpus for the student; stored by content."""
    tokenizer, length = student.tokenizer, student.max_seq_length
    name = recipes.fingerprint(corpus.fingerprint, length, tokenizer_hash(tokenizer))
    return build_tokens(
        corpus, tokenizer, length, job.store.folder("tokens", name), progress_logger(), _reads_types(student)
    )


def tokenize_for(job: Job, teacher: Teacher, model: ModelEmbedder) -> TokenStore:
    """Tokenize the corpus for a teacher; stored by content."""
    tokenizer, length = model.model.tokenizer, model.max_length
    side = getattr(tokenizer, "truncation_side", "right")
    parts = [teacher.corpus.fingerprint, length, tokenizer_hash(tokenizer), *([side] if side == "left" else [])]
    folder = job.store.folder("tokens", recipes.fingerprint(*parts))
    return build_tokens(teacher.corpus, tokenizer, length, folder, token_types=_reads_types(model.model), side=side)


def align(job: Job, student: SentenceTransformer, model: ModelEmbedder) -> AlignmentStore:
    """Align the student's tokens with the teacher's; stored by content."""
    assert job.required.tokens is not None and job.required.tokens.alignment is not None
    kind, (own, length) = job.required.tokens.alignment, (student.tokenizer, int(student.max_seq_length))
    other, most = model.model.tokenizer, model.max_length
    hashes = [tokenizer_hash(own), length, tokenizer_hash(other), most]
    folder = job.store.folder("alignments", recipes.fingerprint(job.corpus.fingerprint, kind, *hashes))
    return build_alignment(job.corpus, own, length, other, most, kind, folder)


def _reads_types(model: SentenceTransformer) -> bool:
    """Whether the backbone reads token types (BERT's segments)."""
    return "token_type_ids" in inspect.signature(model[0].auto_model.forward).parameters
